"""Every long command, stopped at random moments, gives the same files in the end."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "times", [pytest.param(6, marks=pytest.mark.kills), pytest.param(20, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("command", ["train", "capture", "evaluate", "figures"])
def test_interruptions_change_nothing(command: str, times: int) -> None:
    script = [sys.executable, "-m", "cli.interruptions", "--times", str(times), command]
    done = subprocess.run(
        script, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{command}: {times} interruptions" in done.stdout
    assert "left []" in done.stdout
