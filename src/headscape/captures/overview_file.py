"""The exact overview of one head's weights, computed by many processes and kept beside its capture.

The rows of cells are independent, so they are shared out to one process per core; each writes the
rows it has done as a part file. A stopped job continues from its parts. When all are there
they become one safetensors file with `sum`, `min`, `max`, `count` [r r] and `lse` [t]:

    capture.safetensors.overview/layer-0-head-3.safetensors

It names the capture's size and time of change and is ignored when the capture has been replaced.
One process at a time computes a head: a second server waits for the first one's overview, and takes
over if that ends early. Where the folder of the capture cannot be written, the overview is kept in
a temporary folder until the job is stopped, and `Progress.note` says so.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from headscape.captures.capture_file import open_pack
from headscape.captures.pooling import WeightCells, weight_cells
from headscape.errors import InputError
from headscape.io.files import reason, replacing
from headscape.io.folder_lock import NAME, FolderLock

CELLS: Final = 1024
"""Cells a side at most."""
POLL_SECONDS: Final = 1.0
"""How often a job that waits for a different process looks again."""
_FIELDS: Final = ("sum", "min", "max", "count", "lse")


def overview_level(length: int) -> int:
    """The level at which a map has at most CELLS cells a side."""
    return max(0, (max(1, -(-length // CELLS)) - 1).bit_length())


def stamp(path: Path) -> str:
    """What changes when a capture is replaced."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    done: float
    """Share of the pairs done, 0 to 1."""
    left_seconds: float | None
    """Estimate of the time left; None before the first part is done."""
    finished: bool
    error: str | None = None
    note: str | None = None
    """Where the overview is kept, if not beside its capture."""


