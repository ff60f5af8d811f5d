"""UTF-8 bytes as tokens: token = byte, and 256 is end-of-text."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class ByteTokenizer:
    """256 bytes and end-of-text."""

    vocabulary: int = 257
    """Fixed."""
    end_of_text: int = 256
    """Fixed."""

    @property
    def fingerprint(self) -> str:
        """The same for every byte tokenizer."""
        return hashlib.sha256(b"bytes 257").hexdigest()

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Bytes, widened."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Text between the end-of-texts, which are spelled out."""
        ids = np.asarray(ids)
        ends = np.flatnonzero(ids == self.end_of_text)
        parts = [part[part < self.end_of_text] for part in np.split(ids, ends)]
        texts = [part.astype(np.uint8).tobytes().decode(errors="replace") for part in parts]
        return END_OF_TEXT.join(texts)

    def describe(self) -> dict[str, Any]:
        """Only its kind."""
        return {"kind": "bytes"}

    @classmethod
    def load(cls, described: dict[str, Any]) -> "ByteTokenizer":
        """There is only one."""
        assert described == {"kind": "bytes"}
        return cls()
