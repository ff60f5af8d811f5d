"""config.toml: a run's whole configuration, complete and re-runnable.

Every field is written, defaults too, so that a later version with other defaults repeats the run.
A field that is None (steps, or minutes) is left out, as TOML has no null. Reading starts from
nothing: a missing field takes its default, an unknown one is refused with the nearest name.
"""

import tomllib
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli_w

from headscape.errors import InputError
from headscape.io import atomic
from headscape.train.config.train_config import TrainConfig

NAMES = tuple(item.name for item in fields(TrainConfig))


def write(path: Path, config: TrainConfig) -> None:
    """Write every field."""
    atomic.write_text(path, dumps(config))


def dumps(config: TrainConfig) -> str:
    """The text of config.toml."""
    return tomli_w.dumps(
        {name: value for name, value in to_dict(config).items() if value is not None}
    )


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Every field as plain values."""
    values = {name: getattr(config, name) for name in NAMES}
    tables = {"encoding_fields": dict(config.encoding_fields), "curriculum": [*config.curriculum]}
    return values | tables


def read(path: Path) -> TrainConfig:
    """The configuration in a file."""
    try:
        values = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}.") from error
    return from_dict(values, str(path))


def from_dict(values: dict[str, Any], source: str) -> TrainConfig:
    """The configuration from plain values; `source` is named in complaints."""
    values = dict(values)
    for name in values:
        if name not in NAMES:
            near = get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}."
            raise InputError(f"unknown key {name!r} in {source}: {hint}")
    if "minutes" in values:
        values.setdefault("steps", None)
    if isinstance(values.get("curriculum"), list):
        values["curriculum"] = tuple(values["curriculum"])
    return TrainConfig(**values)
