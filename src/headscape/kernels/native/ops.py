"""Native attention as torch operators, with gradients and fake implementations.

    headscape::attention(q, k, v, ...) -> (out, lse)
    headscape::attention_backward(d_out, ...) -> [d_q, d_k, d_v, a gradient per tensor of `values`]

`values` are the bias's tensors, then those of a mixing encoding. `kind` names the former. In call/,
pieces are a Perceptron, a factor is a Product and a sheared bias is a RelativeCurves:

    none      nothing
    toeplitz  table [h n]
    factor    table [h n], which multiplies the scores
    slope     row [#b h t] and col [#b h s] in float64, and optionally weight [#b h t]
    pieces    near [n], 1 / far [#b t], slopes [h p], offsets [h p], knots [p - 1]
    sheared   r [#b h t c], basis [#h n c], and optionally u [#b h s c2], its basis [#h n c2] or
              one number per key for all distances, [#b h s]

and `mixing` says what DAPE or DAPEv2 does with them (empty: the scores are not mixed); its tensors
are in_weight [m c k], in_bias [m], out_weight [h m k], out_bias [h]. A table to be mixed is
followed by its fold [k+1 m n] (adapter.py): in_weight then has the scores' half alone, and the
bias's half and in_bias are in the fold. `settings` are the numbers of a `Settings`.

`at` has the positions of queries and keys, where there are groups those of both and, of a sheared
bias, the row of its bases for every distance [1 n]. The temperature is [b h t], the sink [h]. q, k,
v are float32, bfloat16 or float16, all else float32 or float64.
Being operators, they can be compiled, checkpointed and differentiated like any other; of torch's
global state only the thread count is read.

Behind them is a shared library, called by ctypes, which releases the interpreter lock during a
call. `Problem` mirrors the struct of that name in problem.hpp, which documents the fields.
HEADSCAPE_LIBRARY is the path of a different build, such as one with sanitizers; HEADSCAPE_NATIVE
(avx2, portable) limits the instruction set.
"""

import ctypes
import functools
import os
from pathlib import Path
from struct import Struct
from typing import List, NamedTuple  # noqa: UP035

import torch
import torch.nn.functional as F
from torch import Tensor

from headscape.errors import InputError

KINDS = {"none": 0, "toeplitz": 1, "slope": 2, "pieces": 3, "factor": 4, "sheared": 0}
"""Numbers of the kinds in the library. A sheared bias is told by its `r`, not by its kind."""
BY_DISTANCE = ("toeplitz", "factor", "pieces")
"""Kinds whose first tensor is a table by distance."""
MOST_DIM = 256
"""The widest head."""
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MARGIN = 32
"""Columns of a table beyond the distances that occur; a vector may reach that far."""
REACH = 192
"""The same of a sheared bias; a block of keys may reach that far."""
SPARE = 16
"""Columns of zeros behind a turned basis, as many as a vector may have."""
FOLD = 128
"""Columns of a fold on either side of its table; a tile of queries may reach that far."""
MIXERS = ("in_weight", "in_bias", "out_weight", "out_bias")
"""Tensors of a mixing encoding, at the end of `values`."""


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


