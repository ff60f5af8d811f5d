"""How long the command takes to answer, and its parts to import.

python -m benchmarks.startup
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

HEADSCAPE = Path(sys.executable).with_name("headscape")
CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "headscape --help": [str(HEADSCAPE), "--help"],
    "import headscape.encodings": [sys.executable, "-c", "import headscape.encodings"],
    "import headscape.plots.grid": [sys.executable, "-c", "import headscape.plots.grid"],
    "import torch": [sys.executable, "-c", "import torch"],
}
ROUNDS = 7


def main() -> None:
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, command in CASES.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            taken[name].append(time.perf_counter() - start)
    for name, seconds in taken.items():
        print(f"{name:32} {statistics.median(seconds):6.2f} s (median of {ROUNDS})")


if __name__ == "__main__":
    main()
