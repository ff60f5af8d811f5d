"""Reading one file into its documents.

A .txt, .md or .py file is one document; a .jsonl file is one document per row, from the row's
"text" field. Each may be compressed as .gz or .zst (see decompress.py). Text is UTF-8: other bytes
are refused with their offset after decompression, never replaced. Line endings and byte order marks
are kept. Blank documents are skipped.
"""

from collections.abc import Iterator
from pathlib import Path

from headscape.data.corpus.decompress import OPENERS, BoundedReader, open_bounded
from headscape.data.corpus.document import Document
from headscape.errors import InputError
from headscape.io.json_file import parse_json

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
