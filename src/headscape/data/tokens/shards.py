"""Token shards: flat memory-mapped files with a header of sizes and checksums.

    <cache>/<corpus>-<tokenizer>/<split>/tokens.bin    little-endian uint16 or uint32, nothing else
                                         offsets.bin   little-endian uint64: 0, then the end of each
                                                       document (just past its end-of-text)
                                         header.json   format, fingerprints, dtype, counts, and the
                                                       size and SHA-256 of each data file

Folder names are hashes of the content, so a run's data never changes and two processes that write
the same shard write the same bytes. A shard whose header, sizes or checksums disagree is not used:
`open_shards`, which has the text, reports the file and writes the shard again; `Shard.open` and
`Shard.verify` raise. Document names are not stored.

Both splits are written in one pass: this process reads the text, spawned workers encode it, and
this process writes the tokens in the order of the jobs, so the files do not depend on the number of
workers. Every file is written under a temporary name, the header last. At most two jobs per worker
are in memory. Fewer than MIN_JOBS jobs are encoded in this process, because starting workers takes
longer; so is every job, with a warning, where the system refuses the semaphores of a pool. A script
that calls this needs `if __name__ == "__main__"`, or workers=1.
"""

import hashlib
import json
import logging
import os
import signal
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt

from headscape.data.corpus.corpus import Corpus
from headscape.data.corpus.reading import SPLITS, Document, Split
from headscape.data.tokenize.bpe import pieces
from headscape.data.tokenize.tokenizer import Tokenizer, load_tokenizer
from headscape.errors import InputError
from headscape.io.child_process import end_with_parent, no_semaphores, usable_cores
from headscape.io.files import parse_json, replacing, reporting, write_text
from headscape.io.terminal import SlowBar

