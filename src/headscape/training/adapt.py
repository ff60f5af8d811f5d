"""A trained model with a different position encoding, by self-distillation.

The new model has the old one's weights, and an encoding that starts near the old one's kernels
where it can (kernel_start.py), else as in a new model. It learns from the old one at its trained
length or below, in two parts:

    outputs   in every layer, from the old model's input of that layer, its attention's output:
              mean over layers of |new - old|^2 / |old|^2
    logits    the old model's distribution of the next token: KL(old, new)

`Pair` is what the two parts need of a model. All parameters learn. The gradient of the first part
is taken layer by layer, and that of a batch a few windows at a time, so memory is that of two
models, one gradient, AdamW's two means and the activations of one pass.

A checkpoint is one file of safetensors: the new model's parameters and AdamW's means, with the
number of steps and a hash of everything that the result depends on. A resumed adaptation ends with
the same bits on a CPU.
"""

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.data.tokens.batches import Batches
from headscape.encodings import Encoding
from headscape.encodings.registry import parse
from headscape.errors import InputError, at_least
from headscape.gpt2 import GPT2
from headscape.gpt2.model import Block
from headscape.io import files
from headscape.training.config import TrainConfig
from headscape.training.kernel_start import measured_kernel
from headscape.training.loop import Interrupt, NonFiniteError, fixed_order, is_bad
from headscape.training.optim import Optimizer, lr_at
from headscape.training.parallel import clip_gradients

SECONDS = 60.0
"""Time between checkpoints."""
LR = 2e-3
"""Largest learning rate of our own models by default."""
FIT_TOKENS = 2048
"""Most tokens that kernels are measured on."""
Progress = Callable[[int, str, float], None]
"""Called after a step with the number of steps done, the part and its loss."""


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a model learns a different encoding."""

    encoding: str
    """The new encoding, such as fox, cable, alibi, nope, rope+fox or rope:base=5e5."""
    steps: int = 50
    """Updates."""
    length: int | None = None
    """Tokens in a window; if left out, the trained length, for published models at most 512."""
    batch: int = 8
    """Windows per step."""
    lr: float | None = None
    """Largest learning rate; it falls linearly to 0 in each part. If left out, 0.002, for published
    models 0.0002."""
    outputs: float = 0.5
    """Share of the steps that learn attention outputs; the rest learn logits."""
    seed: int = 0
    """Random seed of the encoding's weights and of the windows."""
    fit: bool = True
    """Start tables, curves, gates and increments near what position does in each head."""

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, batch=self.batch)
        at_least(2, length=self.length)
        if not 0 <= self.outputs <= 1:
            raise InputError(f"the share of outputs must be between 0 and 1, got {self.outputs}.")
        if self.lr is not None and not 0 < self.lr < 1:
            raise InputError(f"the learning rate must be between 0 and 1, got {self.lr}.")

    def filled_in(
        self, longest: int | None, *, lr: float, length: int | None = None
    ) -> "Adaptation":
        """Return it with length and learning rate; a longer length than `longest` is refused.

        Args:
            longest: The trained length; None if it is unknown.
            lr: The learning rate if none was chosen.
            length: The length if none was chosen and the trained one is not shorter.
        """
        length = self.length or min(x for x in (longest, length or longest) if x is not None)
        if longest is not None and length > longest:
            raise InputError(
                f"windows of {length} tokens are longer than the trained length of {longest}, and "
                f"beyond it the old model is no example: choose at most {longest}."
            )
        return replace(self, length=length, lr=lr if self.lr is None else self.lr)

    def train_config(self, steps: int) -> TrainConfig:
        """Return the optimizer and the schedule of a part."""
        assert self.lr is not None
        return TrainConfig(
            steps=steps, warmup_steps=min(10, steps - 1), lr=self.lr, final_lr=0.0,
            schedule="linear", optimizer="adamw", weight_decay=0.0, beta2=0.999, seed=self.seed,
        )  # fmt: skip


