"""What a model is trained to predict, and the data of a run, the same in every process.

Objectives are chosen by the corpus spec, one class each:

    any text     Objective      every next token of windows of the text
    task:NAME    TaskAnswers    the answers of a generated task (tasks/)

`objective_of` is the only place that reads the prefix of a corpus spec; everything else asks the
objective. A new objective (masked tokens, for example) is one more class and one row of PREFIXES:
`targets` already separates what the model reads from what it predicts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.data.corpus.corpus import is_named
from headscape.data.dataset import Dataset, open_dataset
from headscape.data.tasks import task
from headscape.data.tasks.task_batches import TaskBatches, check_fits, weights
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.data.tokens.batches import Batches, validation_windows
from headscape.errors import InputError
from headscape.training.config import TrainConfig
from headscape.training.world import World

HELD_OUT_SEED = 1 << 40
"""Added to the seed for held-out examples of a task; larger than any seed in use."""


class Targets(NamedTuple):
    """What the model reads and what it has to predict."""

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    weights: Float[Tensor, "b t"] | None
    """Factor on the loss of each prediction; None for 1 everywhere."""


class WindowBatches(Protocol):
    """Training windows by step."""

    def windows(
        self, step: int, count: int, length: int | None = None, *, rows: range | None = None
    ) -> Int[np.ndarray, "rows length_plus_1"]:
        """Return the `count` windows of a step, or only the given rows of them."""
        ...

    def starts(self, step: int, count: int, length: int) -> Int[np.ndarray, " count"]:
        """Return where the windows of a step start, for error messages."""
        ...


@dataclass(frozen=True)
class Objective:
    """Predict every next token of a text; other objectives override what differs."""

    name: str
    """The corpus spec without its prefix: a corpus, or the name of a task."""
    task: str | None = None
    """The task trained on; None for text."""
    needs_full_windows: bool = False
    """Whether a window must contain a whole example, so that shorter ones cannot be used."""

    @property
    def description(self) -> str:
        """What is learned, in the words of a caption."""
        return f"next token of {self.name}"

    def open(self, config: TrainConfig, cache: Path) -> tuple[Tokenizer, Dataset | None]:
        """Open the tokenizer and the text; its tokens are written to `cache` the first time."""
        dataset = open_dataset(config.corpus, config.tokenizer, cache)
        return dataset.tokenizer, dataset

    def batches(self, config: TrainConfig, dataset: Dataset | None) -> WindowBatches:
        """Return the training windows: random ones of the training split."""
        assert dataset is not None
        return Batches(dataset.train, config.context_length, config.seed)

    def held_out(
        self, config: TrainConfig, dataset: Dataset | None
    ) -> Int[np.ndarray, "windows length_plus_1"]:
        """Return the windows of the validation loss, at even distances in the validation split."""
        assert dataset is not None
        tokens = dataset.validation
        if len(tokens) < config.context_length + 1:
            raise InputError(
                f"the validation split of {config.corpus} has {len(tokens)} tokens, too few for "
                f"one window of {config.context_length}: give more text or a smaller context "
                f"length."
            )
        return validation_windows(tokens, config.context_length, config.validation_windows)

    def fingerprint(self, dataset: Dataset | None) -> str:
        """Return a hash of what is learned from: equal hashes mean equal text or tasks."""
        assert dataset is not None
        return dataset.fingerprint

    def targets(self, windows: Int[Tensor, "b t_plus_1"]) -> Targets:
        """Split windows into what the model reads and what it has to predict."""
        return Targets(windows[:, :-1], windows[:, 1:], None)


class TaskAnswers(Objective):
    """Predict the answers of a generated task."""

    @property
    def description(self) -> str:
        """What is learned, in the words of a caption."""
        return f"answers of the task {self.name}"

    def open(self, config: TrainConfig, cache: Path) -> tuple[Tokenizer, None]:  # noqa: ARG002
        """Check that task, tokenizer and context length fit; a task has no dataset."""
        if config.tokenizer != "bytes":
            raise InputError(
                f"{config.corpus} needs the tokenizer bytes, got {config.tokenizer}: "
                f"set tokenizer to bytes."
            )
        check_fits(task(self.name), min(config.curriculum or (config.context_length,)))
        return ByteTokenizer(), None

    def batches(self, config: TrainConfig, dataset: Dataset | None) -> TaskBatches:  # noqa: ARG002
        """Return random examples of the training lengths."""
        return TaskBatches(task(self.name), config.context_length, config.seed)

    def held_out(
        self,
        config: TrainConfig,
        dataset: Dataset | None,  # noqa: ARG002
    ) -> Int[np.ndarray, "windows length_plus_1"]:
        """Return examples of the training lengths from a different seed."""
        seed = config.seed + HELD_OUT_SEED
        batches = TaskBatches(task(self.name), config.context_length, seed)
        return batches.windows(0, config.validation_windows)

    def fingerprint(self, dataset: Dataset | None) -> str:  # noqa: ARG002
        """Return a hash of some examples."""
        return TaskBatches(task(self.name), 1, 0).fingerprint

    def targets(self, windows: Int[Tensor, "b t_plus_1"]) -> Targets:
        """Only the answer counts, and every example counts the same."""
        weight = torch.from_numpy(weights(windows.cpu().numpy())).to(windows.device)
        return Targets(windows[:, :-1], windows[:, 1:], weight)


PREFIXES: dict[str, Callable[[str], Objective]] = {
    "task:": lambda name: TaskAnswers(name, task=name, needs_full_windows=True)
}
"""Objectives by the prefix of their corpus spec; a spec without one is a text."""


def objective_of(corpus: str) -> Objective:
    """Return the objective of a corpus spec."""
    for prefix, make in PREFIXES.items():
        if corpus.startswith(prefix):
            return make(corpus.removeprefix(prefix))
    return Objective(corpus)


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
