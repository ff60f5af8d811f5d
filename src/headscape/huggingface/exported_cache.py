"""What a cache of transformers keeps of a token besides its key: position and running sum.

Both are 8 bytes. They are stored as columns of the key's dtype behind the key, bit by bit, so any
cache that copies keys (reordered for beams, cropped, repeated, static) copies them too.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.errors import InputError

BYTES = 8


def pack(
    k: Float[Tensor, "b h t e"],
    at: Int[Tensor, "#b t"],
    total: Float[Tensor, "b h t"] | None,
) -> Float[Tensor, "b h t wide"]:
    """Return keys with positions and running sums behind them."""
    parts = [k, _columns(at[:, None].expand(k.shape[:3]), k.dtype)]
    if total is not None:
        parts.append(_columns(total, k.dtype))
    return torch.cat(parts, dim=-1)


def unpack(
    packed: Float[Tensor, "b h s wide"], *, sums: bool
) -> tuple[Float[Tensor, "b h s e"], Int[Tensor, "#b s"], Float[Tensor, "b h s"] | None]:
    """Return what `pack` was given; `sums` says whether there were running sums."""
    columns = BYTES // packed.element_size()
    width = packed.shape[-1] - columns * (2 if sums else 1)
    k, at, total = torch.tensor_split(packed, (width, width + columns), dim=-1)
    positions = at[:, 0].contiguous().view(torch.int64)[..., 0]
    if bool((positions == positions[:1]).all()):
        positions = positions[:1]
    return k, positions, total.contiguous().view(torch.float64)[..., 0] if sums else None


def last_sum(past: Any, layer: int) -> Float[Tensor, "b h"] | None:
    """Return the running sum at the last token of a layer's cache; None in an empty one."""
    length = int(past.get_seq_length(layer))
    if not length:
        return None
    total = unpack(past.layers[layer].keys[:, :, length - 1 : length], sums=True)[2]
    return None if total is None else total[:, :, 0]


def check_cache(past: Any) -> None:
    """Refuse a cache that changes the bits of keys."""
    for layer in past.layers:
        if "Quantized" in type(layer).__name__:
            raise InputError(
                "a quantized cache rounds the positions that are stored behind the keys: "
                "use the default cache."
            )


def _columns(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value[..., None].contiguous().view(dtype)