FIELDS = [
    *_fields(ctypes.c_int64, "batch heads queries keys head_dim key_heads value_dim type"),
    *_fields(ctypes.c_int64, "causal window threads parts"),
    *_fields(ctypes.c_double, "scale softcap"),
    *_fields(ctypes.c_void_p, "temperature sink"),
    *_fields(ctypes.c_int64, "sticks takes_own keeps_rest"),
    *_fields(ctypes.c_void_p, "q k v q_at k_at q_group k_group"),
    *_fields(ctypes.c_int64, "q_stride k_stride q_batch q_head q_row by_token"),
    *_fields(ctypes.c_void_p, "out lse"),
    *_fields(ctypes.c_int64, "kind"),
    *_fields(ctypes.c_void_p, "table"),
    *_fields(ctypes.c_int64, "table_low table_length"),
    *_fields(ctypes.c_void_p, "weight row col"),
    *_fields(ctypes.c_int64, "weight_stride row_stride col_stride pieces"),
    *_fields(ctypes.c_void_p, "knots slopes offsets r basis u key_basis key_turned constant"),
    *_fields(ctypes.c_void_p, "source"),
    *_fields(ctypes.c_int64, "rank key_rank r_stride u_stride constant_stride"),
    *_fields(ctypes.c_int64, "basis_stride key_basis_stride key_turned_stride"),
    *_fields(ctypes.c_int64, "basis_low basis_rows turned_length"),
    *_fields(ctypes.c_int64, "hidden taps adds_bias released"),
    *_fields(ctypes.c_void_p, "in_weight in_bias out_weight out_bias in_back out_back fold"),
    *_fields(ctypes.c_int64, "fold_low fold_length"),
    *_fields(ctypes.c_void_p, "d_out d_q d_k d_v d_temperature d_table d_weight d_row d_col"),
    *_fields(ctypes.c_void_p, "d_slopes d_offsets d_r d_basis d_u d_key_basis d_constant"),
    *_fields(ctypes.c_void_p, "d_fold d_in_weight d_in_bias d_out_weight d_out_bias"),
]


DECODE = Struct("@9q2d3P6qP2q2P4q3P")
"""The struct `Decode`, packed: setting ctypes fields is too slow for a call per layer and token."""
CELLS_FIELDS = [
    *_fields(ctypes.c_int64, "cells additive"),
    *_fields(ctypes.c_void_p, "edges raw_q raw_k sum least greatest"),
]


class Problem(ctypes.Structure):
    """One attention call, as plain data."""

    _fields_ = FIELDS


def library_path() -> Path:
    """Where the library is looked for: setup.py gives it this name."""
    return Path(os.environ.get("HEADSCAPE_LIBRARY") or Path(__file__).with_name("kernels.so"))


class Cells(ctypes.Structure):
    """A grid that scores are reduced to, as plain data."""

    _fields_ = CELLS_FIELDS


@functools.cache
def load() -> ctypes.CDLL | str:
    """Return the library, or the reason why it cannot be loaded."""
    path = library_path()
    if not path.exists():
        return "the native kernels were not built; install headscape where a C++ compiler is"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the native kernels cannot be loaded: {error}"
    library.headscape_instructions.restype = ctypes.c_char_p
    sizes = {
        "problem": ctypes.sizeof(Problem),
        "cells": ctypes.sizeof(Cells),
        "decode": DECODE.size,
    }
    for name, wanted in sizes.items():
        size = getattr(library, f"headscape_{name}_size", None)
        if size is not None:
            size.restype = ctypes.c_int64
        if size is None or size() != wanted:
            return "the native kernels were built for a different version; install headscape again"
    for name in ("headscape_forward", "headscape_backward"):
        getattr(library, name).argtypes = [ctypes.POINTER(Problem)]
    library.headscape_decode.argtypes = [ctypes.c_char_p]
    library.headscape_cells.argtypes = [ctypes.POINTER(Problem), ctypes.POINTER(Cells)]
    return library


def instructions() -> str:
    """The instruction set in use: avx512, avx2 or portable."""
    library = load()
    assert not isinstance(library, str)
    return str(library.headscape_instructions().decode())


Fields = dict[str, Tensor | float | None]
"""Fields of a struct by name."""


def call(name: str, fields: Fields, beside: Cells | None = None) -> None:
    """Run `name` on a problem; tensors are handed over by address."""
    library = load()
    assert not isinstance(library, str)
    problem = Problem(threads=torch.get_num_threads())
    fill(problem, fields)
    structs = [problem] if beside is None else [problem, beside]
    if getattr(library, f"headscape_{name}")(*map(ctypes.byref, structs)):
        raise MemoryError("no memory for the scratch tiles of native attention")


def fill(struct: ctypes.Structure, fields: Fields) -> None:
    """Set the fields of a struct, tensors by address; None leaves a field at 0."""
    for field, value in fields.items():
        if isinstance(value, Tensor):
            assert value.is_contiguous(), field
            setattr(struct, field, value.data_ptr())
        elif value is not None:
            setattr(struct, field, value)


