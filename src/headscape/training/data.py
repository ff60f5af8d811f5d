"""The data of a run, opened the same way in every process."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from headscape.data.corpus.corpus import is_named
from headscape.data.dataset import Dataset
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.errors import InputError
from headscape.training.config import TrainConfig
from headscape.training.objective import Objective, WindowBatches, objective_of
from headscape.training.world import World


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a run trains and validates on."""

    objective: Objective
    tokenizer: Tokenizer
    dataset: Dataset | None
    """The corpus as tokens, checksums verified; None for a task."""
    batches: WindowBatches
    """The training windows by step."""
    held_out: Int[np.ndarray, "windows length_plus_1"]
    """The validation windows."""

    @property
    def fingerprint(self) -> str:
        """Hash of the text or task."""
        return self.objective.fingerprint(self.dataset)

    def rows(self, config: TrainConfig, step: int, length: int, world: World) -> Int[Tensor, "b t"]:
        """Return this process's windows of a step: the batch of all processes, split by rank."""
        count = config.tokens_per_step // length
        share = count // world.size
        rows = range(world.rank * share, (world.rank + 1) * share)
        return torch.from_numpy(self.batches.windows(step, count, length, rows=rows))


def open_data(config: TrainConfig, world: World, cache: Path) -> Data:
    """Open the data of a run; missing or damaged token shards are written again."""
    for length in {config.context_length, *config.curriculum}:
        count = config.tokens_per_step // length
        if count % world.size:
            raise InputError(
                f"{world.size} processes cannot share a step of {count} windows of {length} "
                f"tokens evenly: change tokens_per_step or the number of processes."
            )
    objective = objective_of(config.corpus)
    tokenizer, dataset = world.once_per_machine(lambda: objective.open(config, cache))
    fingerprints = world.gather((objective.fingerprint(dataset), tokenizer.fingerprint))
    if len(set(fingerprints)) > 1:
        raise InputError(f"the corpus {config.corpus} is not the same on every machine.")
    return Data(
        objective=objective,
        tokenizer=tokenizer,
        dataset=dataset,
        batches=objective.batches(config, dataset),
        held_out=objective.held_out(config, dataset),
    )


def with_absolute_corpus(config: TrainConfig) -> TrainConfig:
    """Return the configuration with an absolute corpus path, valid in every working folder."""
    if objective_of(config.corpus).task is not None or is_named(config.corpus):
        return config
    try:
        path = Path(config.corpus).expanduser().resolve()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError):
        # Opening the corpus reports what is wrong with the path.
        return config
    return replace(config, corpus=str(path)) if exists else config
