"""Every long command, stopped twenty times at random moments, gives the same files in the end."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "capture", "evaluate", "figures"])
def test_twenty_interruptions_change_nothing(command: str) -> None:
    script = [sys.executable, "-m", "commands.interruptions", command]
    done = subprocess.run(
        script, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{command}: 20 interruptions" in done.stdout
    assert "left []" in done.stdout
