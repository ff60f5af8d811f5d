"""The configuration of a training run: its record, its presets and its file.

`TrainConfig` contains a `ModelConfig`. Everywhere else the fields of both have one flat list of
names (`NAMES`): in the settings of `preset` and `train`, in config.toml, in checkpoints and as
options of the command line. A field that is added to either class is in all of them.

The same record on the same machine with the same number of threads gives the same weights. The
output folder and whether to resume are arguments of `train`, because they do not change what is
learned.

A step uses `tokens_per_step` tokens over all processes. A process splits its share into
micro-batches of at most `batch_size` windows of `context_length` tokens (more windows while a
curriculum keeps them short). So `batch_size` sets the memory a process needs, never the result.
"""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tomli_w

from headscape.errors import InputError, check_types, check_values, out_of_memory, unknown
from headscape.gpt2.model_config import GPT2_VOCABULARY, ModelConfig
from headscape.gpt2.model_config import PRESETS as SIZES
from headscape.gpt2.model_config import preset as size
from headscape.io.files import is_utf8, reporting, write_text
from headscape.kernels import attend

Schedule = Literal["cosine", "linear", "constant"]
Precision = Literal["auto", "fp32", "bf16"]
Strategy = Literal["none", "ddp", "fsdp"]
OptimizerName = Literal["adamw", "muon"]
if TYPE_CHECKING:
    AttentionPath = str
else:
    AttentionPath = Literal[attend.paths()]


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainConfig:
    """A model, its text and how it is trained; the defaults are the preset nano.

    `preset` makes one from flat names, `preset("small", encoding="alibi", steps=400)`. Every field
    has its meaning written below it.
    """

    preset: str = "nano"
    """The preset it was made from; informational."""

    model: ModelConfig = field(default_factory=lambda: size("nano", encoding="rope"))
    """The model. The run sets what it follows: train_length is `context_length`, the vocabulary is
    the tokenizer's (see `model_for`), and a model that predicts the next token is causal."""

    corpus: str = "stdlib"
    """A file, a folder, stdlib, wikitext-103, fineweb-edu, hf:DATASET[:CONFIG] or task:NAME."""
    tokenizer: str = "bpe:1024"
    """bytes, bpe:N (trained on the corpus) or gpt2."""

    context_length: int = 512
    """Tokens in a training window."""
    curriculum: tuple[int, ...] = (128, 256, 512)
    """Window lengths in stages of equally many steps, the last equal to `context_length`."""
    batch_size: int = 2
    """Windows of `context_length` tokens per micro-batch of one process."""
    tokens_per_step: int = 1024
    """Tokens per update over all processes; a multiple of every window length."""
    steps: int | None = 500
    """Number of updates; None if `minutes` is set."""
    minutes: float | None = None
    """Training time instead of `steps`; such a run is not exactly repeatable."""

    optimizer: OptimizerName = "muon"
    """adamw, or muon for the matrices inside the blocks and AdamW for the rest."""
    lr: float = 1e-2
    """Peak learning rate of AdamW."""
    muon_lr: float = 4e-3
    """Peak learning rate of Muon; it follows the same schedule."""
    final_lr: float = 1e-3
    """Learning rate at the end of the schedule."""
    schedule: Schedule = "cosine"
    """How the learning rate goes from `lr` to `final_lr`."""
    warmup_steps: int = 25
    """Updates with a linearly rising learning rate, at the start."""
    weight_decay: float = 0.1
    """Weight decay of AdamW's tensors with two or more dimensions."""
    beta1: float = 0.9
    """AdamW's decay rate of the mean of gradients."""
    beta2: float = 0.99
    """AdamW's decay rate of the mean of squared gradients."""
    eps: float = 1e-8
    """Added to the denominator of AdamW's update."""
    grad_clip: float = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""
    seed: int = 0
    """Random seed of initial weights and data order."""

    checkpoint_every: int = 200
    """Steps between checkpoints; the last step always writes one."""
    keep_last: int = 2
    """Number of newest checkpoints to keep."""
    keep_every: int = 0
    """Also keep checkpoints at multiples of this many steps; 0 for none."""
    validate_every: int = 250
    """Steps between validation losses; the last step always has one. 0 for the last step only."""
    validation_windows: int = 64
    """Windows of `context_length` tokens in a validation loss."""

    precision: Precision = "auto"
    """auto is bf16 autocast on a GPU and fp32 on a CPU, where bf16 is slower."""
    compile: bool = False
    """Apply torch.compile to the model."""
    path: AttentionPath = "auto"
    """Attention implementation; see `headscape doctor`."""
    distributed: Strategy = "ddp"
    """How several processes share the work; ignored with one process."""
    tensorboard: bool = False
    """Also write TensorBoard events to the run's folder."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.context_length >= 1:
            # Not stated a second time: it follows `context_length`, also after `replace`.
            model = replace(self.model, train_length=self.context_length)
            object.__setattr__(self, "model", model)
        _check(self)

    def __repr__(self) -> str:
        nano = _nano()
        changed = [f"{name}={value!r}" for name, value in flat(self).items() if value != nano[name]]
        return f"TrainConfig({', '.join(changed)})"

    def model_for(self, vocabulary: int) -> ModelConfig:
        """Return the model with a tokenizer's vocabulary, for GPT-2's padded to 50,304."""
        padded = GPT2_VOCABULARY if self.tokenizer == "gpt2" else vocabulary
        return replace(self.model, vocabulary=padded)

    def length_at(self, progress: float) -> int:
        """Return the window length when the fraction `progress` (0 to 1) of the run is done."""
        stages = self.curriculum or (self.context_length,)
        return stages[min(int(progress * len(stages)), len(stages) - 1)]


SET_BY_RUN = ("vocabulary", "train_length", "causal")
"""Fields of the model that are not settings, because they follow from the rest of the run."""
MODEL_NAMES = tuple(item.name for item in fields(ModelConfig) if item.name not in SET_BY_RUN)
NAMES = tuple(
    name
    for item in fields(TrainConfig)
    for name in (MODEL_NAMES if item.name == "model" else (item.name,))
)
"""Every setting, the model's among them."""


