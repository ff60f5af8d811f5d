"""Refuse a model that does not fit into memory before its weights are read."""

from pathlib import Path
from typing import Any, Final

import torch

from headscape.errors import InputError

BYTES: Final = 4
"""Of a weight: models are loaded in float32."""
MEMORY: Final = Path("/proc/meminfo")


def check_memory(name: str, kind: Any, config: Any) -> None:
    """Raise InputError if the weights of a model need more memory than is free."""
    free = free_bytes()
    if free is None:
        return
    weights = count_weights(kind, config)
    if weights * BYTES > free:
        raise InputError(
            f"{name} has {weights / 1e9:.3g} billion weights, {weights * BYTES / 1e9:.3g} GB in "
            f"float32, and {free / 1e9:.3g} GB of memory are free: a model of at most "
            f"{free / BYTES / 1e9:.2g} billion weights fits, or one in bfloat16 that you load "
            f"with transformers and pass to load()."
        )


def count_weights(kind: Any, config: Any) -> int:
    """Return the weights of a class of transformers, tied ones once, without memory for them."""
    with torch.device("meta"):
        build = getattr(kind, "_from_config", None) or kind.from_config
        model = build(config)
    return sum(weight.numel() for weight in model.parameters())


def free_bytes() -> int | None:
    """Return the memory that can be used without swapping; None where the system does not say."""
    if not MEMORY.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else None
