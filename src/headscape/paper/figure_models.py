"""The model a figure shows: trained here, trained elsewhere, or as initialised."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from headscape.data.dataset import Dataset, open_dataset
from headscape.encodings.registry import parse
from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.models.gpt2_model import GPT2Model
from headscape.models.run_model import open_run
from headscape.paper.paper_figures import PaperFigure
from headscape.training import checkpoint
from headscape.training.config import TrainConfig
from headscape.training.config import preset as train_preset
from headscape.training.run import read_config


def settings(
    figure: PaperFigure, preset: str, seed: int, changes: Mapping[str, Any] = MappingProxyType({})
) -> TrainConfig:
    """How a figure's model is trained."""
    return train_preset(
        preset,
        encoding=figure.encoding,
        encoding_fields=dict(figure.fields),
        scale=figure.scale,
        seed=seed,
        **changes,
    )


def open_text(figure: PaperFigure, preset: str, changes: Mapping[str, Any]) -> Dataset:
    """The text that a figure's model is trained on."""
    config = settings(figure, preset, 0, changes)
    return open_dataset(config.corpus, config.tokenizer)


def untrained(
    figure: PaperFigure, preset: str, seed: int, changes: Mapping[str, Any] = MappingProxyType({})
) -> GPT2Model:
    """A model as initialised, with the text it would be trained on."""
    config = settings(figure, preset, seed, changes)
    dataset = open_text(figure, preset, changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gpt2 = GPT2(config.model_for(dataset.tokenizer.vocabulary))
    return GPT2Model(
        gpt2,
        tokenizer=dataset.tokenizer,
        dataset=lambda: dataset,
        preset=preset,
        trained=False,
        provenance={"initialisation_seed": seed},
    )


def trained(folder: Path) -> GPT2Model:
    """The newest good checkpoint of a run on text."""
    model = open_run(folder)
    if model.dataset is None:
        raise InputError(f"{folder} was trained on a task: figures need a run on text.")
    return model


def check_run(folder: Path, encoding: str) -> None:
    """Refuse a run that cannot be drawn, before anything is trained."""
    found = open_run(folder).spec.encoding
    if found != ",".join(dict.fromkeys(entry.name for entry in parse(encoding))):
        raise InputError(f"{folder} was trained with {found!r}, not {encoding!r}.")


def is_finished(folder: Path, config: TrainConfig) -> bool:
    """Whether the folder contains a finished run of this config."""
    saved = checkpoint.steps(folder) if folder.is_dir() else []
    return bool(saved) and saved[-1][0] == config.steps and read_config(folder) == config
