"""Text on this machine: the running Python's standard library, a file, a folder.

Files come in the order of their path relative to the root, compared as a tuple of names, so the
order is the same on every system. Hidden files and folders, __pycache__ and site-packages are
passed over, links to folders are not followed. A file that is named itself is read whatever its
suffix; in a folder only the suffixes of `reading` count.
"""

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headscape.errors import InputError
from headscape.text.corpus.document import Document
from headscape.text.corpus.reading import is_text_name, read_documents

TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})


@dataclass(frozen=True, kw_only=True)
class Files:
    """A root folder and the files below it that are the corpus."""

    root: Path
    """The folder that document names are relative to."""
    names: tuple[str, ...]
    """Paths below the root, with forward slashes, in corpus order."""
    validation_share: float = 0.05
    """The share of documents that is held out."""
    pinned: bool = False
    """Files can change under the same name."""

    def stamp(self) -> str:
        """Hash every file's name, size and time of change."""
        facts: list[tuple[str, int, int]] = []
        for name in self.names:
            try:
                status = (self.root / name).stat()
            except OSError as error:
                raise InputError(f"cannot read {self.root / name}: {error.strerror}") from error
            facts.append((name, status.st_size, status.st_mtime_ns))
        said = json.dumps([str(self.root), facts])
        return hashlib.sha256(said.encode()).hexdigest()

    def documents(self) -> Iterator[Document]:
        """Read the files one after another."""
        for name in self.names:
            yield from read_documents(self.root / name, name)


def standard_library() -> Files:
    """The source of the running Python's standard library without its tests, about 12 MB.

    Only modules that Python itself lists as its own count, which leaves out site-packages and the
    build's machine-specific settings. The text, and so the fingerprint, depends on the version of
    Python.
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
        raise InputError(f"no source of the standard library in {root}; name a file or a folder")
    return Files(root=root, names=tuple(names))


def file_or_folder(path: Path) -> Files:
    """A file, or every text file below a folder."""
    try:
        path = path.expanduser().resolve()
        is_folder = path.is_dir()
        exists = path.exists()
    except OSError as error:
        raise InputError(f"cannot read the corpus {path}: {error.strerror}") from error
    if not exists:
        raise InputError(
            f"the corpus {path} is not there; give a file, a folder, stdlib or hf:<dataset>"
        )
    if not is_folder:
        return Files(root=path.parent, names=(path.name,))
    names = tuple(name for name in _below(path) if is_text_name(name))
    if not names:
        raise InputError(
            f"the folder {path} holds no .txt, .md, .py or .jsonl file (also as .gz or .zst)"
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
    raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
