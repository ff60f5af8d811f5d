"""Kills in a row, and not a bit is different."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from headscape.gpt2 import weights
from headscape.training import Run, metrics, train
from headscape.training.config import write_toml
from training.conftest import Make

WORKER = Path(__file__).with_name("worker.py")


def started(out: Path, cache: Path, config: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, WORKER, out, cache, config, "resume"], stderr=subprocess.PIPE, text=True
    )


def wait_for_a_write(out: Path, process: "subprocess.Popen[str]") -> bool:
    """Wait until a checkpoint is half written; False if none was met in ten seconds."""
    for _ in range(20_000):
        if process.poll() is not None:
            return False
        if any((out / "checkpoints").glob(".step-*.part/*")):
            return True
        time.sleep(0.0005)
    return False


@pytest.mark.parametrize(
    ("kills", "steps"),
    [
        pytest.param(6, 1_200, marks=pytest.mark.kills),
        pytest.param(20, 4_000, marks=pytest.mark.slow),
    ],
)
def test_kills_leave_the_same_bits(
    kills: int, steps: int, make: Make, cache: Path, tmp_path: Path
) -> None:
    # Wide enough that Muon updates the matrices of the blocks.
    config = make(steps=steps, checkpoint_every=5, validate_every=50, curriculum=(16, 32), width=64)
    assert config.optimizer == "muon"
    path = tmp_path / "config.toml"
    write_toml(path, config)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(config, out=whole, cache=cache, quiet=True)
    draw = random.Random(3)  # noqa: S311 - moments, not secrets
    inside = 0
    for kill in range(kills):
        process = started(broken, cache, path)
        if kill % 2:
            inside += wait_for_a_write(broken, process)
        else:
            while process.poll() is None and not (broken / "checkpoints").is_dir():
                time.sleep(0.01)
            time.sleep(draw.uniform(0, steps / 650))
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert inside > kills // 4
    process = started(broken, cache, path)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    ours, theirs = Run.open(whole), Run.open(broken)
    assert ours.step == theirs.step == steps
    for name, value in ours.model.tensors().items():
        assert torch.equal(value, theirs.model.tensors()[name]), name
    states = [
        weights.read_tensors(run.checkpoint / "optimizer.safetensors") for run in (ours, theirs)
    ]
    assert "momentum.blocks.0.up.weight" in states[0]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    losses = [[line["loss"] for line in metrics.read(run)] for run in (whole, broken)]
    assert losses[0] == losses[1]


@pytest.mark.kills
def test_ctrl_c_saves_and_the_exit_code_says_so(make: Make, cache: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "config.toml", tmp_path / "run"
    write_toml(path, make(steps=100_000, checkpoint_every=50_000))
    process = started(out, cache, path)
    while len(metrics.read(out)) < 20:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert f"resume {out} to continue" in said
    assert Run.open(out).step >= 20