class OverviewJob:
    """Computes the overview of one head in the background."""

    def __init__(
        self,
        capture: Path,
        layer: int,
        head: int,
        *,
        level: int | None = None,
        processes: int | None = None,
    ) -> None:
        self.capture, self.layer, self.head = Path(capture), layer, head
        self.length = open_pack(self.capture).length
        self.level = overview_level(self.length) if level is None else level
        self.folder = self.capture.with_name(self.capture.name + ".overview")
        self.path = self.folder / f"layer-{layer}-head-{head}.safetensors"
        self._stamp = stamp(self.capture)
        self._parts = self.folder / f"layer-{layer}-head-{head}-{self._stamp}-{self.level}"
        self._processes = processes or os.cpu_count() or 1
        self._running: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._begun: float | None = None
        self._before = 0.0
        self._error: str | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._kept: tempfile.TemporaryDirectory[str] | None = None
        self._note: str | None = None

    def result(self) -> WeightCells | None:
        """The overview, where it has been computed for this very capture."""
        return read_overview(self.path, self._stamp)

    def start(self) -> None:
        """Start in the background, unless the job runs or has finished."""
        with self._lock:
            if self._begun is not None or (self.path.is_file() and self.result() is not None):
                return
            self._choose_folder()
            self._begun = time.monotonic()
            self._before = self._share()
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def _choose_folder(self) -> None:
        """Keep the overview in a temporary folder where that of the capture cannot be written."""
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._parts):
                return
        except OSError as error:
            self._note = (
                f"{self.folder} cannot be written ({reason(error)}), so the overview is kept only "
                f"until the viewer ends."
            )
        self._kept = tempfile.TemporaryDirectory(prefix="headscape-overview-")
        self.folder = Path(self._kept.name)
        self.path, self._parts = self.folder / self.path.name, self.folder / self._parts.name
        self._parts.mkdir()

    def _work(self) -> None:
        """Compute the overview, or wait while a different process does."""
        try:
            while self.result() is None and not self._ended.is_set():
                with FolderLock(self._parts) as lock:
                    try:
                        lock.acquire()
                    except InputError:
                        self._ended.wait(POLL_SECONDS)
                        continue
                    if self.result() is None:
                        self._compute()
                    if self._error is None:
                        (self._parts / NAME).unlink(missing_ok=True)
                    break
            with suppress(OSError):  # a second process may have just created its lock
                self._parts.rmdir()
        except (OSError, InputError) as error:
            self._error = str(error).rstrip(".")

    def _compute(self) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            environment = os.environ | dict.fromkeys(
                ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
            )
            fixed = [str(self.capture.resolve()), self.layer, self.head, self.level]
            for index in range(self._processes):
                words = json.dumps([*fixed, str(self._parts.resolve()), index, self._processes])
                self._running.append(
                    subprocess.Popen(  # noqa: S603
                        [sys.executable, "-m", "headscape.captures.overview_file", words],
                        env=environment,
                        text=True,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE,
                    )
                )
        self._finish()

    def progress(self) -> Progress:
        """How far the job is, and how long it will still take."""
        if self.result() is not None:
            return Progress(1.0, 0.0, finished=True, note=self._note)
        done = self._share()
        gained = done - self._before
        left = None
        if self._begun is not None and gained > 0:
            left = (time.monotonic() - self._begun) * (1 - done) / gained
        return Progress(done, left, finished=False, error=self._error, note=self._note)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the job has ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    def stop(self) -> None:
        """End the processes; what they have done is kept."""
        self._ended.set()
        with self._lock:
            for process in self._running:
                if process.poll() is None:
                    process.terminate()
        self.wait(10)
        if self._kept is not None:
            self._kept.cleanup()

    def _share(self) -> float:
        """Share of the pairs in the part files; row of cells r has about r + 1/2 cells."""
        cells = -(-self.length // (1 << self.level))
        numbers = [int(path.stem) for path in self._parts.glob("*.npz")]
        return sum(2 * number + 1 for number in numbers) / cells**2

    def _finish(self) -> None:
        failed = ""
        for process in self._running:
            _, said = process.communicate()
            if process.returncode:
                failed = said.strip().splitlines()[-1] if said.strip() else "a process was stopped"
        cells = -(-self.length // (1 << self.level))
        parts = [self._parts / f"{number}.npz" for number in range(cells)]
        if failed or not all(part.is_file() for part in parts):
            self._error = failed or "a process was stopped"
            return
        every = [np.load(part) for part in parts]
        arrays = {name: np.concatenate([part[name] for part in every]) for name in _FIELDS}
        with replacing(self.path) as whole:
            save_file(arrays, whole, metadata={"capture": self._stamp, "level": str(self.level)})
        for part in parts:
            part.unlink(missing_ok=True)


def read_overview(path: Path, expected: str) -> WeightCells | None:
    """A finished overview of the capture with this stamp; None where there is none."""
    try:
        with safe_open(path, framework="numpy") as file:
            if (file.metadata() or {}).get("capture") != expected:
                return None
            return WeightCells(**{name: file.get_tensor(name) for name in _FIELDS})
    except (SafetensorError, OSError):
        return None


def compute_parts(
    capture: Path, layer: int, head: int, level: int, folder: Path, index: int, of: int
) -> None:
    """Write every `of`-th row of cells that is not there yet, the longest first."""
    pack = open_pack(capture)
    saved, at = pack.layer(layer), pack.head_index(head)
    cells = -(-pack.length // (1 << level))
    for number in range(cells - 1 - index, -1, -of):
        path = folder / f"{number}.npz"
        if path.is_file():
            continue
        cells_of_row = weight_cells(saved, at, level, range(number, number + 1))
        with replacing(path) as part, part.open("wb") as file:
            np.savez(file, **{name: getattr(cells_of_row, name) for name in _FIELDS})


if __name__ == "__main__":
    _path, _layer, _head, _level, _folder, _index, _of = json.loads(sys.argv[1])
    os.nice(10)
    compute_parts(Path(_path), _layer, _head, _level, Path(_folder), _index, _of)
