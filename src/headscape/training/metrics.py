"""metrics.jsonl: one line of JSON per step, with `validation_loss` in steps that have one.

    {"step": 200, "loss": 3.91, "lr": 0.005, "grad_norm": 0.8, "length": 128, "tokens": 204800,
     "seconds": 17.2, "validation_loss": 3.95}

Lines are appended, and flushed to the disk with every checkpoint. A kill may leave an incomplete
line and lines after the last checkpoint: reading ignores the incomplete line, resuming removes
both.

With `tensorboard`, an optional package, the same numbers are TensorBoard events; a resumed run adds
events from its step on.
"""

import json
import math
import os
from pathlib import Path
from typing import IO

from headscape.errors import InputError
from headscape.io.files import parse_json, reporting, write_text

NAME = "metrics.jsonl"
EVENTS = "tensorboard"
Line = dict[str, float]


class Metrics:
    """The open metrics file of a run in progress."""

    def __init__(self, run: Path, after: int) -> None:
        self.path = run / NAME
        kept = [line for line in read(run) if line["step"] <= after]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        with reporting("write", self.path):
            self._file: IO[str] = self.path.open("a")

    def append(self, line: Line) -> None:
        """Add the line of a step."""
        with reporting("write", self.path):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def flush(self) -> None:
        """Flush every line to the disk."""
        with reporting("write", self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; `append` has already reported a full disk."""
        try:
            self._file.close()
        except OSError:
            os.close(self._file.fileno())


def read(run: Path) -> list[Line]:
    """Return every complete line of a run."""
    path = run / NAME
    if not path.is_file():
        return []
    with reporting("read", path):
        data = path.read_bytes()
    lines: list[Line] = []
    for text in data.split(b"\n"):
        try:
            line = parse_json(text, path)
        except InputError:
            continue
        if isinstance(line, dict) and _is_number(line.get("step")):
            lines.append(line)
    return lines


def _is_number(value: object) -> bool:
    return type(value) in {int, float} and math.isfinite(value)  # type: ignore[arg-type]


def require_tensorboard() -> None:
    """Refuse to go on without the package, before anything is written."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise InputError(
            "tensorboard is not installed: pip install 'headscape[tensorboard]', or train with "
            "tensorboard=False."
        ) from error


class Events:
    """An open events file in a run's folder."""

    def __init__(self, run: Path, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / EVENTS), purge_step=after + 1)

    def append(self, line: Line) -> None:
        """Add the numbers of a step."""
        for name in ("loss", "validation_loss", "lr", "grad_norm"):
            if name in line:
                self._writer.add_scalar(name, line[name], int(line["step"]))

    def close(self) -> None:
        """Write all pending events."""
        self._writer.close()
