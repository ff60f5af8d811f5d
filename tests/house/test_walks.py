"""The number of files that a use of the package passes through does not grow.

The aim is 12 files from hs.attention to the kernel, 25 from a published model to its bias and 30
from the command line to a figure. Lower a bound when a walk gets shorter.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("walks")  # one worker walks, once
BOUNDS = {"attention": 12, "published": 25, "figure": 64}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_walk_passes_no_more_files_than_before(name: str, walks: dict[str, list[str]]) -> None:
    assert len(walks[name]) <= BOUNDS[name], "\n".join(walks[name])
    assert len(walks[name]) > BOUNDS[name] // 2, "the walk is much shorter: lower its bound"


def test_the_walks_pass_what_they_must(walks: dict[str, list[str]]) -> None:
    assert {"encodings/alibi.py", "kernels/native/adapter.py"} <= set(walks["attention"])
    assert {"models/load.py", "captures/record.py"} <= set(walks["published"])
    assert {"cli/figures.py", "plots/grid.py"} <= set(walks["figure"])


@pytest.fixture(scope="module")
def walks() -> dict[str, list[str]]:
    """The files of every walk, in a process of its own: what it imports belongs to it alone."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.walks"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if heading := re.fullmatch(r"(\w+): \d+ files", line):
            files = found.setdefault(heading[1], [])
        else:
            files.append(line.strip())
    return found
