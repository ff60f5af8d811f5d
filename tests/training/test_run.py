"""Runs that are stopped, resumed, damaged and refused."""

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from full_disk import largest_file
from headscape.errors import InputError
from headscape.gpt2.weights import read_tensors
from headscape.io.files import is_utf8
from headscape.models.load import load
from headscape.training import Run, loop, metrics, provenance, read_config, train
from headscape.training.loop import Interrupt, NonFiniteError
from headscape.training.objective import open_data
from headscape.training.step import Learner
from headscape.training.world import World
from training.conftest import Make


class Killed(BaseException):
    """What no handler catches."""


@contextmanager
def at_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Any) -> Iterator[None]:
    """Do something in the middle of a step."""
    plain = Learner.gradient
    calls = 0

    def gradient(self: Learner, windows: torch.Tensor) -> float:
        nonlocal calls
        calls += 1
        if calls == number:
            act(self)
        return plain(self, windows)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "gradient", gradient)
        yield


def die(_: Learner) -> None:
    raise Killed


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return Run.open(folder).model.tensors()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_run_ends_with_the_same_bits(
    optimizer: str, make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(curriculum=(16, 32), optimizer=optimizer, width=64)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = train(config, out=whole, cache=cache, quiet=True)
    for number in (3, 6, 4, 1):
        with at_step(monkeypatch, number, die), pytest.raises(Killed):
            train(config, out=broken, cache=cache, resume=True, quiet=True)
    result = train(config, out=broken, cache=cache, resume=True, quiet=True)
    ours, theirs = weights(whole), weights(broken)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    states = [
        read_tensors(run / "checkpoints" / "step-000012" / "optimizer.safetensors")
        for run in (whole, broken)
    ]
    assert ("momentum.blocks.0.up.weight" in states[0]) == (optimizer == "muon")
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert (result.loss, result.validation_loss) == (expected.loss, expected.validation_loss)
    curves = [
        [(line["step"], line["loss"], line.get("validation_loss")) for line in metrics.read(run)]
        for run in (whole, broken)
    ]
    assert curves[0] == curves[1]
    assert [entry["step"] for entry in provenance.read(broken)] == [0, 0, 4, 4, 4]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_resume(
    number: int,
    make: Make,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(number)
    with at_step(monkeypatch, 6, lambda _: os.kill(os.getpid(), number)):
        result = train(make(), out=tmp_path, cache=cache)
    assert signal.getsignal(number) == before
    assert (result.finished, result.step) == (False, 6)
    assert f"resume {tmp_path} to continue" in capsys.readouterr().err
    assert Run.open(tmp_path).step == 6
    assert train(None, out=tmp_path, cache=cache, resume=True, quiet=True).finished


def test_a_second_interrupt_is_taken_at_its_word() -> None:
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_resuming_passes_over_a_damaged_checkpoint_and_says_so(
    make: Make, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for out in (whole, broken):
        train(make(), out=out, cache=cache, quiet=True)
    bad = broken / "checkpoints" / "step-000012" / "model.safetensors"
    data = bytearray(bad.read_bytes())
    data[-5] ^= 1
    bad.write_bytes(data)
    with pytest.warns(UserWarning, match=r"model\.safetensors .*checksum.* Reading .*step-000008"):
        assert Run.open(broken).step == 8
    with pytest.raises(InputError, match="checksum"):
        Run.open(broken, step=12)
    train(make(), out=broken, cache=cache, resume=True)
    said = capsys.readouterr().err
    assert str(bad) in said
    assert "Continuing from" in said
    assert "step-000008" in said
    ours, theirs = weights(whole), weights(broken)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_damaged_shard_is_noticed_before_training(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    first = train(make(steps=2), out=tmp_path / "a", cache=cache, quiet=True)
    (shard,) = cache.glob("*/train/tokens.bin")
    data = bytearray(shard.read_bytes())
    data[1000] ^= 1
    shard.write_bytes(data)
    again = train(make(steps=2), out=tmp_path / "b", cache=cache, quiet=True)
    assert str(shard) in caplog.text
    assert again.validation_loss == first.validation_loss
    assert again.loss == first.loss


def test_a_folder_is_not_overwritten_and_a_run_not_changed(
    make: Make, cache: Path, tmp_path: Path
) -> None:
    train(make(), out=tmp_path, cache=cache, quiet=True)
    with pytest.raises(InputError, match="already contains a run"):
        train(make(), out=tmp_path, cache=cache)
    with pytest.raises(InputError, match="trained with seed=7, got 8"):
        train(make(seed=8), out=tmp_path, cache=cache, resume=True)
    again = train(make(checkpoint_every=5), out=tmp_path, cache=cache, resume=True, quiet=True)
    assert (again.finished, again.step) == (True, 12)
    assert read_config(tmp_path).checkpoint_every == 5


def test_a_path_that_cannot_compute_leaves_no_folder(
    make: Make, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(InputError, match="native"):
        train(make(encoding="cope", path="native"), out=out, cache=cache, quiet=True)
    assert not out.exists()


def test_a_run_of_minutes_ends_by_the_clock(make: Make, cache: Path, tmp_path: Path) -> None:
    result = train(make(steps=None, minutes=0.02), out=tmp_path, cache=cache, quiet=True)
    assert result.finished
    assert 1.2 <= result.seconds < 10
    assert result.step == Run.open(tmp_path).step == len(metrics.read(tmp_path))


def test_a_run_can_be_opened_at_any_of_its_steps(make: Make, cache: Path, tmp_path: Path) -> None:
    train(make(), out=tmp_path, cache=cache, quiet=True)
    run = Run.open(tmp_path)
    assert (run.step, run.config, Run.open(tmp_path, step=8).step) == (12, make(), 8)
    assert run.tokenizer.decode(run.tokenizer.encode("abc def")) == "abc def"
    assert not run.model.training
    with pytest.raises(InputError, match="no checkpoint of step 5; it has steps 8, 12"):
        Run.open(tmp_path, step=5)
    facts = provenance.read(tmp_path)[0]
    assert facts["versions"]["torch"] == torch.__version__
    header = json.loads(next(cache.glob("*/train/header.json")).read_text())
    assert facts["corpus"]["fingerprint"] == header["corpus"]


def test_what_is_not_a_run_is_refused(make: Make, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run"):
        Run.open(tmp_path)
    train(make(steps=1), out=tmp_path, cache=cache, quiet=True)
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="no checkpoint yet"):
        Run.open(tmp_path)


@pytest.mark.parametrize(
    ("poisoned", "value", "what", "where"),
    [
        ("blocks.0.norm2.weight", 3e38, "a loss of nan", "the output of blocks.0.norm2,"),
        (
            "blocks.0.attention.qkv.weight",
            1e25,
            "a loss of nan",
            "the output of blocks.0.attention,",
        ),
        ("blocks.0.up.weight", 1e30, "a gradient", "the gradient of blocks.0.up.bias,"),
    ],
)
def test_a_non_finite_loss_stops_and_says_where_it_began(
    poisoned: str,
    value: float,
    what: str,
    where: str,
    make: Make,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def poison(learner: Learner) -> None:
        learner.model.get_parameter(poisoned).data.fill_(value)

    with (
        at_step(monkeypatch, 7, poison),
        pytest.raises(NonFiniteError) as caught,
    ):
        train(make(), out=tmp_path, cache=cache, quiet=True)
    said = str(caught.value)
    assert "step 7 " in said
    assert "8 windows of 32 tokens" in said
    assert what in said
    assert where in said
    assert "step-000004" in said
    assert Run.open(tmp_path).step == 4
    assert len(metrics.read(tmp_path)) == 6


def test_cope_that_diverges_says_so(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poison(learner: Learner) -> None:
        learner.model.get_parameter("blocks.0.attention.qkv.weight").data.fill_(1e25)

    with (
        at_step(monkeypatch, 2, poison),
        pytest.raises(NonFiniteError, match=r"a loss of nan.* the output of blocks\.0\.attention,"),
    ):
        train(make(encoding="cope"), out=tmp_path, cache=cache, quiet=True)


def test_a_parameter_that_is_not_finite_is_named(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poison(learner: Learner) -> None:
        learner.model.blocks[0].up.bias.data[3] = np.nan

    with (
        at_step(monkeypatch, 2, poison),
        pytest.raises(NonFiniteError, match=r"the parameter blocks\.0\.up\.bias"),
    ):
        train(make(), out=tmp_path, cache=cache, quiet=True)


def test_a_disk_that_fills_up_stops_the_run(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        full = largest_file(20_000)
        with (
            at_step(monkeypatch, 6, lambda _: stack.enter_context(full)),
            pytest.raises(InputError, match=r"cannot write .*step-000008") as caught,
        ):
            train(make(), out=tmp_path, cache=cache, quiet=True)
    assert "\n" not in str(caught.value)
    assert Run.open(tmp_path).step == 4
    assert train(make(), out=tmp_path, cache=cache, resume=True, quiet=True).finished


def test_a_folder_that_cannot_be_written_is_refused(
    make: Make, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        train(make(), out=tmp_path / "file" / "run", cache=cache, quiet=True)
    if os.geteuid() == 0:
        return
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(InputError, match="Permission denied"):
        train(make(), out=closed / "run", cache=cache, quiet=True)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"too short", "too short|too few"),
        (b"fine\n" * 200 + b"\xff" + b"fine\n" * 200, "1000"),
    ],
)
def test_a_useless_corpus_is_one_sentence(
    data: bytes, said: str, make: Make, tmp_path: Path
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(data)
    with pytest.raises(InputError, match=said) as caught:
        train(make(corpus=str(path)), out=tmp_path / "run", cache=tmp_path / "c", quiet=True)
    assert "\n" not in str(caught.value)


def test_a_step_that_processes_cannot_share_is_refused(make: Make, cache: Path) -> None:
    with pytest.raises(InputError, match="3 processes cannot share a step of 8 windows"):
        open_data(make(), World(size=3), cache)


def test_tensorboard_gets_every_number_of_the_metrics(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert (folder, purge_step) == (str(tmp_path / "run" / "tensorboard"), 1)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0, 0))

    config = make(steps=3, tensorboard=True)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"headscape\[tensorboard\]"):
        train(config, out=tmp_path / "without", cache=cache, quiet=True)
    stand_in = ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    train(config, out=tmp_path / "run", cache=cache, quiet=True)
    lines = metrics.read(tmp_path / "run")
    assert [item for item in written if item[0] == "loss"] == [
        ("loss", line["loss"], line["step"]) for line in lines
    ]
    assert ("validation_loss", lines[-1]["validation_loss"], 3) in written
    assert written[-1][0] == "closed"


def test_the_model_is_compiled_when_asked(make: Make, cache: Path, tmp_path: Path) -> None:
    calls: list[object] = []

    def compiled(model: torch.nn.Module) -> None:
        calls.append(model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Module, "compile", compiled)
        train(make(steps=1, compile=True), out=tmp_path, cache=cache, quiet=True)
    assert len(calls) == 1


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_another_text_is_not_resumed_on(
    tokenizer: str, make: Make, text: Path, cache: Path, tmp_path: Path
) -> None:
    own, out = tmp_path / "own.txt", tmp_path / "run"
    own.write_text(text.read_text())
    config = make(corpus=str(own), tokenizer=tokenizer, steps=4)
    train(config, out=out, cache=cache, quiet=True)
    before = (out / "tokenizer.json").read_bytes()
    own.write_text(text.read_text().upper())
    with pytest.raises(InputError, match="a different text"):
        train(None, out=out, cache=cache, resume=True, quiet=True)
    assert (out / "tokenizer.json").read_bytes() == before


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_checkpoint_that_cannot_be_read_stops_a_resumed_run(
    make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make(steps=4, checkpoint_every=2), out=tmp_path, cache=cache, quiet=True)
    before = contents(tmp_path)
    plain = Path.open

    def failing(self: Path, *args: Any, **kwargs: Any) -> Any:
        if "checkpoints" in self.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return plain(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing)
        for act in (Run.open, lambda run: train(None, out=run, cache=cache, resume=True)):
            with pytest.raises(InputError, match=r"cannot read .*state\.json: Permission denied"):
                act(tmp_path)
    assert contents(tmp_path) == before


def test_a_folder_without_a_run_is_resumed_only_with_a_config(
    make: Make, cache: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    for settings in ({}, {"corpus": make().corpus, "checkpoint_every": 2}):
        with pytest.raises(InputError, match=f"{new} contains no run to resume"):
            train(None, out=new, cache=cache, resume=True, **settings)
    assert not new.exists()
    assert train(make(steps=1), out=new, cache=cache, resume=True, quiet=True).finished


@pytest.mark.parametrize("recorded", [True, False])
def test_an_edited_config_is_not_resumed(
    recorded: bool, make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not recorded:  # as an older version wrote it
        monkeypatch.setattr(loop, "made_with", lambda *_: {})
    train(make(encoding="alibi", steps=2), out=tmp_path, cache=cache, quiet=True)
    path = tmp_path / "config.toml"
    plain = path.read_text()
    edited = plain.replace('encoding = "alibi"', 'encoding = "rope"')
    path.write_text(edited.replace("lr = 0.003", "lr = 0.004").replace("steps = 2", "steps = 4"))
    before = contents(tmp_path)
    said = "trained with encoding='alibi', and config.toml has 'rope'"
    said += "; steps=2, .*; lr=0.003, and config.toml has 0.004" if recorded else ""
    for act in (Run.open, lambda run: train(None, out=run, cache=cache, resume=True)):
        with pytest.raises(InputError, match=f"{said}.*: restore .*config.toml"):
            act(tmp_path)
    assert contents(tmp_path) == before
    path.write_text(plain.replace("checkpoint_every = 4", "checkpoint_every = 1"))
    assert Run.open(tmp_path).config.checkpoint_every == 1


def test_a_text_that_moved_is_resumed_on(
    make: Make, text: Path, cache: Path, tmp_path: Path
) -> None:
    old, new, out = tmp_path / "old.txt", tmp_path / "deep" / "old.txt", tmp_path / "run"
    new.parent.mkdir()
    old.write_text(text.read_text())
    train(make(corpus=str(old), steps=2), out=out, cache=cache, quiet=True)
    old.rename(new)
    path = out / "config.toml"
    path.write_text(path.read_text().replace(str(old), str(new)))
    assert train(None, out=out, cache=cache, resume=True, quiet=True).step == 2


@pytest.mark.parametrize("recorded", [True, False])
def test_a_changed_tokenizer_is_refused(
    recorded: bool, make: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not recorded:  # as an older version wrote it
        monkeypatch.setattr(loop, "made_with", lambda *_: {})
    train(make(tokenizer="bpe:300", steps=1), out=tmp_path, cache=cache, quiet=True)
    path = tmp_path / "tokenizer.json"
    plain = path.read_text()
    described = json.loads(plain)
    bpe = json.loads(described["json"])
    ids = bpe["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    path.write_text(json.dumps(described | {"json": json.dumps(bpe)}))
    for act in (Run.open, load, lambda run: train(None, out=run, cache=cache, resume=True)):
        with pytest.raises(InputError, match=r"tokenizer\.json is not the tokenizer that the run"):
            act(tmp_path)
    path.unlink()
    assert train(None, out=tmp_path, cache=cache, resume=True, quiet=True).finished
    assert path.read_text() == plain


def test_a_text_rewritten_with_its_old_time_is_a_different_text(
    make: Make, text: Path, cache: Path, tmp_path: Path
) -> None:
    own, out = tmp_path / "own.txt", tmp_path / "run"
    own.write_text(text.read_text())
    train(make(corpus=str(own), steps=1), out=out, cache=cache, quiet=True)
    status = own.stat()
    own.write_text(text.read_text().upper())
    os.utime(own, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert own.stat().st_size == status.st_size
    with pytest.raises(InputError, match="a different text"):
        train(None, out=out, cache=cache, resume=True, quiet=True)


def test_names_that_are_not_utf8_are_refused_before_training(
    make: Make, text: Path, cache: Path, tmp_path: Path
) -> None:
    bad = tmp_path / os.fsdecode(b"r\xff")
    with pytest.raises(InputError, match="a name that is not UTF-8"):
        train(make(), out=bad, cache=cache, quiet=True)
    assert not bad.exists()
    bad.write_text(text.read_text())
    with pytest.raises(InputError, match=r"corpus=.* is not UTF-8"):
        train(make(), corpus=str(bad), out=tmp_path / "run", cache=cache, quiet=True)
    assert not (tmp_path / "run").exists()
    train(make(steps=1), out=tmp_path / "run", cache=cache, quiet=True)
    bad.unlink()
    (tmp_path / "run").rename(bad)
    with pytest.raises(InputError, match="a name that is not UTF-8"):
        Run.open(bad)
    # The bytes of this one are UTF-8, as read where the locale is not.
    assert is_utf8("caf\udcc3\udca9")
