"""What is already measured, so that an interrupted evaluation goes on where it was.

One JSON Lines file per measurement: first a header with what the numbers depend on (of the code,
only the version), then a line per finished batch of windows. Its name is the header's SHA-256, so
another model, text, protocol or batch size never meets these lines. Lines are flushed to the disk
one by one; a line that a kill cut short is dropped. Floats are written so that they read back to
the same bits.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headscape.errors import InputError
from headscape.io import atomic


class Journal:
    """The finished batches of one measurement."""

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        text = json.dumps({"headscape": version("headscape"), **header}, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        self.path = folder / f"{key[:32]}.jsonl"
        self.finished: dict[int, Any] = {}
        """What was recorded, by batch number."""
        lines = self._whole_lines()
        if not lines or lines[0] != text:
            lines = [text]
        for line in lines[1:]:
            entry = json.loads(line)
            self.finished[entry["batch"]] = entry["losses"]
        atomic.write_text(self.path, "".join(f"{line}\n" for line in lines))

    def record(self, batch: int, losses: Any) -> None:
        """Keep a batch's numbers, on the disk before this returns."""
        line = json.dumps({"batch": batch, "losses": losses})
        try:
            with self.path.open("a") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}.") from error
        self.finished[batch] = losses

    def _whole_lines(self) -> list[str]:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}.") from error
        lines = text.split("\n")
        good: list[str] = []
        # What follows the last line break is a line cut short, or nothing.
        for line in lines[:-1]:
            try:
                json.loads(line)
            except ValueError:
                break
            good.append(line)
        return good
