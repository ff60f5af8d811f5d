"""A lock on a folder that ends with the process that holds it, however that process ends.

The kernel keeps the lock (flock on FOLDER/.lock) and drops it when the process dies, so a kill
leaves nothing to clean up. The file contains the process id for the message to others; the file
itself stays. Windows has no flock: there a warning takes the lock's place.
"""

import errno
import os
import socket
import warnings
from pathlib import Path
from typing import IO

from headscape.errors import InputError
from headscape.io.files import reporting

NAME = ".lock"
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}


class FolderLock:
    """The right to write into a folder; released when the `with` block or the process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock, creating the folder; refuse if a different process holds it."""
        if self._file is not None:
            return
        with reporting("write", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            # Appending, so that opening does not erase the holder's process id.
            file = (self._folder / NAME).open("a+")
        try:
            self._lock(file)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise InputError(
                f"{self._folder} is in use by process {holder}: wait until it ends, or choose a "
                f"different folder."
            ) from error
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                file.close()
                raise InputError(f"cannot lock {self._folder}: {error.strerror}.") from error
            self._warn(f"the file system of {self._folder}")
        self._file = file
        with reporting("write", self._folder / NAME):
            file.truncate(0)
            file.write(f"{os.getpid()} on {socket.gethostname()}\n")
            file.flush()

    def _lock(self, file: IO[str]) -> None:
        """Lock an open file without waiting, or warn on a system without such locks."""
        try:
            import fcntl
        except ModuleNotFoundError:
            self._warn("this system")
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _warn(self, place: str) -> None:
        """Warn that nothing keeps a second process out."""
        warnings.warn(
            f"{place} has no locks: make sure that no second process writes into {self._folder}.",
            stacklevel=4,
        )

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
