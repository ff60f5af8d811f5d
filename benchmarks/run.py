"""`make bench`: every benchmark in turn, each in a process of its own; results go to one folder.

Each prints its table and writes JSON and Markdown to benchmarks/results. Run one alone with
`python -m benchmarks.NAME --help`.
"""

import subprocess
import sys

OUT = "benchmarks/results"
SUITE = (
    ("startup", []),
    ("attention", [OUT]),
    ("slices", ["--out", OUT]),
    ("decoding", ["--out", OUT]),
    ("training", ["--out", OUT]),
    ("capture", []),
    ("evaluation", ["--layers", "2", "--out", OUT]),
)


def main() -> None:
    for name, options in SUITE:
        print(f"\n== {name} {' '.join(options)}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], check=True)


if __name__ == "__main__":
    main()