class Settings(NamedTuple):
    """The numbers of a call; an operator takes them as a list of floats, which are exact here."""

    causal: float
    scale: float
    low: float = 0
    """The distance in column 0 of a table; of a sheared bias the first distance."""
    window: float = 0
    """0 where there is none."""
    softcap: float = 0.0
    """0 where there is none."""
    sticks: float = 0
    """1 for stick-breaking, 0 for a softmax."""
    takes_own: float = 0
    """Whether the query's own key takes part."""
    keeps_rest: float = 0
    """Whether the query's own value gets what is left."""


def fields_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    at: list[Tensor],
    values: list[Tensor],
    kind: str,
    mixing: str,
    settings: list[float],
    temperature: Tensor | None,
    sink: Tensor | None,
) -> Fields:
    """Return what the struct `Problem` is filled with."""
    given = Settings(*settings)
    low = int(given.low)
    b, h, t, e = q.shape
    at, source = (at[:-1], at[-1]) if kind == "sheared" else (at, None)
    rows = max(x.shape[0] for x in at)
    fields: Fields = {
        "batch": b, "heads": h, "queries": t, "keys": k.shape[2], "head_dim": e,
        "key_heads": k.shape[1], "value_dim": v.shape[3], "type": TYPES[q.dtype],
        "causal": int(given.causal), "window": int(given.window), "scale": given.scale,
        "softcap": given.softcap, "sticks": int(given.sticks),
        "takes_own": int(given.takes_own), "keeps_rest": int(given.keeps_rest),
        "temperature": None if temperature is None else temperature.contiguous(),
        "sink": None if sink is None else sink.contiguous(), "parts": 1, "kind": KINDS[kind],
        "q": q.data_ptr(), "q_batch": q.stride(0), "q_head": q.stride(1), "q_row": q.stride(2),
        "k": k, "v": v, "by_token": int(not mixing),
        "q_stride": 0 if rows == 1 else t, "k_stride": 0 if rows == 1 else k.shape[2],
    }  # fmt: skip
    for name, x in zip(("q_at", "k_at", "q_group", "k_group"), at, strict=False):
        fields[name] = x.to(torch.int64).expand(rows, -1).contiguous()
    bias = [x.contiguous() for x in (values[: -len(MIXERS)] if mixing else values)]
    if kind in BY_DISTANCE:
        fields |= {"table": bias[0], "table_low": low, "table_length": bias[0].shape[-1]}
    if kind == "toeplitz" and mixing:
        fields |= {"fold": bias[1], "fold_low": low - FOLD, "fold_length": bias[1].shape[-1]}
    if kind == "slope":
        for name, x in zip(("row", "col", "weight"), bias, strict=False):
            fields |= {name: x, f"{name}_stride": 0 if x.shape[0] == 1 else x[0].numel()}
    if kind == "pieces":
        # Problem.weight has 1 / far here, which multiplies a distance as it does a slope's sums.
        inverse_far, slopes, offsets, knots = bias[1:]
        by_batch = inverse_far.shape[0] > 1
        fields |= {"weight": inverse_far, "weight_stride": t if by_batch else 0}
        fields |= {"slopes": slopes, "offsets": offsets, "knots": knots, "pieces": slopes.shape[1]}
    if kind == "sheared":
        fields |= _sheared(bias) | {"source": source, "basis_low": low}
    if mixing:
        inner, in_bias, outer, out_bias = values[-len(MIXERS) :]
        fields |= {
            "hidden": inner.shape[0], "taps": inner.shape[2],
            "adds_bias": int("channel-only" not in mixing), "released": int("released" in mixing),
            "in_weight": inner.permute(1, 2, 0).contiguous(), "in_bias": in_bias.contiguous(),
            "out_weight": outer.permute(1, 2, 0).contiguous(), "out_bias": out_bias.contiguous(),
            "in_back": inner.flip(2).permute(0, 2, 1).contiguous(),
            "out_back": outer.flip(2).permute(0, 2, 1).contiguous(),
        }  # fmt: skip
    return fields


