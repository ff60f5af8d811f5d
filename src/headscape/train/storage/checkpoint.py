"""Checkpoints: folders that are whole or not there, and are read only if every byte is right.

    checkpoints/step-000400/model.safetensors       the weights      (gpt2/weights.py)
                            headscape.json          the model's config and conventions
                            optimizer.safetensors   mean.<name>, square.<name>: AdamW's memory
                            state.json              step, tokens, seconds; SHA-256 of each file
                            shards/*.safetensors    instead of the two, from a sharded run

A checkpoint is written into a hidden folder, flushed to the disk and renamed, so a kill at any
moment leaves the earlier ones as they were. There is no random state to keep: all randomness is a
function of seed and step. A whole checkpoint can be loaded into a sharded model and the other way
round. Never pickle.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig, weights
from headscape.io import atomic
from headscape.train.distributed.parallel import assign, is_sharded
from headscape.train.distributed.world import World
from headscape.train.loop.optim import moments, set_updates
from headscape.train.storage import sharded_tensors

FORMAT = 1
FOLDER = "checkpoints"
STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, kw_only=True)
class State:
    """How far a run has come."""

    step: int = 0
    """Updates made."""
    tokens: int = 0
    """Tokens seen."""
    seconds: float = 0.0
    """Time spent, over all resumptions."""


def write(run: Path, model: GPT2, optimiser: torch.optim.AdamW, state: State, world: World) -> Path:
    """Write a checkpoint; every process of the run calls this."""
    final = run / FOLDER / f"step-{state.step:06d}"
    part = final.with_name(f".{final.name}.part")
    world.first(lambda: _fresh(part))
    memory = moments(model, optimiser)
    if is_sharded(model):
        sharded_tensors.write(part, model.tensors() | memory)

    def finish() -> None:
        with _plain_errors(final):
            if is_sharded(model):
                sharded_tensors.write_header(part, model)
            else:
                model.save_pretrained(part)
                with atomic.replacing(part / OPTIMIZER) as file:
                    save_file({name: value.contiguous() for name, value in memory.items()}, file)
            _seal(part, final, state)

    try:
        world.first(finish)
    except InputError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return final


def load(folder: Path, model: GPT2, optimiser: torch.optim.AdamW) -> State:
    """Take weights and the optimiser's memory from a checkpoint that was verified."""
    state = verify(folder)
    mine = model.tensors() | moments(model, optimiser)
    if sharded_tensors.is_here(folder):
        sharded_tensors.read(folder, mine)
    else:
        saved = weights.read_tensors(folder / weights.WEIGHTS) | weights.read_tensors(
            folder / OPTIMIZER
        )
        for name, value in mine.items():
            if name not in saved:
                raise InputError(f"{folder} lacks the tensor {name!r}.")
            if saved[name].shape != value.shape:
                raise InputError(f"{folder} holds {name!r} in another shape than the model's.")
            assign(value, saved[name])
    set_updates(optimiser, state.step)
    return state


def load_model(folder: Path) -> GPT2:
    """The model of a checkpoint that was verified, onto the CPU."""
    if not sharded_tensors.is_here(folder):
        return GPT2.from_pretrained(folder)
    fields = weights.read_json(folder / weights.HEADER)["model"]
    assert isinstance(fields, dict)
    model = GPT2(ModelConfig.from_json(fields))
    sharded_tensors.read(folder, model.tensors())
    return model


def verify(folder: Path) -> State:
    """Compare every file of a checkpoint with its size and SHA-256; name the one that differs."""
    facts = weights.read_json(folder / STATE)
    files, state = facts.get("files"), facts.get("state")
    if facts.get("format") != FORMAT or facts.pop("sha256", None) != _digest(facts):
        raise InputError(f"{folder / STATE} is damaged or of another version.")
    assert isinstance(files, dict)
    assert isinstance(state, dict)
    for name, said in files.items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path} is missing.")
        if path.stat().st_size != said["bytes"]:
            raise InputError(
                f"{path} is truncated: {path.stat().st_size} bytes instead of {said['bytes']}."
            )
        if weights.sha256(path) != said["sha256"]:
            raise InputError(f"{path} does not match its checksum: the file is damaged.")
    return State(**state)


def steps(run: Path) -> list[tuple[int, Path]]:
    """Every checkpoint of a run by step, oldest first."""
    names = re.compile(r"step-(\d{6,})")
    found = [(names.fullmatch(path.name), path) for path in (run / FOLDER).glob("step-*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def newest_good(run: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with those after it."""
    complaints: list[str] = []
    for _, folder in reversed(steps(run)):
        try:
            verify(folder)
        except InputError as error:
            complaints.append(str(error))
        else:
            return folder, complaints
    return None, complaints


def set_aside(run: Path, after: int) -> None:
    """Take damaged checkpoints after a step out of the way, and what a kill left half written."""
    for part in (run / FOLDER).glob(".step-*"):
        shutil.rmtree(part, ignore_errors=True)
    for step, folder in steps(run):
        if step > after:
            aside = folder.with_name(f"damaged-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)


def prune(run: Path, keep: int, every: int) -> None:
    """Remove all but the newest `keep` checkpoints and those at multiples of `every`."""
    for step, folder in steps(run)[:-keep]:
        if not every or step % every:
            # Renamed first: a kill in the middle must not leave half a checkpoint under its name.
            gone = folder.with_name(f".{folder.name}.gone")
            folder.rename(gone)
            shutil.rmtree(gone)


def _fresh(part: Path) -> None:
    with _plain_errors(part):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)


def _digest(facts: dict[str, object]) -> str:
    """SHA-256 of what state.json says, so that it vouches for itself too."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _seal(part: Path, final: Path, state: State) -> None:
    files = {
        str(path.relative_to(part)): {"bytes": path.stat().st_size, "sha256": weights.sha256(path)}
        for path in sorted(part.rglob("*"))
        if path.is_file()
    }
    sealed: dict[str, object] = {"format": FORMAT, "state": asdict(state), "files": files}
    sealed["sha256"] = _digest(sealed)
    atomic.write_text(part / STATE, json.dumps(sealed, indent=1) + "\n")
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        final.rename(old)
    part.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    handle = os.open(final.parent, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}.") from error
    except SafetensorError as error:
        raise InputError(f"cannot write {path}: {error}.") from error
