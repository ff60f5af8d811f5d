"""One layer's attention inputs as factors: what every map of the layer can be computed from.

A rotation is a linear map per token that turns pairs of dims, so rotating unit vectors reads its
cos and sin (with any magnitude) off the encoding; nothing here knows a formula of RoPE or xPos.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from headscape.arrays.bias_factors import (
    BiasFactor,
    DenseFactor,
    PerceptronFactor,
    SlopeFactor,
    ToeplitzFactor,
)
from headscape.arrays.factors import LayerFactors, Turn
from headscape.arrays.mix_factors import CopeFactor, DapeFactor, DapeV2Factor, MixFactor
from headscape.arrays.row_pass import log_sum_exp
from headscape.attention.native import adapter
from headscape.attention.reference import AttentionInputs, scores
from headscape.bias import Bias, Perceptron, Slope, Toeplitz, dense
from headscape.encodings import Encoding
from headscape.encodings.base import Role
from headscape.encodings.cope import CoPE
from headscape.encodings.dape import DAPE
from headscape.encodings.dapev2 import DAPEv2
from headscape.errors import InputError
from headscape.types import Positions

DENSE_LENGTH: Final = 4096
"""Longest sequence whose bias is written out where it has no factors."""

EXACT_LENGTH: Final = 2048
"""Longest sequence whose log-sum-exp is float64; of longer ones the native kernels compute it."""

ROLES: Final[tuple[Role, Role]] = ("query", "key")

EXACT: Final = 1e-3
ROUNDED: Final = 5e-2
"""How far scores from factors may be from the model's, in float32 and in 16 bits."""
TURN_ERROR: Final = 2e-2
"""How far a rotated query may be from what cos and sin make of it, for models in bfloat16."""

Progress = Callable[[int], None]
"""Called with the number of queries just done."""


class NoFactorsError(InputError):
    """A layer whose maps cannot be computed from factors; the message says why, without an end."""


