"""A trained model with a different position encoding, by self-distillation.

The new model has the old one's weights, and an encoding as it is initialised. It learns from the
old one at its trained length, in two parts:

    outputs   in every layer, from the old model's input of that layer, its attention's output:
              mean over layers of |new - old|^2 / |old|^2
    logits    the old model's distribution of the next token: KL(old, new)

The encoding's own weights start as in a new model, except T5's tables, which are fitted to the old
model's kernels first (kernel_start.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt
from torch import Tensor

from headscape.call.positions import Positions, Visible
from headscape.data.tokens.batches import Batches
from headscape.encodings.registry import parse
from headscape.errors import InputError, at_least
from headscape.gpt2 import GPT2
from headscape.gpt2.model import Block
from headscape.training.kernel_start import fit_kernels


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a model learns a different encoding."""

    encoding: str
    """Its name, with fields if needed, or a schedule of layers."""
    steps: int
    outputs: float = 0.5
    """Share of the steps that learn attention outputs; the rest learn logits."""
    batch: int = 8
    """Windows per step."""
    lr: float = 2e-3
    """Largest learning rate; it falls linearly to 0 in each part."""
    seed: int = 0
    fit: bool = True
    """Whether T5's tables start from the old model's kernels."""

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, batch=self.batch)
        if not 0 <= self.outputs <= 1:
            raise InputError(f"the share of outputs must be between 0 and 1, got {self.outputs}.")
        if not 0 < self.lr < 1:
            raise InputError(f"the learning rate must be between 0 and 1, got {self.lr}.")


def adapt(
    old: GPT2,
    tokens: UInt[np.ndarray, " n"] | Int[np.ndarray, " n"],
    options: Adaptation,
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> GPT2:
    """Return a model with a different encoding that learned from `old`, which does not change.

    Args:
        old: The trained model.
        tokens: Training text.
        options: The encoding and how it is learned.
        progress: Called after each step with the part and its loss.
    """
    new = with_encoding(old, options.encoding, options.seed)
    batches = Batches(np.asarray(tokens).astype(np.uint32), old.config.train_length, options.seed)
    if options.fit:
        some = torch.from_numpy(batches.windows(0, options.batch).astype(np.int64))
        fit_kernels(old, new, some[:, :-1].to(old.tokens.weight.device))
    first = round(options.steps * options.outputs)
    was_training = old.training
    old.eval()
    new.train()
    try:
        done = 0
        for part, count, loss_of in (
            ("outputs", first, output_loss),
            ("logits", options.steps - first, logit_loss),
        ):
            optimizer = torch.optim.AdamW(new.parameters(), lr=options.lr, weight_decay=0.0)
            for step in range(count):
                windows = torch.from_numpy(batches.windows(done, options.batch).astype(np.int64))
                # A short warm-up keeps the first steps of a fresh optimizer small.
                warm = min(1.0, (step + 1) / min(10, count))
                optimizer.param_groups[0]["lr"] = options.lr * warm * (count - step) / count
                loss = loss_of(old, new, windows[:, :-1].to(old.tokens.weight.device))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(new.parameters(), 1.0)
                optimizer.step()
                done += 1
                progress(part, float(loss.detach()))
    finally:
        old.train(was_training)
    return new.eval()


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
    return new


def output_loss(old: GPT2, new: GPT2, tokens: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
    """Return the mean over layers of the attention outputs' relative squared difference."""
    where = Positions.span(tokens.shape[1], on=tokens.device)
    visible = Visible(old.config.causal)
    with torch.no_grad():
        x = old.position.embed(old.tokens(tokens), where.q)
    losses = []
    for mine, theirs in zip(new.blocks, old.blocks, strict=True):
        assert isinstance(mine, Block)
        assert isinstance(theirs, Block)
        with torch.no_grad():
            wanted = theirs.attention(theirs.norm1(x), where, visible, None, "auto", None)
        found = mine.attention(mine.norm1(x), where, visible, None, "auto", None)
        losses.append((found - wanted).square().mean() / wanted.square().mean())
        with torch.no_grad():
            x = theirs.finish(x, wanted)
    return torch.stack(losses).mean()


def logit_loss(old: GPT2, new: GPT2, tokens: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
    """Return the mean KL divergence of the new model's next token from the old one's, in nats."""
    with torch.no_grad():
        wanted = old(tokens).log_softmax(dim=-1).flatten(0, 1)
    found = new(tokens).log_softmax(dim=-1).flatten(0, 1)
    return F.kl_div(found, wanted, log_target=True, reduction="batchmean")
