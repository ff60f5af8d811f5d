"""What the operating system reports about a file, as a sentence for the user."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory could not be allocated; on a CPU torch raises a plain RuntimeError."""
    said = str(error)
    torchs = isinstance(error, RuntimeError) and (
        "allocate memory" in said or "out of memory" in said
    )
    return isinstance(error, MemoryError) or torchs


def memory_sentence(error: BaseException) -> str:
    """Return what to say where `out_of_memory`, with the size where the error has it."""
    size = re.search(r"allocate ([\d.]+) ?([KMGT]i?B|bytes)", str(error))
    asked = ""
    if size is not None:
        number, unit = float(size[1]), size[2]
        shown = f"{number / 2**30:.3g} GiB" if unit == "bytes" else f"{number:g} {unit}"
        asked = f" ({shown} more were asked for)"
    return (
        f"not enough memory is free{asked}: choose a shorter text, fewer layers or heads, a "
        f"smaller batch or a smaller model."
    )


def reason(error: OSError) -> str:
    """Return the system's reason for an error, with advice where there is any."""
    return f"{error.strerror or error}{ADVICE.get(error.errno or 0, '')}"
