"""One layer's attention inputs as factors: what every map of the layer can be computed from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from headscape.call.bias import Bias, Perceptron, Slope, Toeplitz, dense
from headscape.call.definition import AttentionCall, scores
from headscape.call.mixing import CountedTable, KeyConvolution, Mixing, PairPerceptron
from headscape.call.positions import Positions
from headscape.captures.bias_factors import (
    BiasFactor,
    DenseFactor,
    PerceptronFactor,
    SlopeFactor,
    ToeplitzFactor,
)
from headscape.captures.factors import LayerFactors
from headscape.captures.factors import Turn as FactorTurn
from headscape.captures.mix_factors import CopeFactor, DapeFactor, DapeV2Factor, MixFactor
from headscape.captures.row_pass import log_sum_exp
from headscape.errors import InputError
from headscape.kernels.native import adapter

DENSE_LENGTH: Final = 4096
"""Longest sequence whose bias is written out where it has no factors."""

EXACT_LENGTH: Final = 2048
"""Longest sequence whose log-sum-exp is float64; of longer ones the native kernels compute it."""

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
    inputs: AttentionCall,
    heads: Sequence[int] | None = None,
    *,
    lse: bool = True,
    progress: Progress = lambda _: None,
) -> LayerFactors:
    """Factors of one layer for one sequence; heads, counted from 0, default to all.

    Without `lse` the log-sum-exp, the only part whose cost grows with the square of the length, is
    left to be computed later. Raises NoFactorsError where the layer cannot be described by factors.
    """
    every = list(range(inputs.q.shape[1]))
    picked = every if heads is None else list(heads)
    _check(inputs)
    if inputs.mixing is not None and picked != every:
        raise NoFactorsError("scores of all heads are mixed and only some of them are captured")
    q, k = inputs.unrotated or (inputs.q, inputs.k)
    layer = LayerFactors(
        q=_float32(q[0, picked]),
        k=_float32(k[0, [head * k.shape[1] // q.shape[1] for head in picked]]),
        scale=float(inputs.scale),
        causal=inputs.visible.causal,
        turn=_turn(inputs),
        bias=_bias(inputs.bias, inputs.positions, picked),
        mix=_mix(inputs.mixing),
        window=inputs.visible.window,
        softcap=inputs.softcap,
        temperature=_temperature(inputs, picked),
        sink=None if inputs.sink is None else _float32(inputs.sink[picked]),
    )
    _compare(layer, inputs, picked)
    if not lse:
        return layer
    if inputs.q.shape[2] > EXACT_LENGTH and adapter.refuses(inputs) is None:
        norms = adapter.run_with_lse(inputs)[1][0, picked]
        progress(inputs.q.shape[2])
        return replace(layer, lse=_float64(norms))
    return replace(layer, lse=log_sum_exp(layer, progress=progress))


def _compare(layer: LayerFactors, inputs: AttentionCall, heads: list[int]) -> None:
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
                raise NoFactorsError("the stored arrays do not reproduce its scores")


def _check(inputs: AttentionCall) -> None:
    if inputs.q.shape[0] != 1:
        raise InputError(f"a capture takes one sequence, got a batch of {inputs.q.shape[0]}.")
    if inputs.visible.q_group is not None:
        raise NoFactorsError("tokens are in groups (padding or several documents)")
    _check_encoding(inputs)
    if inputs.visible.window is not None and inputs.mixing is not None:
        raise NoFactorsError("scores are mixed within a window")
    if inputs.visible.window is not None and not inputs.visible.causal:
        raise NoFactorsError("the window has two sides")
    if inputs.score_transform and inputs.mixing is not None:
        raise NoFactorsError("a temperature or a softcap acts on mixed scores")
    if inputs.visible.chunk is not None:
        raise NoFactorsError("keys are seen in chunks")
    at = inputs.positions.q[0]
    same = torch.equal(at, inputs.positions.k[0])
    if not same or not bool((at.diff() == 1).all()):
        raise NoFactorsError("positions are not consecutive")


def _check_encoding(inputs: AttentionCall) -> None:
    """Refuse weights that are not a softmax, transitions, and angles that depend on tokens."""
    by_tokens = inputs.turns is not None and inputs.turns[0].by_tokens
    if inputs.weighting is not None or by_tokens or inputs.transition is not None:
        raise NoFactorsError("weights or rotations are decided by the tokens")


def _turn(inputs: AttentionCall) -> FactorTurn | None:
    """Cos and sin per token and pair, where queries and keys are turned."""
    if inputs.unrotated is None:
        return None
    if inputs.turns is None:
        raise NoFactorsError("queries and keys are not turned in pairs of dims")
    tables = [_float32(torch.stack([turn.cos[0, 0], turn.sin[0, 0]])) for turn in inputs.turns]
    pairing: Any = inputs.turns[0].pairing
    turn = FactorTurn(tables[0], tables[1], pairing)
    for table, given, found in zip(tables, inputs.unrotated, (inputs.q, inputs.k), strict=True):
        want = _float64(found[0])
        error = np.abs(turn.rotate(_float64(given[0]), table) - want).max(initial=0.0)
        if error > TURN_ERROR * max(1.0, np.abs(want).max(initial=0.0)):
            raise NoFactorsError("queries and keys are not turned by position alone")
    return turn


def _temperature(inputs: AttentionCall, heads: list[int]) -> np.ndarray | None:
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


def _mix(mixing: Mixing | None) -> MixFactor | None:
    match mixing:
        case None:
            return None
        case PairPerceptron():
            return DapeFactor(*_weights(mixing), mixing.adds_bias)
        case KeyConvolution():
            return DapeV2Factor(*_weights(mixing), mixing.boundary)
        case CountedTable():
            divide: Any = "scores" if mixing.divisor == 1 else "sum"
            return CopeFactor(_float32(mixing.table), divide)
        case _:
            raise NoFactorsError(f"scores are mixed in a way of its own ({type(mixing).__name__})")


def _weights(
    mixing: PairPerceptron | KeyConvolution,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    inner, outer = _float32(mixing.in_weight), _float32(mixing.out_weight)
    return inner, _float32(mixing.in_bias), outer, _float32(mixing.out_bias)


def _float32(value: Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.detach().to(torch.float32).cpu().numpy())


def _float64(value: Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.detach().to(torch.float64).cpu().numpy())
