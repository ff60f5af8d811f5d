"""One query per head against a cache, by one native call: keys and values are read in place.

No gradients; the row of bias comes written out, or as a slope's sums relative to a recent token.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.bias import Slope
from headscape.call.definition import AttentionCall
from headscape.kernels.native import library
from headscape.kernels.native.ops import TYPES

MOST_DIM = 256


def serves(inputs: AttentionCall) -> bool:
    """Return whether one call supports this; it records nothing for autograd."""
    q, k, v = inputs.q, inputs.k, inputs.v
    return (
        q.device.type == "cpu"
        and q.dtype in TYPES
        and not q.shape[3] % 8
        and not v.shape[3] % 8
        and max(q.shape[3], v.shape[3]) <= MOST_DIM
        and k.stride(3) == v.stride(3) == 1
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not isinstance(library.load(), str)
    )


def attend(
    inputs: AttentionCall, row: Float[Tensor, "#b h *one s"] | None, slope: Slope | None = None
) -> Float[Tensor, "b h 1 ev"]:
    """Attention of one query; with a slope, `row` contains its sums."""
    q, k, v = inputs.q.contiguous(), inputs.k, inputs.v
    b, h, _, e = q.shape
    out = q.new_empty(b, h, 1, v.shape[3])
    base = None if slope is None else _single(slope.row)
    weight = None if slope is None or slope.weight is None else _single(slope.weight)
    temperature = None
    if inputs.temperature is not None:
        temperature = _per_head(inputs.temperature, b, h)
    sink = None if inputs.sink is None else inputs.sink.float().contiguous()
    if row is not None:
        row = _single(row)
        row = row if row.stride(-1) == 1 else row.contiguous()
    threads = torch.get_num_threads()
    packed = library.DECODE.pack(
        b, h, k.shape[1], k.shape[2], e, v.shape[3], TYPES[q.dtype], threads,
        _stretches(b * k.shape[1], threads), inputs.scale, inputs.softcap or 0.0,
        q.data_ptr(), k.data_ptr(), v.data_ptr(), *k.stride()[:3], *v.stride()[:3], _address(row),
        *_strides(row),
        _address(weight), _address(base), *_strides(weight), *_strides(base),
        _address(temperature), _address(sink), out.data_ptr(),
    )  # fmt: skip
    found = library.load()
    assert not isinstance(found, str)
    if found.headscape_decode(packed):
        raise MemoryError("no memory for one query of native attention")
    return out


def _single(x: Tensor) -> Tensor:
    # Avoid calls into torch here: the keys of a layer evict what they need from the CPU caches.
    return x if x.dtype == torch.float32 else x.float()


def _per_head(x: Float[Tensor, "#b #h 1"], b: int, h: int) -> Float[Tensor, "b h"]:
    return x[:, :, 0].float().expand(b, h).contiguous()


def _strides(x: Float[Tensor, "#b h ..."] | None) -> tuple[int, int]:
    """Return the strides of the batch (0 if sequences share the numbers) and of the heads."""
    if x is None:
        return 0, 0
    batch, head = x.stride()[:2]
    return (0 if x.shape[0] == 1 else batch), head


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _stretches(heads: int, threads: int) -> int:
    """Return how many ranges the keys of a head are split into, so that every thread has work."""
    return 1 if heads % threads == 0 or heads >= 4 * threads else -(-2 * threads // heads)
