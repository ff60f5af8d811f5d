"""Documents, and text on this machine: the standard library, a file, a folder.

A corpus is a sequence of documents in a fixed order. The rest of the package sees only order, names
and texts, not where they were read from.

A .txt, .md or .py file is one document; a .jsonl file is one document per row, from the row's
"text" field. Text is UTF-8: other bytes are refused with their offset after decompression, never
replaced. Line endings and byte order marks are kept. Blank documents are skipped.

Files may be plain, .gz or .zst. A compressed file may expand to MAX_EXPANSION times its size or to
SMALL_TOTAL, whichever is more; text rarely exceeds 10 times. One document, or one line of JSONL,
may have MAX_DOCUMENT bytes. A file beyond a bound is refused after reading at most that much of it.

Files of a folder come in the order of their path relative to it, compared as a tuple of names, so
the order is the same on every system. Hidden files and folders, __pycache__ and site-packages are
skipped, links to folders are not followed. A file given by name is read whatever its suffix; in a
folder only files with a suffix in TEXT_SUFFIXES are read.
"""

import gzip
import hashlib
import io
import json
import os
import stat
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from headscape.errors import InputError
from headscape.io.files import parse_json, reason, reporting

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


TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})


@dataclass(frozen=True, kw_only=True)
class Files:
    """A root folder and the files below it that make up the corpus."""

    root: Path
    """The folder that document names are relative to."""
    names: tuple[str, ...]
    """Paths below the root, with forward slashes, in corpus order."""
    validation_share: float = 0.05
    """Fraction of documents held out for validation."""
    pinned: bool = False
    """False: a file can change under the same name."""

    def stamp(self) -> str:
        """Return a hash of every file's name, size, inode and times of modification and change.

        The modification time can be set back; the change time and the inode then still differ.
        """
        facts: list[tuple[str, int, int, int, int]] = []
        for name in self.names:
            with reporting("read", self.root / name):
                status = (self.root / name).stat()
            times = status.st_mtime_ns, status.st_ctime_ns
            facts.append((name, status.st_size, status.st_ino, *times))
        listing = json.dumps([str(self.root), facts])
        return hashlib.sha256(listing.encode()).hexdigest()

    def documents(self) -> Iterator[Document]:
        """Yield the documents of all files in order."""
        for name in self.names:
            yield from read_documents(self.root / name, name)


def standard_library() -> Files:
    """Return the source files of the running Python's standard library without tests, about 12 MB.

    Only modules in sys.stdlib_module_names are included, so site-packages and the build's
    machine-specific settings are not. The text and its fingerprint depend on the Python version.
    """
    root = Path(sysconfig.get_path("stdlib")).resolve()
    names = [
        name
        for name in _below(root)
        if name.endswith(".py")
        and name.split("/")[0].removesuffix(".py") in sys.stdlib_module_names
        and not TEST_FOLDERS.intersection(name.split("/")[:-1])
    ]
    if not names:
        raise InputError(f"{root} has no source of the standard library: give a file or a folder.")
    return Files(root=root, names=tuple(names))


def file_or_folder(path: Path) -> Files:
    """Return a file, or every text file below a folder."""
    try:
        resolved = path.expanduser().resolve()
        is_folder = resolved.is_dir()
        exists = resolved.exists()
    except OSError as error:
        raise InputError(f"cannot read the corpus {path}: {reason(error)}.") from error
    except (RuntimeError, ValueError) as error:
        # A loop of symbolic links, an unknown ~user, a null byte.
        raise InputError(f"cannot read the corpus {path}: {error}.") from error
    if not exists and path.is_symlink():
        raise InputError(f"cannot read the corpus {path}: it is a broken symbolic link.")
    if not exists:
        raise InputError(
            f"the corpus {path} does not exist: give a file, a folder, stdlib or hf:DATASET."
        )
    path = resolved
    if not is_folder:
        return Files(root=path.parent, names=(path.name,))
    names = tuple(name for name in _below(path) if is_text_name(name))
    if not names:
        raise InputError(
            f"the folder {path} contains no .txt, .md, .py or .jsonl file (plain, .gz or .zst)."
        )
    return Files(root=path, names=names)


def _below(root: Path) -> list[str]:
    found: list[tuple[str, ...]] = []
    for folder, folders, files in os.walk(root, onerror=_unreadable):
        folders[:] = [name for name in folders if _is_visible(name)]
        parts = Path(folder).relative_to(root).parts
        found += [(*parts, name) for name in files if _is_visible(name)]
    return ["/".join(parts) for parts in sorted(found)]


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name not in {"__pycache__", "site-packages"}


def _unreadable(error: OSError) -> None:
    raise InputError(f"cannot read {error.filename}: {reason(error)}.") from error
