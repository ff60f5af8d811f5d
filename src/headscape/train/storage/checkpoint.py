"""Checkpoint folders: complete or absent, and read only if every checksum matches.

    checkpoints/step-000400/model.safetensors       the weights      (gpt2/weights.py)
                            headscape.json          the model's config and conventions
                            optimizer.safetensors   mean.NAME, square.NAME: AdamW's running means;
                                                    momentum.NAME: Muon's
                            state.json              step, tokens, seconds; SHA-256 of each file
                            shards/*.safetensors    weights and means of a sharded run

A checkpoint is written into a hidden folder, flushed to the disk and renamed, so a kill at any
moment leaves the earlier ones intact. There is no random state to store: all randomness is a
function of seed and step. checkpoint_tensors.py reads and writes the tensors. No pickle.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from headscape.errors import InputError
from headscape.gpt2 import weights
from headscape.io import atomic
from headscape.io.json_file import read_json
from headscape.io.system_errors import reporting

FORMAT = 1
FOLDER = "checkpoints"
STATE = "state.json"
NAME = re.compile(r"step-(\d{6,18})")
SET_ASIDE = "damaged-"


@dataclass(frozen=True, kw_only=True)
class State:
    """Progress of a run."""

    step: int = 0
    """Updates made."""
    tokens: int = 0
    """Tokens seen."""
    seconds: float = 0.0
    """Training time, over all resumptions."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint with verified checksums; only `verify` makes one."""

    folder: Path
    state: State


def verify(folder: Path) -> Checkpoint:
    """Compare every file with its recorded size and SHA-256, and name the one that differs."""
    facts = read_json(folder / STATE)
    if facts.get("format") != FORMAT or facts.pop("sha256", None) != _digest(facts):
        raise InputError(f"{folder / STATE} is damaged or has a different format.")
    try:
        files = {str(name): (int(f["bytes"]), f["sha256"]) for name, f in facts["files"].items()}
        state = State(**facts["state"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / STATE} is damaged.") from error
    for name, (size, digest) in files.items():
        path = folder / name
        with reporting("read", path):
            if not path.is_file():
                raise InputError(f"{path} is missing.")
            if path.stat().st_size != size:
                raise InputError(
                    f"{path} is truncated: expected {size} bytes, got {path.stat().st_size}."
                )
            if weights.sha256(path) != digest:
                raise InputError(f"{path} does not match its checksum: the file is damaged.")
    return Checkpoint(folder=folder, state=state)


def steps(run: Path) -> list[tuple[int, Path]]:
    """Return the step and folder of every checkpoint of a run, oldest first."""
    found = [(NAME.fullmatch(path.name), path) for path in (run / FOLDER).glob("step-*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def newest_good(run: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest undamaged checkpoint, and what is wrong with newer ones."""
    problems: list[str] = []
    for _, folder in reversed(steps(run)):
        try:
            return verify(folder), problems
        except InputError as error:
            problems.append(str(error))
    return None, problems


def has_any(run: Path) -> bool:
    """Return whether a run has a checkpoint, damaged or not."""
    return bool(steps(run)) or any((run / FOLDER).glob(f"{SET_ASIDE}*"))


def set_aside(run: Path, after: int) -> None:
    """Rename damaged checkpoints after a step, and remove half-written ones."""
    for part in (run / FOLDER).glob(".step-*"):
        shutil.rmtree(part, ignore_errors=True)
    for step, folder in steps(run):
        if step > after:
            aside = folder.with_name(f"{SET_ASIDE}{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)


def prune(run: Path, keep: int, every: int) -> None:
    """Remove all but the newest `keep` checkpoints and those at multiples of `every` steps."""
    for step, folder in steps(run)[:-keep]:
        if not every or step % every:
            # Renamed first, so that a kill leaves no half-deleted checkpoint under its own name.
            gone = folder.with_name(f".{folder.name}.gone")
            folder.rename(gone)
            shutil.rmtree(gone)


def part_folder(final: Path) -> Path:
    """Return the hidden folder that a checkpoint is written into."""
    return final.with_name(f".{final.name}.part")


def seal(part: Path, final: Path, state: State) -> None:
    """Write state.json and give a written checkpoint its final name."""
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


def _digest(facts: dict[str, object]) -> str:
    """Return the SHA-256 of the contents of state.json."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
