"""Checkpoint folders: complete or absent, and read only if every checksum matches.

    checkpoints/step-000400/model.safetensors       the weights      (gpt2/weights.py)
                            headscape.json          the model's config and conventions
                            optimizer.safetensors   mean.NAME, square.NAME: AdamW's running means;
                                                    momentum.NAME: Muon's
                            state.json              step, tokens, seconds; SHA-256 of each file;
                                                    the run's config, fingerprints of its text and
                                                    tokenizer
                            shards/*.safetensors    weights and means of a sharded run

A checkpoint is written into a hidden folder, flushed to the disk and renamed, so a kill at any
moment leaves the earlier ones intact. There is no random state to store: all randomness is a
function of seed and step. No pickle.

A checkpoint is damaged if it was read and is not what was written. One that cannot be read (its
permissions, a failing disk, a link to a disk that is not mounted) or that a newer version wrote may
be good: it raises a plain InputError, and nothing renames, passes over or removes it.

A whole checkpoint can be loaded into a sharded model and a sharded one into a whole model. The
tensors of a sharded model are in safetensors files, one per process. torch.distributed.checkpoint
decides which process writes which part and loads the parts into any number of processes, including
one. Its safetensors storage is used instead of its default pickles. It is imported inside the
functions that use it, because importing it takes a second.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import is_initialized

from headscape.errors import InputError, check_types
from headscape.gpt2 import GPT2, weights
from headscape.io.files import parse_json, replacing, reporting, write_text
from headscape.training.optim import Optimizer
from headscape.training.parallel import assign, is_sharded
from headscape.training.world import World

FORMAT = 1
FOLDER = "checkpoints"
STATE = "state.json"
NAME = re.compile(r"step-(\d{6,18})")
SET_ASIDE = "damaged-"


class DamagedError(InputError):
    """A checkpoint was read and is not what was written."""


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
    made_with: Mapping[str, Any]
    """The run's "config", and the fingerprints of its "corpus" and "tokenizer"; {} if an older
    version wrote it."""


def verify(folder: Path) -> Checkpoint:
    """Compare every file with its recorded size and SHA-256, and name the one that differs.

    Raises DamagedError for that, and a plain InputError for what cannot be read or is newer.
    """
    state, facts = _read_state(folder)
    try:
        files = {str(name): (int(f["bytes"]), f["sha256"]) for name, f in facts["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"{folder / STATE} is damaged.") from error
    for name, (size, digest) in files.items():
        path = folder / name
        with reporting("read", path):
            if not path.is_file():
                raise _missing(path)
            if path.stat().st_size != size:
                raise DamagedError(
                    f"{path} is truncated: expected {size} bytes, got {path.stat().st_size}."
                )
            if weights.sha256(path) != digest:
                raise DamagedError(f"{path} does not match its checksum: the file is damaged.")
    return Checkpoint(folder=folder, state=state, made_with=_made_with(facts))


def steps(run: Path) -> list[tuple[int, Path]]:
    """Return the step and folder of every checkpoint of a run, oldest first.

    The step is the recorded one, so a checkpoint is found under any name. Where it cannot be read,
    it is the one in the folder's name.
    """
    numbered: list[tuple[int, Path]] = []
    for folder in _folders(run):
        match = NAME.fullmatch(folder.name)
        try:
            numbered.append((_read_state(folder)[0].step, folder))
        except InputError as error:
            if match:
                numbered.append((int(match[1]), folder))
            elif not isinstance(error, DamagedError):
                raise
    # Of two folders of a step, the one with its own name comes last.
    return sorted(
        numbered, key=lambda item: (item[0], item[1].name == folder_name(item[0]), item[1])
    )


def made_with(run: Path) -> Mapping[str, Any]:
    """Return what the newest checkpoint was made with, without comparing checksums of tensors."""
    for _, folder in reversed(steps(run)):
        try:
            return _made_with(_read_state(folder)[1])
        except DamagedError:
            continue
    return {}


def newest_good(run: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest undamaged checkpoint, and what is wrong with newer ones.

    Raises InputError at a checkpoint that cannot be read or that a newer version wrote.
    """
    problems: list[str] = []
    for _, folder in reversed(steps(run)):
        try:
            return verify(folder), problems
        except DamagedError as error:
            problems.append(str(error))
    return None, problems


def has_any(run: Path) -> bool:
    """Return whether a run has a checkpoint, damaged or not."""
    return bool(steps(run)) or any(name.startswith(SET_ASIDE) for name in _names(run))


