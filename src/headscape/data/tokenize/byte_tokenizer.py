"""UTF-8 bytes as tokens: token = byte, and 256 is end-of-text."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt

from headscape.errors import InputError

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class ByteTokenizer:
    """256 byte tokens and end-of-text."""

    vocabulary: int = 257
    end_of_text: int = 256

    @property
    def fingerprint(self) -> str:
        """The same for every byte tokenizer."""
        return hashlib.sha256(b"bytes 257").hexdigest()

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Return the UTF-8 bytes as uint16."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text, with end-of-text written as <|endoftext|>."""
        ids = np.asarray(ids)
        ends = np.flatnonzero(ids == self.end_of_text)
        parts = [part[part < self.end_of_text] for part in np.split(ids, ends)]
        texts = [part.astype(np.uint8).tobytes().decode(errors="replace") for part in parts]
        return END_OF_TEXT.join(texts)

    def describe(self) -> dict[str, Any]:
        """Return the kind of the tokenizer."""
        return {"kind": "bytes"}

    @classmethod
    def load(cls, described: dict[str, Any]) -> "ByteTokenizer":
        """Return the byte tokenizer; there is only one."""
        if described != {"kind": "bytes"}:
            raise InputError("a tokenizer of kind bytes has no fields: its description is damaged.")
        return cls()
