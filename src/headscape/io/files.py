"""Files: written whole or not at all, JSON that may be hostile, names, and errors as sentences.

A kill or a full disk leaves the old file or the new one, never a part: a file is written under a
temporary name in the target's folder, flushed to the disk and renamed. A symbolic link is followed:
the file it points to is replaced and the link stays. Devices, FIFOs, sockets and folders are never
replaced. A new folder is filled under a temporary name too.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError

from headscape.errors import InputError

ADVICE = {
    errno.ENOSPC: ": free some disk space and repeat the command",
    errno.EDQUOT: ": free some of your disk quota and repeat the command",
    errno.EROFS: ": choose a folder that can be written",
    errno.EACCES: ": check its permissions",
    errno.ELOOP: ": its symbolic links form a loop",
}


@contextmanager
def reporting(action: str, path: Path | str) -> Iterator[None]:
    """Raise an InputError "cannot ACTION PATH: reason" for an OSError or a SafetensorError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot {action} {path}: {reason(error)}.") from error
    except SafetensorError as error:
        raise InputError(f"cannot {action} {path}: {error}.") from error


def reason(error: OSError) -> str:
    """Return the system's reason for an error, with advice where there is any."""
    return f"{error.strerror or error}{ADVICE.get(error.errno or 0, '')}"


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


MAX_BYTES: Final = 128 << 20
"""Bytes of a JSON file; the largest tokenizers and indices of published models have about 40 MB."""
MAX_DEPTH: Final = 64
"""Of objects and arrays in each other; libraries that read the same file stop at about 128."""


def parse_json(data: bytes | str, source: Path | str) -> Any:
    """Return the value of a JSON text; `source` is named in the error."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise InputError(f"{source} is not JSON: {error}.") from error
    except RecursionError as error:
        raise InputError(f"{source} is JSON nested too deeply to be read.") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of at most MAX_BYTES and MAX_DEPTH."""
    with reporting("read", path):
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path} has {size:,} bytes, more than the {MAX_BYTES:,} allowed.")
        data = path.read_bytes()
    value = parse_json(data, path)
    if not isinstance(value, dict):
        raise InputError(f"{path} must contain a JSON object, got {type(value).__name__}.")
    _check_depth(value, path)
    return value


def _check_depth(value: dict[str, Any], path: Path) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [x for values in inner for x in values if isinstance(x, dict | list)]
        if not level:
            return
    raise InputError(f"{path} is JSON nested too deeply to be read.")


MAX_NAME: Final = 80
"""Characters of a file name; file systems allow 255 bytes, and callers add endings."""


def file_name(text: str, most: int = MAX_NAME) -> str:
    """Return text as a file name of lower-case letters, digits, dots and dashes.

    A name longer than `most` is cut and ends in a hash of the text.
    """
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    if len(name) <= most:
        return name
    return f"{name[: most - 9].rstrip('-.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def is_utf8(text: str) -> bool:
    """Return whether the bytes of a path, or of a text that contains one, are UTF-8.

    In a locale that is not UTF-8 Python reads such a path with surrogates in it, too.
    """
    try:
        text.encode("utf-8", "surrogateescape").decode()
    except UnicodeError:
        return False
    return True


def require_utf8(path: Path) -> None:
    """Refuse a path that safetensors cannot open."""
    if not is_utf8(str(path)):
        raise InputError(
            f"{path} has a name that is not UTF-8, and safetensors files cannot be opened there: "
            f"rename it, or choose a different folder."
        )
