"""One file on disk to its documents.

A .txt, .md or .py file is one document; a .jsonl file is one document for each row, taken from the
row's "text" field. Each may be compressed as .gz or .zst. Text is UTF-8 and nothing else: bytes
that are not are reported with their offset (after decompression), never replaced. Line endings and
byte order marks stay as they are. Blank documents are left out.
"""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from headscape.errors import InputError
from headscape.text.corpus.document import Document

TEXT_SUFFIXES = frozenset({".txt", ".md", ".py", ".jsonl"})
UNREAD_COMPRESSION = frozenset({".7z", ".br", ".bz2", ".lz4", ".lzma", ".xz", ".z", ".zip"})


def is_text_name(name: str) -> bool:
    """Whether a file of this name is read when a folder is given."""
    path = Path(name.lower())
    if path.suffix in OPENERS or path.suffix in UNREAD_COMPRESSION:
        path = path.with_suffix("")
    return path.suffix in TEXT_SUFFIXES


def read_documents(path: Path, name: str) -> Iterator[Document]:
    """Yield the documents of one file; `name` is what they are called after."""
    compression = path.suffix.lower()
    if compression in UNREAD_COMPRESSION:
        raise InputError(f"{path} is compressed as {compression}; unpack it, or use .gz or .zst")
    inner = path.with_suffix("") if compression in OPENERS else path
    with _readable(path), OPENERS.get(compression, _open_plain)(path) as file:
        if inner.suffix.lower() == ".jsonl":
            yield from _rows(file, path, name)
        else:
            text = _decode(file.read(), path, start=0)
            if text.strip():
                yield Document(name=name, text=text)


def _rows(file: io.BufferedIOBase, path: Path, name: str) -> Iterator[Document]:
    offset = 0
    for number, raw in enumerate(file, start=1):
        line = _decode(raw, path, start=offset)
        offset += len(raw)
        if not line.strip():
            continue
        text = _text_of_row(line, f"{path} line {number}")
        if text.strip():
            yield Document(name=f"{name}:{number}", text=text)


def _text_of_row(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise InputError(f'{where} has no string field "text"')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where} has half of a surrogate pair in its text") from error
    return text


def _decode(data: bytes, path: Path, *, start: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8: byte 0x{data[error.start]:02x} at offset {start + error.start}"
            "; convert it first"
        ) from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is not a whole .gz file: {error}") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _open_plain(path: Path) -> io.BufferedIOBase:
    return path.open("rb")


def _open_gzip(path: Path) -> io.BufferedIOBase:
    return gzip.open(path, "rb")


@contextmanager
def _open_zstd(path: Path) -> Iterator[io.BufferedIOBase]:
    try:
        import zstandard
    except ImportError as error:
        raise InputError(f"{path} needs zstandard: pip install headscape[zstd]") from error
    try:
        with zstandard.open(path, "rb") as file:
            yield io.BufferedReader(file)
    except zstandard.ZstdError as error:
        raise InputError(f"{path} is not a whole .zst file: {error}") from error


OPENERS: dict[str, Callable[[Path], AbstractContextManager[io.BufferedIOBase]]] = {
    ".gz": _open_gzip,
    ".zst": _open_zstd,
}
