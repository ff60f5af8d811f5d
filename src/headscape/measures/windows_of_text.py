"""The sequences that heads are measured on: windows of a text, of a corpus or of the model's own.

Windows do not overlap and are spread evenly over the text.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from headscape.captures.sequences import Text, choose_tokens
from headscape.data.dataset import open_dataset
from headscape.errors import InputError
from headscape.models.model import Model, ReadsSound


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A long row of tokens and what it is called."""

    tokens: Int64[np.ndarray, " n"]
    name: str

    def windows(self, count: int, length: int) -> Int64[np.ndarray, "count length"]:
        """Return windows of `length` tokens."""
        room = len(self.tokens) // length
        if room < count:
            raise InputError(
                f"{self.name} has {len(self.tokens):,} tokens, fewer than {count} sequences of "
                f"{length:,} need: give a longer text, or fewer or shorter sequences."
            )
        starts = [number * room // count * length for number in range(count)]
        return np.stack([self.tokens[start : start + length] for start in starts])


def open_stream(model: Model, text: Text | None, corpus: str | None) -> Stream:
    """Return the tokens of a text or a corpus; without either, the model's validation text."""
    if isinstance(model, ReadsSound):
        raise InputError(
            f"{model.spec.name} reads sound, and heads are measured on tokens: capture it instead."
        )
    if text is not None:
        if corpus is not None:
            raise InputError(f"give a text or corpus {corpus}, not both.")
        return Stream(tokens=choose_tokens(model, text).tokens, name="the text")
    dataset = model.dataset
    if corpus is not None:
        if model.tokenizer is None:
            raise InputError(f"{model.spec.name} has no tokenizer, so it cannot read {corpus}.")
        dataset = open_dataset(corpus, model.tokenizer)
    if dataset is None:
        raise InputError(
            f"{model.spec.name} has no text of its own: give a text or a corpus, such as stdlib."
        )
    tokens = np.asarray(dataset.validation, dtype=np.int64)
    return Stream(tokens=tokens, name=f"the validation text of {dataset.corpus}")
