"""Two processes over gloo against one: the same curve, and checkpoints that move between them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headscape.training import Run, TrainConfig, metrics, train
from headscape.training.config import write_toml
from training.conftest import Make

pytestmark = pytest.mark.processes
WORKER = Path(__file__).with_name("worker.py")


def on_two(
    config: TrainConfig, out: Path, cache: Path, *flags: str, **extra: str
) -> "subprocess.CompletedProcess[str]":
    path = out.with_suffix(".toml")
    write_toml(path, config)
    words = [WORKER, out, cache, path, *flags]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, "--nproc-per-node=2", *extra.pop("torchrun", "").split(), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **extra},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def curve(run: Path) -> list[float]:
    return [line["loss"] for line in metrics.read(run)]


@pytest.fixture
def alone(make: Make, cache: Path, tmp_path: Path) -> Path:
    train(make(**FIFTY), out=tmp_path / "alone", cache=cache, quiet=True)
    return tmp_path / "alone"


FIFTY = {"steps": 50, "layers": 2, "encoding": "fire", "checkpoint_every": 20, "lr": 1e-3}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_muon_on_two_processes_gives_the_curve_of_one(
    strategy: str, make: Make, cache: Path, tmp_path: Path
) -> None:
    few = {**FIFTY, "steps": 10, "width": 64, "checkpoint_every": 5}
    alone, both = tmp_path / "alone", tmp_path / "both"
    train(make(**few), out=alone, cache=cache, quiet=True)
    config = make(**few, distributed=strategy)
    assert config.optimizer == "muon"
    done = on_two(config, both, cache)
    assert done.returncode == 0, done.stderr
    assert curve(both) == pytest.approx(curve(alone), rel=1e-4)
    # The second half again, on one process, from what two have saved.
    (both / "checkpoints" / "step-000010").rename(tmp_path / "old")
    assert train(config, out=both, cache=cache, resume=True, quiet=True).step == 10
    assert curve(both) == pytest.approx(curve(alone), rel=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_give_the_curve_of_one_and_swap_checkpoints(
    strategy: str, make: Make, cache: Path, tmp_path: Path, alone: Path
) -> None:
    config = make(**FIFTY, distributed=strategy)
    both = tmp_path / "both"
    done = on_two(config, both, cache)
    assert done.returncode == 0, done.stderr
    assert curve(both) == pytest.approx(curve(alone), rel=1e-4)
    assert curve(both)[:3] == pytest.approx(curve(alone)[:3], rel=1e-6)
    ours, theirs = Run.open(alone), Run.open(both)
    one, two = (torch.cat([v.flatten() for v in run.model.parameters()]) for run in (ours, theirs))
    assert float((one - two).detach().norm() / one.detach().norm()) < 1e-2
    last = [metrics.read(run)[-1]["validation_loss"] for run in (alone, both)]
    assert last[1] == pytest.approx(last[0], rel=1e-4)

    # The last ten steps again, each on the other number of processes.
    for run in (alone, both):
        (run / "checkpoints" / "step-000050").rename(run / "old")
    result = train(config, out=both, cache=cache, resume=True, quiet=True)
    assert result.step == 50
    assert curve(both) == pytest.approx(curve(alone), rel=1e-4)
    expected = curve(alone)
    done = on_two(config, alone, cache, "resume")
    assert done.returncode == 0, done.stderr
    assert "resuming" in done.stderr
    assert curve(alone) == pytest.approx(expected, rel=1e-4)
    assert Run.open(alone).step == 50


@pytest.mark.parametrize("encoding", ["t5", "kerple"])
def test_a_shared_encoding_is_sharded_too(
    encoding: str, make: Make, cache: Path, tmp_path: Path
) -> None:
    few = {**FIFTY, "steps": 5, "encoding": encoding, "share_encoding": True}
    train(make(**few), out=tmp_path / "one", cache=cache, quiet=True)
    done = on_two(make(**few, distributed="fsdp"), tmp_path / "two", cache)
    assert done.returncode == 0, done.stderr
    assert curve(tmp_path / "two") == pytest.approx(curve(tmp_path / "one"), rel=1e-5)


def test_torchrun_restarts_a_lost_process_and_the_run_goes_on(
    make: Make, cache: Path, tmp_path: Path
) -> None:
    config = make(**{**FIFTY, "checkpoint_every": 5})
    train(config, out=tmp_path / "whole", cache=cache, quiet=True)
    done = on_two(
        config, tmp_path / "lost", cache, torchrun="--max-restarts=2", HEADSCAPE_TEST_DIE="22"
    )
    assert done.returncode == 0, done.stderr
    assert "resuming" in done.stderr
    assert curve(tmp_path / "lost") == pytest.approx(curve(tmp_path / "whole"), rel=1e-4)


def test_processes_without_a_strategy_are_refused(make: Make, cache: Path, tmp_path: Path) -> None:
    done = on_two(make(distributed="none"), tmp_path / "run", cache)
    assert done.returncode != 0
    assert "choose ddp or fsdp" in done.stderr
