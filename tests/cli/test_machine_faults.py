"""A disk that fills up in an evaluation, a clock that jumps, a machine without /proc."""

import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import headscape as hs
from full_disk import largest_file
from headscape.cli.app import main
from headscape.training import Run

TRAIN = ["--encoding", "cable", "--tokenizer", "bytes", "--context-length", 32, "--batch-size", 2]
WITHOUT_PROC = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def evaluated(small_run: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from typer.testing import CliRunner

    from headscape.cli.app import app

    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCAPE_CACHE", str(cache))
        result = CliRunner().invoke(app, list(map(str, evaluate(small_run, out))))
    assert result.exit_code == 0, result.output
    return out


def evaluate(run: Path, out: Path) -> list[object]:
    words = ["evaluate", run, "--out", out, "--lengths", "16,32"]
    return [*words, "--limit", 500, "--batch-tokens", 64]


@pytest.mark.parametrize("size", [400, 2000, 8000])
def test_a_disk_that_fills_up_in_an_evaluation(
    call, refuses, evaluated: Path, small_run: Path, tmp_path: Path, monkeypatch, size: int
) -> None:
    """Refused in a sentence; with room again the same command gives the same files."""
    words = list(map(str, evaluate(small_run, tmp_path / "out")))
    monkeypatch.setattr(sys, "argv", ["headscape", *words])
    with largest_file(size):
        refuses("cannot write")
    whole = contents(evaluated)
    for name, data in contents(tmp_path).items():
        if "journal" not in name:
            assert data == whole[name.removeprefix("out/")], name
    assert call(*words).exit_code == 0
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(
    ("allocate", "asked"),
    [
        (lambda *_, **__: np.empty(1 << 48, dtype=np.uint8), "256 TiB"),
        (lambda *_, **__: torch.empty(1 << 48, dtype=torch.uint8), "2.62e+05 GiB"),
    ],
)
def test_too_little_memory_is_one_sentence(
    allocate, asked: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hs, "load", allocate)
    monkeypatch.setattr("sys.argv", ["headscape", "evaluate", "run"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    [said] = capfd.readouterr().err.splitlines()
    assert said.startswith("error: not enough memory is free (")
    assert asked in said


def test_another_runtime_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(hs, "load", fail)
    monkeypatch.setattr("sys.argv", ["headscape", "evaluate", "run"])
    with pytest.raises(RuntimeError, match="a defect"):
        main()


def test_a_clock_that_jumps(call, small_run: Path, tmp_path: Path, monkeypatch) -> None:
    """Years forward and back at every look: the same weights, capture and evaluation."""
    years = itertools.cycle([0.0, 3e8, -4e8, 1e9])
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + next(years))
    run = tmp_path / "run"
    text = small_run.parent / "text.txt"
    words = ["train", *TRAIN, "--corpus", text, "--steps", 8, "--checkpoint-every", 4, "--out", run]
    assert call(*words).exit_code == 0
    ours, theirs = Run.open(run).model.tensors(), Run.open(small_run).model.tensors()
    assert all(value.equal(theirs[name]) for name, value in ours.items())
    for number in range(2):
        assert call("capture", run, "--out", tmp_path / f"{number}.safetensors").exit_code == 0
    assert (tmp_path / "0.safetensors").read_bytes() == (tmp_path / "1.safetensors").read_bytes()
    assert call(*evaluate(run, tmp_path / "out")).exit_code == 0


def can_hide_proc() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = [*WITHOUT_PROC, "mount -t tmpfs none /proc"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def test_a_machine_without_proc(small_run: Path, tmp_path: Path) -> None:
    if not can_hide_proc():
        pytest.skip("this user may not create a mount namespace, which hides /proc")
    out = tmp_path / "a.safetensors"
    script = f"""
import sys
from headscape.cli.app import main
sys.argv = ["headscape", "capture", {str(small_run)!r}, "--out", {str(out)!r}]
main()
"""
    done = subprocess.run(
        [*WITHOUT_PROC, 'mount -t tmpfs none /proc && exec "$0" -c "$1"', sys.executable, script],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert out.is_file()
