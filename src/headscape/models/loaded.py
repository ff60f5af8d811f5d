"""What `load` returns: a `Model` with `capture`, `generate` and `save`, and what its kinds share.

Losses: only scored positions reach the output matrix, `BLOCK` of them at a time, so memory grows
with block x vocabulary and not with length x vocabulary. Logits have the model's dtype; the
log-sum-exp over them and every sum after it are float64.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.io.terminal import printable
from headscape.models.model import Model

if TYPE_CHECKING:
    from headscape.captures.capture_file import Capture
    from headscape.captures.cross import CrossAttention
    from headscape.captures.sequences import Text
    from headscape.measures.measures import Measures


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module in eval mode and, on exit, every one of its modules back in its own mode."""
    training = [each for each in module.modules() if each.training]
    # The flag alone: a class may do more than set it in its own `train`.
    for each in training:
        each.training = False
    try:
        yield
    finally:
        for each in training:
            each.training = True


class LoadedModel(Model, ABC):
    """A model in memory.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> model.spec.name
        'ALiBi'
    """

    def for_length(self, length: int) -> Model:
        """The model that reads `length` tokens: itself, unless its RoPE is stretched to fit."""
        return self

    def capture(
        self,
        text: "Text | None" = None,
        *,
        length: int | None = None,
        seed: int = 0,
        document: int | None = None,
        layers: int | str | Sequence[int] = "last",
        heads: int | str | Sequence[int] = "all",
        quantities: Sequence[str] = ("content", "bias", "final", "weights"),
        resolution: int | None = None,
        window: tuple[slice, slice] | None = None,
        generate: int | None = None,
        positions: "Sequence[Any] | np.ndarray | Tensor | None" = None,
    ) -> "Capture":
        """Run one sequence and keep what every chosen head does with it.

        Args:
            text: A text, token numbers, what a tokenizer returned, or the messages of a chat, which
                the model's chat template writes out; for a speech model an array of sound. Without
                one, text of the validation split, or for a speech model noise.
            length: Tokens or frames, if `text` is not given or is longer.
            seed: Chooses the place in the validation text, or the noise.
            document: The number of a document of the validation text, read from its beginning.
            layers: Counted from 0 and -1 is the last; a number, several, "last" or "all".
            heads: The same for heads.
            quantities: Which maps are kept.
            resolution: Reduces maps to that many cells a side while they are computed.
            window: (queries, keys) that are then kept exactly besides.
            generate: Continue the text first by up to so many tokens, the likeliest each time;
                prompt and continuation are captured as one sequence.
            positions: Position ids for a transformers model where they do not count 0, 1, 2 ...:
                [t], or for M-RoPE three or four per token, [3, t]. The capture keeps them.

        Example:
            >>> import headscape as hs
            >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
            >>> cap = model.capture([5, 6, 7, 8])
            >>> cap.bias(layer=-1, head=0).shape
            (4, 4)
        """
        from headscape.captures.record import capture

        return capture(
            self,
            text,
            length=length,
            seed=seed,
            document=document,
            layers=layers,
            heads=heads,
            quantities=quantities,
            resolution=resolution,
            window=window,
            generate=generate,
            positions=positions,
        )

    def captures(
        self, batch: "Sequence[Text] | np.ndarray | Tensor | Mapping[str, Any]", **options: Any
    ) -> "list[Capture]":
        """Return the capture of every sequence of a batch; sequences of one length share a pass.

        Args:
            batch: Several texts, chats or token lists, token numbers [b, n], or what a tokenizer
                returned for several texts, whose padding is left out.
            **options: length, layers, heads, quantities, resolution, window and generate, as for
                `capture`.

        Example:
            >>> import headscape as hs
            >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
            >>> [cap.length for cap in model.captures([[5, 6, 7], [8, 9]])]
            [3, 2]
        """
        from headscape.captures.record import captures

        return captures(self, batch, **options)

    def cross_attention(
        self, source: "Text", target: "Text", *, layers: int | str | Sequence[int] = "all"
    ) -> "CrossAttention":
        """Return what every target token reads of the source, for an encoder-decoder model.

        Args:
            source: What the encoder reads: a text, tokens, or a spectrogram [1, features, frames].
            target: What the decoder reads: tokens, or a text, which the start token precedes.
            layers: Decoder layers, counted from 0 and -1 is the last.
        """
        from headscape.captures.cross import cross_attention

        return cross_attention(self, source, target, layers=layers)

    def measures(
        self,
        text: str | Sequence[int] | np.ndarray | Tensor | None = None,
        **options: Any,
    ) -> "Measures":
        """Return numbers per layer and head with 95% intervals over sequences.

        Args:
            text: What the sequences are windows of; the validation text by default.
            **options: corpus, sequences, length, drift (multiples of the trained length), effects
                (sequences on which each head is changed in turn).

        Example:
            >>> import headscape as hs
            >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
            >>> model.measures(list(range(200)), length=64, sequences=2)
            <measures of ALiBi: 2 layers x 12 heads>
        """
        from headscape.measures.measure_model import measure_model

        return measure_model(self, text, **options)

    @abstractmethod
    def continuation(
        self, tokens: Int[Tensor, "b t"], *, length: int, **sampling: Any
    ) -> Iterator[Int[Tensor, "b 1"]]:
        """Return new tokens, one at a time.

        Args:
            tokens: Token numbers [b t] to continue.
            length: Most new tokens.
            **sampling: temperature (0 takes the likeliest token), top_k, top_p, seed, stop.
        """

    def write(self, prompt: str = "", *, length: int = 200, **sampling: Any) -> Iterator[str]:
        """Continue a prompt and give the new text in parts.

        Args:
            prompt: The text to continue.
            length: Most new tokens; it ends earlier at the end-of-text token.
            **sampling: temperature (0 takes the likeliest token), top_k, top_p, seed.
        """
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise InputError(f"{self.spec.name} has no tokenizer, so it cannot read a prompt.")
        end = tokenizer.end_of_text
        start = np.asarray(tokenizer.encode(prompt), dtype=np.int64)
        if end is not None:
            start = np.concatenate([[end], start]).astype(np.int64)
        if not len(start):
            raise InputError(f"{self.spec.name} has no end-of-text token: give a prompt.")
        steps = self.continuation(
            torch.from_numpy(start)[None], length=length, stop=end, **sampling
        )

        def parts() -> Iterator[str]:
            written: list[int] = []
            text, shown = "", 0
            for new in steps:
                if end is not None and int(new) == end:
                    break
                written.append(int(new))
                text = tokenizer.decode(np.array(written))
                # A character cut in the middle shows as U+FFFD until its last byte is there.
                if not text.endswith("\ufffd"):
                    yield text[shown:]
                    shown = len(text)
            if shown < len(text):
                yield text[shown:]

        return parts()

    def generate(self, prompt: str = "", *, length: int = 200, **sampling: Any) -> str:
        """Return the prompt and its continuation.

        Args:
            prompt: The text to continue.
            length: Most new tokens; it ends earlier at the end-of-text token.
            **sampling: temperature (0 takes the likeliest token), top_k, top_p, seed.

        Example:
            >>> import headscape as hs
            >>> model = hs.load(
            ...     hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257), tokenizer="bytes"
            ... )
            >>> model.generate("def main(", length=0)
            'def main('
        """
        return prompt + "".join(self.write(prompt, length=length, **sampling))

    def save(self, folder: Path | str) -> Path:
        """Write weights, conventions and tokenizer to `folder`, which `load` opens; return it."""
        raise InputError(f"{self.spec.name} cannot be saved: only our own GPT2 models can.")

    def __repr__(self) -> str:
        spec = self.spec
        trained = "" if spec.trained else ", untrained"
        return (
            f"<{printable(spec.name)}: {len(spec.layers)} layers x {spec.heads} heads, "
            f"width {spec.width}, context {spec.train_length}{trained}>"
        )

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"


BLOCK = 128
"""Rows that go through the output matrix at once."""


def losses_in_blocks(
    rows: Float[Tensor, "b t n"], target: Int[Tensor, "b t"], logits: Callable[[Tensor], Tensor]
) -> Float[Tensor, "b t"]:
    """Nats of each target, `BLOCK` rows at a time through `logits`."""
    found = target.new_empty(target.numel(), dtype=torch.float64)
    # Nothing that outlives a block is allocated between blocks: a small tensor above the logits
    # keeps the allocator from reusing their memory, and then every block takes new memory.
    every = (torch.split(x, BLOCK) for x in (rows.flatten(0, 1), target.flatten(), found))
    for block, wanted, out in zip(*every, strict=True):
        out.copy_(cross_entropy(logits(block), wanted))
    return found.view(target.shape)


def cross_entropy(logits: Float[Tensor, "n v"], target: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Nats of each target, in float64."""
    exact = logits.double()
    return exact.logsumexp(dim=-1) - exact.gather(1, target[:, None])[:, 0]


def digest(config: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a config and of weights by name."""
    whole = hashlib.sha256(config.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        whole.update(value.flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()
