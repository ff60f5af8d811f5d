"""Which existing files may be replaced: those of the kind that is written, and never an input.

A file that a user names replaces nothing but a file of its own kind: a
picture replaces any picture of its format, and a table, a page or a capture only one that headscape
wrote. Kinds are recognised by their first bytes, not by their names. An empty file is of any kind.
"""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headscape.errors import InputError
from headscape.io.files import reporting, utf8, writable_target, write_bytes

READ: Final = 1 << 12
"""Bytes at the beginning of a file that say what it is."""
GENERATOR: Final = '<meta name="generator" content="headscape">'
"""Marks our pages; every page has it in its head."""


@dataclass(frozen=True)
class FileKind:
    """A kind of file that is written where the user says."""

    title: str
    """What messages call it, with its article."""
    recognises: Callable[[Path], bool]
    """Whether a file is one of these."""


def _opening(title: str, pattern: bytes) -> FileKind:
    """Return the kind of files that begin with a pattern."""
    compiled = re.compile(pattern, re.DOTALL)

    def recognises(path: Path) -> bool:
        with path.open("rb") as file:
            return compiled.match(file.read(READ)) is not None

    return FileKind(title, recognises)


KINDS: Final[dict[str, FileKind]] = {
    "png": _opening("a PNG picture", rb"\x89PNG\r\n\x1a\n"),
    "gif": _opening("a GIF picture", rb"GIF8[79]a"),
    "pdf": _opening("a PDF file", rb"%PDF-"),
    "svg": _opening("an SVG picture", rb"\s*(<(\?xml|!--|!DOCTYPE svg)[^>]*>\s*)*<svg\b"),
    "html": _opening(
        "a page of headscape",
        rb"<!doctype html>\s*<html[^>]*>\s*<head>.*" + re.escape(GENERATOR.encode()),
    ),
    "csv": _opening(
        "a CSV table of headscape", rb"(capture,)?layer,head,|method,(seed|encoding),|remedy,"
    ),
    "md": _opening(
        "a Markdown table of headscape",
        rb"(## [^\n]*\n\n)?\| (layer \| head|length) \||# Diagnosis of ",
    ),
    "tex": _opening("a LaTeX table of headscape", rb"% [^\n]*\n\\begin\{tabular\}\{r"),
    "json": _opening(
        "a JSON file of headscape",
        rb'\{\s*("[^"]*": \{\s*)?"quantity": "|\{\s*"about": \{'
        rb'|\{\s*"format": \d+,\s*"(measurements|scores)": \[|\[\s*(\]|\{\s*"name": ")',
    ),
}
"""Kinds by the ending of their files; a capture's is beside its reader."""


def check_output(
    path: Path | str,
    kind: FileKind,
    *,
    reads: Iterable[Path | str] = (),
    advice: str = "choose a different name, or delete it first",
) -> Path:
    """Return the file that writing to `path` creates or replaces; refuse what must not be replaced.

    Refused are a folder or device, an existing file that is not of this kind, and whatever is in
    `reads`: the files, and the folders with all their files, that the output is computed from.
    """
    path = Path(path)
    target = writable_target(path)
    with reporting("write", path):
        if not target.exists():
            return target
        for source in map(Path, reads):
            if _is_input(target, source):
                raise InputError(
                    f"cannot write {path}: it is one of the inputs; choose a different name."
                )
        empty = target.stat().st_size == 0
    with reporting("read", path):
        if not empty and not kind.recognises(target):
            raise InputError(f"{path} exists and is not {kind.title}: {advice}.")
    return target


def write_output(path: Path, data: bytes | str, kind: FileKind) -> None:
    """Write a file of this kind atomically, unless `check_output` refuses; text as UTF-8."""
    check_output(path, kind)
    write_bytes(path, utf8(data) if isinstance(data, str) else data)


def _is_input(target: Path, source: Path) -> bool:
    if source.is_dir():
        return Path(os.path.realpath(source)) in target.parents
    return source.exists() and target.samefile(source)
