"""metrics.jsonl: one line of JSON for every step, and `validation_loss` in the lines that have one.

    {"step": 200, "loss": 3.91, "rate": 0.005, "norm": 0.8, "length": 128, "tokens": 204800,
     "seconds": 17.2, "validation_loss": 3.95}

Lines are appended and flushed to the disk with every checkpoint. A kill may leave half a line at
the end and lines after the last checkpoint: reading drops the half line, resuming drops both.
"""

import json
import os
from pathlib import Path
from typing import IO

from headscape.errors import InputError
from headscape.io import atomic

NAME = "metrics.jsonl"
Line = dict[str, float]


class Metrics:
    """The open file of a run in progress."""

    def __init__(self, run: Path, after: int) -> None:
        self.path = run / NAME
        kept = [line for line in read(run) if line["step"] <= after]
        atomic.write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file: IO[str] = self.path.open("a")

    def append(self, line: Line) -> None:
        """Add the line of a step."""
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}.") from error

    def flush(self) -> None:
        """See every line onto the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what a full disk could not take was reported by `append`."""
        try:
            self._file.close()
        except OSError:
            os.close(self._file.fileno())


def read(run: Path) -> list[Line]:
    """Every whole line of a run."""
    path = run / NAME
    if not path.is_file():
        return []
    lines: list[Line] = []
    for text in path.read_bytes().split(b"\n"):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "step" in line:
            lines.append(line)
    return lines
