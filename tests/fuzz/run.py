"""Fuzz every reader of a file with atheris and print the table of docs/reliability.md.

    make fuzz
    python -m fuzz.run --inputs 10000 --out found capture config      (from the tests folder)

Exits with 1 if a reader raised anything but InputError, took over 5 s, grew by over 1 GiB or wrote
a file. The first input of every kind of finding goes to --out.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuzz.readers import READERS

TESTS = Path(__file__).parents[1]


def fuzz(name: str, inputs: int, seconds: float) -> dict[str, Any]:
    """Return the report of one reader, with its edge coverage."""
    with tempfile.TemporaryDirectory() as folder:
        home, files = Path(folder) / "home", Path(folder) / "files"
        home.mkdir()
        files.mkdir()
        report = Path(folder) / "report.json"
        old = os.environ.get("PYTHONPATH", "")
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.target", name, str(inputs), str(seconds), report],
            env={
                **os.environ,
                "PYTHONPATH": f"{TESTS}{os.pathsep}{old}",
                "HOME": str(home),
                "HEADSCAPE_CACHE": str(home / "cache"),
                "FUZZ_FILES": str(files),
                "HF_HUB_OFFLINE": "1",
            },
            cwd=home,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            errors="replace",
            check=False,
        )
        if not report.is_file():
            raise SystemExit(f"{name} ended with code {done.returncode}:\n{done.stderr[-3000:]}")
        covered = re.findall(r"cov: (\d+)", done.stderr)
        facts: dict[str, Any] = json.loads(report.read_text())
        return facts | {"coverage": int(covered[-1]) if covered else 0}


def main() -> None:
    """Fuzz, print the table and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("readers", nargs="*", default=list(READERS))
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600, help="Most seconds per reader.")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    args = parser.parse_args()
    _say("| reader | inputs | read | edges covered | findings |\n|---|---:|---:|---:|---|")
    findings = 0
    for name in args.readers:
        facts = fuzz(name, args.inputs, args.seconds)
        kinds = ", ".join(facts["found"]) or "none"
        _say(
            f"| {name} | {facts['inputs']:,} | {facts['right']:,} | {facts['coverage']:,} "
            f"| {kinds} |"
        )
        for number, data in enumerate(facts["found"].values()):
            findings += 1
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / f"{name}-{number}").write_bytes(bytes.fromhex(data))
    sys.exit(1 if findings else 0)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
