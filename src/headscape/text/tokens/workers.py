"""Jobs to tokens, in spawned processes, in order.

The results come in the order of the jobs whatever the number of workers. At most two jobs for each
worker are in memory. A few jobs are not worth starting processes for. A script that calls this
needs Python's usual `if __name__ == "__main__"`, or workers=1.
"""

import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt

from headscape.text.corpus.document import Split
from headscape.text.tokenize.tokenizer import Tokenizer, load_tokenizer
from headscape.text.tokens.pieces import Job

WORTH_PROCESSES = 6


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """What a job became."""

    split: Split
    """The side."""
    tokens: UInt[np.ndarray, " tokens"]
    """All pieces together, with end-of-texts."""
    ends: Integer[np.ndarray, " documents"]
    """Where in `tokens` a document has just ended."""
    characters: int
    """Length of the texts."""
    text_bytes: int
    """The same in UTF-8."""


def token_dtype(vocabulary: int) -> np.dtype[Any]:
    """The narrowest little-endian type that holds every token."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def encode_all(
    work: Iterable[Job], tokenizer: Tokenizer, workers: int | None = None
) -> Iterator[Encoded]:
    """Encode jobs in order, in processes where there are enough of both."""
    count = usable_cores() if workers is None else workers
    work = iter(work)
    first = list(islice(work, WORTH_PROCESSES))
    if count < 2 or len(first) < WORTH_PROCESSES:
        yield from (encode_job(job, tokenizer) for job in chain(first, work))
        return
    pool = ProcessPoolExecutor(
        count, get_context("spawn"), initializer=_begin, initargs=(tokenizer.describe(),)
    )
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


def encode_job(job: Job, tokenizer: Tokenizer) -> Encoded:
    """Encode the texts of a job and put an end-of-text after each document."""
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


def usable_cores() -> int:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_of_this_worker: list[Tokenizer] = []


def _begin(described: dict[str, Any]) -> None:
    # Ctrl-C reaches the whole group; the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One thread for each worker: the workers are the parallelism.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _of_this_worker.append(load_tokenizer(described))
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A killed parent tells nobody; without this its workers would wait for jobs for ever.
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _in_worker(job: Job) -> Encoded:
    return encode_job(job, _of_this_worker[0])
