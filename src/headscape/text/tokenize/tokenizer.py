"""Text to token numbers and back: three tokenizers behind one protocol.

    bytes    256 bytes and end-of-text                     vocabulary 257
    bpe:N    byte-level BPE trained on the training side    vocabulary at most N
    gpt2     GPT-2's own byte-level BPE                     vocabulary 50,257

None of them ever makes the end-of-text token out of text: a document that spells it is encoded
character by character. Padding the vocabulary is the model's business. Numbers are uint16 where the
vocabulary allows it, else uint32.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Integer, UInt

from headscape.errors import InputError
from headscape.text.corpus.corpus import Corpus
from headscape.text.tokenize.byte_tokenizer import ByteTokenizer
from headscape.text.tokenize.gpt2_bpe import GPT2Tokenizer
from headscape.text.tokenize.trained_bpe import TrainedBPE, trained_on


@runtime_checkable
class Tokenizer(Protocol):
    """What shards, training and the page ask of a tokenizer."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are, end-of-text among them."""
        ...

    @property
    def end_of_text(self) -> int:
        """The token that follows every document."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean that every text gives equal tokens."""
        ...

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Tokens of a text, without an end-of-text."""
        ...

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Text of tokens; bytes that are not UTF-8 become U+FFFD."""
        ...

    def describe(self) -> dict[str, Any]:
        """What `load_tokenizer` needs, as JSON-able values."""
        ...


LOADERS: dict[str, Callable[[dict[str, Any]], Tokenizer]] = {
    "bytes": ByteTokenizer.load,
    "bpe": TrainedBPE.load,
    "gpt2": GPT2Tokenizer.load,
}


def open_tokenizer(spec: str, corpus: Corpus, cache: Path | None = None) -> Tokenizer:
    """Open `bytes`, `gpt2` or `bpe:N`; the last is trained on `corpus`, and kept in `cache`."""
    name, colon, number = spec.partition(":")
    if name == "bpe" and colon and number.isdecimal():
        return trained_on(corpus, int(number), cache)
    if spec == "bytes":
        return ByteTokenizer()
    if spec == "gpt2":
        return GPT2Tokenizer()
    raise InputError(f"unknown tokenizer {spec!r}; there are bytes, gpt2 and bpe:N (bpe:1024)")


def load_tokenizer(described: dict[str, Any]) -> Tokenizer:
    """The tokenizer that `describe` described."""
    kind = described.get("kind")
    if kind not in LOADERS:
        raise InputError(f"unknown kind of tokenizer {kind!r}; there are {', '.join(LOADERS)}")
    return LOADERS[kind](described)
