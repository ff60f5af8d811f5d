"""Writing the tokens of a corpus to disk, both splits in one pass.

This process reads the text, spawned workers encode it, and this process writes the tokens in corpus
order, so the files do not depend on the number of workers. Every file is written under a temporary
name. A shard is complete once its header, the last file, exists.

Results of workers come in the order of the jobs for any number of workers. At most two jobs per
worker are in memory. Fewer than MIN_JOBS jobs are encoded in this process, because starting workers
takes longer; so is every job, with a warning, where the system refuses the semaphores of a pool. A
script that calls this needs `if __name__ == "__main__"`, or workers=1.
"""

import hashlib
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt

from headscape.data.corpus.corpus import Corpus
from headscape.data.corpus.reading import SPLITS, Split
from headscape.data.tokenize.tokenizer import Tokenizer, load_tokenizer
from headscape.data.tokens.pieces import Job, jobs
from headscape.errors import InputError
from headscape.io.atomic import replacing
from headscape.io.child_process import end_with_parent, no_semaphores, usable_cores
from headscape.io.progress import SlowBar

MIN_JOBS = 6


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The tokens of a job."""

    split: Split
    """The split of its texts."""
    tokens: UInt[np.ndarray, " tokens"]
    """Tokens of all pieces, with an end-of-text after each document."""
    ends: Integer[np.ndarray, " documents"]
    """For each document that ends in this job, the index just past its end-of-text."""
    characters: int
    """Characters of the texts."""
    text_bytes: int
    """Bytes of the texts in UTF-8."""


def token_dtype(vocabulary: int) -> np.dtype[Any]:
    """Return the narrowest little-endian dtype for a vocabulary."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def encode_all(
    work: Iterable[Job], tokenizer: Tokenizer, workers: int | None = None
) -> Iterator[Encoded]:
    """Yield the tokens of jobs in order, from worker processes if there are enough jobs."""
    count = usable_cores() if workers is None else workers
    work = iter(work)
    first = list(islice(work, MIN_JOBS))
    pool = None if count < 2 or len(first) < MIN_JOBS else _pool(count, tokenizer)
    if pool is None:
        yield from (encode_job(job, tokenizer) for job in chain(first, work))
        return
    waiting: deque[Future[Encoded]] = deque()
    try:
        for job in chain(first, work):
            waiting.append(pool.submit(_in_worker, job))
            if len(waiting) >= 2 * count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _pool(count: int, tokenizer: Tokenizer) -> ProcessPoolExecutor | None:
    """Return a pool of worker processes; warn and return None where they cannot be started."""
    try:
        return ProcessPoolExecutor(
            count, get_context("spawn"), initializer=_start_worker, initargs=(tokenizer.describe(),)
        )
    except OSError as error:
        warnings.warn(
            f"the text is encoded in one process, because {no_semaphores(error)}.", stacklevel=2
        )
        return None


def encode_job(job: Job, tokenizer: Tokenizer) -> Encoded:
    """Return the tokens of a job, with an end-of-text after each document."""
    assert tokenizer.end_of_text is not None
    end_of_text = np.array([tokenizer.end_of_text], token_dtype(tokenizer.vocabulary))
    parts, ends, length = [], [], 0
    for text, ends_here in zip(job.texts, job.ends, strict=True):
        ids = tokenizer.encode(text)
        parts += [ids, end_of_text] if ends_here else [ids]
        length += len(ids) + ends_here
        if ends_here:
            ends.append(length)
    return Encoded(
        split=job.split,
        tokens=np.concatenate(parts),
        ends=np.array(ends, np.int64),
        characters=job.characters,
        text_bytes=sum(len(text.encode()) for text in job.texts),
    )


_worker_tokenizer: list[Tokenizer] = []


def _start_worker(described: dict[str, Any]) -> None:
    # Ctrl-C reaches the whole process group; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One thread per worker: the workers already use all cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_tokenizer.append(load_tokenizer(described))
    end_with_parent()


def _in_worker(job: Job) -> Encoded:
    return encode_job(job, _worker_tokenizer[0])


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
