"""A lock on a folder that ends with the process that holds it, however that process ends.

The kernel keeps the lock (flock on FOLDER/.lock) and drops it when the process dies, so a kill
leaves nothing to clean up. The file contains the process id for the message to others; the file
itself stays.
"""

import errno
import fcntl
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
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
            warnings.warn(
                f"the file system of {self._folder} has no locks: make sure that no second "
                f"process trains into it.",
                stacklevel=2,
            )
        self._file = file
        with reporting("write", self._folder / NAME):
            file.truncate(0)
            file.write(f"{os.getpid()} on {socket.gethostname()}\n")
            file.flush()

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