def refuse_wrong_names(run: Path) -> None:
    """Refuse a folder that is named after a different step: a later checkpoint would replace it."""
    for step, folder in steps(run):
        match = NAME.fullmatch(folder.name)
        if match and int(match[1]) != step:
            raise InputError(
                f"{folder} contains the checkpoint of step {step}: rename it to "
                f"{folder_name(step)}, or move it out of {folder.parent}."
            )


def set_aside(run: Path, after: int) -> None:
    """Rename damaged checkpoints after a step, and remove half-written ones.

    `newest_good` has found every checkpoint after the one it returns damaged.
    """
    for part in (run / FOLDER).glob(".step-*"):
        shutil.rmtree(part, ignore_errors=True)
    for step, folder in steps(run):
        if step > after:
            aside = folder.with_name(f"{SET_ASIDE}{folder.name}")
            number = 1
            while os.path.lexists(aside):
                number += 1
                aside = folder.with_name(f"{SET_ASIDE}{folder.name}-{number}")
            with reporting("rename", folder):
                folder.rename(aside)


def prune(run: Path, keep: int, every: int) -> None:
    """Remove all but the newest `keep` checkpoints and those at multiples of `every` steps."""
    # A folder that was renamed is the user's to remove.
    named = [(step, folder) for step, folder in steps(run) if folder.name == folder_name(step)]
    for step, folder in named[:-keep]:
        if not every or step % every:
            # Renamed first, so that a kill leaves no half-deleted checkpoint under its own name.
            gone = folder.with_name(f".{folder.name}.gone")
            folder.rename(gone)
            shutil.rmtree(gone)


def folder_name(step: int) -> str:
    """Return the name of the folder of a step."""
    return f"step-{step:06d}"


def part_folder(final: Path) -> Path:
    """Return the hidden folder that a checkpoint is written into."""
    return final.with_name(f".{final.name}.part")