def flat(config: TrainConfig) -> dict[str, Any]:
    """Return every setting by name, as plain values for TOML and JSON."""
    model = config.model
    values = {name: getattr(model if name in MODEL_NAMES else config, name) for name in NAMES}
    tables = {"encoding_fields": dict(model.encoding_fields), "curriculum": [*config.curriculum]}
    return values | tables


def unflat(values: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of complete settings."""
    model = {name: values[name] for name in MODEL_NAMES}
    own = {name: value for name, value in values.items() if name not in MODEL_NAMES}
    return TrainConfig(model=ModelConfig(**model), **own)


@cache
def _nano() -> dict[str, Any]:
    return flat(TrainConfig())


# Presets. `paper-*` are the runs of "Context-aware Biases for Length Extrapolation" (CABLE, EMNLP
# 2025): 524,288 tokens per step, 19,000 steps of FineWeb-Edu, learning rate 6e-4 to 6e-5 by a
# cosine after 750 warmup steps, AdamW 0.9/0.95 with weight decay 0.1, gradient clipping at 1.0,
# bf16. For WikiText-103 the paper uses 9,000 steps (Tiny), 5,000 (Small) and 3,000 (Medium): set
# `corpus` and `steps`. The other presets are for smaller machines. `nano` trains on the standard
# library's source in about a minute on two CPU cores: many small steps, two layers, Muon and a
# curriculum of lengths gave the lowest loss in that time.
PAPER: dict[str, Any] = {
    "corpus": "fineweb-edu",
    "tokenizer": "gpt2",
    "context_length": 1024,
    "curriculum": (),
    "batch_size": 32,
    "tokens_per_step": 524_288,
    "steps": 19_000,
    "optimizer": "adamw",
    "lr": 6e-4,
    "final_lr": 6e-5,
    "warmup_steps": 750,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "grad_clip": 1.0,
    "precision": "bf16",
    "checkpoint_every": 500,
    "keep_every": 5_000,
    "validate_every": 250,
    "validation_windows": 1024,
}
"""Settings that all of the paper's runs share."""

SINGLE_MACHINE: dict[str, Any] = {
    "tokenizer": "gpt2",
    "context_length": 512,
    "curriculum": (),
    "batch_size": 4,
    "tokens_per_step": 16_384,
    "steps": 2_000,
    "optimizer": "adamw",
    "lr": 1e-3,
    "final_lr": 1e-4,
    "warmup_steps": 100,
    "beta2": 0.95,
    "checkpoint_every": 100,
    "validate_every": 100,
}
"""Settings for one GPU, or a CPU and more time; about 33 million tokens."""

PRESETS: dict[str, dict[str, Any]] = {
    "nano": {},
    "mini": {
        **SINGLE_MACHINE,
        **SIZES["mini"],
        "tokenizer": "bpe:4096",
        "batch_size": 8,
        "tokens_per_step": 4_096,
        "lr": 2e-3,
        "final_lr": 2e-4,
    },
    "tiny": {**SINGLE_MACHINE, **SIZES["tiny"], "batch_size": 8},
    "small": {**SINGLE_MACHINE, **SIZES["small"], "lr": 6e-4, "final_lr": 6e-5},
    "medium": {**SINGLE_MACHINE, **SIZES["medium"], "batch_size": 2, "lr": 3e-4, "final_lr": 3e-5},
    "large": {
        **SINGLE_MACHINE,
        **SIZES["large"],
        "batch_size": 1,
        "lr": 2.5e-4,
        "final_lr": 2.5e-5,
    },
    "xl": {**SINGLE_MACHINE, **SIZES["xl"], "batch_size": 1, "lr": 2e-4, "final_lr": 2e-5},
    "paper-tiny-1024": {**PAPER, **SIZES["tiny"], "batch_size": 64},
    "paper-small-512": {**PAPER, **SIZES["small"], "context_length": 512, "batch_size": 64},
    "paper-small-1024": {**PAPER, **SIZES["small"]},
    "paper-medium-1024": {**PAPER, **SIZES["medium"], "batch_size": 16},
}
"""Settings by which each preset differs from nano, the defaults of TrainConfig."""


def preset(name: str, /, **settings: Any) -> TrainConfig:
    """Return a preset with some fields changed.

    Changing a field also changes the fields derived from it, unless you set those too: `minutes`
    replaces `steps`, fewer steps shorten the warmup to a tenth, a different context length or a
    task turns the curriculum off, a batch larger than a step enlarges the step, and `final_lr`
    and, in a preset with Muon, `muon_lr` scale with `lr`.

    Args:
        name: One of PRESETS, such as "nano" or "paper-small-512".
        settings: Fields of TrainConfig or of its ModelConfig, such as encoding="alibi", layers=3,
            steps=400; None leaves a field as it is.
    """
    from headscape.training.objective import objective_of

    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    base = {**_nano(), "preset": name, **PRESETS[name]}
    chosen = checked_settings(settings)
    values = base | chosen
    length = values["context_length"]
    if "minutes" in chosen and "steps" not in chosen:
        values["steps"] = None
    if "steps" in chosen and "warmup_steps" not in chosen:
        values["warmup_steps"] = max(0, min(base["warmup_steps"], chosen["steps"] // 10))
    whole = objective_of(values["corpus"]).needs_full_windows
    if (whole or length != base["context_length"]) and "curriculum" not in chosen:
        values["curriculum"] = ()
    resized = {"context_length", "batch_size"} & set(chosen)
    if length > 0 and "tokens_per_step" not in chosen and resized:
        whole_windows = values["tokens_per_step"] // length * length
        values["tokens_per_step"] = max(values["batch_size"] * length, whole_windows)
    if "lr" in chosen and "final_lr" not in chosen:
        values["final_lr"] = chosen["lr"] * base["final_lr"] / base["lr"]
    if "lr" in chosen and "muon_lr" not in chosen and base["optimizer"] == "muon":
        values["muon_lr"] = chosen["lr"] * base["muon_lr"] / base["lr"]
    return unflat(values)


def changed(config: TrainConfig, /, **settings: Any) -> TrainConfig:
    """Return a configuration with these fields changed and nothing derived from them."""
    return unflat(flat(config) | checked_settings(settings))


def checked_settings(settings: Mapping[str, Any], source: str = "") -> dict[str, Any]:
    """Return the settings that are not None; refuse unknown names and wrong types."""
    for name in settings:
        if name not in NAMES:
            raise unknown(f"setting in {source}" if source else "setting", name, NAMES)
    chosen = {name: value for name, value in settings.items() if value is not None}
    own = {name: value for name, value in chosen.items() if name not in MODEL_NAMES}
    return chosen | check_values(TrainConfig, own)


# config.toml has every field, including defaults, so that a later version with different defaults
# repeats the run. A field that is None (steps, minutes, qk_norm_scale, qk_norm_limit) is left out,
# because TOML has no null.

OLDEST = frozenset({
    "preset", "layers", "heads", "width", "encoding", "encoding_fields", "share_encoding", "scale",
    "corpus", "tokenizer", "context_length", "curriculum", "batch_size", "tokens_per_step", "lr",
    "final_lr", "schedule", "warmup_steps", "weight_decay", "beta1", "beta2", "eps", "grad_clip",
    "seed", "checkpoint_every", "keep_last", "keep_every", "validate_every", "validation_windows",
    "precision", "compile", "path", "distributed", "tensorboard",
})  # fmt: skip
"""Fields that every config.toml written by a run has; a file without one of them is partial."""


def write_toml(path: Path, config: TrainConfig) -> None:
    """Write every field."""
    write_text(path, to_toml(config))


def to_toml(config: TrainConfig) -> str:
    """Return the text of config.toml."""
    return tomli_w.dumps({name: value for name, value in flat(config).items() if value is not None})


def read_toml(path: Path, /, **settings: Any) -> TrainConfig:
    """Return the configuration in a file, with some fields changed.

    A file that a run wrote is complete and means what it says. Any other file means the preset it
    names, or nano, with the file's fields changed as in `preset`.
    """
    with reporting("read", path):
        data = path.read_bytes()
    try:
        values = tomllib.loads(data.decode())
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}.") from error
    except RecursionError as error:
        raise InputError(f"{path} is TOML nested too deeply to be read.") from error
    written = checked_settings(values, str(path))
    if written.keys() >= OLDEST:
        # Before there was Muon, no file had an optimizer, and it was AdamW.
        absent = {"steps": None, "minutes": None, "optimizer": "adamw"}
        return changed(unflat(_nano() | absent | written), **settings)
    name = written.pop("preset", "nano")
    return preset(name, **written | checked_settings(settings))


RANGES: dict[str, tuple[float, float]] = {
    "layers": (1, 1_000),
    "heads": (1, 1_024),
    "width": (1, 1 << 16),
    "context_length": (1, 1 << 24),
    "batch_size": (1, 1 << 20),
    "tokens_per_step": (1, 1 << 40),
    "steps": (1, 10**9),
    "warmup_steps": (0, 10**9),
    "final_lr": (0, 1e3),
    "weight_decay": (0, 1e3),
    "grad_clip": (0, 1e12),
    "seed": (0, (1 << 63) - 1),
    "checkpoint_every": (1, 10**9),
    "keep_last": (1, 10**9),
    "keep_every": (0, 10**9),
    "validate_every": (0, 10**9),
    "validation_windows": (1, 10**6),
}
"""Smallest and largest value of a field, both allowed."""
ABOVE_ZERO = {"lr": 1e3, "muon_lr": 1e3, "eps": 1.0, "minutes": 1e7}
"""Largest value of fields that must be greater than 0."""


def _check(config: TrainConfig) -> None:
    """Refuse a configuration with a value out of range or a contradiction."""
    values = flat(config)
    for name, value in values.items():
        if isinstance(value, str) and not is_utf8(value):
            raise InputError(f"{name}={value!r} is not UTF-8, as config.toml must be: rename it.")
    if config.model.vocabulary != GPT2_VOCABULARY or not config.model.causal:
        raise InputError(
            "the vocabulary of a trained model is its tokenizer's, and it is causal: leave "
            "vocabulary and causal out."
        )
    _check_ranges(values)
    _check_schedule(config)
    _check_lengths(config)
    with allocating("the encoding"):
        # Built once so that unknown names and fields raise here.
        for entry in config.model.schedule():
            config.model.build_encoding(entry)


@contextmanager
def allocating(what: str) -> Iterator[None]:
    """Raise an InputError where memory for `what` cannot be allocated."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise InputError(f"{what} does not fit in memory: choose a smaller model.") from error


def _check_ranges(values: Mapping[str, Any]) -> None:
    for name, (low, high) in RANGES.items():
        value = values[name]
        if value is None:
            continue
        # Written so that nan fails it.
        if not value >= low:
            raise InputError(f"{name} must be at least {low}, got {value}.")
        if value > high:
            raise InputError(f"{name} must be at most {high:,}, got {value}.")
    for name, high in ABOVE_ZERO.items():
        value = values[name]
        if value is not None and not 0 < value <= high:
            raise InputError(f"{name} must be above 0 and at most {high:g}, got {value}.")
    for name in ("beta1", "beta2"):
        value = values[name]
        if not 0 <= value < 1:
            raise InputError(f"{name} must be at least 0 and below 1, got {value}.")


def _check_schedule(config: TrainConfig) -> None:
    if config.steps is None and config.minutes is None:
        raise InputError("steps and minutes are both missing: give one of them.")
    if config.steps is not None and config.minutes is not None:
        raise InputError(
            f"steps={config.steps} and minutes={config.minutes} exclude each other: give one."
        )
    if config.steps is not None and config.warmup_steps >= config.steps:
        raise InputError(
            f"warmup_steps={config.warmup_steps} must be below steps={config.steps}: "
            f"lower warmup_steps or raise steps."
        )
    if config.final_lr > config.lr:
        raise InputError(f"final_lr={config.final_lr} must be at most lr={config.lr}.")


def _check_lengths(config: TrainConfig) -> None:
    if config.curriculum and config.curriculum[-1] != config.context_length:
        raise InputError(
            f"the last length of curriculum={config.curriculum} must be "
            f"context_length={config.context_length}."
        )
    for length in (*config.curriculum, config.context_length):
        if not 1 <= length <= config.context_length:
            raise InputError(
                f"every length of the curriculum must be between 1 and "
                f"context_length={config.context_length}, got {length}."
            )
        if config.tokens_per_step % length:
            raise InputError(
                f"tokens_per_step={config.tokens_per_step} must be a multiple of the window "
                f"length {length}."
            )
