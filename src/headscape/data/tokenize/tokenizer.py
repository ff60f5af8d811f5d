"""Text to token ids and back: three tokenizers with one protocol.

    bytes    256 bytes and end-of-text                     vocabulary 257
    bpe:N    byte-level BPE trained on the training split   vocabulary at most N
    gpt2     GPT-2's own byte-level BPE                     vocabulary 50,257

No text is encoded as the end-of-text token: a document that contains "<|endoftext|>" is encoded
character by character. The model pads the vocabulary, not the tokenizer. Ids are uint16 if the
vocabulary fits, else uint32.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Integer, UInt

from headscape.data.corpus.corpus import Corpus
from headscape.data.tokenize.bpe import GPT2Tokenizer, TrainedBPE, trained_on
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.data.tokenize.published_tokenizer import PublishedTokenizer
from headscape.errors import InputError


@runtime_checkable
class Tokenizer(Protocol):
    """What shards, training and the page need of a tokenizer."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens, including end-of-text."""
        ...

    @property
    def end_of_text(self) -> int | None:
        """The token that follows every document."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean that every text gives equal tokens."""
        ...

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Return the tokens of a text, without an end-of-text."""
        ...

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text of tokens; invalid UTF-8 becomes U+FFFD."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what `load_tokenizer` needs, as JSON values."""
        ...


LOADERS: dict[str, Callable[[dict[str, Any]], Tokenizer]] = {
    "bytes": ByteTokenizer.load,
    "bpe": TrainedBPE.load,
    "gpt2": GPT2Tokenizer.load,
    "published": PublishedTokenizer.load,
}


def open_tokenizer(spec: str, corpus: Corpus, cache: Path | None = None) -> Tokenizer:
    """Open `bytes`, `gpt2` or `bpe:N`, which is trained on `corpus` and stored in `cache`."""
    name, colon, number = spec.partition(":")
    if name == "bpe" and colon and number.isascii() and number.isdecimal() and len(number) < 10:
        return trained_on(corpus, int(number), cache)
    if spec == "bytes":
        return ByteTokenizer()
    if spec == "gpt2":
        return GPT2Tokenizer()
    raise InputError(f"unknown tokenizer {spec!r}: use bytes, gpt2 or bpe:N, such as bpe:1024.")


def load_tokenizer(described: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of a description that `Tokenizer.describe` returned."""
    kind = described.get("kind")
    if not isinstance(kind, str) or kind not in LOADERS:
        raise InputError(f"unknown kind of tokenizer {kind!r}: use {', '.join(LOADERS)}.")
    return LOADERS[kind](described)