class Pair(ABC):
    """An old model, which does not change, and the new one that learns from it."""

    def __init__(self, old: nn.Module, new: nn.Module, layers: int) -> None:
        self.old, self.new, self.layers = old, new, layers

    windows_per_pass: int = 1

    @abstractmethod
    def attend(self, tokens: Int[Tensor, "b t"], watch: Callable[[Tensor, Tensor], None]) -> None:
        """Call `watch` per layer with the new and the old attention output on the old input."""

    @abstractmethod
    def logits(self, model: nn.Module, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        """Return one of the two models' scores of the next token."""

    @abstractmethod
    def layer_calls(
        self,
        tokens: Int[Tensor, "b t"],
        watch: Callable[[Encoding, AttentionCall, Tensor], None],
    ) -> None:
        """Call `watch` per layer with the new encoding, the old call and what both read."""

    def fit(self, tokens: Int[Tensor, "b t"]) -> list[bool]:
        """Fit the new encodings to the old kernels; return which layers have something to fit."""
        fitted = []

        def watch(encoding: Encoding, call: AttentionCall, rows: Tensor) -> None:
            fitted.append(encoding.fit(measured_kernel(call, rows)))

        self.layer_calls(tokens, watch)
        return fitted

    def output_gradient(self, tokens: Int[Tensor, "b t"], share: float = 1.0) -> float:
        """Add `share` of the gradient of the attention outputs' loss; return `share` of it."""
        total = 0.0

        def watch(learned: Tensor, wanted: Tensor) -> None:
            nonlocal total
            loss = (learned - wanted).square().mean() / wanted.square().mean()
            loss = loss * (share / self.layers)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())

        self.attend(tokens, watch)
        return total

    def logit_gradient(self, tokens: Int[Tensor, "b t"], share: float = 1.0) -> float:
        """Add `share` of the gradient of the mean KL divergence in nats; return `share` of it."""
        with torch.no_grad():
            wanted = self.logits(self.old, tokens).log_softmax(dim=-1).flatten(0, 1)
        learned = self.logits(self.new, tokens).log_softmax(dim=-1).flatten(0, 1)
        loss = F.kl_div(learned, wanted, log_target=True, reduction="batchmean") * share
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())


