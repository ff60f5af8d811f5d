"""A byte-level BPE trained on the corpus (Sennrich et al., arXiv 1508.07909; bytes as in GPT-2).

It is trained on the first 128 million characters of the training side, always on the same text in
the same order, so one corpus gives one tokenizer. Of N tokens, 256 are bytes, N - 257 are merges
and the last is end-of-text; a corpus too small for so many merges gives fewer, never padding.
The whole tokenizer is its JSON in the format of the package `tokenizers`.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headscape.errors import InputError
from headscape.io.atomic import write_text
from headscape.text.corpus.corpus import Corpus
from headscape.text.tokenize.byte_level import encoded
from headscape.text.tokenize.byte_tokenizer import END_OF_TEXT

TRAINING_CHARACTERS = 128_000_000
SMALLEST = 257


class TrainedBPE:
    """A BPE by its JSON."""

    def __init__(self, text: str):
        self._json = text
        self._bpe = Tokenizer.from_str(text)
        self.end_of_text = self._bpe.get_vocab_size()
        self.vocabulary = self.end_of_text + 1
        self._dtype = np.dtype(np.uint16 if self.vocabulary <= 1 << 16 else np.uint32)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the JSON."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Tokens of the trained merges."""
        return encoded(self._bpe, text, self._dtype)

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Text between the end-of-texts, which are spelled out."""
        ids = np.asarray(ids)
        ends = np.flatnonzero(ids == self.end_of_text)
        parts = [part[part < self.end_of_text].tolist() for part in np.split(ids, ends)]
        return END_OF_TEXT.join(self._bpe.decode(part) for part in parts)

    def describe(self) -> dict[str, Any]:
        """Its kind and its JSON."""
        return {"kind": "bpe", "json": self._json}

    @classmethod
    def load(cls, described: dict[str, Any]) -> "TrainedBPE":
        """From its JSON."""
        return cls(described["json"])


def trained_on(corpus: Corpus, vocabulary: int, cache: Path | None = None) -> TrainedBPE:
    """Train on a corpus, or take what an earlier training left in `cache`."""
    if not SMALLEST <= vocabulary <= 1 << 20:
        raise InputError(f"bpe:{vocabulary} is out of range; N is from {SMALLEST} to {1 << 20}")
    if cache is None:
        return TrainedBPE(train(_training_side(corpus), vocabulary))
    name = f"{corpus.fingerprint()[:16]}-bpe-{vocabulary}.json"
    kept = cache / "tokenizers" / name
    text = _kept(kept)
    if text is None:
        text = train(_training_side(corpus), vocabulary)
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        write_text(kept, json.dumps({"sha256": sha256, "json": text}))
    return TrainedBPE(text)


def train(texts: Iterator[str], vocabulary: int) -> str:
    """Train a BPE of `vocabulary` tokens, end-of-text counted, and give its JSON."""
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


def _kept(path: Path) -> str | None:
    """The JSON of an earlier training, unless it is missing or damaged."""
    try:
        kept = json.loads(path.read_bytes())
        text = str(kept["json"])
        whole = hashlib.sha256(text.encode()).hexdigest() == kept["sha256"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return text if whole else None


def _training_side(corpus: Corpus) -> Iterator[str]:
    left = TRAINING_CHARACTERS
    for document in corpus:
        if document.split == "train":
            yield document.text[:left]
            left -= len(document.text)
            if left <= 0:
                return
