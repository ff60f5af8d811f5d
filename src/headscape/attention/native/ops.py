"""Native attention as torch operators, with gradients and fake implementations.

    headscape::attention(q, k, v, ...) -> (out, lse)
    headscape::attention_backward(d_out, ...) -> [d_q, d_k, d_v, a gradient per tensor of `values`]

`values` are the bias's tensors, then those of a mixing encoding. `kind` names the former,

    none      nothing
    toeplitz  table [h n]
    slope     row [#b h t] and col [#b h s] in float64, and optionally weight [#b h t]
    pieces    near [n], 1 / far [#b t], slopes [h p], offsets [h p], knots [p - 1]

and `mixing` says what DAPE or DAPEv2 does with them (empty: the scores are not mixed); its tensors
are in_weight [m c k], in_bias [m], out_weight [h m k], out_bias [h]. A table to be mixed is
followed by its fold [k+1 m n] (see fold.py): in_weight then holds the scores' half alone, and the
bias's half and in_bias are in the fold.

`at` holds the positions of queries and keys and, where there are groups, those of both; `low` is
the distance in column 0 of a table. Being operators, they can be compiled, checkpointed and
differentiated like any other; of torch's global state only the thread count is read.
"""

import torch
from torch import Tensor

from headscape.attention.native.fold import MARGIN as FOLD
from headscape.attention.native.library import call
from headscape.errors import InputError

KINDS = {"none": 0, "toeplitz": 1, "slope": 2, "pieces": 3}
MARGIN = 32
"""Columns a table holds beyond the distances that occur; a vector may reach that far."""
MIXERS = 4
"""Tensors of a mixing encoding, at the end of `values`."""

Fields = dict[str, Tensor | float | None]


def _fields(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    at: list[Tensor],
    values: list[Tensor],
    kind: str,
    mixing: str,
    low: int,
    causal: bool,  # noqa: FBT001
    scale: float,
) -> Fields:
    b, h, t, e = q.shape
    rows = max(x.shape[0] for x in at)
    fields: Fields = {
        "batch": b, "heads": h, "queries": t, "keys": k.shape[2], "head_dim": e,
        "causal": int(causal), "scale": scale, "parts": 1, "kind": KINDS[kind],
        "q": q, "k": k, "v": v,
        "q_stride": 0 if rows == 1 else t, "k_stride": 0 if rows == 1 else k.shape[2],
    }  # fmt: skip
    for name, x in zip(("q_at", "k_at", "q_group", "k_group"), at, strict=False):
        fields[name] = x.to(torch.int64).expand(rows, -1).contiguous()
    bias = [x.contiguous() for x in (values[:-MIXERS] if mixing else values)]
    if kind in ("toeplitz", "pieces"):
        fields |= {"table": bias[0], "table_low": low, "table_length": bias[0].shape[-1]}
    if kind == "toeplitz" and mixing:
        fields |= {"fold": bias[1], "fold_low": low - FOLD, "fold_length": bias[1].shape[-1]}
    if kind == "slope":
        for name, x in zip(("row", "col", "weight"), bias, strict=False):
            fields |= {name: x, f"{name}_stride": 0 if x.shape[0] == 1 else x[0].numel()}
    if kind == "pieces":
        far, slopes, offsets, knots = bias[1:]
        fields |= {"weight": far, "weight_stride": 0 if far.shape[0] == 1 else t}
        fields |= {"slopes": slopes, "offsets": offsets, "knots": knots, "pieces": slopes.shape[1]}
    if mixing:
        inner, in_bias, outer, out_bias = values[-MIXERS:]
        fields |= {
            "hidden": inner.shape[0], "taps": inner.shape[2],
            "adds_bias": int("channel-only" not in mixing), "released": int("released" in mixing),
            "in_weight": inner.permute(1, 2, 0).contiguous(), "in_bias": in_bias.contiguous(),
            "out_weight": outer.permute(1, 2, 0).contiguous(), "out_bias": out_bias.contiguous(),
            "in_back": inner.flip(2).permute(0, 2, 1).contiguous(),
            "out_back": outer.flip(2).permute(0, 2, 1).contiguous(),
        }  # fmt: skip
    return fields


