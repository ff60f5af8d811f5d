"""Validation of a TrainConfig: types, ranges, and fields that must agree with each other."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headscape.errors import InputError, unknown
from headscape.io.file_name import is_utf8
from headscape.io.system_errors import out_of_memory
from headscape.io.typecheck import as_tuples, check_types

if TYPE_CHECKING:
    from headscape.training.config.train_config import TrainConfig

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


def check(config: "TrainConfig") -> None:
    """Refuse a configuration with a wrong type, a value out of range or a contradiction."""
    check_types(config, skip=("curriculum", "encoding_fields"))
    for name, value in vars(config).items():
        if isinstance(value, str) and not is_utf8(value):
            raise InputError(f"{name}={value!r} is not UTF-8, as config.toml must be: rename it.")
    lengths = config.curriculum
    if not isinstance(lengths, tuple) or not all(type(item) is int for item in lengths):
        raise InputError(f"curriculum={lengths!r} is not a list of window lengths.")
    if not isinstance(config.encoding_fields, Mapping):
        raise InputError(f"encoding_fields={config.encoding_fields!r} is not a table of fields.")
    object.__setattr__(config, "encoding_fields", as_tuples(config.encoding_fields))
    _check_ranges(config)
    _check_schedule(config)
    _check_lengths(config)
    with allocating("the encoding"):
        # Built once so that unknown names and fields, or heads that do not divide the width, raise.
        model = config.model(1)
        for entry in model.schedule():
            model.build_encoding(entry)


def check_names(names: Collection[str], known: Collection[str], source: str = "") -> None:
    """Refuse a name that is not a field of the configuration, naming the closest one."""
    for name in names:
        if name not in known:
            raise unknown(f"setting in {source}" if source else "setting", name, known)


@contextmanager
def allocating(what: str) -> Iterator[None]:
    """Raise an InputError where memory for `what` cannot be allocated."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise InputError(f"{what} does not fit in memory: choose a smaller model.") from error


def _check_ranges(config: "TrainConfig") -> None:
    for name, (low, high) in RANGES.items():
        value = getattr(config, name)
        if value is None:
            continue
        # Written so that nan fails it.
        if not value >= low:
            raise InputError(f"{name} must be at least {low}, got {value}.")
        if value > high:
            raise InputError(f"{name} must be at most {high:,}, got {value}.")
    for name, high in ABOVE_ZERO.items():
        value = getattr(config, name)
        if value is not None and not 0 < value <= high:
            raise InputError(f"{name} must be above 0 and at most {high:g}, got {value}.")
    for name in ("beta1", "beta2"):
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise InputError(f"{name} must be at least 0 and below 1, got {value}.")


def _check_schedule(config: "TrainConfig") -> None:
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


def _check_lengths(config: "TrainConfig") -> None:
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
