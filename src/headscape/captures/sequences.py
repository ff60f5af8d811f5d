"""The tokens that a capture shows, and where they come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from headscape.errors import InputError, at_least
from headscape.models.loaded import LoadedModel
from headscape.models.model import Model, ReadsSound

Message = Mapping[str, Any]
"""A message of a chat: its role and its content."""
Text = str | Sequence[int] | np.ndarray | Tensor | Sequence[Message] | Mapping[str, Any]
"""A text, token numbers [n] or [1, n], the messages of a chat, or what a tokenizer returned."""


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
    return _random_window(dataset.validation, length, seed, dataset.corpus, dataset.share)


def _sound(model: ReadsSound, sound_source: object, length: int | None, seed: int) -> Tokens:
    sound, frames = model.sound(sound_source, length=length, seed=seed)
    source: dict[str, Any] = {"sound": sha256(sound.tobytes()).hexdigest()}
    source |= {"corpus": "noise", "seed": seed} if sound_source is None else {"corpus": "sound"}
    return Tokens(np.arange(frames, dtype=np.int64), source, sound)


def _random_window(
    stream: np.ndarray, length: int | None, seed: int, corpus: str, share: str
) -> Tokens:
    assert length is not None
    if len(stream) < length:
        raise InputError(
            f"the validation text{share} has {len(stream)} tokens, fewer than the {length} asked "
            f"for: choose a shorter length or a larger corpus."
        )
    offset = int(np.random.default_rng(seed).integers(len(stream) - length + 1))
    window = np.asarray(stream[offset : offset + length], dtype=np.int64)
    return Tokens(window, {"corpus": corpus, "offset": offset, "seed": seed})


def split_batch(batch: Sequence[Text] | np.ndarray | Tensor | Mapping[str, Any]) -> list[Text]:
    """The sequences of a batch, without padding; `captures` in record.py says what it may be."""
    if isinstance(batch, Mapping):
        return [*_without_padding(batch)]
    if isinstance(batch, str):
        raise InputError(f"a batch is several texts, got one text of {len(batch)} characters.")
    rows = [*batch]
    if not rows:
        raise InputError("a batch needs at least one sequence, got none.")
    if any(_is_message(row) or (np.ndim(row) == 0 and not isinstance(row, str)) for row in rows):
        raise InputError("a batch is several sequences, got one: put it into a list.")
    return rows


def _without_padding(encoded: Mapping[str, Any]) -> list[np.ndarray]:
    """The rows of what a tokenizer returned, without padding."""
    if "input_ids" not in encoded:
        raise InputError(
            f"tokens are expected as input_ids, got a mapping of {', '.join(map(str, encoded))}."
        )
    rows = _rows(encoded["input_ids"])
    masks = _rows(encoded["attention_mask"]) if "attention_mask" in encoded else None
    if masks is None:
        return rows
    if [len(row) for row in rows] != [len(mask) for mask in masks]:
        raise InputError("input_ids and attention_mask differ in shape.")
    return [row[mask.astype(bool)] for row, mask in zip(rows, masks, strict=True)]


def _rows(value: Any) -> list[np.ndarray]:
    """The rows of [b, n] or [n] numbers, which may differ in length."""
    try:
        if isinstance(value, torch.Tensor):
            value = value.cpu().numpy()
        one = len(value) > 0 and np.ndim(value[0]) == 0
        return [np.asarray(row) for row in ([value] if one else value)]
    except (TypeError, ValueError) as error:
        raise InputError("input_ids and attention_mask must be rows of whole numbers.") from error


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value


def _is_chat(text: Text) -> bool:
    return isinstance(text, list | tuple) and bool(text) and all(map(_is_message, text))


def chat_text(model: Model, messages: Sequence[Message]) -> str:
    """The text that the model's chat template makes of messages.

    If the last message is not the assistant's, the text ends where the assistant begins.
    """
    write = getattr(model.tokenizer, "chat", None)
    if write is None:
        raise InputError(
            f"{model.spec.name} has no chat template: give its text, or a tokenizer whose "
            f"chat_template is set."
        )
    try:
        return str(write(messages, add_generation_prompt=messages[-1]["role"] != "assistant"))
    except Exception as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"the chat template of {model.spec.name} refuses these messages: {said}."
        ) from error


def continued(model: Model, start: Tokens, most: int) -> Tokens:
    """A sequence and what the model writes after it: the likeliest tokens, to the end of text."""
    at_least(1, generate=most)
    if not isinstance(model, LoadedModel) or start.sound is not None:
        raise InputError(f"{model.spec.name} cannot continue a text.")
    whole = len(start.tokens) + most
    reason = model.for_length(whole).length_error(whole)
    if reason is not None:
        raise InputError(
            f"{len(start.tokens)} tokens and {most} generated ones are too long: {reason}"
        )
    end = None if model.tokenizer is None else model.tokenizer.end_of_text
    steps = model.continuation(start.batch(), length=most, temperature=0, stop=end)
    new = np.array([int(step) for step in steps], dtype=np.int64)
    source = {**start.source, "prompt_tokens": len(start.tokens), "generated_tokens": len(new)}
    return Tokens(np.concatenate([start.tokens, new]), source)


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
    if isinstance(text, Mapping):
        rows = _without_padding(text)
        text = rows[0] if len(rows) == 1 else np.empty((len(rows), 0), dtype=np.int64)
    elif _is_chat(text):
        text = chat_text(model, cast("Sequence[Message]", text))
    if isinstance(text, str):
        if model.tokenizer is None:
            raise InputError(
                f"{model.spec.name} has no tokenizer: give a tokenizer ('bytes', 'gpt2' or one "
                f"of transformers) or token numbers."
            )
        text = np.asarray(model.tokenizer.encode(text), dtype=np.int64)
    try:
        array = text.cpu().numpy() if isinstance(text, torch.Tensor) else np.asarray(text)
    except ValueError as error:
        raise InputError("tokens must be one sequence of whole numbers.") from error
    if array.ndim == 2 and len(array) == 1:
        array = array[0]
    several = array.ndim == 2 or (array.ndim == 1 and array.dtype.kind in "UO" and array.size)
    if several:
        raise InputError(
            f"capture reads one sequence, got {len(array)}: captures() reads several, as a list."
        )
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise InputError(
            f"tokens must be one sequence of whole numbers, got shape {array.shape} of "
            f"{array.dtype}."
        )
    tokens = array.astype(np.int64)
    size = model.spec.vocabulary
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < size:
        odd = int(tokens.min() if tokens.min() < 0 else tokens.max())
        raise InputError(
            f"token {odd} is not in the vocabulary of {size} tokens of {model.spec.name}: give a "
            f"tokenizer or token numbers of this model."
        )
    return tokens