def _check(
    at: list[Tensor],
    values: list[Tensor],
    kind: str,
    mixing: str,
    low: int,
    causal: bool,  # noqa: FBT001
) -> None:
    for x in values:
        if not bool(torch.isfinite(x).all()):
            raise InputError(f"bias ({kind}) holds values that are not finite.")
    if kind in ("toeplitz", "pieces"):
        least, most = int(at[0].min() - at[1].max()), int(at[0].max() - at[1].min())
        least = max(least, 0) if causal else least
        if least - MARGIN < low or most + MARGIN >= low + values[0].shape[-1]:
            raise InputError(f"positions hold distances {least} to {most}, beyond their bounds.")
    if mixing and kind == "toeplitz":
        hidden, _, taps = values[-MIXERS].shape
        wanted = (taps + 1, hidden, values[0].shape[-1] + 2 * FOLD)
        if values[1].shape != wanted:
            raise InputError(f"the fold must be of shape {wanted}, not {tuple(values[1].shape)}.")
    if mixing and not contiguous(at):
        raise InputError(
            "positions.k must be consecutive within each group where scores are mixed natively; "
            "path='torch' takes any."
        )


def contiguous(at: list[Tensor]) -> bool:
    """Whether the keys of every group are one stretch of consecutive positions."""
    rows = max(x.shape[0] for x in at)
    position = at[1].expand(rows, -1)
    group = at[3].expand(rows, -1) if len(at) == 4 else torch.zeros_like(position)
    starts = torch.ones_like(position, dtype=torch.bool)
    starts[:, 1:] = (position.diff() != 1) | (group.diff() != 0)
    starts &= group >= 0
    return all(g[s].unique().numel() == int(s.sum()) for g, s in zip(group, starts, strict=True))


@torch.library.custom_op("headscape::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    at: list[Tensor],
    values: list[Tensor],
    kind: str,
    mixing: str,
    low: int,
    causal: bool,  # noqa: FBT001
    scale: float,
    learns: bool,  # noqa: FBT001, ARG001
) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of each softmax's denominator."""
    _check(at, values, kind, mixing, low, causal)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out, lse = torch.zeros_like(q), torch.zeros_like(q[..., 0])
    fields = _fields(q, k, v, at, values, kind, mixing, low, causal, scale)
    call("forward", **fields, out=out, lse=lse)
    return out, lse


@attention.register_fake
def _(q, k, v, at, values, kind, mixing, low, causal, scale, learns):  # type: ignore[no-untyped-def]  # noqa: ARG001
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), q.new_empty(q.shape[:3])


