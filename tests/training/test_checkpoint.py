"""A checkpoint is whole, or it is named and passed over."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headscape.errors import InputError
from headscape.gpt2 import GPT2, preset, weights
from headscape.io import files
from headscape.training import TrainConfig, checkpoint
from headscape.training.checkpoint import DamagedError, State
from headscape.training.optim import Optimizer
from headscape.training.world import World

FILES = ["model.safetensors", "headscape.json", "optimizer.safetensors", "state.json"]


def trained(updates: int = 2) -> tuple[GPT2, Optimizer]:
    torch.manual_seed(updates)
    model = GPT2(preset("nano", vocabulary=20, train_length=8, encoding="kerple", width=72))
    optimiser = Optimizer(model, TrainConfig(optimizer="muon"))
    for _ in range(updates):
        model(torch.arange(8)[None]).square().mean().backward()
        optimiser.step(1e-3)
    return model, optimiser


def saved(run: Path, *steps: int) -> list[Path]:
    return [
        checkpoint.write(
            run, *trained(), State(step=step, tokens=9, seconds=1.5), World(), {"tokenizer": "abc"}
        )
        for step in steps
    ]


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    model, optimiser = trained()
    state = State(step=2, tokens=9)
    folder = checkpoint.write(tmp_path, model, optimiser, state, World(), {"corpus": "abc"})
    assert folder == tmp_path / "checkpoints" / "step-000002"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    other, memory = trained(0)
    verified = checkpoint.verify(folder)
    assert (verified.state, verified.made_with) == (state, {"corpus": "abc"})
    checkpoint.load(verified, other, memory)
    for ours, theirs in (
        (model.tensors(), other.tensors()),
        (optimiser.state(), memory.state()),
    ):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert "momentum.blocks.0.attention.qkv.weight" in memory.state()
    assert memory.state()["momentum.blocks.1.up.weight"].norm() > 0
    assert all(float(state["step"]) == 2 for state in memory.adamw.state.values())
    loaded_model, digest = checkpoint.load_model(verified)
    assert digest == weights.sha256(folder / "model.safetensors")
    loaded = loaded_model.tensors()
    assert all(torch.equal(value, loaded[name]) for name, value in model.tensors().items())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip, truncate, remove])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_named_and_the_one_before_is_taken(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    good, bad = saved(tmp_path, 3, 4)
    damage(bad / name)
    found, complaints = checkpoint.newest_good(tmp_path)
    assert found is not None
    assert found.folder == good
    assert len(complaints) == 1
    assert str(bad / name) in complaints[0]
    checkpoint.set_aside(tmp_path, 3)
    assert [step for step, _ in checkpoint.steps(tmp_path)] == [3]


def test_a_number_that_changed_in_the_state_is_noticed(tmp_path: Path) -> None:
    good, bad = saved(tmp_path, 3, 4)
    path = bad / "state.json"
    facts = json.loads(path.read_text())
    facts["state"]["step"] = 5
    path.write_text(json.dumps(facts))
    assert checkpoint.newest_good(tmp_path)[0] == checkpoint.verify(good)


def test_the_newest_and_the_multiples_stay(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4, 5, 6, 7)
    checkpoint.prune(tmp_path, 2, 4)
    assert [step for step, _ in checkpoint.steps(tmp_path)] == [4, 6, 7]


def test_a_step_is_replaced(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    model, optimiser = trained(5)
    folder = checkpoint.write(tmp_path, model, optimiser, State(step=4), World(), {})
    assert torch.equal(
        checkpoint.load_model(checkpoint.verify(folder))[0].tokens.weight,
        model.tokens.weight,
    )
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


class Killed(BaseException):
    """What no handler catches."""


@pytest.mark.parametrize("fatal", range(1, 12))
def test_a_kill_at_any_write_loses_nothing(
    fatal: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (good,) = saved(tmp_path, 3)
    calls = 0

    def dying(act: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls == fatal:
                raise Killed
            return act(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr(Path, "replace", dying(Path.replace))
        patch.setattr(files, "_flush", dying(files._flush))
        patch.setattr(checkpoint, "save_file", dying(checkpoint.save_file))
        patch.setattr(weights, "save_file", dying(weights.save_file))
        try:
            saved(tmp_path, 4)
        except Killed:
            pass
        else:
            assert calls < fatal
    found, complaints = checkpoint.newest_good(tmp_path)
    assert complaints == []
    assert found is not None
    assert checkpoint.verify(good).state.step == 3
    checkpoint.set_aside(tmp_path, found.state.step)
    assert not list(found.folder.parent.glob(".*"))


def test_a_full_disk_is_a_sentence_and_leaves_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (good,) = saved(tmp_path, 3)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(InputError, match="No space left on device"):
        saved(tmp_path, 4)
    assert checkpoint.newest_good(tmp_path) == (checkpoint.verify(good), [])
    assert [path.name for path in good.parent.iterdir()] == [good.name]


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_what_cannot_be_read_is_not_damaged(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, newest = saved(tmp_path, 3, 4)
    plain = Path.open

    def failing(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == newest / name:
            raise OSError(number, os.strerror(number), str(self))
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(InputError, match=f"cannot read .*{name}.*{os.strerror(number)}") as caught:
        checkpoint.newest_good(tmp_path)
    assert not isinstance(caught.value, DamagedError)
    assert [step for step, _ in checkpoint.steps(tmp_path)] == [3, 4]


def test_a_newer_format_is_not_damaged(tmp_path: Path) -> None:
    _, newest = saved(tmp_path, 3, 4)
    facts = json.loads((newest / "state.json").read_text())
    (newest / "state.json").write_text(json.dumps(facts | {"format": 2}))
    with pytest.raises(InputError, match=r"has format 2, .*: use a headscape") as caught:
        checkpoint.newest_good(tmp_path)
    assert not isinstance(caught.value, DamagedError)


def test_a_link_that_leads_nowhere_is_not_damaged(tmp_path: Path) -> None:
    _, newest = saved(tmp_path, 3, 4)
    disk = tmp_path / "disk"
    newest.rename(disk)
    newest.symlink_to(disk)
    assert checkpoint.newest_good(tmp_path)[1] == []
    disk.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"nothing where the symbolic link .*step-000004 leads"):
        checkpoint.newest_good(tmp_path)


def test_a_folder_that_cannot_be_listed_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    saved(tmp_path, 3)
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(InputError, match=r"cannot read .*checkpoints: Permission denied"):
        checkpoint.has_any(tmp_path)


def test_what_was_set_aside_stays(tmp_path: Path) -> None:
    for _ in range(3):
        _, bad = saved(tmp_path, 3, 4)
        flip(bad / "model.safetensors")
        checkpoint.set_aside(tmp_path, 3)
    kept = ["damaged-step-000004", "damaged-step-000004-2", "damaged-step-000004-3", "step-000003"]
    assert names(tmp_path) == kept


def test_a_renamed_checkpoint_is_the_step_it_records(tmp_path: Path) -> None:
    first, _, last = saved(tmp_path, 3, 4, 5)
    best = last.rename(last.with_name("best"))
    (last.parent / "notes").mkdir()
    assert checkpoint.steps(tmp_path)[-1] == (5, best)
    assert checkpoint.newest_good(tmp_path) == (checkpoint.verify(best), [])
    checkpoint.refuse_wrong_names(tmp_path)
    checkpoint.set_aside(tmp_path, 5)
    checkpoint.prune(tmp_path, 1, 0)
    assert names(tmp_path) == ["best", "notes", "step-000004"]
    best.rename(first)
    with pytest.raises(InputError, match=r"step-000003 contains .* step 5: rename it"):
        checkpoint.refuse_wrong_names(tmp_path)
