"""The main job, interrupted and killed: it saves, it continues, and it leaves no process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headscape.training import Run
from paper.conftest import Settings

WORKER = Path(__file__).with_name("figures_worker.py")

pytestmark = pytest.mark.kills


def started(tmp_path: Path, tiny: Settings) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, WORKER, json.dumps({**tiny, "out": str(tmp_path)})],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_steps(tmp_path: Path, process: "subprocess.Popen[str]", count: int) -> None:
    """Wait until two models have made some steps."""
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        assert process.poll() is None
        files = list((tmp_path / "runs").glob("*/metrics.jsonl"))
        if len(files) == 2 and all(path.read_text().count("\n") >= count for path in files):
            return
        time.sleep(0.05)
    raise AssertionError("no training in two minutes")


def ends(group: int) -> bool:
    """Whether every process of a group is gone within twenty seconds."""
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_ctrl_c_saves_the_same_call_continues_and_a_kill_leaves_no_process(
    tmp_path: Path, tiny: Settings
) -> None:
    settings, stopped, more = {**tiny, "steps": 100_000}, [], 5
    # A terminal sends the signal to the whole group, `kill` to one process.
    for interrupt in (os.killpg, os.kill):
        process = started(tmp_path, settings)
        wait_for_steps(tmp_path, process, more)
        interrupt(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 130, said
        assert "Traceback" not in said
        assert ends(process.pid)
        steps = {run: Run.open(run).step for run in (tmp_path / "runs").iterdir()}
        assert len(steps) == 2
        stopped.append(steps)
        more = max(steps.values()) + 5
    process = started(tmp_path, settings)
    try:
        wait_for_steps(tmp_path, process, more)
        for run in steps:
            entries = json.loads((run / "provenance.json").read_text())
            assert [entry["step"] for entry in entries] == [0, *(each[run] for each in stopped)]
    finally:
        # Killed, it cannot tell its processes, and they end with it all the same.
        process.kill()
        process.communicate()
    assert ends(process.pid)