class GPT2Pair(Pair):
    """Two of our own models."""

    old: GPT2
    new: GPT2
    windows_per_pass = 64

    def __init__(self, old: GPT2, new: GPT2) -> None:
        super().__init__(old, new, len(old.blocks))

    def attend(self, tokens: Int[Tensor, "b t"], watch: Callable[[Tensor, Tensor], None]) -> None:
        """Compute the new output from the old layer's input."""

        def layer(mine: Block, x: Tensor, call: AttentionCall, wanted: Tensor) -> None:
            normed, visible = mine.norm1(x), Visible(self.old.config.causal)
            watch(mine.attention(normed, call.positions, visible, None, "auto", None), wanted)

        self._layers(tokens, layer)

    def logits(self, model: nn.Module, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        """Run a model."""
        scores: Tensor = model(tokens)
        return scores

    @torch.no_grad()
    def layer_calls(
        self,
        tokens: Int[Tensor, "b t"],
        watch: Callable[[Encoding, AttentionCall, Tensor], None],
    ) -> None:
        """Run the old model; a bidirectional one has no kernel by distance."""

        def layer(mine: Block, x: Tensor, call: AttentionCall, _: Tensor) -> None:
            watch(mine.attention.encoding, call, mine.norm1(x))

        if self.old.config.causal:
            self._layers(tokens, layer)

    def _layers(
        self, tokens: Tensor, watch: Callable[[Block, Tensor, AttentionCall, Tensor], None]
    ) -> None:
        """Call `watch` with the new block, the old one's input, its call and attention output."""
        where = Positions.span(tokens.shape[1], on=tokens.device)
        visible = Visible(self.old.config.causal)
        with torch.no_grad():
            x = self.old.position.embed(self.old.tokens(tokens), where.q)
        for mine, theirs in zip(self.new.blocks, self.old.blocks, strict=True):
            assert isinstance(mine, Block)
            assert isinstance(theirs, Block)
            with torch.no_grad():
                call = theirs.attention.inputs(theirs.norm1(x), where, visible, watched=True)
                wanted = theirs.attention.output(call, "auto")
            watch(mine, x, call, wanted)
            with torch.no_grad():
                x = theirs.finish(x, wanted)


def adapt(
    old: GPT2,
    tokens: UInt[np.ndarray, " n"] | Int[np.ndarray, " n"],
    options: Adaptation,
    progress: Progress = lambda _, __, ___: None,
    checkpoint: Path | None = None,
) -> GPT2:
    """Return a model with a different encoding that learned from `old`, which does not change.

    Args:
        old: The trained model.
        tokens: Training text.
        options: The encoding and how it is learned.
        progress: Called after each step with the steps done, the part and its loss.
        checkpoint: File that keeps what was learned so far, once a minute; one that exists is
            continued. Remove it when the result is saved.
    """
    options = options.filled_in(old.config.train_length, lr=LR)
    pair = GPT2Pair(old, with_encoding(old, options.encoding, options.seed))
    learn(pair, tokens, options, progress, checkpoint)
    return pair.new


def with_encoding(old: GPT2, encoding: str, seed: int = 0) -> GPT2:
    """Return a copy of a model with a new encoding; every other weight is the old one's."""
    parse(encoding)
    config = replace(old.config, encoding=encoding, encoding_fields={})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        new = GPT2(config).to(old.tokens.weight)
    known = old.tensors()
    with torch.no_grad():
        for name, value in new.tensors().items():
            if name in known and known[name].shape == value.shape and ".encoding." not in name:
                value.copy_(known[name])
    return new.eval()


def learn(
    pair: Pair,
    tokens: UInt[np.ndarray, " n"] | Int[np.ndarray, " n"],
    options: Adaptation,
    progress: Progress,
    checkpoint: Path | None,
) -> None:
    """Let the new model of a pair learn from the old one, both in eval mode.

    A signal ends the step, and the checkpoint is written before KeyboardInterrupt is raised.
    """
    assert options.length is not None
    stream = np.asarray(tokens).astype(np.uint32)
    batches = Batches(stream, options.length, options.seed)
    device = next(pair.new.parameters()).device

    def windows(step: int) -> Int[Tensor, "b t"]:
        return torch.from_numpy(batches.windows(step, options.batch))[:, :-1].to(device)

    saved = None if checkpoint is None else Saved(checkpoint, _identity(pair, stream, options))
    done = 0 if saved is None else saved.steps()
    was_training = pair.old.training
    pair.old.eval()
    try:
        if saved is not None and done:
            saved.read(dict(pair.new.named_parameters()))
        elif options.fit:
            some = windows(0)[:, :FIT_TOKENS]
            pair.fit(some[: max(1, FIT_TOKENS // some.shape[1])])
        start, first = 0, round(options.steps * options.outputs)
        with Interrupt() as interrupt, fixed_order(device):
            for part, count in (("outputs", first), ("logits", options.steps - first)):
                gradient = pair.output_gradient if part == "outputs" else pair.logit_gradient
                config = options.train_config(max(count, 1))
                optimizer = Optimizer(pair.new, config)
                if saved is not None and start < done < start + count:
                    saved.read(optimizer.state())
                    optimizer.set_updates(done - start)
                while done < start + count:
                    passes = torch.split(windows(done), pair.windows_per_pass)
                    loss = _update(gradient, passes, optimizer, config, done - start)
                    done += 1
                    progress(done, part, loss)
                    if saved is not None and (saved.due() or interrupt.requested):
                        means = optimizer.state()
                        saved.write(dict(pair.new.named_parameters()) | means, done)
                    if interrupt.requested:
                        raise KeyboardInterrupt
                start += count
    finally:
        pair.old.train(was_training)
        pair.new.zero_grad(set_to_none=True)


def _update(
    gradient: Callable[[Tensor, float], float],
    passes: Sequence[Tensor],
    optimizer: Optimizer,
    config: TrainConfig,
    step: int,
) -> float:
    """Update the new model with a batch, in several passes, and return the loss before it."""
    optimizer.zero_grad()
    count = sum(map(len, passes))
    loss = sum(gradient(each, len(each) / count) for each in passes)
    norm = clip_gradients(optimizer.parameters, config.grad_clip)
    if is_bad(loss, norm):
        raise NonFiniteError(
            f"the adaptation stopped with a loss of {loss:g} and a gradient of norm {norm:g}: "
            f"lower the learning rate."
        )
    assert config.steps is not None
    optimizer.step(lr_at(config, step, step / config.steps))
    return loss


class Saved:
    """The checkpoint of an adaptation."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.written = time.monotonic()

    def steps(self) -> int:
        """Return the steps that were saved; refuse a checkpoint of something else."""
        if not self.path.exists():
            return 0
        try:
            with safe_open(self.path, "pt") as file:
                facts = file.metadata() or {}
            steps = int(facts["steps"])
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise InputError(f"{self.path} is not a checkpoint of an adaptation.") from error
        if facts.get("key") != self.key:
            raise InputError(
                f"{self.path} is the checkpoint of an adaptation with a different model, text or "
                f"settings: remove it, or choose a different folder."
            )
        return steps

    @torch.no_grad()
    def read(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill tensors by name."""
        with safe_open(self.path, "pt") as file:
            for name, value in tensors.items():
                value.copy_(file.get_tensor(name))

    def due(self) -> bool:
        """Return whether it is time for the next checkpoint."""
        return time.monotonic() - self.written >= SECONDS

    def write(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Replace the checkpoint."""
        whole = {name: value.detach().contiguous() for name, value in tensors.items()}
        with files.replacing(self.path) as part:
            save_file(whole, part, {"key": self.key, "steps": str(steps)})
        self.written = time.monotonic()


def _identity(pair: Pair, tokens: UInt[np.ndarray, " n"], options: Adaptation) -> str:
    """Return a hash of everything that the result depends on."""
    whole = hashlib.sha256(json.dumps(asdict(options)).encode())
    whole.update(np.ascontiguousarray(tokens).data)
    for name, value in pair.old.named_parameters():
        whole.update(name.encode())
        whole.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()
