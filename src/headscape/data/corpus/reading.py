"""Documents, and reading one file into its documents.

A corpus is a sequence of documents in a fixed order. The rest of the package sees only order, names
and texts, not where they were read from.

A .txt, .md or .py file is one document; a .jsonl file is one document per row, from the row's
"text" field. Text is UTF-8: other bytes are refused with their offset after decompression, never
replaced. Line endings and byte order marks are kept. Blank documents are skipped.

Files may be plain, .gz or .zst. A compressed file may expand to MAX_EXPANSION times its size or to
SMALL_TOTAL, whichever is more; text rarely exceeds 10 times. One document, or one line of JSONL,
may have MAX_DOCUMENT bytes. A file beyond a bound is refused after reading at most that much of it.
"""

import gzip
import io
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from headscape.errors import InputError
from headscape.io.json_file import parse_json
from headscape.io.system_errors import reporting

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text; its tokens are followed by an end-of-text token."""

    name: str
    """Unique in its corpus and the same on every machine: a relative path or a row number."""
    text: str
    """Never blank; line endings unchanged."""
    split: Split | None = None
    """Its split, where the source publishes one; None lets the hash of the name decide."""


@runtime_checkable
class Source(Protocol):
    """A place that documents are read from."""

    @property
    def validation_share(self) -> float:
        """Fraction of documents held out for validation."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether `stamp` identifies the content permanently, so that it need not be surveyed."""
        ...

    def stamp(self) -> str:
        """Identify the present content without reading it: sizes and times, or a revision."""
        ...

    def documents(self) -> Iterator[Document]:
        """Yield every non-blank document, always in the same order."""
        ...


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


TEXT_SUFFIXES = frozenset({".txt", ".md", ".py", ".jsonl"})
UNREAD_COMPRESSION = frozenset({".7z", ".br", ".bz2", ".lz4", ".lzma", ".xz", ".z", ".zip"})


def is_text_name(name: str) -> bool:
    """Return whether a file of this name is read when its folder is given."""
    path = Path(name.lower())
    if path.suffix in OPENERS or path.suffix in UNREAD_COMPRESSION:
        path = path.with_suffix("")
    return path.suffix in TEXT_SUFFIXES


def read_documents(path: Path, name: str) -> Iterator[Document]:
    """Yield the documents of one file; their names begin with `name`."""
    compression = path.suffix.lower()
    if compression in UNREAD_COMPRESSION:
        raise InputError(f"{path} is compressed as {compression}: unpack it, or use .gz or .zst.")
    inner = path.with_suffix("") if compression in OPENERS else path
    with open_bounded(path) as file:
        if inner.suffix.lower() == ".jsonl":
            yield from _rows(file, path, name)
        else:
            text = _decode(file.document(), path, start=0)
            if text.strip():
                yield Document(name=name, text=text)


def _rows(file: BoundedReader, path: Path, name: str) -> Iterator[Document]:
    offset = 0
    for number, raw in enumerate(file.lines(), start=1):
        line = _decode(raw, path, start=offset)
        offset += len(raw)
        if not line.strip():
            continue
        text = _text_of_row(line, f"{path} line {number}")
        if text.strip():
            yield Document(name=f"{name}:{number}", text=text)


def _text_of_row(line: str, where: str) -> str:
    row = parse_json(line, where)
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise InputError(f'{where} has no string field "text".')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where} has half of a surrogate pair in its text.") from error
    return text


def _decode(data: bytes, path: Path, *, start: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8: byte 0x{data[error.start]:02x} at offset "
            f"{start + error.start}: convert it to UTF-8 first."
        ) from error
