"""Long commands stopped at random moments, twenty times each, and then left to finish.

    python -m cli.interruptions [--times 20] [train capture evaluate figures]   (from tests/)

Each command first runs undisturbed. Then it is started again and again in a new folder and stopped,
in turn by SIGINT, SIGTERM and SIGKILL, after a random part of the time that it took; the last start
is left to finish. Its files must have the same bytes as those of the undisturbed run. Processes are
forked from one that has imported everything, so that moments fall into the command's own work.
"""

import argparse
import ctypes
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
from headscape.cli import app
from headscape.training import metrics

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
TEXT = "".join(f"line {n} of {n % 7} things and {n % 11} more\n" for n in range(4000))
TRAIN = ["--tokenizer", "bytes", "--context-length", "32", "--batch-size", "2"]
VOLATILE = {"seconds", "tokens_per_second", "time", "mfu"}
"""Fields of a line of metrics that are times."""


@dataclass(frozen=True)
class Long:
    """A command, and what of its folder must be the same."""

    words: Callable[[Path], list[str]]
    """The command line for a folder."""
    same: tuple[str, ...]
    """Patterns of files that must have the same bytes."""


def commands(home: Path) -> dict[str, Long]:
    """The long commands, with `home` for what they read."""
    text, run = str(home / "text.txt"), str(home / "run")
    return {
        "train": Long(
            lambda out: [
                "train", "--out", str(out), "--corpus", text, *TRAIN, "--encoding", "cable",
                "--steps", "40", "--checkpoint-every", "7",
                *(["--resume"] if (out / "config.toml").exists() else []),
            ],
            ("checkpoints/step-*/*.safetensors", "config.toml"),
        ),
        "capture": Long(
            lambda out: [
                "capture", run, "--out", str(out / "a.safetensors"), "--length", "400",
                "--layers", "all",
            ],
            ("*",),
        ),
        "evaluate": Long(
            lambda out: [
                "evaluate", run, "--out", str(out), "--lengths", "32,64", "--limit", "4000",
                "--batch-tokens", "256",
            ],
            ("evaluation.json", "*.md", "*.csv"),
        ),
        "figures": Long(
            lambda out: [
                "figures", "--encodings", "alibi,cable", "--run", f"cable={run}", "--run",
                f"alibi={run}-alibi", "--length", "32", "--format", "png,svg", "--processes", "1",
                "--out", str(out),
            ],
            ("*.png", "*.svg", "*.json", "index.html"),
        ),
    }  # fmt: skip


def start(words: list[str], log: Path) -> int:
    """The process id of a command line in a child of this process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # A group of its own for killpg, and no life after this script's.
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.argv = ["headscape", *words]
        app.main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    finally:
        os._exit(code)


def finish(words: list[str], log: Path) -> float:
    """Run to the end; seconds that it took."""
    before = time.monotonic()
    _, status = os.waitpid(start(words, log), 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{words[0]} failed when left alone: {log.read_text()[-2000:]}")
    return time.monotonic() - before


def outcome(folder: Path, same: tuple[str, ...]) -> dict[str, str]:
    """The SHA-256 of every file that must be the same, and the losses of a training."""
    files = sorted({path for pattern in same for path in folder.glob(pattern) if path.is_file()})
    found = {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes().replace(os.fsencode(folder), b"FOLDER")  # in the recorded command
        ).hexdigest()
        for path in files
    }
    lines = [
        {name: value for name, value in line.items() if name not in VOLATILE}
        for line in metrics.read(folder)
    ]
    return found | ({"metrics": json.dumps(lines)} if lines else {})


def interrupted(name: str, long: Long, home: Path, times: int) -> str:
    """Stop a command many times; a row of the table."""
    draw, log = random.Random(name), home / f"{name}.log"  # noqa: S311
    whole, broken = home / f"{name}-whole", home / f"{name}-broken"
    seconds = finish(long.words(whole), log)
    wanted = outcome(whole, long.same)
    if not wanted:
        raise SystemExit(f"{name} wrote nothing to compare: {sorted(whole.rglob('*'))}")
    codes: Counter[str] = Counter()
    stopped = tries = 0
    while stopped < times and tries < 5 * times:
        child = start(long.words(broken), log)
        time.sleep(draw.uniform(0, seconds))
        number = SIGNALS[tries % len(SIGNALS)]
        tries += 1
        done, status = os.waitpid(child, os.WNOHANG)
        if not done:
            os.killpg(child, number)
            _, status = os.waitpid(child, 0)
            stopped += 1
        code = os.waitstatus_to_exitcode(status)
        codes[signal.Signals(-code).name if code < 0 else f"exit code {code}"] += 1
        if code not in (0, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT):
            raise SystemExit(f"{name} ended with {code}: {log.read_text()[-2000:]}")
        if code == 0:
            shutil.rmtree(broken)
    if "Traceback" in log.read_text():
        raise SystemExit(f"{name} printed a traceback: {log.read_text()[-3000:]}")
    finish(long.words(broken), log)
    found = outcome(broken, long.same)
    if found != wanted:
        different = sorted(key for key in wanted | found if wanted.get(key) != found.get(key))
        raise SystemExit(f"{name} after {stopped} interruptions differs in {different}")
    left = [path for path in broken.rglob("*") if path.name.endswith(".part")]
    ends = ", ".join(f"{key} {count}" for key, count in codes.items())
    return f"{name}: {stopped} interruptions ({ends}), {len(wanted)} files the same, left {left}"


def main() -> None:
    """Interrupt every command and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["HEADSCAPE_CACHE"] = str(home / "cache")
        (home / "text.txt").write_text(TEXT)
        os.chdir(home)
        for encoding, run in (("cable", "run"), ("alibi", "run-alibi")):
            finish(
                ["train", "--out", str(home / run), "--corpus", str(home / "text.txt"), *TRAIN,
                 "--encoding", encoding, "--steps", "8"],
                home / "log",
            )  # fmt: skip
        every = commands(home)
        for name in args.names or every:
            sys.stdout.write(interrupted(name, every[name], home, args.times) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
