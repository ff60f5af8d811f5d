"""The tokens that a capture shows, and where they come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from headscape.errors import InputError, at_least
from headscape.models.model import Model, ReadsSound

Text = str | Sequence[int] | np.ndarray | Tensor


@dataclass(frozen=True)
class Tokens:
    """Token ids with their source; for sound, 0, 1, 2 ... for its frames."""

    tokens: Int64[np.ndarray, " t"]
    source: Mapping[str, Any]
    sound: Float32[np.ndarray, "n ..."] | None = None
    """What a speech model reads."""

    def batch(self) -> Tensor:
        """Return what the model reads, as a batch of one."""
        return torch.from_numpy(self.tokens if self.sound is None else self.sound)[None]


def choose_tokens(
    model: Model,
    text: Text | None = None,
    *,
    length: int | None = None,
    seed: int = 0,
    document: int | None = None,
    name: str = "text",
) -> Tokens:
    """The tokens of a text, or a part of the model's validation text.

    Without a text: the beginning of validation document `document`, or `length` tokens at a random
    place given by `seed`. `length` defaults to the whole text, or to the trained context length.
    A speech model takes an array as `text`; without one, `length` frames of noise from `seed`.
    """
    at_least(1, length=length)
    at_least(0, seed=seed)
    if isinstance(model, ReadsSound):
        if isinstance(text, str) or document is not None:
            raise InputError(
                f"{model.spec.name} reads sound: leave the text out to capture noise, or give "
                f"capture() an array in Python."
            )
        return _sound(model, text, length, seed)
    if text is not None:
        if document is not None:
            raise InputError(f"give a text or document {document}, not both.")
        return _cut(_encode(model, text), length, name, {"corpus": name, "offset": 0})
    dataset = model.dataset
    if dataset is None:
        raise InputError(
            f"{model.spec.name} has no validation text to choose from: give a text or tokens."
        )
    length = model.spec.train_length if length is None else length
    if document is not None:
        source = {"corpus": dataset.corpus, "document": document, "offset": 0}
        tokens = dataset.document(document)
        return _cut(np.asarray(tokens, dtype=np.int64), length, f"document {document}", source)
    return _random_window(dataset.validation, length, seed, dataset.corpus)


def _sound(model: ReadsSound, given: object, length: int | None, seed: int) -> Tokens:
    sound, frames = model.sound(given, length=length, seed=seed)
    source: dict[str, Any] = {"sound": sha256(sound.tobytes()).hexdigest()}
    source |= {"corpus": "noise", "seed": seed} if given is None else {"corpus": "sound"}
    return Tokens(np.arange(frames, dtype=np.int64), source, sound)


def _random_window(stream: np.ndarray, length: int | None, seed: int, corpus: str) -> Tokens:
    assert length is not None
    if len(stream) < length:
        raise InputError(
            f"the validation text has {len(stream)} tokens, fewer than the {length} asked for: "
            f"choose a shorter length or a larger corpus."
        )
    offset = int(np.random.default_rng(seed).integers(len(stream) - length + 1))
    window = np.asarray(stream[offset : offset + length], dtype=np.int64)
    return Tokens(window, {"corpus": corpus, "offset": offset, "seed": seed})


def _cut(
    tokens: Int64[np.ndarray, " n"], length: int | None, name: str, source: Mapping[str, Any]
) -> Tokens:
    if not len(tokens):
        raise InputError(f"{name} has no tokens: a sequence needs at least one.")
    if length is not None and len(tokens) < length:
        raise InputError(
            f"{name} has {len(tokens)} tokens, fewer than the {length} asked for: "
            f"choose a shorter length."
        )
    return Tokens(tokens[:length], source)


def _encode(model: Model, text: Text) -> Int64[np.ndarray, " n"]:
    if isinstance(text, str):
        if model.tokenizer is None:
            raise InputError(
                f"{model.spec.name} has no tokenizer: give a tokenizer ('bytes' or 'gpt2') or "
                f"token numbers."
            )
        text = np.asarray(model.tokenizer.encode(text), dtype=np.int64)
    try:
        found = text.cpu().numpy() if isinstance(text, torch.Tensor) else np.asarray(text)
    except ValueError as error:
        raise InputError("tokens must be one sequence of whole numbers.") from error
    if found.ndim != 1 or (found.size and not np.issubdtype(found.dtype, np.integer)):
        raise InputError(
            f"tokens must be one sequence of whole numbers, got shape {found.shape} of "
            f"{found.dtype}."
        )
    tokens = found.astype(np.int64)
    size = model.spec.vocabulary
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < size:
        odd = int(tokens.min() if tokens.min() < 0 else tokens.max())
        raise InputError(
            f"token {odd} is not in the vocabulary of {size} tokens of {model.spec.name}: give a "
            f"tokenizer or token numbers of this model."
        )
    return tokens
