"""Writing and loading the tensors of a checkpoint: weights and the optimizer's running means.

A whole checkpoint can be loaded into a sharded model and a sharded one into a whole model.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file

from headscape.errors import InputError
from headscape.gpt2 import GPT2, weights
from headscape.io import atomic
from headscape.io.system_errors import reporting
from headscape.training.distributed.parallel import assign, is_sharded
from headscape.training.distributed.world import World
from headscape.training.loop.optim import Optimizer
from headscape.training.storage import sharded_tensors
from headscape.training.storage.checkpoint import (
    FOLDER,
    Checkpoint,
    State,
    folder_name,
    part_folder,
    seal,
)

OPTIMIZER = "optimizer.safetensors"


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
        sharded_tensors.write(part, model.tensors() | means)

    def finish() -> None:
        with reporting("write", final):
            if is_sharded(model):
                sharded_tensors.write_header(part, model)
            else:
                model.save_pretrained(part)
                with atomic.replacing(part / OPTIMIZER) as file:
                    save_file({name: value.contiguous() for name, value in means.items()}, file)
            seal(part, final, state, made_with)

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
    if sharded_tensors.is_sharded_folder(folder):
        sharded_tensors.read(folder, tensors)
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
    if sharded_tensors.is_sharded_folder(folder):
        sharded_tensors.read(folder, model.tensors())
    else:
        # `verify` has compared the checksum already.
        model.load_tensors(weights.read_tensors(folder / weights.WEIGHTS), source=str(folder))
    return model, digest


def _make_empty(part: Path) -> None:
    with reporting("write", part):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
