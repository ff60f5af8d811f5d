"""One reader under atheris: NAME INPUTS SECONDS REPORT; run.py starts it for every reader.

Works in an empty folder, which is also its home and its cache. Ends after INPUTS inputs or SECONDS
seconds and writes what it found to REPORT: for every kind of finding its first input.
"""

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["headscape"]):
    from fuzz import readers
from fuzz.loop import kind

SLOW = 5.0
"""Seconds that an input may take."""
MEMORY = 1 << 20
"""KiB that the process may grow by."""
KNOWN = {
    "a.safetensors", "model.safetensors", "state.json", "headscape.json", "header.json",
    "tokens.bin", "offsets.bin", "config.toml", "tokenizer.json", "evaluation.json",
    "metrics.jsonl", "provenance.json", "a.txt", "a.jsonl", "a.jsonl.gz", "a.txt.zst", "a.txt.gz",
    "a.jsonl.zst",
}  # fmt: skip
"""Files that the harness writes; a journal is named by a hash."""


class Fuzzer:
    """Counts inputs and keeps findings."""

    def __init__(self, name: str, inputs: int, seconds: float, report: Path) -> None:
        self.name, self.inputs, self.report = name, inputs, report
        self.until = time.monotonic() + seconds
        self.count = self.right = 0
        self.found: dict[str, str] = {}
        # Imports may leave caches of their own in the home.
        self.home = set(Path.cwd().rglob("*"))
        self.peak = _peak()

    def one(self, data: bytes) -> None:
        """Try an input."""
        folder = Path(tempfile.mkdtemp(dir=os.environ["FUZZ_FILES"]))
        started = time.perf_counter()
        try:
            self.right += readers.read(self.name, data, folder)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.find(kind(error), data)
        if time.perf_counter() - started > SLOW:
            self.find("slow", data)
        if _peak() - self.peak > MEMORY:
            self.find("memory", data)
            self.peak = _peak()
        written = {path.name for path in folder.iterdir() if self.name != "journal"} - KNOWN
        if written or set(Path.cwd().rglob("*")) - self.home:
            self.find("written file", data)
        shutil.rmtree(folder)
        self.count += 1
        if self.count >= self.inputs or time.monotonic() > self.until:
            self.write()
            os._exit(0)

    def find(self, kind: str, data: bytes) -> None:
        """Keep the first input of a kind."""
        self.found.setdefault(kind, data.hex())

    def write(self) -> None:
        """Write the report."""
        facts = {"inputs": self.count, "right": self.right, "found": self.found}
        self.report.write_text(json.dumps(facts))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    name, inputs, seconds, report = sys.argv[1:]
    corpus = Path(os.environ["FUZZ_FILES"]) / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(readers.seeds(name)):
        (corpus / str(number)).write_bytes(seed)
    fuzzer = Fuzzer(name, int(inputs), float(seconds), Path(report))
    atheris.Setup([sys.argv[0], str(corpus), "-max_len=4096", "-timeout=60"], fuzzer.one)
    atheris.Fuzz()
