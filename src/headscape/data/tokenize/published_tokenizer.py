"""A published tokenizer by its JSON, in the format of the package `tokenizers`.

Documents are encoded whole: cutting a text in pieces changes the tokens of vocabularies that mark
the beginning of a text. Special tokens are never added around a text.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt
from tokenizers import Tokenizer

from headscape.errors import InputError


class PublishedTokenizer:
    """The tokenizer of a published model."""

    def __init__(
        self, text: str, end_of_text: int | None, chat: Callable[..., object] | None = None
    ):
        """`chat` writes messages as a text by the model's chat template, if it has one."""
        self.chat = chat
        self._json = text
        try:
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:
            raise InputError(f"not a tokenizer that `tokenizers` reads: {error}.") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.end_of_text = end_of_text
        self.vocabulary = int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the JSON and the end-of-text token."""
        return hashlib.sha256(f"{self.end_of_text} {self._json}".encode()).hexdigest()

    @property
    def first_token(self) -> int | None:
        """The special token that it puts before a text for its model; None if it puts none."""
        encoded = self._tokenizer.encode("a", add_special_tokens=True)
        return int(encoded.ids[0]) if encoded.special_tokens_mask[:1] == [1] else None

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Tokens of a text, nothing added around it."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.uint32)

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Text of tokens, special ones spelled out."""
        return str(self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False))

    def describe(self) -> dict[str, Any]:
        """Its kind, its JSON and its end-of-text token."""
        return {"kind": "published", "json": self._json, "end_of_text": self.end_of_text}

    @classmethod
    def load(cls, described: dict[str, Any]) -> "PublishedTokenizer":
        """The tokenizer that `describe` described."""
        return cls(described["json"], described.get("end_of_text"))


def read_published(folder: Path) -> PublishedTokenizer | None:
    """The tokenizer beside a published model; None where there is no tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    return PublishedTokenizer(text, _end_of_text(folder, text))


def _end_of_text(folder: Path, text: str) -> int | None:
    """The end-of-sequence token: by number in config.json, by name in tokenizer_config.json."""
    for name, key in (("tokenizer_config.json", "eos_token"), ("config.json", "eos_token_id")):
        if not (folder / name).is_file():
            continue
        value = json.loads((folder / name).read_text(encoding="utf-8")).get(key)
        value = value.get("content") if isinstance(value, dict) else value
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, str):
            value = Tokenizer.from_str(text).token_to_id(value)
        if isinstance(value, int):
            return value
    return None
