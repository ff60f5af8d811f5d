"""What a model card shows besides the model: a picture, the training, an evaluation."""

import warnings
from pathlib import Path

import numpy as np

from headscape.errors import InputError
from headscape.evaluation.table import Table
from headscape.huggingface.model_card import PICTURE
from headscape.models.gpt2_model import GPT2Model
from headscape.training import metrics
from headscape.training.config import TrainConfig
from headscape.training.run import CONFIG, read_config

PICTURE_TOKENS = 128


def write_picture(model: GPT2Model, part: Path) -> str:
    """Draw the heads of the last layer; return what the picture shows."""
    length = min(PICTURE_TOKENS, model.gpt2.config.train_length)
    try:
        dataset = model.dataset
    except InputError:
        dataset = None
    what = "text of the validation split"
    if dataset is not None and len(dataset.validation) > length:
        captured = model.capture(length=length)
    else:
        what = "random tokens"
        random = np.random.default_rng(0).integers(model.spec.vocabulary, size=length)
        captured = model.capture(random)
    captured.grid().save(part / PICTURE)
    quantity = {
        "bias": "positional bias",
        "final": "scores before the softmax",
        "weights": "attention weights",
    }
    shown = quantity[model.spec.shows]
    return f"Every head of the last layer: {shown} on {length} tokens ({what})."


def evaluation(model: GPT2Model, given: Path | str | None) -> Table | None:
    """Return the rows of this model in an evaluation, given or beside its run."""
    if given is not None:
        return _rows(model, Path(given), asked=True)
    if model.folder is None:
        return None
    for place in (model.folder / "evaluation", model.folder.parent / "evaluation"):
        if (place / "evaluation.json").is_file():
            try:
                return _rows(model, place, asked=False)
            except InputError as error:
                warnings.warn(f"the model card has no table: {error}", stacklevel=3)
    return None


def _rows(model: GPT2Model, folder: Path, *, asked: bool) -> Table | None:
    rows = [row for row in Table.read(folder).rows if row.model == model.fingerprint]
    if not rows and asked:
        raise InputError(f"{folder} has no rows of this checkpoint: evaluate it first.")
    return Table.of(rows) if rows else None


def training(model: GPT2Model) -> TrainConfig | None:
    """Return the configuration of the model's run, where there is one."""
    folder = model.folder
    return read_config(folder) if folder is not None and (folder / CONFIG).is_file() else None


def losses(model: GPT2Model) -> dict[str, float]:
    """Return step, tokens and losses of the exported checkpoint."""
    if model.folder is None:
        return {}
    step = model.spec.provenance.get("step")
    lines = [line for line in metrics.read(model.folder) if line["step"] == step]
    names = ("tokens", "loss", "validation_loss")
    return {name: line[name] for line in lines[-1:] for name in names if name in line}
