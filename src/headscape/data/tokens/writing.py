"""Writing the tokens of a corpus to disk, both splits in one pass.

This process reads the text, workers encode it, and this process writes the tokens in corpus order,
so the files do not depend on the number of workers. Every file is written under a temporary name. A
shard is complete once its header, the last file, exists.
"""

import hashlib
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headscape.data.corpus.corpus import Corpus
from headscape.data.corpus.document import SPLITS, Split
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.data.tokens.pieces import jobs
from headscape.data.tokens.workers import encode_all, token_dtype
from headscape.errors import InputError
from headscape.io.atomic import replacing
from headscape.io.progress import SlowBar

LEFTOVER_SECONDS = 3600


@dataclass(kw_only=True)
class Written:
    """Size and checksum of a file being written."""

    size: int = 0
    """Bytes written."""
    digest: Any = field(default_factory=hashlib.sha256)
    """SHA-256 of what was written."""


@dataclass(kw_only=True)
class Side:
    """Counts and files of one split."""

    tokens: int = 0
    """Number of tokens, including end-of-texts."""
    documents: int = 0
    """Number of documents."""
    text_bytes: int = 0
    """Bytes of the text in UTF-8."""
    files: dict[str, Written] = field(default_factory=dict)
    """By file name."""


def write_sides(
    corpus: Corpus, tokenizer: Tokenizer, folders: dict[Split, Path], workers: int | None = None
) -> dict[Split, Side]:
    """Write tokens.bin and offsets.bin of both splits."""
    sides = {split: Side() for split in SPLITS}
    dtype = token_dtype(tokenizer.vocabulary)
    total = None if corpus.survey is None else corpus.survey.characters
    for folder in folders.values():
        _remove_leftovers(folder)
    with ExitStack() as stack:
        files = {}
        for split in SPLITS:
            for name in ("tokens.bin", "offsets.bin"):
                part = stack.enter_context(replacing(folders[split] / name))
                files[split, name] = stack.enter_context(part.open("wb"))
                sides[split].files[name] = Written()

        def put(split: Split, name: str, data: bytes) -> None:
            files[split, name].write(data)
            sides[split].files[name].size += len(data)
            sides[split].files[name].digest.update(data)

        for split in SPLITS:
            put(split, "offsets.bin", np.zeros(1, "<u8").tobytes())
        bar = stack.enter_context(SlowBar("encoding text", total))
        for done in encode_all(jobs(corpus), tokenizer, workers):
            side = sides[done.split]
            put(done.split, "tokens.bin", done.tokens.astype(dtype).tobytes())
            put(done.split, "offsets.bin", (done.ends + side.tokens).astype("<u8").tobytes())
            side.tokens += len(done.tokens)
            side.documents += len(done.ends)
            side.text_bytes += done.text_bytes
            bar.advance(done.characters)
        for split, side in sides.items():
            if side.documents == 0:
                raise InputError(
                    f"the corpus {corpus.spec} has no document for {split}: give more text."
                )
        corpus.check_unchanged()
    return sides


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed writers; one changed within the hour may be in use."""
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > LEFTOVER_SECONDS:
                part.unlink()
