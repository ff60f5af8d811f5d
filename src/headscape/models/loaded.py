"""What `load` returns: a `Model` with `capture`, `generate` and `save`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.io.terminal import printable
from headscape.models.model import Model

if TYPE_CHECKING:
    from headscape.captures.capture import Capture
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
        text: str | Sequence[int] | np.ndarray | Tensor | None = None,
        *,
        length: int | None = None,
        seed: int = 0,
        document: int | None = None,
        layers: int | str | Sequence[int] = "last",
        heads: int | str | Sequence[int] = "all",
        quantities: Sequence[str] = ("content", "bias", "final", "weights"),
        resolution: int | None = None,
        window: tuple[slice, slice] | None = None,
    ) -> "Capture":
        """Run one sequence and keep what every chosen head does with it.

        The sequence is `text` (or token numbers); without one, `length` tokens of the validation
        text: at a random place given by `seed`, or the beginning of a `document`. A speech model
        takes an array as `text`; without one, `length` frames of noise from `seed`. Layers and
        heads count from 0 and -1 is the last. With `resolution`, maps are reduced to that many
        cells a side while they are computed; `window` (queries, keys) is then kept exactly besides.

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
        )

    def measures(
        self,
        text: str | Sequence[int] | np.ndarray | Tensor | None = None,
        **options: Any,
    ) -> "Measures":
        """Return numbers per layer and head with 95% intervals over sequences.

        The sequences are windows of `text`, or of the validation text. Options: corpus, sequences,
        length, drift (multiples of the trained length), effects (sequences on which each head is
        changed in turn).

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
        """New tokens, one at a time; `sampling`: temperature, top_k, top_p, seed, stop."""

    def write(self, prompt: str = "", *, length: int = 200, **sampling: Any) -> Iterator[str]:
        """Continue a prompt and give the new text in parts, until `length` tokens or the end.

        `sampling`: temperature (0 takes the likeliest token), top_k, top_p, seed.
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
            shown = ""
            for new in steps:
                if end is not None and int(new) == end:
                    break
                written.append(int(new))
                text = tokenizer.decode(np.array(written))
                # A character cut in the middle shows as U+FFFD until its last byte is there.
                if not text.endswith("\ufffd"):
                    yield text[len(shown) :]
                    shown = text

        return parts()

    def generate(self, prompt: str = "", *, length: int = 200, **sampling: Any) -> str:
        """The prompt and its continuation; the arguments are those of `write`.

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
        """Write weights, conventions and tokenizer to a folder that `load` opens."""
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
