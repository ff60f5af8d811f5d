"""How long a training step takes with each way that OpenMP threads can wait, idle and busy.

python -m benchmarks.waiting --rounds 5
python -m benchmarks.waiting --rounds 3 --only busy

Every training is a process of its own (`hs.train`, preset nano), because OpenMP reads its settings
when it is loaded. The settings take turns in an order that differs between rounds. "busy" runs one
endless loop per core beside the training; "idle" runs nothing, so the machine must be idle. A
figure is the median over rounds of the median milliseconds per step, without the first steps,
followed by the median over rounds of that round's ratio to `default`: OpenMP with nothing set.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "GOMP_SPINCOUNT=100": {"GOMP_SPINCOUNT": "100"},
    "GOMP_SPINCOUNT=300": {"GOMP_SPINCOUNT": "300"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=3000": {"GOMP_SPINCOUNT": "3000"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "GOMP_SPINCOUNT=30000": {"GOMP_SPINCOUNT": "30000"},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
}
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "KMP_BLOCKTIME")
WARM_UP = 3
"""Steps that are not counted: the first calls of every kernel allocate."""
TRAIN = """
import sys, headscape as hs
hs.train("nano", encoding=sys.argv[1], steps=int(sys.argv[2]), out=sys.argv[3],
         validation_windows=1, quiet=True)
"""


def step_milliseconds(setting: dict[str, str], encoding: str, steps: int) -> float:
    """Train in a process of its own and return the median time of its steps."""
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES} | setting
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-c", TRAIN, encoding, str(steps), str(run)]
        subprocess.run(command, env=env, check=True)
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        at = [float(line["seconds"]) for line in lines]
    taken = [after - before for before, after in pairwise(at)]
    return 1e3 * statistics.median(taken[WARM_UP:])


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Run endless loops beside what is measured."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--encoding", default="cable")
    parser.add_argument("--only", choices=("idle", "busy"))
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    taken: dict[str, dict[str, list[float]]] = {}
    for case in ("idle", "busy") if given.only is None else (given.only,):
        taken[case] = {name: [] for name in given.settings}
        with busy_cores((os.cpu_count() or 1) if case == "busy" else 0):
            for turn in range(given.rounds):
                for name in Random(turn).sample(given.settings, len(given.settings)):
                    spent = step_milliseconds(SETTINGS[name], given.encoding, given.steps)
                    taken[case][name].append(spent)
                    load = os.getloadavg()[0]
                    print(f"{case} {turn} {name:24} {spent:8.1f} ms, load {load:.1f}", flush=True)
    print()
    for case, by_name in taken.items():
        for name, spent in by_name.items():
            ratio = ""
            if "default" in by_name:
                pairs = zip(spent, by_name["default"], strict=True)
                ratio = f"  {statistics.median(a / b for a, b in pairs):5.2f} x default"
            print(f"{case} {name:24} {statistics.median(spent):8.1f} ms per step{ratio}")
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "waiting.json").write_text(json.dumps(taken, indent=1) + "\n")


if __name__ == "__main__":
    main()
