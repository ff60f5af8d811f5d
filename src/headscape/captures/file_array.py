"""An array that stays in its file: an index reads the rows it names and nothing else.

A memory map would do the same, but if the file is truncated, reading the map kills the process.
Here a short read raises an error.
"""

import math
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from headscape.errors import InputError


class OpenFile:
    """A file open for reading at any place, by several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self.descriptor)

    def read(self, start: int, size: int) -> bytearray:
        """Exactly `size` bytes."""
        out = bytearray(size)
        view, done = memoryview(out), 0
        while done < size:
            got = os.preadv(self.descriptor, [view[done:]], start + done)
            if not got:
                raise InputError(f"{self.path} became shorter while it was read: open it again.")
            done += got
        return out


class FileArray:
    """Part of a file as an array; supports what a tile asks for.

    The last index given may be a range of rows or an array of row numbers; those before it are
    numbers or `:`; axes after it are read whole. A range on the last axis is cut after reading.
    """

    def __init__(self, file: OpenFile, start: int, dtype: np.dtype[Any], shape: list[int]) -> None:
        self._file, self._start = file, start
        self.dtype, self.shape = dtype, tuple(shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        whole = self._read(0, self.size).reshape(self.shape)
        return whole if dtype is None else whole.astype(dtype)

    def __getitem__(self, key: Any) -> np.ndarray:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(first, slice):
            if first != slice(None):
                rows = range(*first.indices(self.shape[0]))
                if rest or rows.step != 1:
                    part: np.ndarray = np.asarray(self)[key]
                    return part
                return self._rows(0, self.shape, rows.start, rows.stop)
            parts = [self[(index, *rest)] for index in range(self.shape[0])] if rest else None
            return np.asarray(self) if parts is None else np.stack(parts)
        if isinstance(first, list):
            return np.stack([self[(index, *rest)] for index in first])
        if isinstance(first, np.ndarray):
            return np.stack([self[(int(index), *rest)] for index in first])
        inner = self.shape[1:]
        index = range(self.shape[0])[first]
        offset = index * math.prod(inner)
        if not rest:
            return self._read(offset, math.prod(inner)).reshape(inner)
        rows, *after = rest
        if isinstance(rows, slice):
            span = range(*rows.indices(inner[0]))
            block = self._rows(offset, inner, span.start, max(span.start, span.stop))
        else:
            width = math.prod(inner[1:])
            ones = [self._read(offset + int(row) * width, width) for row in rows]
            block = np.stack(ones).reshape(len(ones), *inner[1:])
        return block[(slice(None), *after)] if after else block

    def _rows(self, offset: int, shape: tuple[int, ...], first: int, last: int) -> np.ndarray:
        width = math.prod(shape[1:])
        values = self._read(offset + first * width, (last - first) * width)
        return values.reshape(last - first, *shape[1:])

    def _read(self, start: int, count: int) -> np.ndarray:
        size = self.dtype.itemsize
        data = self._file.read(self._start + start * size, count * size)
        return np.frombuffer(data, dtype=self.dtype)
