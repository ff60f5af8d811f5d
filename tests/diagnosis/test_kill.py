"""Kills in a row, and not a byte is different."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from diagnosis.small_models import language, trained
from headscape.diagnosis.report import FILES

WORKER = Path(__file__).with_name("worker.py")


def finished(out: Path) -> int:
    """Lines that are kept on the disk."""
    return sum(len(path.read_bytes().splitlines()) for path in (out / "stages").glob("*.jsonl"))


@pytest.mark.kills
def test_kills_leave_the_same_bytes(tmp_path: Path) -> None:
    model, tokens = tmp_path / "model", tmp_path / "tokens.npy"
    trained("rope").save(model)
    np.save(tokens, language(4000, seed=9))
    command = [sys.executable, str(WORKER), str(model), str(tokens)]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*command, whole], check=True)
    every = finished(whole)
    for kill in range(1, 5):
        process = subprocess.Popen([*command, broken])
        # Half of the work is left after the last one, so that a late kill still comes in time.
        while finished(broken) < kill * every // 8:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (broken / FILES[0]).exists()
    subprocess.run([*command, broken], check=True)
    for name in FILES:
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name