def factors_of(
    inputs: AttentionInputs,
    heads: Sequence[int] | None = None,
    *,
    lse: bool = True,
    progress: Progress = lambda _: None,
) -> LayerFactors:
    """Factors of one layer for one sequence; heads, counted from 0, default to all.

    Without `lse` the log-sum-exp, the only part whose cost grows with the square of the length, is
    left to be computed later. Raises NoFactorsError where the layer cannot be described by factors.
    """
    encoding, every = inputs.encoding, list(range(inputs.q.shape[1]))
    picked = every if heads is None else list(heads)
    _check(inputs)
    if encoding.mixes and picked != every:
        raise NoFactorsError(f"{encoding.title} mixes heads and only some of them are captured")
    q, k = inputs.unrotated or (inputs.q, inputs.k)
    layer = LayerFactors(
        q=_float32(q[0, picked]),
        k=_float32(k[0, [head * k.shape[1] // q.shape[1] for head in picked]]),
        scale=float(inputs.scale),
        causal=inputs.visible.causal,
        turn=_turn(inputs) if encoding.rotates else None,
        bias=_bias(inputs.bias, inputs.positions, picked),
        mix=_mix(encoding),
        window=inputs.visible.window,
        softcap=inputs.softcap,
        temperature=_temperature(inputs, picked),
        sink=None if inputs.sink is None else _float32(inputs.sink[picked]),
    )
    _compare(layer, inputs, picked)
    if not lse:
        return layer
    if inputs.q.shape[2] > EXACT_LENGTH and adapter.refuses(inputs) is None:
        norms = adapter.run(inputs)[1][0, picked]
        progress(inputs.q.shape[2])
        return replace(layer, lse=_float64(norms))
    return replace(layer, lse=log_sum_exp(layer, progress=progress))


def _compare(layer: LayerFactors, inputs: AttentionInputs, heads: list[int]) -> None:
    """Refuse factors whose scores and weights of two queries are not those of the definition."""
    loose = ROUNDED if inputs.q.dtype in (torch.float16, torch.bfloat16) else EXACT
    for query in {layer.length // 2, layer.length - 1}:
        rows = slice(query, query + 1)
        known = np.zeros((layer.heads, layer.length))
        known[:, rows] = log_sum_exp(layer, rows=rows)
        found, every = replace(layer, lse=known), scores(inputs, rows)
        seen = every.visible[0, 0].cpu().numpy()
        for quantity in ("final", "weights"):
            want = np.where(seen, _float64(getattr(every, quantity)[0, heads]), 0.0)
            got = found.tile(quantity, range(layer.heads), rows, slice(0, layer.length))
            error = np.abs(np.where(seen, got, 0.0) - want).max()
            if not error <= loose * max(1.0, np.abs(want).max()):
                raise NoFactorsError(f"{inputs.encoding.title} is more than its factors")


def _check(inputs: AttentionInputs) -> None:
    if inputs.q.shape[0] != 1:
        raise InputError(f"a capture takes one sequence, got a batch of {inputs.q.shape[0]}.")
    if inputs.visible.q_group is not None:
        raise NoFactorsError("tokens are in groups (padding or several documents)")
    _check_encoding(inputs)
    if inputs.encoding.rotates and inputs.unrotated is None:
        raise InputError("a capture of a rotating encoding needs q and k before rotation.")
    if inputs.visible.window is not None and inputs.encoding.mixes:
        raise NoFactorsError("scores are mixed within a window")
    if inputs.visible.window is not None and not inputs.visible.causal:
        raise NoFactorsError("the window has two sides")
    if inputs.bends and inputs.encoding.mixes:
        raise NoFactorsError("a temperature or a softcap acts on mixed scores")
    if inputs.visible.chunk is not None:
        raise NoFactorsError("keys are seen in chunks")
    at = inputs.positions.q[0]
    same = torch.equal(at, inputs.positions.k[0])
    if not same or not bool((at.diff() == 1).all()):
        raise NoFactorsError("positions are not consecutive")


def _check_encoding(inputs: AttentionInputs) -> None:
    """Refuse weights that are not a softmax, transitions, and angles that depend on tokens."""
    encoding = inputs.encoding
    turns_by_stream = encoding.rotates and encoding.streams and not encoding.adds_bias
    if encoding.weighs or turns_by_stream or inputs.transition is not None:
        raise NoFactorsError(f"{encoding.title} has weights or rotations that tokens decide")


def _turn(inputs: AttentionInputs) -> Turn:
    """Cos and sin per token and pair, from what the rotation makes of unit vectors."""
    encoding, at = inputs.encoding, inputs.positions.q
    assert inputs.unrotated is not None
    plain = inputs.unrotated
    dims = plain[0].shape[-1]
    if inputs.q.shape[-1] != dims:
        raise NoFactorsError(f"{encoding.title} widens queries and keys")
    unit = torch.eye(dims, dtype=torch.float64, device=at.device)
    moved = encoding.rotate(unit[None, None], torch.ones_like(at[:, :1]).expand(1, dims), "query")
    changed = moved[0, 0] != unit
    interleaved = bool(changed[0, 1])
    pairs = int(changed.any(dim=1).sum()) // 2
    first = torch.arange(pairs, device=at.device) * (2 if interleaved else 1)
    second = first + (1 if interleaved else pairs)
    # The first members of all pairs at once: no pair touches the dims of another.
    members = torch.zeros(1, 1, at.shape[1], dims, dtype=torch.float64, device=at.device)
    members[..., first] = 1.0
    turned = [encoding.rotate(members, at, role)[0, 0] for role in ROLES]
    tables = [_float32(torch.stack([each[:, first], each[:, second]])) for each in turned]
    turn = Turn(tables[0], tables[1], "interleaved" if interleaved else "halves")
    for table, given, found in zip(tables, plain, (inputs.q, inputs.k), strict=True):
        want = _float64(found[0])
        error = np.abs(turn.rotate(_float64(given[0]), table) - want).max(initial=0.0)
        if error > TURN_ERROR * max(1.0, np.abs(want).max(initial=0.0)):
            raise NoFactorsError(
                f"{encoding.title} does not rotate pairs of dims by position alone"
            )
    return turn


def _temperature(inputs: AttentionInputs, heads: list[int]) -> np.ndarray | None:
    if inputs.temperature is None:
        return None
    every = inputs.temperature[0].expand(inputs.q.shape[1], -1)
    return _float32(every[heads])


def _bias(bias: Bias | None, positions: Positions, heads: list[int]) -> BiasFactor | None:
    match bias:
        case None:
            return None
        case Toeplitz():
            return ToeplitzFactor(_float32(bias.table[heads]), bias.zero)
        case Slope():
            weight = None if bias.weight is None else _float64(bias.weight[0, heads])
            return SlopeFactor(weight, _float64(bias.row[0, heads]), _float64(bias.col[0, heads]))
        case Perceptron():
            return PerceptronFactor(
                near=_float32(bias.near),
                zero=bias.zero,
                far=_float32(bias.far[0]),
                in_weight=_float32(bias.in_weight),
                in_bias=_float32(bias.in_bias),
                out_weight=_float32(bias.out_weight[heads]),
                out_bias=_float32(bias.out_bias[heads]),
                leak=bias.leak,
            )
        case _:
            length = positions.q.shape[1]
            if length > DENSE_LENGTH:
                raise NoFactorsError(
                    f"a bias like this one is written out up to {DENSE_LENGTH} tokens, got {length}"
                )
            return DenseFactor(_float32(dense(bias, positions)[0, heads]))


def _mix(encoding: Encoding) -> MixFactor | None:
    match encoding:
        case DAPE():
            weights = _weights(encoding.inner, encoding.outer)
            return DapeFactor(*weights, encoding.config.base_bias == "added")
        case DAPEv2():
            inner, inner_bias, outer, outer_bias = _weights(encoding.inner, encoding.outer)
            boundary = encoding.config.boundary
            return DapeV2Factor(inner[:, :, 0], inner_bias, outer[:, :, 0], outer_bias, boundary)
        case CoPE():
            return CopeFactor(_float32(encoding.table), encoding.config.divide)
        case _:
            if encoding.mixes:
                raise NoFactorsError(f"{encoding.title} mixes scores in a way of its own")
            return None


def _weights(
    inner: torch.nn.Linear | torch.nn.Conv2d, outer: torch.nn.Linear | torch.nn.Conv2d
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    assert inner.bias is not None
    assert outer.bias is not None
    return (
        _float32(inner.weight),
        _float32(inner.bias),
        _float32(outer.weight),
        _float32(outer.bias),
    )


def _float32(value: Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.detach().to(torch.float32).cpu().numpy())


def _float64(value: Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.detach().to(torch.float64).cpu().numpy())