FORMAT = 1
DTYPES = ("<u2", "<u4")
FILES = ("tokens.bin", "offsets.bin")
MIN_JOBS = 6
JOB_CHARACTERS = 1_000_000
LEFTOVER_SECONDS = 3600


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the data files of a shard contain."""

    format: int
    """Version of this layout."""
    corpus: str
    """Fingerprint of the corpus."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    split: Split
    """Which split of the corpus."""
    dtype: str
    """Of tokens.bin, in numpy's notation."""
    tokens: int
    """Number of tokens, including end-of-texts."""
    documents: int
    """Number of documents."""
    text_bytes: int
    """Bytes of the text in UTF-8, for losses per byte."""
    files: dict[str, dict[str, Any]]
    """Size in bytes and SHA-256 by file name."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One split of a corpus as tokens."""

    folder: Path
    """The folder of its three files."""
    header: Header
    """What the files contain."""

    def __repr__(self) -> str:
        return f"Shard({str(self.folder)!r}, {self.header.tokens:,} tokens)"

    @classmethod
    def open(cls, folder: Path) -> "Shard":
        """Open a shard and check file sizes; `verify` checks the contents."""
        path = folder / "header.json"
        with reporting("read", f"the shard header {path}"):
            data = path.read_bytes()
        try:
            header = Header(**parse_json(data, path))
            sizes = {name: int(facts["bytes"]) for name, facts in header.files.items()}
            known = header.format == FORMAT and header.dtype in DTYPES
            agreed = known and sizes == {
                "tokens.bin": header.tokens * np.dtype(header.dtype).itemsize,
                "offsets.bin": (header.documents + 1) * 8,
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(path) from error
        if not agreed:
            raise _damaged(path)
        for name, size in sizes.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                raise _damaged(file)
        return cls(folder=folder, header=header)

    def verify(self) -> None:
        """Compare the SHA-256 of every data file with the header."""
        for name, facts in self.header.files.items():
            path = self.folder / name
            with reporting("read", path), path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != facts.get("sha256"):
                    raise _damaged(path)

    @cached_property
    def tokens(self) -> UInt[np.ndarray, " tokens"]:
        """The whole stream, memory-mapped and read-only."""
        return self._mapped("tokens.bin", self.header.dtype)

    @cached_property
    def offsets(self) -> UInt[np.ndarray, " documents_plus_1"]:
        """Document i is tokens[offsets[i] : offsets[i + 1]], its end-of-text included."""
        return self._mapped("offsets.bin", "<u8")

    def _mapped(self, name: str, dtype: str) -> UInt[np.ndarray, " entries"]:
        return np.asarray(np.memmap(self.folder / name, dtype=dtype, mode="r"))


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Both splits of a corpus."""

    train: Shard
    """The training split."""
    validation: Shard
    """The held-out split."""


def shard_folder(corpus: Corpus, tokenizer: Tokenizer, cache: Path) -> Path:
    """Return the folder of the shards of a corpus and a tokenizer."""
    return cache / f"{corpus.fingerprint()[:16]}-{tokenizer.fingerprint[:16]}"


def open_shards(
    corpus: Corpus, tokenizer: Tokenizer, cache: Path, *, workers: int | None = None
) -> Shards:
    """Open and verify the shards of a corpus, writing them if they are missing or damaged.

    With several processes, one calls this before the others do.
    """
    folder = shard_folder(corpus, tokenizer, cache)
    folders: dict[Split, Path] = {split: folder / split for split in SPLITS}
    if all((path / "header.json").is_file() for path in folders.values()):
        try:
            shards = _opened(folders, corpus, tokenizer)
            shards.train.verify()
            shards.validation.verify()
        except InputError as error:
            logging.getLogger(__name__).warning("%s", error)
        else:
            return shards
    write_shards(corpus, tokenizer, folders, workers)
    # Their bytes were hashed as they were written.
    return _opened(folders, corpus, tokenizer)


def _opened(folders: dict[Split, Path], corpus: Corpus, tokenizer: Tokenizer) -> Shards:
    shards = Shards(
        train=Shard.open(folders["train"]), validation=Shard.open(folders["validation"])
    )
    for split, shard in (("train", shards.train), ("validation", shards.validation)):
        found = (shard.header.corpus, shard.header.tokenizer, shard.header.split)
        if found != (corpus.fingerprint(), tokenizer.fingerprint, split):
            raise _damaged(shard.folder / "header.json")
    return shards


def _damaged(path: Path) -> InputError:
    return InputError(f"the shard file {path} is damaged: write it again from the text.")


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


@dataclass(frozen=True, kw_only=True)
class EncodingJob:
    """Texts to encode together."""

    split: Split
    """Their split."""
    texts: tuple[str, ...]
    """Pieces in corpus order."""
    ends: tuple[bool, ...]
    """For each piece, whether it is the last of its document."""

    @property
    def characters(self) -> int:
        """Total number of characters."""
        return sum(map(len, self.texts))


def jobs(documents: Iterable[Document]) -> Iterator[EncodingJob]:
    """Group documents into jobs of about JOB_CHARACTERS; each split keeps the corpus order."""
    waiting: dict[Split, list[tuple[str, bool]]] = {"train": [], "validation": []}
    characters: dict[Split, int] = {"train": 0, "validation": 0}
    for document in documents:
        split = document.split
        assert split is not None
        parts = list(pieces(document.text, JOB_CHARACTERS))
        for number, part in enumerate(parts, start=1):
            waiting[split].append((part, number == len(parts)))
            characters[split] += len(part)
            if characters[split] >= JOB_CHARACTERS:
                yield _job(split, waiting[split])
                waiting[split] = []
                characters[split] = 0
    for split, queue in waiting.items():
        if queue:
            yield _job(split, queue)


def _job(split: Split, queue: list[tuple[str, bool]]) -> EncodingJob:
    return EncodingJob(
        split=split,
        texts=tuple(text for text, _ in queue),
        ends=tuple(end for _, end in queue),
    )


def encode_all(
    work: Iterable[EncodingJob], tokenizer: Tokenizer, workers: int | None = None
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


def encode_job(job: EncodingJob, tokenizer: Tokenizer) -> Encoded:
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


def _in_worker(job: EncodingJob) -> Encoded:
    return encode_job(job, _worker_tokenizer[0])


def write_shards(
    corpus: Corpus, tokenizer: Tokenizer, folders: dict[Split, Path], workers: int | None
) -> None:
    """Write tokens.bin and offsets.bin of both splits, then their headers."""
    dtype = token_dtype(tokenizer.vocabulary)
    tokens, documents, text_bytes = (dict.fromkeys(SPLITS, 0) for _ in range(3))
    sizes: dict[Split, Counter[str]] = {split: Counter() for split in SPLITS}
    hashes = {(split, name): hashlib.sha256() for split in SPLITS for name in FILES}
    total = None if corpus.survey is None else corpus.survey.characters
    for folder in folders.values():
        _remove_leftovers(folder)
    with ExitStack() as stack:
        files = {}
        for split, name in hashes:
            part = stack.enter_context(replacing(folders[split] / name))
            files[split, name] = stack.enter_context(part.open("wb"))

        def put(split: Split, name: str, data: bytes) -> None:
            files[split, name].write(data)
            sizes[split][name] += len(data)
            hashes[split, name].update(data)

        for split in SPLITS:
            put(split, "offsets.bin", np.zeros(1, "<u8").tobytes())
        bar = stack.enter_context(SlowBar("encoding text", total))
        for done in encode_all(jobs(corpus), tokenizer, workers):
            split = done.split
            put(split, "tokens.bin", done.tokens.astype(dtype).tobytes())
            put(split, "offsets.bin", (done.ends + tokens[split]).astype("<u8").tobytes())
            tokens[split] += len(done.tokens)
            documents[split] += len(done.ends)
            text_bytes[split] += done.text_bytes
            bar.advance(done.characters)
        for split in SPLITS:
            if documents[split] == 0:
                raise InputError(
                    f"the corpus {corpus.spec} has no document for {split}: give more text."
                )
        corpus.check_unchanged()
    for split in SPLITS:
        header = Header(
            format=FORMAT,
            corpus=corpus.fingerprint(),
            tokenizer=tokenizer.fingerprint,
            split=split,
            dtype=dtype.str,
            tokens=tokens[split],
            documents=documents[split],
            text_bytes=text_bytes[split],
            files={
                name: {"bytes": sizes[split][name], "sha256": hashes[split, name].hexdigest()}
                for name in FILES
            },
        )
        write_text(folders[split] / "header.json", json.dumps(asdict(header), indent=1))


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed writers; one changed within the hour may be in use."""
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > LEFTOVER_SECONDS:
                part.unlink()