def _sheared(bias: list[Tensor]) -> Fields:
    """The fields of a sheared bias."""
    fields: Fields = {"basis_rows": bias[1].shape[1]}
    names = (("r", "basis", "rank"), ("u", "key_basis", "key_rank"))
    tensors: dict[str, Tensor] = {}
    for (own, basis, rank), x, y in zip(names, bias[::2], bias[1::2], strict=False):
        tensors |= {own: _padded(x), basis: _padded(y)}
        fields[rank] = x.shape[-1]
    if len(bias) == 4:
        tensors["key_turned"] = F.pad(bias[3].mT, (0, SPARE))
        fields["turned_length"] = bias[3].shape[1] + SPARE
    if len(bias) == 3:
        tensors["constant"] = bias[2]
    for name, x in tensors.items():
        fields |= {name: x, f"{name}_stride": 0 if x.shape[0] == 1 else x[0].numel()}
    return fields


def _check(
    at: list[Tensor], values: list[Tensor], kind: str, mixing: str, settings: list[float]
) -> None:
    """Refuse what would make native code read outside of a tensor, and values not finite."""
    for x in values:
        if not bool(torch.isfinite(torch.stack(torch.aminmax(x))).all()):
            raise InputError(f"bias ({kind}) contains values that are not finite.")
    if kind in (*BY_DISTANCE, "sheared"):
        columns, margin = values[0].shape[-1], MARGIN
        if kind == "sheared":
            columns, margin = at[-1].shape[1], REACH
        least, most = int(at[0].min() - at[1].max()), int(at[0].max() - at[1].min())
        given = Settings(*settings)
        low, least = int(given.low), max(least, 0) if given.causal else least
        if least - margin < low or most + margin >= low + columns:
            raise InputError(f"positions have distances {least} to {most}, beyond their bounds.")
    if mixing and kind == "toeplitz":
        hidden, _, taps = values[-len(MIXERS)].shape
        wanted = (taps + 1, hidden, values[0].shape[-1] + 2 * FOLD)
        if values[1].shape != wanted:
            raise InputError(f"the fold must have shape {wanted}, got {tuple(values[1].shape)}.")
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


# torch 2.6 makes an operator's schema of the annotations, and accepts typing.List, not list.
@torch.library.custom_op("headscape::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    at: List[Tensor],  # noqa: UP006
    values: List[Tensor],  # noqa: UP006
    kind: str,
    mixing: str,
    settings: List[float],  # noqa: UP006
    temperature: Tensor | None,
    sink: Tensor | None,
    learns: bool,  # noqa: FBT001, ARG001
) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of each softmax's denominator; of sticks, what is left."""
    _check(at, values, kind, mixing, settings)
    q, k, v = _rows(q, mixing), k.contiguous(), v.contiguous()
    b, h, t, _ = q.shape
    out, lse = q.new_zeros(b, t, h, v.shape[3]), q.new_zeros(q.shape[:3], dtype=torch.float32)
    if mixing:
        out = q.new_zeros(b, h, t, v.shape[3])
    fields = fields_of(q, k, v, at, values, kind, mixing, settings, temperature, sink)
    call("forward", fields | {"out": out, "lse": lse})
    # Laid out by token: what a layer's projection reads is then the tensor kept for backward.
    return (out.transpose(1, 2).contiguous() if mixing else out).transpose(1, 2), lse


def _rows(x: Tensor, mixing: str) -> Tensor:
    """Return x as the kernels read it: with contiguous rows, all contiguous if scores are mixed."""
    return x if x.stride(3) == 1 and not mixing else x.contiguous()


def _by_token(x: Tensor) -> Tensor:
    """Return [b h t e] as contiguous [b t h e], without a copy if memory already has that order."""
    return x.transpose(1, 2).contiguous()


@attention.register_fake
def _(q, k, v, *_):  # type: ignore[no-untyped-def]  # noqa: ARG001
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    b, h, t, _ = q.shape
    return q.new_empty((b, t, h, v.shape[3])).transpose(1, 2), lse


