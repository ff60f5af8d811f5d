"""Refuse a model that does not fit into memory, or its weights, before they are read."""

from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from headscape.errors import InputError

BYTES: Final = 4
"""Of a weight: models are loaded in float32."""
MEMORY: Final = Path("/proc/meminfo")


def check_size(name: str, kind: Any, config: Any, stored: int) -> None:
    """Raise InputError if a model needs more memory than is free, or more weights than are stored.

    `stored` is the number of stored weights. Heads are often left out of it, and quantised weights
    are packed.
    """
    model = _empty(kind, config)
    weights = sum(weight.numel() for weight in model.parameters())
    packed = getattr(config, "quantization_config", None) is not None
    if weights > 2 * stored and not packed:
        raise InputError(
            f"{name} has {stored:,} weights, and its config describes {weights:,}: config and "
            f"weights do not belong together."
        )
    free = free_bytes()
    if free is None:
        return
    if weights * BYTES > free:
        raise InputError(
            f"{name} has {weights / 1e9:.3g} billion weights, {weights * BYTES / 1e9:.3g} GB in "
            f"float32, and {free / 1e9:.3g} GB of memory are free: a model of at most "
            f"{free / BYTES / 1e9:.2g} billion weights fits, or one in bfloat16 that you load "
            f"with transformers and pass to load()."
        )
    tables = sum(table.numel() * table.element_size() for table in model.buffers())
    if tables > free:
        raise InputError(
            f"{name} has tables of positions and masks of {tables / 1e9:.3g} GB, and "
            f"{free / 1e9:.3g} GB of memory are free: lower the length in its config.json."
        )


def count_weights(kind: Any, config: Any) -> int:
    """Return the weights of a class of transformers, tied ones once, without memory for them."""
    return sum(weight.numel() for weight in _empty(kind, config).parameters())


def _empty(kind: Any, config: Any) -> nn.Module:
    """Return a model whose tensors have shapes and no memory."""
    with torch.device("meta"):
        build = getattr(kind, "_from_config", None) or kind.from_config
        model: nn.Module = build(config)
    return model


def free_bytes() -> int | None:
    """Return the memory that can be used without swapping; None where the system does not say."""
    if not MEMORY.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else None
