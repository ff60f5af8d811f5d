"""One query per head against a cache, by one native call: keys and values are read where they lie.

No gradients; the row of bias comes written out, or as a slope's sums relative to a recent token.
"""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.attention.native import library
from headscape.attention.native.ops import TYPES
from headscape.attention.reference import AttentionInputs
from headscape.bias import Slope

MOST_DIM = 256


def serves(inputs: AttentionInputs) -> bool:
    """Whether one call can do it; autograd would see nothing of it."""
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
    inputs: AttentionInputs, row: Float[Tensor, "#b h s"] | None, slope: Slope | None = None
) -> Float[Tensor, "b h 1 ev"]:
    """Attention of one query; with a slope, `row` holds its sums."""
    q, k, v = inputs.q.contiguous(), inputs.k, inputs.v
    b, h, _, e = q.shape
    out = q.new_empty(b, h, 1, v.shape[3])
    held: list[Tensor] = [q]

    def address(x: Tensor | None, *shape: int) -> int | None:
        if x is None:
            return None
        held.append(x.to(torch.float32).expand(shape).contiguous())
        return held[-1].data_ptr()

    threads = torch.get_num_threads()
    problem = library.Decode(
        batch=b, heads=h, key_heads=k.shape[1], keys=k.shape[2], head_dim=e, value_dim=v.shape[3],
        type=TYPES[q.dtype], threads=threads, stretches=_stretches(b * k.shape[1], threads),
        scale=inputs.scale, softcap=inputs.softcap or 0.0,
        q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), out=out.data_ptr(),
        k_batch=k.stride(0), k_head=k.stride(1), k_row=k.stride(2),
        v_batch=v.stride(0), v_head=v.stride(1), v_row=v.stride(2),
    )  # fmt: skip
    if row is not None:
        row = row.to(torch.float32)
        row = row if row.stride(2) == 1 else row.contiguous()
        held.append(row)
        problem.bias, problem.bias_head = row.data_ptr(), row.stride(1)
        problem.bias_stride = 0 if row.shape[0] == 1 else row.stride(0)
    if slope is not None:
        problem.bias_base = address(slope.row[:, :, 0], b, h)
        problem.bias_weight = None if slope.weight is None else address(slope.weight[:, :, 0], b, h)
    if inputs.temperature is not None:
        problem.temperature = address(inputs.temperature[:, :, 0], b, h)
    problem.sink = address(inputs.sink, h)
    found = library.load()
    assert not isinstance(found, str)
    if found.headscape_decode(ctypes.byref(problem)):
        raise MemoryError("no memory for one query of native attention")
    return out


def _stretches(heads: int, threads: int) -> int:
    """Into how many stretches the keys of a head go, so that every thread has work."""
    return 1 if heads % threads == 0 or heads >= 4 * threads else -(-2 * threads // heads)
