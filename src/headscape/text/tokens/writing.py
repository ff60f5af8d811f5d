"""Tokens of a corpus onto the disk, both sides in one reading.

The text is read by this process, made tokens by the workers and written by this process in corpus
order, so the files do not depend on how many workers there were. Every file is written under
a temporary name; a shard counts from the moment its header, the last file, is there.
"""

import hashlib
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headscape.errors import InputError
from headscape.io.atomic import replacing
from headscape.io.progress import SlowBar
from headscape.text.corpus.corpus import Corpus
from headscape.text.corpus.document import SPLITS, Split
from headscape.text.tokenize.tokenizer import Tokenizer
from headscape.text.tokens.pieces import jobs
from headscape.text.tokens.workers import encode_all, token_dtype

LEFTOVER_SECONDS = 3600


@dataclass(kw_only=True)
class Written:
    """A flat file that has been written, and what it should hold."""

    size: int = 0
    """Its bytes."""
    digest: Any = field(default_factory=hashlib.sha256)
    """SHA-256 of them so far."""


@dataclass(kw_only=True)
class Side:
    """One side's counts and files."""

    tokens: int = 0
    """Tokens, end-of-texts among them."""
    documents: int = 0
    """Documents, each with an end-of-text."""
    text_bytes: int = 0
    """Bytes of the text in UTF-8."""
    files: dict[str, Written] = field(default_factory=dict)
    """By file name."""


def write_sides(
    corpus: Corpus, tokenizer: Tokenizer, folders: dict[Split, Path], workers: int | None = None
) -> dict[Split, Side]:
    """Write tokens.bin and offsets.bin of both sides."""
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
        bar = stack.enter_context(SlowBar("text to tokens", total))
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
                raise InputError(f"the corpus {corpus.spec} leaves no document for {split}")
        corpus.check_unchanged()
    return sides


def _remove_leftovers(folder: Path) -> None:
    """Remove what a killed writer left; a file that changed within the hour may be in use."""
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > LEFTOVER_SECONDS:
                part.unlink()
