"""Attention of one query over all cached keys, as in generating a token.

    out = softmax(scale q K^T + bias row) V

Two matrix-vector products and one row of bias. There is no mask, since the last token sees every
key of its window. Reading keys and values dominates the time; at a long context each further pass
over the row adds about a percent, so a model's cache computes its rows incrementally
(gpt2/cache.py). On a CPU one native call does all of it, reading keys and values in place;
elsewhere torch's scaled_dot_product_attention does, or the definition where something acts on the
scores.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import Bias, Pairwise, Slope, Toeplitz, dense
from headscape.call.definition import AttentionCall
from headscape.call.mixing import Rows
from headscape.call.positions import ALL
from headscape.kernels.native import ops
from headscape.kernels.native.ops import MOST_DIM, TYPES


def refuses(inputs: AttentionCall) -> str | None:
    """Return why this path does not support the call, or None if it does."""
    if inputs.q.shape[2] != 1:
        return f"it takes one query, got {inputs.q.shape[2]}"
    if inputs.visible.q_group is not None:
        return "it does not support groups"
    if inputs.visible.recorded is not None:
        return "it does not take a mask"
    if inputs.visible.causal and inputs.positions.bounds[0] < 0:
        return "a key comes after the query"
    return None


def run(inputs: AttentionCall) -> Float[Tensor, "b h 1 ev"]:
    """Return the attention of one query."""
    if inputs.weighting is not None or inputs.transition is not None:
        return definition.run(inputs)
    window, chunk = inputs.visible.window, inputs.visible.chunk
    if chunk is not None:
        if inputs.positions.q.shape[0] > 1 or not inputs.visible.causal:
            return definition.run(inputs)
        # To the one query, the keys of its chunk are a window that ends at itself.
        window = int(inputs.positions.q[0, 0]) % chunk + 1
    if window is not None and max(map(abs, inputs.positions.bounds)) >= window:
        if not _consecutive(inputs.positions.k) or inputs.mixing is not None:
            return definition.run(inputs)
        inputs = _within(inputs, window)
    q, k, v, bias = inputs.q, inputs.k, inputs.v, inputs.bias
    if inputs.mixing is None and serves_row(q, k, v):
        if isinstance(bias, Slope) and bias.col.dtype == torch.float32:
            return run_row(inputs, bias.col, bias)
        return run_row(inputs, None if bias is None else _row(bias, inputs))
    if inputs.score_transform or inputs.sink is not None:
        return definition.run(inputs)
    row = None if bias is None else _row(bias, inputs).to(q.dtype)
    if inputs.mixing is None:
        grouped = k.shape[1] != q.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=row, scale=inputs.scale, enable_gqa=grouped
        )
    scores = (inputs.scale * q) @ definition.shared(k, q.shape[1]).mT
    seen = torch.ones(1, 1, 1, scores.shape[-1], dtype=torch.bool, device=scores.device)
    weights = inputs.mixing.final(Rows(scores, row, seen, q, inputs.positions)).softmax(dim=-1)
    return weights @ definition.shared(v, q.shape[1])


def _row(bias: Bias, inputs: AttentionCall) -> Float[Tensor, "#b h 1 s"]:
    if isinstance(bias, Toeplitz) and _consecutive(inputs.positions.k):
        low, high = inputs.positions.bounds
        if bias.zero + low >= 0 and bias.zero + high < bias.table.shape[1]:
            return bias.table[:, bias.zero + low : bias.zero + high + 1].flip(-1)[None, :, None]
    return dense(bias, inputs.positions)


def _consecutive(at: Tensor) -> bool:
    return at.shape[0] == 1 and bool((at.diff() == 1).all())


def _within(inputs: AttentionCall, window: int) -> AttentionCall:
    """The same call with the keys that the query's window leaves."""
    at, keys = int(inputs.positions.q[0, 0]), inputs.positions.k
    first = max(0, at - window + 1 - int(keys[0, 0]))
    last = keys.shape[1] if inputs.visible.causal else at + window - int(keys[0, 0])
    cols, bias, positions = slice(first, last), inputs.bias, inputs.positions
    if bias is not None:
        whole = bias
        bias = Pairwise(lambda rows, some: dense(whole, positions, rows, cols)[..., some])
    return replace(
        inputs,
        k=inputs.k[:, :, cols],
        v=inputs.v[:, :, cols],
        bias=bias,
        positions=positions.block(ALL, cols),
        unrotated=None,
    )


def serves_row(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether one native call computes this; it records nothing for autograd."""
    return (
        q.device.type == "cpu"
        and q.dtype in TYPES
        and not q.shape[3] % 8
        and not v.shape[3] % 8
        and q.shape[3] <= MOST_DIM
        and v.shape[3] <= MOST_DIM
        and k.stride(3) == v.stride(3) == 1
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not isinstance(ops.load(), str)
    )


def run_row(
    inputs: AttentionCall, row: Float[Tensor, "#b h *one s"] | None, slope: Slope | None = None
) -> Float[Tensor, "b h 1 ev"]:
    """Return the attention of one query; `row` is its bias, with a slope the sums of that."""
    q, k, v = inputs.q.contiguous(), inputs.k, inputs.v
    b, h, _, e = q.shape
    out = q.new_empty(b, h, 1, v.shape[3])
    base = weight = temperature = None
    sums: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    if slope is not None:
        base = _single(slope.row)
        weight = None if slope.weight is None else _single(slope.weight)
        sums = (_address(weight), base.data_ptr(), *_strides(weight), *_strides(base))
    if inputs.temperature is not None:
        temperature = _per_head(inputs.temperature, b, h)
    sink = None if inputs.sink is None else inputs.sink.float().contiguous()
    if row is not None:
        row = _single(row)
        row = row if row.stride(-1) == 1 else row.contiguous()
    threads = torch.get_num_threads()
    packed = ops.DECODE.pack(
        b, h, k.shape[1], k.shape[2], e, v.shape[3], TYPES[q.dtype], threads,
        _stretches(b * k.shape[1], threads), inputs.scale, inputs.softcap or 0.0,
        q.data_ptr(), k.data_ptr(), v.data_ptr(), *k.stride()[:3], *v.stride()[:3], _address(row),
        *_strides(row), *sums, _address(temperature), _address(sink), out.data_ptr(),
    )  # fmt: skip
    library = ops.load()
    assert not isinstance(library, str)
    if library.headscape_decode(packed):
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
