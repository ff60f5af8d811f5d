"""Reading and writing config.toml, the complete configuration of a run.

Every field is written, including defaults, so that a later version with different defaults repeats
the run. A field that is None (steps, minutes or qk_norm_scale) is left out, because TOML has no
null. When reading, a missing field takes its default and an unknown one is refused.
"""

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from headscape.errors import InputError
from headscape.io import atomic
from headscape.io.system_errors import reporting
from headscape.training.config.config_checks import check_names
from headscape.training.config.train_config import NAMES, TrainConfig


def write(path: Path, config: TrainConfig) -> None:
    """Write every field."""
    atomic.write_text(path, dumps(config))


def dumps(config: TrainConfig) -> str:
    """Return the text of config.toml."""
    return tomli_w.dumps(
        {name: value for name, value in to_dict(config).items() if value is not None}
    )


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return every field as plain values."""
    values = {name: getattr(config, name) for name in NAMES}
    tables = {"encoding_fields": dict(config.encoding_fields), "curriculum": [*config.curriculum]}
    return values | tables


def read(path: Path) -> TrainConfig:
    """Return the configuration in a file."""
    with reporting("read", path):
        data = path.read_bytes()
    try:
        values = tomllib.loads(data.decode())
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}.") from error
    except RecursionError as error:
        raise InputError(f"{path} is TOML nested too deeply to be read.") from error
    return from_dict(values, str(path))


def from_dict(values: dict[str, Any], source: str) -> TrainConfig:
    """Return the configuration of plain values; `source` is named in errors."""
    check_names(values, NAMES, source)
    values = dict(values)
    if "minutes" in values:
        values.setdefault("steps", None)
    if isinstance(values.get("curriculum"), list):
        values["curriculum"] = tuple(values["curriculum"])
    return TrainConfig(**values)
