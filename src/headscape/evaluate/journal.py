"""Finished batches on disk, so that an interrupted evaluation goes on where it stopped.

One JSON Lines file per model and length: first a header with everything the numbers depend on (of
the code, only the version), then a line per finished batch. The file's name is the header's
SHA-256, so a different model, text, protocol or batch size never reads these lines. Each line is
flushed to the disk; a line that a kill cut short is dropped. Floats are written so that they read
back to the same bits.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from headscape.errors import InputError
from headscape.io import atomic

Batch = TypeVar("Batch")


def resumed(
    folder: Path | None,
    header: Mapping[str, Any],
    batches: Iterable[Batch],
    compute: Callable[[Batch], Any],
) -> Iterator[tuple[Batch, Any]]:
    """Yield each batch with its numbers: from the journal where finished, else computed and kept.

    Without a folder everything is computed and nothing is kept.
    """
    journal = None if folder is None else Journal(folder, header)
    for number, batch in enumerate(batches):
        if journal is None:
            yield batch, compute(batch)
            continue
        if number not in journal.finished:
            journal.record(number, compute(batch))
        yield batch, journal.finished[number]


class Journal:
    """The finished batches of one model at one length."""

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
        """Keep a batch's numbers; they are on disk when this returns."""
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
        # What follows the last line break is a line cut short, or empty.
        for line in lines[:-1]:
            try:
                json.loads(line)
            except ValueError:
                break
            good.append(line)
        return good
