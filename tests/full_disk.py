"""A disk that is full, without filling one."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A limit on the size of files, which fails like a full disk.

    Python does not check that all of a module's bytecode was written, so none is written meanwhile:
    bytecode that the limit cuts short would break every later import.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    plain, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    inherited = os.environ.get("PYTHONDONTWRITEBYTECODE")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
        sys.dont_write_bytecode = plain
        if inherited is None:
            del os.environ["PYTHONDONTWRITEBYTECODE"]
        else:
            os.environ["PYTHONDONTWRITEBYTECODE"] = inherited
