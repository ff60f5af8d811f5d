"""Writing and loading the tensors of a checkpoint: weights and the optimizer's running means.

A whole checkpoint can be loaded into a sharded model and a sharded one into a whole model.

The tensors of a sharded model are in safetensors files, one per process.
torch.distributed.checkpoint decides which process writes which part and loads the parts into any
number of processes, including one. Its safetensors storage is used instead of its default pickles.
It is imported inside the functions that use it, because importing it takes a second.
"""

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import is_initialized

from headscape.errors import InputError
from headscape.gpt2 import GPT2, weights
from headscape.io import atomic
from headscape.io.system_errors import reporting
from headscape.training.checkpoint import (
    FOLDER,
    Checkpoint,
    State,
    folder_name,
    part_folder,
    seal,
)
from headscape.training.optim import Optimizer
from headscape.training.parallel import assign, is_sharded
from headscape.training.world import World

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
                with atomic.replacing(part / OPTIMIZER) as file:
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
        for name, value in tensors.items():
            if name not in saved:
                raise InputError(f"{folder} has no tensor {name!r}.")
            if saved[name].shape != value.shape:
                raise InputError(
                    f"{folder} has {name!r} with shape {tuple(saved[name].shape)}, and the model "
                    f"needs {tuple(value.shape)}."
                )
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
    atomic.write_text(folder / weights.HEADER, json.dumps(header, indent=2) + "\n")


def _read_shards(folder: Path, into: dict[str, Tensor]) -> None:
    """Fill tensors, whole or sharded in any way, from the parts."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder / SHARDS))
    with warnings.catch_warnings():
        # torch warns when a single process reads.
        warnings.simplefilter("ignore", UserWarning)
        load(into, storage_reader=reader, no_dist=not is_initialized())
