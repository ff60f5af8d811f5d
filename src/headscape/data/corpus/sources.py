"""Text on this machine: the running Python's standard library, a file, a folder.

Files come in the order of their path relative to the root, compared as a tuple of names, so the
order is the same on every system. Hidden files and folders, __pycache__ and site-packages are
skipped, links to folders are not followed. A file given by name is read whatever its suffix; in a
folder only files with the suffixes in reading.py are read.
"""

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headscape.data.corpus.reading import Document, is_text_name, read_documents
from headscape.errors import InputError
from headscape.io.system_errors import reason, reporting

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
