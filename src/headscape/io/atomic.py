"""Writing files so that a kill or a full disk leaves the old file or the new one, never a part.

A file is written under a temporary name in the target's folder, flushed to the disk and renamed. A
symbolic link is followed: the file it points to is replaced and the link stays. Devices, FIFOs,
sockets and folders are never replaced. A new folder is filled under a temporary name too.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headscape.errors import InputError
from headscape.io.system_errors import reporting


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; on success it replaces `path`."""
    target = writable_target(path)
    with reporting("write", path):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}.", suffix=".part"
        )
    os.close(handle)
    part = Path(name)
    try:
        with reporting("write", path):
            yield part
            _flush(part)
            part.chmod(0o666 & ~_umask())
            part.replace(target)
            _flush(target.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; on success it becomes `path`, which must be new or empty."""
    target = empty_target(path)
    with reporting("write", path):
        made = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
    done = False
    try:
        with reporting("write", path):
            yield part
            for file in part.rglob("*"):
                _flush(file)
            part.chmod(0o777 & ~_umask())
            part.replace(target)
            done = True
            _flush(target.parent)
    finally:
        if not done:
            shutil.rmtree(part, ignore_errors=True)
            for parent in made:
                with suppress(OSError):
                    parent.rmdir()


def empty_target(path: Path) -> Path:
    """Return the folder that `new_folder` creates; refuse a file and a folder with contents."""
    with reporting("write", path):
        target = Path(os.path.realpath(path))
        if target.is_dir():
            if any(target.iterdir()):
                raise InputError(f"{path} is not empty: choose a new folder.")
        elif target.exists():
            raise InputError(f"cannot write {path}: it is a file, not a folder.")
    return target


def writable_target(path: Path) -> Path:
    """Return the file that writing to `path` replaces or creates; refuse what is not a file."""
    with reporting("write", path):
        target = Path(os.path.realpath(path))
        try:
            mode = target.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return target
    if not stat.S_ISREG(mode):
        raise InputError(f"cannot write {path}: it is {_kind(mode)}, not a file.")
    return target


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with replacing(path) as part:
        part.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    write_bytes(path, utf8(text))


def utf8(text: str) -> bytes:
    """Return `text` as UTF-8; a path read in a different locale gets its own bytes back."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