@torch.library.custom_op("headscape::attention_backward", mutates_args=())
def attention_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    at: List[Tensor],  # noqa: UP006
    values: List[Tensor],  # noqa: UP006
    kind: str,
    mixing: str,
    settings: List[float],  # noqa: UP006
    temperature: Tensor | None,
    sink: Tensor | None,
    learns: bool,  # noqa: FBT001
) -> List[Tensor]:  # noqa: UP006
    """Gradients of q, k, v, of temperature and sink where given and, if `learns`, of `values`."""
    q, k, v = _rows(q, mixing), k.contiguous(), v.contiguous()
    out, d_out = (x.contiguous() if mixing else _by_token(x) for x in (out, d_out))
    fields = fields_of(q, k, v, at, values, kind, mixing, settings, temperature, sink)
    parts = _parts_of(q.shape[0] * (1 if mixing else k.shape[1]))
    b, h, t, e = q.shape
    d_q = torch.zeros((b, h, t, e) if mixing else (b, t, h, e), dtype=torch.float32)
    d_k, d_v = (torch.empty(parts, *x.shape, dtype=torch.float32) for x in (k, v))
    d_temperature = None if temperature is None else d_q.new_zeros(temperature.shape)
    bias, mixers = (values[: -len(MIXERS)], values[-len(MIXERS) :]) if mixing else (values, [])
    learned = _buffers(kind, bias, mixers, parts, q, k) if learns or mixing else {}
    read: Fields = {"parts": parts, "d_out": d_out, "out": out, "lse": lse}
    written: Fields = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "d_temperature": d_temperature}
    call("backward", {**fields, **read, **written, **learned})
    d_q = d_q if mixing else d_q.transpose(1, 2)
    gradients = [x.to(q.dtype) for x in (d_q, _total(d_k), _total(d_v))]
    gradients += [] if d_temperature is None else [d_temperature]
    if sink is not None:
        # A sink is a key with a score and no value: ds = p (0 - delta).
        delta = torch.linalg.vecdot(d_out.float(), out.float()).transpose(1, 2)
        gradients.append(-(delta * (sink[:, None] - lse).exp()).sum((0, 2)))
    if learns:
        gradients += _gather(kind, bias, learned)
        gradients += [
            learned[f"d_{name}"].sum((0, 1)).to(x.dtype)
            for name, x in zip(MIXERS, mixers, strict=bool(mixers))
        ]
    return gradients


@attention_backward.register_fake
def _(_, q, k, v, *rest):  # type: ignore[no-untyped-def]
    values, mixing, temperature, sink, learns = rest[3], rest[5], *rest[-3:]
    given = [x for x in (temperature, sink) if x is not None]
    inputs = [q, k, v, *given, *(values if learns else [])]
    found = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs]
    if not mixing:  # the gradient of q is laid out by token
        b, h, t, e = q.shape
        found[0] = q.new_empty((b, t, h, e)).transpose(1, 2)
    return found