@torch.library.custom_op("headscape::attention_backward", mutates_args=())
def attention_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    at: list[Tensor],
    values: list[Tensor],
    kind: str,
    mixing: str,
    low: int,
    causal: bool,  # noqa: FBT001
    scale: float,
    learns: bool,  # noqa: FBT001
) -> list[Tensor]:
    """Gradients of q, k, v and, if `learns`, of everything in `values`."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    fields = _fields(q, k, v, at, values, kind, mixing, low, causal, scale)
    parts = _parts(q.shape[0] * (1 if mixing else q.shape[1]))
    d_q = torch.zeros_like(q)
    d_k, d_v = k.new_empty(parts, *k.shape), v.new_empty(parts, *v.shape)
    bias, mixers = (values[:-MIXERS], values[-MIXERS:]) if mixing else (values, [])
    learned = _buffers(kind, bias, mixers, parts, q, k) if learns or mixing else {}
    call(
        "backward", **(fields | {"parts": parts}), d_out=d_out.contiguous(), out=out, lse=lse,
        d_q=d_q, d_k=d_k, d_v=d_v, **learned,
    )  # fmt: skip
    d_k = _total(d_k)
    found = [d_q, d_k, _total(d_v)]
    if learns:
        found += _gather(kind, bias, learned)
        found += [
            learned[f"d_{name}"].sum((0, 1)).to(x.dtype)
            for name, x in zip(("in_weight", "in_bias", "out_weight", "out_bias"), mixers)  # noqa: B905
        ]
    return found


def _parts(workers: int) -> int:
    """Into how many parts a worker's queries are dealt, where there are fewer workers than threads.

    Each part has its own d_k and d_v, so there are no more than needed.
    """
    threads = torch.get_num_threads()
    return 1 if workers % threads == 0 or workers >= 2 * threads else -(-threads // workers)


def _buffers(
    kind: str, bias: list[Tensor], mixers: list[Tensor], parts: int, q: Tensor, k: Tensor
) -> dict[str, Tensor]:
    b, h, t, _ = q.shape
    double = torch.float64
    found: dict[str, Tensor] = {}
    if kind in ("toeplitz", "pieces"):
        found["d_table"] = q.new_zeros(parts, b, h, bias[0].shape[-1])
    if kind == "toeplitz" and mixers:
        found["d_fold"] = q.new_zeros(parts, b, *bias[1].shape)
    if kind == "slope":
        found["d_row"] = q.new_zeros(b, h, t, dtype=double)
        found["d_col"] = q.new_zeros(parts, b, h, k.shape[2], dtype=double)
    if kind == "pieces" or len(bias) == 3:
        found["d_weight"] = q.new_zeros(b, h, t)
    if kind == "pieces":
        found["d_slopes"] = q.new_zeros(parts, b, h, bias[2].shape[1])
        found["d_offsets"] = torch.zeros_like(found["d_slopes"])
    for name, x in zip(("in_weight", "in_bias", "out_weight", "out_bias"), mixers):  # noqa: B905
        found[f"d_{name}"] = q.new_zeros(parts, b, *x.shape, dtype=double)
    return found


def _total(x: Tensor) -> Tensor:
    return x[0] if x.shape[0] == 1 else x.sum(0)


def _gather(kind: str, bias: list[Tensor], learned: dict[str, Tensor]) -> list[Tensor]:
    if kind == "none":
        return []
    if kind == "toeplitz":
        return [learned[name].sum((0, 1)) for name in ("d_table", "d_fold") if name in learned]
    if kind == "slope":
        found = [learned["d_row"], learned["d_col"].sum(0)]
        found += [learned["d_weight"]] if len(bias) == 3 else []
        return [d.sum_to_size(x.shape) for d, x in zip(found, bias, strict=True)]
    return [
        learned["d_table"].sum((0, 1, 2)),
        learned["d_weight"].sum(1).sum_to_size(bias[1].shape),
        learned["d_slopes"].sum((0, 1)),
        learned["d_offsets"].sum((0, 1)),
        torch.zeros_like(bias[4]),
    ]


@attention_backward.register_fake
def _(d_out, q, k, v, out, lse, at, values, kind, mixing, low, causal, scale, learns):  # type: ignore[no-untyped-def]  # noqa: ARG001
    inputs = [q, k, v, *(values if learns else [])]
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs]


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, at, values, *ctx.rest = inputs
    ctx.places = len(at)
    ctx.save_for_backward(q, k, v, *output, *at, *values)


def _backward(ctx, d_out, _):  # type: ignore[no-untyped-def]
    q, k, v, out, lse, *rest = ctx.saved_tensors
    at, values = rest[: ctx.places], rest[ctx.places :]
    found = attention_backward(d_out, q, k, v, out, lse, at, values, *ctx.rest)
    d_values = found[3:] if ctx.rest[-1] else [None] * len(values)
    return *found[:3], [None] * len(at), d_values, *[None] * len(ctx.rest)


attention.register_autograd(_backward, setup_context=_save)
