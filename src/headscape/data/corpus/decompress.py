"""Opening plain, .gz and .zst files with a bound on how far they may expand.

A compressed file may expand to MAX_EXPANSION times its size or to SMALL_TOTAL, whichever is more;
text rarely exceeds 10 times. One document, or one line of JSONL, may have MAX_DOCUMENT bytes. A
file beyond a bound is refused after reading at most that much of it.
"""

import gzip
import io
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from headscape.errors import InputError
from headscape.io.system_errors import reporting

MAX_EXPANSION = 100
SMALL_TOTAL = 64 << 20
MAX_DOCUMENT = 1 << 30
CHUNK = 1 << 20


class BoundedReader:
    """Reads decompressed bytes and refuses a file that expands beyond its bounds."""

    def __init__(self, file: io.BufferedIOBase, path: Path, limit: int | None) -> None:
        self._file = file
        self._path = path
        self._limit = limit
        self._read = 0

    def document(self) -> bytes:
        """Return the whole file."""
        parts: list[bytes] = []
        while part := self._file.read(CHUNK):
            parts.append(part)
            self._count(len(part))
            self._check_document(self._read, "document")
        return b"".join(parts)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the file, line breaks included."""
        while line := self._file.readline(self._longest_line()):
            self._count(len(line))
            self._check_document(len(line), "line")
            yield line

    def _longest_line(self) -> int:
        """Return how many bytes of a line to read: one more than allowed, to notice longer ones."""
        if self._limit is None:
            return MAX_DOCUMENT + 1
        return min(MAX_DOCUMENT, self._limit - self._read) + 1

    def _count(self, size: int) -> None:
        self._read += size
        if self._limit is not None and self._read > self._limit:
            raise InputError(
                f"{self._path} expands to more than {self._limit:,} bytes, over {MAX_EXPANSION} "
                f"times its size: unpack it first if that is intended."
            )

    def _check_document(self, size: int, what: str) -> None:
        if size > MAX_DOCUMENT:
            raise InputError(
                f"{self._path} contains a {what} of more than {MAX_DOCUMENT:,} bytes: split it "
                f"into several."
            )


@contextmanager
def open_bounded(path: Path) -> Iterator[BoundedReader]:
    """Open a file, decompressing it by its suffix; every failure to read is one sentence."""
    with reporting("read", path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"cannot read {path}: it is not a regular file.")
    compression = path.suffix.lower()
    limit = max(SMALL_TOTAL, MAX_EXPANSION * status.st_size) if compression in OPENERS else None
    try:
        with reporting("read", path), OPENERS.get(compression, _open_plain)(path) as file:
            yield BoundedReader(file, path, limit)
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a complete .gz file: {error}.") from error


def _open_plain(path: Path) -> io.BufferedIOBase:
    return path.open("rb")


@contextmanager
def _open_gzip(path: Path) -> Iterator[io.BufferedIOBase]:
    try:
        with gzip.open(path, "rb") as file:
            yield file
    except gzip.BadGzipFile as error:
        raise InputError(f"{path} is not a complete .gz file: {error}.") from error


@contextmanager
def _open_zstd(path: Path) -> Iterator[io.BufferedIOBase]:
    try:
        import zstandard
    except ImportError as error:
        raise InputError(f"{path} needs zstandard: pip install 'headscape[zstd]'.") from error
    try:
        with zstandard.open(path, "rb") as file:
            yield io.BufferedReader(file)
    except zstandard.ZstdError as error:
        raise InputError(f"{path} is not a complete .zst file: {error}.") from error


OPENERS: dict[str, Callable[[Path], AbstractContextManager[io.BufferedIOBase]]] = {
    ".gz": _open_gzip,
    ".zst": _open_zstd,
}
