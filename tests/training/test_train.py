"""The arguments of `train`: a preset or a configuration, settings, and a folder of its own."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headscape.errors import InputError
from headscape.gpt2 import weights
from headscape.io.folder_lock import FolderLock
from headscape.training import Run, TrainConfig, checkpoint, preset, train
from headscape.training.config import read_toml, write_toml
from headscape.training.loop import NonFiniteError
from headscape.training.objective import objective_of
from headscape.training.step import Learner
from headscape.training.trainer import requested_config
from training.conftest import Make

WORKER = Path(__file__).with_name("worker.py")
SMALL: dict[str, Any] = {"layers": 1, "heads": 4, "width": 32, "tokenizer": "bytes", "steps": 2}


def test_a_preset_and_settings_are_enough(
    text: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = train(
        "nano", encoding="cable", corpus=str(text), out=tmp_path / "run", cache=cache, quiet=True,
        context_length=32, curriculum=[16, 32], **SMALL,
    )  # fmt: skip
    run = Run.open(tmp_path / "run")
    assert (run.config.model.encoding, run.config.curriculum, result.step) == ("cable", (16, 32), 2)
    assert len(repr(run)) < 200
    assert len(repr(result)) < 250
    assert repr(run.config).startswith("TrainConfig(layers=1, heads=4, width=32, encoding='cable'")
    monkeypatch.setenv("HEADSCAPE_CACHE", str(cache))
    dataset = run.dataset()
    assert dataset is not None
    assert (dataset.corpus, dataset.tokenizer) == (str(text), run.tokenizer)


def request(config: Any, out: Path, *, resume: bool = False, **settings: Any) -> TrainConfig:
    return requested_config(config, settings, out, resume=resume)


def test_what_the_arguments_mean(make: Make, tmp_path: Path) -> None:
    assert request(None, tmp_path) == preset("nano")
    assert request("mini", tmp_path, seed=3) == preset("mini", seed=3)
    own = make()
    assert request(own, tmp_path, seed=9) == replace(own, seed=9)
    path = tmp_path / "config.toml"
    write_toml(path, own)
    assert request(path, tmp_path / "x") == request(str(path), tmp_path / "x") == own
    assert request(path, tmp_path / "x", path="torch", preset="y").path == "torch"
    assert request(own, tmp_path / "x", path="torch").path == "torch"
    assert request(None, tmp_path, resume=True) == own
    assert request(None, tmp_path, resume=True, batch_size=1).batch_size == 1
    assert request(None, tmp_path).model.layers == 2


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (
            "nano",
            {"learning_rate": 1e-3},
            "unknown setting 'learning_rate': there are preset",
        ),
        ("nano", {"batchsize": 3}, "unknown setting 'batchsize'.*did you mean 'batch_size'"),
        (TrainConfig(), {"batchsize": 3}, "did you mean 'batch_size'"),
        ("nano", {"steps": "many"}, "steps='many' is not of type int"),
        ("nano", {"lr": "high"}, "lr='high' is not of type float"),
        ("nano", {"corpus": 3}, "corpus=3 is not of type str"),
        (TrainConfig(), {"context_length": 2.5}, "context_length=2.5 is not of type int"),
        (7, {}, "config must be the name of a preset, a TrainConfig or the path.*got 7"),
        ("nanoo", {}, "unknown preset 'nanoo': did you mean 'nano'"),
        ("no.toml", {}, r"cannot read no\.toml: No such file"),
        ("nano", {"encoding_fields": 3}, "encoding_fields must be an object of names"),
        ("nano", {"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    config: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        train(config, out=tmp_path / "run", **settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_is_a_path() -> None:
    with pytest.raises(InputError, match="out must be the path of a folder, got 3"):
        train("nano", out=3)  # type: ignore[arg-type]


def test_nested_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("curriculum = " + "[" * 200_000)
    with pytest.raises(InputError, match="nested too deeply"):
        read_toml(path)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_in_use_is_refused(resume: bool, make: Make, cache: Path, tmp_path: Path) -> None:
    train(make(steps=1), out=tmp_path, cache=cache, quiet=True)
    with FolderLock(tmp_path) as lock:
        lock.acquire()
        with pytest.raises(InputError, match=f"{tmp_path} is in use by process"):
            train(make(steps=1), out=tmp_path, cache=cache, resume=resume, quiet=True)
    assert train(None, out=tmp_path, cache=cache, resume=True, quiet=True).finished


def test_a_live_run_in_a_different_process_is_left_alone(
    make: Make, cache: Path, tmp_path: Path
) -> None:
    path, out = tmp_path / "config.toml", tmp_path / "run"
    config = make(steps=100_000, checkpoint_every=20)
    write_toml(path, config)
    process = subprocess.Popen([sys.executable, WORKER, out, cache, path], stderr=subprocess.PIPE)
    try:
        while not list(out.glob("checkpoints/step-*")):
            assert process.poll() is None
            time.sleep(0.05)
        for resume in (False, True):
            with pytest.raises(InputError, match=f"in use by process {process.pid} "):
                train(config, out=out, cache=cache, resume=resume, quiet=True)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_a_run_that_diverged_at_once_can_be_started_over(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(self: Learner, windows: torch.Tensor) -> float:
        self.model.blocks[0].up.weight.data.fill_(float("nan"))
        return plain(self, windows)

    plain = Learner.gradient
    for resume in (False, True):
        out = tmp_path / str(resume)
        with monkeypatch.context() as patch:
            patch.setattr(Learner, "gradient", poisoned)
            with pytest.raises(NonFiniteError, match="the same folder can be used again"):
                train(make(lr=1e-2), out=out, cache=cache, quiet=True)
        result = train(make(lr=1e-3), out=out, cache=cache, resume=resume, quiet=True)
        assert (result.finished, Run.open(out).config.lr) == (True, 1e-3)
        assert len(Run.open(out).metrics()) == 12


def test_tensorboard_that_is_missing_leaves_no_folder(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'headscape\[tensorboard\]'"):
        train(make(tensorboard=True), out=tmp_path / "run", cache=cache, quiet=True)
    assert not (tmp_path / "run").exists()


def test_opening_and_resuming_hash_every_file_once(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make(), out=tmp_path, cache=cache, quiet=True)
    hashed: list[str] = []
    plain = weights.sha256

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return plain(path)

    monkeypatch.setattr(weights, "sha256", counted)
    files = ["headscape.json", "model.safetensors", "optimizer.safetensors"]
    run = Run.open(tmp_path)
    assert sorted(hashed) == files
    assert run.checkpoint_hash == plain(run.checkpoint / "model.safetensors")
    hashed.clear()
    train(None, out=tmp_path, cache=cache, resume=True, quiet=True)
    assert sorted(hashed) == files


def test_a_model_too_large_for_memory_is_a_sentence(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def huge(_: object) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(sys.modules["headscape.training.trainer"], "GPT2", huge)
    with pytest.raises(InputError, match="the model does not fit in memory"):
        train(make(), out=tmp_path / "run", cache=cache, quiet=True)
    assert not (tmp_path / "run").exists()


def test_an_objective_says_what_is_predicted() -> None:
    text, answers = objective_of("stdlib"), objective_of("task:parity")
    assert (text.task, answers.task) == (None, "parity")
    assert (text.needs_full_windows, answers.needs_full_windows) == (False, True)
    assert text.description == "next token of stdlib"
    assert answers.description == "answers of the task parity"
    window = torch.tensor([[256, 97, 62, 48, 256, 256]])
    inputs, targets, factors = text.targets(window)
    assert (inputs.tolist(), targets.tolist()) == (window[:, :-1].tolist(), window[:, 1:].tolist())
    assert factors is None
    *_, factors = answers.targets(window)
    assert factors is not None
    assert factors.tolist() == [[0, 0, 2.5, 2.5, 0]]


def test_a_checkpoint_of_a_different_shape_is_refused(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make(), out=tmp_path, cache=cache, quiet=True)
    plain = weights.read_tensors

    def narrower(path: Path) -> dict[str, torch.Tensor]:
        return {name: value[..., :-1] for name, value in plain(path).items()}

    monkeypatch.setattr(checkpoint.weights, "read_tensors", narrower)
    with pytest.raises(InputError, match=r"with shape .* and the model needs"):
        train(None, out=tmp_path, cache=cache, resume=True, quiet=True)
