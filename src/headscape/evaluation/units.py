"""How many bytes and words of text each token stands for.

A word is a run of bytes that are not ASCII white space, counted at its first byte; a document's
beginning starts one. End-of-text stands for 0 bytes and 0 words; its loss still counts, so losses
per byte and per word include predicting where documents end.

Tables of token bytes come from byte-level vocabularies, in which each character of a token's
spelling is one byte: 33-126, 161-172 and 174-255 stand for themselves, the other 68 bytes in
ascending order are the characters from 256 on.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int64, Integer

from headscape.data.tokenize.bpe import gpt2
from headscape.data.tokenize.tokenizer import Tokenizer

_SPACE = frozenset(b" \t\n\r\v\f")


@dataclass(frozen=True, kw_only=True, eq=False)
class Units:
    """What a vocabulary's tokens contribute, by token number."""

    size: Int64[np.ndarray, " vocabulary"]
    """Bytes."""
    inner: Int64[np.ndarray, " vocabulary"]
    """Words that begin after the first byte."""
    opens: Bool[np.ndarray, " vocabulary"]
    """Whether the first byte is part of a word."""
    closes: Bool[np.ndarray, " vocabulary"]
    """Whether a word that follows is a new one: the token ends in white space or is empty."""

    @classmethod
    def of(cls, spelled: list[bytes]) -> "Units":
        """From every token's bytes; b"" for tokens that are not text."""
        solid = [[byte not in _SPACE for byte in token] for token in spelled]
        inner = [sum(now and not old for old, now in pairwise(one)) for one in solid]
        return cls(
            size=np.array([len(token) for token in spelled], dtype=np.int64),
            inner=np.array(inner, dtype=np.int64),
            opens=np.array([bool(one) and one[0] for one in solid], dtype=np.bool_),
            closes=np.array([not one or not one[-1] for one in solid], dtype=np.bool_),
        )

    def counts(
        self, tokens: Integer[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Bytes and words of each token of a stream that begins a document."""
        new = np.concatenate([[True], self.closes[tokens[:-1]]])
        return self.size[tokens], self.inner[tokens] + (self.opens[tokens] & new)


def units(tokenizer: Tokenizer) -> Units | None:
    """Return the units of a tokenizer's tokens; None if its description does not give bytes."""
    described = tokenizer.describe()
    special = {number: b"" for number in (tokenizer.end_of_text,) if number is not None}
    if described["kind"] == "bytes":
        return Units.of([bytes([byte]) for byte in range(256)] + [b""])
    if described["kind"] == "gpt2":
        return byte_level(gpt2().get_vocab(), tokenizer.vocabulary, special)
    if '"ByteLevel"' not in described.get("json", ""):
        return None
    # The JSON of the package `tokenizers`: added tokens are spelled in characters, not in bytes.
    parsed = json.loads(described["json"])
    for token in parsed["added_tokens"]:
        special.setdefault(token["id"], b"" if token["special"] else token["content"].encode())
    vocabulary = parsed["model"]["vocab"]
    size = max(tokenizer.vocabulary, *(number + 1 for number in [*vocabulary.values(), *special]))
    return byte_level(vocabulary, size, special)


def byte_level(vocabulary: Mapping[str, int], size: int, special: Mapping[int, bytes]) -> Units:
    """Return the units of a byte-level vocabulary; `special` tokens are spelled as they are."""
    whole = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in whole}
    rest = sorted(set(range(256)) - set(whole))
    alphabet |= {chr(256 + number): byte for number, byte in enumerate(rest)}
    spelled = [b""] * size
    for text, number in vocabulary.items():
        if number not in special:
            spelled[number] = bytes(alphabet[character] for character in text)
    for number, content in special.items():
        spelled[number] = content
    return Units.of(spelled)
