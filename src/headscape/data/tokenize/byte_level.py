"""Encoding with a byte-level BPE of the package `tokenizers`.

The text is encoded in short pieces, which is faster than one long string and gives the same tokens
(see pieces.py). Offsets are not computed.
"""

from typing import Any

import numpy as np
from jaxtyping import UInt
from tokenizers import Tokenizer

from headscape.data.tokens.pieces import pieces

PIECE_CHARACTERS = 10_000


def encoded(bpe: Tokenizer, text: str, dtype: np.dtype[Any]) -> UInt[np.ndarray, " tokens"]:
    """Return the tokens of a text."""
    parts = bpe.encode_batch_fast(list(pieces(text, PIECE_CHARACTERS)))
    return np.concatenate([np.array(part.ids, dtype) for part in parts])
