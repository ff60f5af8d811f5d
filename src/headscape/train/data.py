"""The tokens of a run: corpus, tokenizer and shards, opened alike in every process.

The corpus `task:NAME` is a generated task: no text, no shards, examples made as they are needed.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt
from torch import Tensor

from headscape.errors import InputError
from headscape.tasks import task
from headscape.tasks.task_batches import TaskBatches, check_fits
from headscape.text.corpus.corpus import open_corpus
from headscape.text.corpus.hub import SHORTCUTS
from headscape.text.tokenize.byte_tokenizer import ByteTokenizer
from headscape.text.tokenize.tokenizer import Tokenizer, open_tokenizer
from headscape.text.tokens.batches import Batches, validation_windows
from headscape.text.tokens.shards import Shards, open_shards
from headscape.train.config.train_config import TrainConfig
from headscape.train.distributed.world import World

TASK = "task:"


@dataclass(frozen=True, kw_only=True)
class Data:
    """A run's text as tokens."""

    tokenizer: Tokenizer
    """What made them."""
    shards: Shards | None
    """Both sides of the corpus, checksums verified; None for a task."""
    batches: Batches | TaskBatches
    """The training side in the run's order."""
    held_out: Int[np.ndarray, "windows length_plus_1"]
    """The validation windows."""

    def rows(self, config: TrainConfig, step: int, length: int, world: World) -> Int[Tensor, "b t"]:
        """The windows of a step that are this process's: the same batch, cut by rank."""
        count = config.tokens_per_step // length
        share = count // world.size
        mine = range(world.rank * share, (world.rank + 1) * share)
        return torch.from_numpy(self.batches.windows(step, count, length, rows=mine))


def open_data(config: TrainConfig, world: World, cache: Path) -> Data:
    """Open the corpus, writing its shards if they are not there; damaged ones are written anew."""
    for length in {config.length, *config.curriculum}:
        count = config.tokens_per_step // length
        if count % world.size:
            raise InputError(
                f"{world.size} processes cannot share a step of {count} windows of {length} "
                f"tokens evenly: change tokens_per_step or the number of processes."
            )

    if config.corpus.startswith(TASK):
        return _task(config)

    def opened() -> tuple[Tokenizer, Shards]:
        corpus = open_corpus(config.corpus, cache)
        tokenizer = open_tokenizer(config.tokenizer, corpus, cache)
        return tokenizer, open_shards(corpus, tokenizer, cache)

    tokenizer, shards = world.once_per_machine(opened)
    header = shards.train.header
    if len(set(world.gather((header.corpus, header.tokenizer)))) > 1:
        raise InputError(f"the corpus {config.corpus} is not the same on every machine.")
    train: UInt[np.ndarray, " tokens"] = shards.train.tokens
    return Data(
        tokenizer=tokenizer,
        shards=shards,
        batches=Batches(train, config.length, config.seed),
        held_out=_held_out(shards, config),
    )


def anywhere(config: TrainConfig) -> TrainConfig:
    """The same configuration with a corpus path that holds in every working folder."""
    named = config.corpus == "stdlib" or config.corpus.startswith(("hf:", TASK))
    if named or config.corpus.partition("@")[0] in SHORTCUTS or not Path(config.corpus).exists():
        return config
    return replace(config, corpus=str(Path(config.corpus).resolve()))


def _task(config: TrainConfig) -> Data:
    if config.tokenizer != "bytes":
        raise InputError(f"{config.corpus} is spelled in bytes: use the tokenizer bytes.")
    chosen = task(config.corpus.removeprefix(TASK))
    check_fits(chosen, min(config.curriculum or (config.length,)))
    # Far from any seed that a run would be given, so that held-out examples are others.
    apart = TaskBatches(chosen, config.length, config.seed + (1 << 40))
    return Data(
        tokenizer=ByteTokenizer(),
        shards=None,
        batches=TaskBatches(chosen, config.length, config.seed),
        held_out=apart.windows(0, config.validation_windows),
    )


def _held_out(shards: Shards, config: TrainConfig) -> Int[np.ndarray, "windows length_plus_1"]:
    tokens = shards.validation.tokens
    if len(tokens) < config.length + 1:
        raise InputError(
            f"the validation side of {config.corpus} has {len(tokens)} tokens, too few for one "
            f"window of {config.length}: give more text or a smaller length."
        )
    return validation_windows(tokens, config.length, config.validation_windows)
