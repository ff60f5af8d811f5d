"""A run: a folder that `train` fills and `Run.open` reads.

RUN/config.toml        the complete configuration        (config.py)
tokenizer.json     the tokenizer, so that the run can be read without its corpus
metrics.jsonl      one line per step                 (metrics.py)
provenance.json    versions, machine, text           (provenance.py)
checkpoints/       step-000400 and so on             (checkpoint.py)
.lock              locked while a process trains     (io/folder_lock.py)
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscape.data.dataset import Dataset, open_dataset
from headscape.data.tokenize.tokenizer import Tokenizer, load_tokenizer
from headscape.encodings.registry import UnknownEncodingError
from headscape.errors import InputError
from headscape.gpt2 import GPT2, weights
from headscape.io.files import read_json
from headscape.training import checkpoint, metrics, provenance
from headscape.training.checkpoint import Checkpoint, load_model
from headscape.training.config import NAMES, OLDEST, TrainConfig, flat, read_toml
from headscape.training.metrics import Line
from headscape.training.objective import objective_of

CONFIG = "config.toml"
TOKENIZER = "tokenizer.json"
CHANGEABLE = {
    "batch_size",
    "checkpoint_every",
    "compile",
    "distributed",
    "keep_every",
    "keep_last",
    "path",
    "precision",
    "preset",
    "tensorboard",
    "validate_every",
    "validation_windows",
}
"""Fields that may change when a run is resumed, because they do not change what is learned."""
RECIPE = OLDEST | {
    "steps", "minutes", "optimizer", "muon_lr", "qk_norm", "qk_norm_kind", "qk_norm_over",
    "qk_norm_weight", "qk_norm_layers", "qk_norm_per_head", "qk_norm_scale",
}  # fmt: skip
"""Fields that always count in `Run.recipe`; a field added since counts where it is not the default,
so that recipes of older runs stay equal."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """A trained model with its tokenizer and configuration."""

    folder: Path
    config: TrainConfig
    step: int
    """Number of updates of this checkpoint."""
    checkpoint: Path
    """The folder of the weights."""
    checkpoint_hash: str | None = None
    """SHA-256 of the weights file; None for a sharded checkpoint."""
    model: GPT2
    """On the CPU, in evaluation mode."""
    tokenizer: Tokenizer

    @classmethod
    def open(cls, folder: Path | str, step: int | None = None) -> "Run":
        """Open the checkpoint of a step, by default the newest undamaged one.

        Every file is hashed once. Warns if a newer checkpoint is damaged; refuses a config.toml or
        tokenizer.json that is not the one the checkpoint was trained with.
        """
        folder = Path(folder)
        config = read_config(folder)
        chosen = _choose(folder, step)
        check_config(folder, config, chosen)
        model, digest = load_model(chosen)
        return cls(
            folder=folder,
            config=config,
            step=chosen.state.step,
            checkpoint=chosen.folder,
            checkpoint_hash=digest,
            model=model.eval(),
            tokenizer=read_tokenizer(folder),
        )

    def __repr__(self) -> str:
        encoding = self.config.model.encoding
        return f"Run({str(self.folder)!r}, step={self.step}, encoding={encoding!r})"

    @property
    def recipe(self) -> str:
        """SHA-256 of everything the model was trained with except the seed.

        Runs with equal recipes differ only in their seed, so they can be averaged.
        """
        names = set(NAMES) - CHANGEABLE - {"seed"} | {"precision"}
        default, values = flat(TrainConfig()), flat(self.config)
        facts = {
            name: values[name] for name in names if name in RECIPE or values[name] != default[name]
        }
        # The fingerprint, because the same text may have a different path on another machine.
        facts["corpus"] = provenance.fingerprint_of(self.folder, "corpus") or facts["corpus"]
        if self.config.steps is not None:
            facts["step"] = self.step
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def dataset(self) -> Dataset | None:
        """Open the text the run was trained on; None for a run on a task."""
        if objective_of(self.config.corpus).task is not None:
            return None
        return open_dataset(self.config.corpus, self.tokenizer)

    def metrics(self) -> list[Line]:
        """Return the metrics of every step."""
        return metrics.read(self.folder)


def read_config(folder: Path) -> TrainConfig:
    """Return the configuration of a run."""
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder} is not a run: it has no {CONFIG}.")
    try:
        return read_toml(folder / CONFIG)
    except UnknownEncodingError as error:
        file = provenance.plugin_of(folder, error.name)
        raise error.in_folder(folder, file) from error


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a run; refuse one that the run was not trained with."""
    path = folder / TOKENIZER
    tokenizer = load_tokenizer(read_json(path))
    recorded = provenance.fingerprint_of(folder, "tokenizer")
    if recorded is not None and tokenizer.fingerprint != recorded:
        raise InputError(
            f"{path} is not the tokenizer that the run was trained with: restore it, or delete it "
            f"and resume the run, which writes it again."
        )
    return tokenizer


def check_config(folder: Path, config: TrainConfig, trained: Checkpoint) -> None:
    """Refuse the config of a run if a checkpoint of it was trained with a different one.

    A text may move, so `corpus` is left to the comparison of fingerprints.
    """
    recorded, now = _config_of(trained), flat(config)
    different = [
        f"{name}={recorded[name]!r}, and {CONFIG} has {now[name]!r}"
        for name in NAMES
        if name in recorded.keys() - CHANGEABLE - {"corpus"}
        and _canonical(recorded[name]) != _canonical(now[name])
    ]
    if different:
        raise InputError(
            f"{trained.folder} was trained with {'; '.join(different)}: restore {folder / CONFIG}."
        )


def _config_of(trained: Checkpoint) -> Mapping[str, Any]:
    """Return the fields of TrainConfig that a checkpoint records."""
    recorded = trained.made_with.get("config")
    if isinstance(recorded, dict):
        return recorded
    # An older version wrote it, which recorded the model alone.
    model = weights.read_header(trained.folder)[0].to_json()
    return model | {"context_length": model["train_length"]}


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _choose(folder: Path, step: int | None) -> Checkpoint:
    folders = dict(checkpoint.steps(folder))
    if not folders:
        raise InputError(
            f"{folder} has no checkpoint yet: wait for its first one or train it further."
        )
    if step is not None:
        if step not in folders:
            known = ", ".join(map(str, folders))
            raise InputError(f"{folder} has no checkpoint of step {step}; it has steps {known}.")
        return checkpoint.verify(folders[step])
    good, problems = checkpoint.newest_good(folder)
    if good is None:
        raise InputError(f"every checkpoint of {folder} is damaged: {' '.join(problems)}")
    for problem in problems:
        warnings.warn(f"{problem} Reading {good.folder} instead.", stacklevel=3)
    return good
