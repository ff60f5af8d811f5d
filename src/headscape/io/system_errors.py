"""What the operating system reports about a file, as a sentence for the user."""

import errno
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


def reason(error: OSError) -> str:
    """Return the system's reason for an error, with advice where there is any."""
    return f"{error.strerror or error}{ADVICE.get(error.errno or 0, '')}"