def seal(
    part: Path,
    final: Path,
    state: State,
    made_with: Mapping[str, object],
    known: Mapping[str, str],
) -> None:
    """Write state.json and give a written checkpoint its final name.

    `known` has the SHA-256 of files that were hashed as they were written.
    """
    files = {}
    for path in sorted(part.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(part))
            digest = known.get(name) or weights.sha256(path)
            files[name] = {"bytes": path.stat().st_size, "sha256": digest}
    sealed: dict[str, object] = {
        "format": FORMAT,
        "state": asdict(state),
        "files": files,
        "made_with": dict(made_with),
    }
    sealed["sha256"] = _digest(sealed)
    write_text(part / STATE, json.dumps(sealed, indent=1) + "\n")
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        final.rename(old)
    part.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    handle = os.open(final.parent, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _names(run: Path) -> list[str]:
    """Return the names in the folder of checkpoints; none if there is no such folder."""
    folder = run / FOLDER
    with reporting("read", folder):
        try:
            return sorted(path.name for path in folder.iterdir())
        except FileNotFoundError:
            if folder.is_symlink():
                raise
            return []


def _folders(run: Path) -> list[Path]:
    """Return every folder beside the checkpoints that may be one: not hidden and not set aside."""
    paths = [run / FOLDER / name for name in _names(run)]
    with reporting("read", run / FOLDER):
        return [
            path
            for path in paths
            if not path.name.startswith((".", SET_ASIDE)) and (path.is_symlink() or path.is_dir())
        ]


def _read_state(folder: Path) -> tuple[State, dict[str, Any]]:
    """Return the state of a checkpoint, and everything in its state.json."""
    path = folder / STATE
    with reporting("read", path):
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise _missing(path) from error
    try:
        facts = parse_json(data, path)
    except InputError as error:
        raise DamagedError(f"{str(error).removesuffix('.')}: the file is damaged.") from error
    if not isinstance(facts, dict):
        raise DamagedError(f"{path} is damaged.")
    version = facts.get("format")
    if type(version) is int and version > FORMAT:
        raise InputError(
            f"{path} has format {version}, and this version of headscape reads up to {FORMAT}: "
            f"use a headscape that is as new as the checkpoint."
        )
    if version != FORMAT or facts.pop("sha256", None) != _digest(facts):
        raise DamagedError(f"{path} does not match its checksum: the file is damaged.")
    try:
        state = State(**facts["state"])
        check_types(state)
    except (KeyError, TypeError, InputError) as error:
        raise DamagedError(f"{path} is damaged.") from error
    return state, facts


def _made_with(facts: dict[str, Any]) -> Mapping[str, Any]:
    value = facts.get("made_with")
    return value if isinstance(value, dict) else {}


def _missing(path: Path) -> InputError:
    """Return the error for a missing file; a link may lead to a disk that is not mounted."""
    for link in (path, path.parent):
        if link.is_symlink() and not link.exists():
            return InputError(
                f"cannot read {path}: there is nothing where the symbolic link {link} leads."
            )
    return DamagedError(f"{path} is missing.")


def _digest(facts: dict[str, object]) -> str:
    """Return the SHA-256 of the contents of state.json."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


OPTIMIZER = "optimizer.safetensors"
SHARDS = "shards"


def write(
    run: Path,
    model: GPT2,
    optimizer: Optimizer,
    state: State,
    world: World,
    made_with: Mapping[str, object],
) -> Path:
    """Write a checkpoint and return its folder; every process of the run calls this.

    `made_with` is recorded in state.json (see `Checkpoint`).
    """
    final = run / FOLDER / folder_name(state.step)
    part = part_folder(final)
    world.first(lambda: _make_empty(part))
    means = optimizer.state()
    if is_sharded(model):
        _write_shards(part, model.tensors() | means)

    def finish() -> None:
        known: dict[str, str] = {}
        with reporting("write", final):
            if is_sharded(model):
                _write_header(part, model)
            else:
                tensors = model.tensors()
                digest = weights.write(part, model.config, model.conventions(), tensors)
                known = {weights.WEIGHTS: digest}
                with replacing(part / OPTIMIZER) as file:
                    save_file({name: value.contiguous() for name, value in means.items()}, file)
            seal(part, final, state, made_with, known)

    try:
        world.first(finish)
    except InputError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return final


def load(checkpoint: Checkpoint, model: GPT2, optimizer: Optimizer) -> None:
    """Load weights and running means into a model and its optimizer."""
    folder = checkpoint.folder
    tensors = model.tensors() | optimizer.state()
    if _is_sharded_folder(folder):
        _read_shards(folder, tensors)
    else:
        saved = weights.read_tensors(folder / weights.WEIGHTS) | weights.read_tensors(
            folder / OPTIMIZER
        )
        weights.require_tensors(saved, tensors, source=folder)
        for name, value in tensors.items():
            assign(value, saved[name])
    optimizer.set_updates(checkpoint.state.step)


def load_model(checkpoint: Checkpoint) -> tuple[GPT2, str | None]:
    """Return the model on the CPU, and the SHA-256 of its weights; None for a sharded one."""
    folder = checkpoint.folder
    config, digest = weights.read_header(folder)
    model = GPT2(config)
    if _is_sharded_folder(folder):
        _read_shards(folder, model.tensors())
    else:
        # `verify` has compared the checksum already.
        model.load_tensors(weights.read_tensors(folder / weights.WEIGHTS), source=str(folder))
    return model, digest


def _make_empty(part: Path) -> None:
    with reporting("write", part):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)


def _is_sharded_folder(folder: Path) -> bool:
    """Return whether a checkpoint is sharded."""
    return (folder / SHARDS).is_dir()


def _write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the part of every process."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder / SHARDS), save_distributed=True)
    try:
        save(tensors, storage_writer=writer)
    except CheckpointException as error:
        reasons = {str(reason) for reason, _ in error.failures.values()}
        raise InputError(f"cannot write {folder}: {'; '.join(sorted(reasons))}.") from error


def _write_header(folder: Path, model: GPT2) -> None:
    """Write the header of a whole checkpoint, without the checksum of a weights file."""
    header = {
        "format": weights.FORMAT,
        "model": model.config.to_json(),
        "conventions": model.conventions(),
        "shards": SHARDS,
    }
    write_text(folder / weights.HEADER, json.dumps(header, indent=2) + "\n")


def _read_shards(folder: Path, into: dict[str, Tensor]) -> None:
    """Fill tensors, whole or sharded in any way, from the parts."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_shards

    reader = HuggingFaceStorageReader(str(folder / SHARDS))
    with warnings.catch_warnings():
        # torch warns when a single process reads.
        warnings.simplefilter("ignore", UserWarning)
        load_shards(into, storage_reader=reader, no_dist=not is_initialized())
