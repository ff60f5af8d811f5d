"""Encoding jobs in spawned processes, in order.

Results come in the order of the jobs for any number of workers. At most two jobs per worker are in
memory. Fewer than MIN_JOBS jobs are encoded in this process, because starting workers takes longer;
so is every job, with a warning, where the system refuses the semaphores of a pool.
A script that calls this needs `if __name__ == "__main__"`, or workers=1.
"""

import os
import signal
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import get_context
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt

from headscape.data.corpus.document import Split
from headscape.data.tokenize.tokenizer import Tokenizer, load_tokenizer
from headscape.data.tokens.pieces import Job
from headscape.io.child_process import end_with_parent, no_semaphores, usable_cores

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
