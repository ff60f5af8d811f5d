"""Finished batches on disk, so that an interrupted evaluation goes on where it stopped.

One JSON Lines file per model and length: first a header with everything the numbers depend on (of
the code, only the version), then a line per finished batch. The file's name is the header's
SHA-256, so a different model, text, protocol or batch size never reads these lines. Each line is
flushed to the disk and ends with its CRC-32; a line that is cut short or damaged is dropped, with
all that follow. Floats are written so that they read back to the same bits.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from headscape.io.files import reporting, write_text

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
        self._read(text)
        lines = [text, *(_line(batch, losses) for batch, losses in self.finished.items())]
        write_text(self.path, "".join(f"{line}\n" for line in lines))

    def record(self, batch: int, losses: Any) -> None:
        """Keep a batch's numbers; they are on disk when this returns."""
        line = _line(batch, losses)
        with reporting("write", self.path), self.path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.finished[batch] = losses

    def _read(self, header: str) -> None:
        """Take over the finished batches of an earlier process."""
        if not self.path.exists():
            return
        with reporting("read", self.path):
            first, *lines = self.path.read_bytes().split(b"\n")
        if first != header.encode():
            return
        for line in lines:
            text, _, crc = line.rpartition(b" ")
            if crc != _crc(text):
                return
            try:
                entry = json.loads(text)
                batch, losses = int(entry["batch"]), entry["losses"]
            except (ValueError, TypeError, KeyError, RecursionError):
                return
            self.finished[batch] = losses


def _line(batch: int, losses: Any) -> str:
    text = json.dumps({"batch": batch, "losses": losses})
    return f"{text} {_crc(text.encode()).decode()}"


def _crc(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
