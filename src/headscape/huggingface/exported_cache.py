"""What a cache of transformers keeps of a token besides its key and value.

    position    8 bytes
    beside      the running sum (CABLE, FoX), or the layer's input for encodings that read more off
                it: their stream is made again from all inputs, so nothing depends on earlier calls

Both are stored as columns of the key's dtype behind the key, bit by bit. So any cache that copies
keys (reordered for beams, cropped, repeated, static) copies them too.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.encodings.base import Encoding
from headscape.encodings.context import LayerInput
from headscape.errors import InputError

BYTES = 8


def pack(
    k: Float[Tensor, "b h t e"], at: Int[Tensor, "#b t"], beside: Tensor | None
) -> Float[Tensor, "b h t wide"]:
    """Return keys with positions and what is kept beside them, [b h t] or [b h t c]."""
    parts = [k, _columns(at[:, None].expand(k.shape[:3]), k.dtype)]
    if beside is not None:
        parts.append(_columns(beside, k.dtype))
    return torch.cat(parts, dim=-1)


def unpack(
    packed: Float[Tensor, "b h s wide"], beside: Tensor | None
) -> tuple[Float[Tensor, "b h s e"], Int[Tensor, "#b s"], Tensor | None]:
    """Return what `pack` was given; `beside` is a value like the ones it was given."""
    columns = BYTES // packed.element_size()
    more = 0 if beside is None else _columns(beside[:, :, :1], packed.dtype).shape[-1]
    width = packed.shape[-1] - columns - more
    k, at, kept = torch.tensor_split(packed, (width, width + columns), dim=-1)
    positions = at[:, 0].contiguous().view(torch.int64)[..., 0]
    if bool((positions == positions[:1]).all()):
        positions = positions[:1]
    if beside is None:
        return k, positions, None
    values = kept.contiguous().view(beside.dtype)
    return k, positions, values[..., 0] if beside.ndim == 3 else values


def cached(past: Any, layer: int, beside: Tensor) -> Tensor | None:
    """Return what a layer's cache keeps beside its keys; None if it is empty."""
    length = int(past.get_seq_length(layer))
    return unpack(past.layers[layer].keys[:, :, :length], beside)[2] if length else None


def keeps_input(encoding: Encoding, x: Float[Tensor, "b t d"]) -> bool:
    """Return whether an encoding reads more than one running sum off a layer's input."""
    stream = encoding.stream(LayerInput(x[:1, :1].detach()))
    if stream is None:
        return False
    more = (stream.query, stream.key, stream.angle, stream.transition, stream.carry)
    return stream.total is None or any(value is not None for value in more)


def check_cache(past: Any) -> None:
    """Refuse a cache that changes the bits of keys."""
    for layer in past.layers:
        if "Quantized" in type(layer).__name__:
            raise InputError(
                "a quantized cache rounds the positions that are stored behind the keys: "
                "use the default cache."
            )


def _columns(value: Tensor, dtype: torch.dtype) -> Tensor:
    value = value[..., None] if value.ndim == 3 else value
    return value.contiguous().view(dtype)