def _parts_of(workers: int) -> int:
    """Return how many parts a worker's queries are split into if workers are fewer than threads.

    Each part has its own d_k and d_v, so there are no more than needed.
    """
    threads = torch.get_num_threads()
    return 1 if workers % threads == 0 or workers >= 2 * threads else -(-threads // workers)


def _buffers(
    kind: str, bias: list[Tensor], mixers: list[Tensor], parts: int, q: Tensor, k: Tensor
) -> dict[str, Tensor]:
    """Return zeros for the gradients of the bias and of a mixing encoding, by field.

    Several workers may share a head or a parameter: each fills in a part of its own.
    """
    b, h, t, _ = q.shape
    q = q.new_empty(0, dtype=torch.float32)
    double = torch.float64
    buffers: dict[str, Tensor] = {}
    if kind in ("toeplitz", "factor", "pieces"):
        buffers["d_table"] = q.new_zeros(parts, b, h, bias[0].shape[-1])
    if kind == "toeplitz" and mixers:
        buffers["d_fold"] = q.new_zeros(parts, b, *bias[1].shape)
    if kind == "slope":
        buffers["d_row"] = q.new_zeros(b, h, t, dtype=double)
        buffers["d_col"] = q.new_zeros(parts, b, h, k.shape[2], dtype=double)
    if kind == "pieces" or (kind == "slope" and len(bias) == 3):
        buffers["d_weight"] = q.new_zeros(b, h, t)
    if kind == "pieces":
        buffers["d_slopes"] = q.new_zeros(parts, b, h, bias[2].shape[1])
        buffers["d_offsets"] = torch.zeros_like(buffers["d_slopes"])
    if kind == "sheared":
        length, wide = bias[1].shape[1], _wide(bias[0])
        buffers["d_r"] = q.new_zeros(b, h, t, wide)
        buffers["d_basis"] = q.new_zeros(parts, b, h, length, wide)
    if kind == "sheared" and len(bias) == 4:
        wide = _wide(bias[2])
        buffers["d_u"] = q.new_zeros(parts, b, h, k.shape[2], wide)
        buffers["d_key_basis"] = q.new_zeros(parts, b, h, length, wide)
    if kind == "sheared" and len(bias) == 3:
        buffers["d_constant"] = q.new_zeros(parts, b, h, k.shape[2])
    for name, x in zip(MIXERS, mixers, strict=bool(mixers)):
        buffers[f"d_{name}"] = q.new_zeros(parts, b, *x.shape, dtype=double)
    return buffers


def _padded(x: Tensor) -> Tensor:
    """Return x with zeros up to the length of rows that the kernels want for r, u and bases."""
    more = _wide(x) - x.shape[-1]
    return F.pad(x, (0, more)).contiguous() if more else x


def _wide(x: Tensor) -> int:
    return -(-x.shape[-1] // 16) * 16


def _total(x: Tensor, axes: int = 1) -> Tensor:
    """Return the sum over parts, the first axis; with `axes`, over that many first axes."""
    return x.flatten(0, axes - 1).sum(0) if x.shape[:axes].numel() > 1 else x[(0,) * axes]


def _gather(kind: str, bias: list[Tensor], learned: dict[str, Tensor]) -> list[Tensor]:
    """Return a gradient of each of the bias's tensors, summed over parts and what they share."""
    if kind == "none":
        return []
    if kind in ("toeplitz", "factor"):
        return [learned[name].sum((0, 1)) for name in ("d_table", "d_fold") if name in learned]
    if kind == "slope":
        gradients = [learned["d_row"], learned["d_col"].sum(0)]
        gradients += [learned["d_weight"]] if len(bias) == 3 else []
        return [d.sum_to_size(x.shape) for d, x in zip(gradients, bias, strict=True)]
    if kind == "sheared":
        gradients = [learned["d_r"], _total(learned["d_basis"], 2)]
        if len(bias) == 4:
            gradients += [_total(learned["d_u"]), _total(learned["d_key_basis"], 2)]
        if len(bias) == 3:
            gradients += [_total(learned["d_constant"])]
        gradients = [d[..., : x.shape[-1]] for d, x in zip(gradients, bias, strict=True)]
        return [d.sum_to_size(x.shape).contiguous() for d, x in zip(gradients, bias, strict=True)]
    return [
        learned["d_table"].sum((0, 1, 2)),
        learned["d_weight"].sum(1).sum_to_size(bias[1].shape),
        learned["d_slopes"].sum((0, 1)),
        learned["d_offsets"].sum((0, 1)),
        torch.zeros_like(bias[4]),
    ]


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, at, values, *rest, temperature, sink, ctx.learns = inputs
    ctx.rest, ctx.places = rest, len(at)
    ctx.save_for_backward(q, k, v, *output, temperature, sink, *at, *values)


def _backward(ctx, d_out, _):  # type: ignore[no-untyped-def]
    q, k, v, out, lse, temperature, sink, *rest = ctx.saved_tensors
    at, values = rest[: ctx.places], rest[ctx.places :]
    gradients = attention_backward(
        d_out, q, k, v, out, lse, at, values, *ctx.rest, temperature, sink, ctx.learns
    )
    d_q, d_k, d_v, *gradients = gradients
    d_temperature = None if temperature is None else gradients.pop(0)
    d_sink = None if sink is None else gradients.pop(0)
    d_values = gradients if ctx.learns else [None] * len(values)
    nothing = [None] * len(ctx.rest)
    return d_q, d_k, d_v, [None] * len(at), d_values, *nothing, d_temperature, d_sink, None


attention.register_autograd(_backward, setup_context=_save)
