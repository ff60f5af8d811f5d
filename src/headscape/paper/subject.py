"""The model a figure is of: trained here, trained elsewhere, or as it was initialised."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer

from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.paper.paper_figures import PaperFigure
from headscape.text.corpus.corpus import open_corpus
from headscape.text.dataset import default_cache
from headscape.text.tokenize.tokenizer import Tokenizer, open_tokenizer
from headscape.text.tokens.shards import open_shards
from headscape.train.config.presets import preset as train_preset
from headscape.train.config.train_config import TrainConfig
from headscape.train.run import Run, read_config
from headscape.train.storage import checkpoint


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and the text to show it."""

    model: GPT2
    tokenizer: Tokenizer
    validation: Integer[np.ndarray, " n"]
    """The validation side of its corpus, as one stream of tokens."""
    corpus: str
    preset: str
    trained: bool
    provenance: Mapping[str, Any]
    """Where the model comes from; decides whether a figure is up to date."""


def settings(figure: PaperFigure, preset: str, seed: int) -> TrainConfig:
    """How a figure's model is trained."""
    return train_preset(
        preset,
        encoding=figure.encoding,
        encoding_fields=dict(figure.fields),
        scale=figure.scale,
        seed=seed,
    )


def untrained(figure: PaperFigure, preset: str, seed: int) -> Subject:
    """A model as its initialisation leaves it."""
    config = settings(figure, preset, seed)
    corpus = open_corpus(config.corpus, default_cache())
    tokenizer = open_tokenizer(config.tokenizer, corpus, default_cache())
    shards = open_shards(corpus, tokenizer, default_cache())
    torch.manual_seed(seed)
    return Subject(
        model=GPT2(config.model(tokenizer.vocabulary)).eval(),
        tokenizer=tokenizer,
        validation=shards.validation.tokens,
        corpus=config.corpus,
        preset=preset,
        trained=False,
        provenance={"initialisation_seed": seed, "corpus_hash": corpus.fingerprint()},
    )


def trained(folder: Path) -> Subject:
    """The newest good checkpoint of a run."""
    run = Run.open(folder)
    corpus = open_corpus(run.config.corpus, default_cache())
    shards = open_shards(corpus, run.tokenizer, default_cache())
    return Subject(
        model=run.model.eval(),
        tokenizer=run.tokenizer,
        validation=shards.validation.tokens,
        corpus=run.config.corpus,
        preset=run.config.preset,
        trained=True,
        provenance={
            "run": folder.name,
            "step": run.step,
            "checkpoint_hash": run.checkpoint_hash,
            "corpus_hash": corpus.fingerprint(),
        },
    )


def check_run(folder: Path, encoding: str) -> None:
    """Complain now, and not after an hour of training others, if a run cannot be drawn."""
    found = Run.open(folder).config.encoding
    if found != encoding:
        raise InputError(f"{folder} was trained with {found!r}, not {encoding!r}.")


def is_finished(folder: Path, config: TrainConfig) -> bool:
    """Whether a run of this configuration has come to its end."""
    there = checkpoint.steps(folder) if folder.is_dir() else []
    return bool(there) and there[-1][0] == config.steps and read_config(folder) == config
