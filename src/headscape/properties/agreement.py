"""Every path of attention agrees with the reference, gradients included."""

import copy
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions
from headscape.encodings import Encoding
from headscape.errors import InputError
from headscape.kernels import attend
from headscape.kernels.assemble import prepare
from headscape.properties.probe import Factory, draw, randomise, require, shape

FUSED_DIM = 16
"""A head dim that the fused kernels support."""


def agreement(
    factory: Factory,
    heads: int,
    length: int,
    path: str = "auto",
    dtype: torch.dtype = torch.float64,
) -> None:
    """A path gives the output and gradients of the reference, or says why it cannot.

    Its error against float64 may be twice that of the reference in the same dtype, plus eight
    roundings of the largest score (content, bias, mix and softmax, forward and backward), since a
    path may sum in a different order. In float64 it may be 1e-12.
    """
    expected = _expected(factory, heads, length, dtype)
    try:
        ours = _gradients(expected.encoding, heads, length, path, dtype)
    except InputError as refusal:
        require(path not in ("auto", "reference"), f"{path} raises: {refusal}")
        require(str(refusal).endswith("."), f"{path} refuses without a sentence: {refusal}")
        return
    error, budget = _error(ours, expected.exact), expected.budget
    require(
        error <= budget, f"path {path} in {dtype} is off by {error:.3g}, more than {budget:.3g}"
    )


@dataclass(frozen=True)
class _Expected:
    """What the reference computes with an encoding, and how far a path may be off."""

    encoding: Encoding
    exact: list[Tensor]
    """In float64."""
    budget: float


@lru_cache(maxsize=16)
def _expected(factory: Factory, heads: int, length: int, dtype: torch.dtype) -> _Expected:
    """Return what every path is compared with; cached, as several paths are tried in a row."""
    encoding = factory(shape(heads, FUSED_DIM))
    exact = _gradients(encoding, heads, length, "reference", torch.float64)
    plain = _gradients(encoding, heads, length, "reference", dtype)
    rounding = 8 * torch.finfo(dtype).eps * _largest_score(encoding, heads, length)
    return _Expected(encoding, exact, 2 * _error(plain, exact) + max(1e-12, rounding))


def _error(found: list[Tensor], exact: list[Tensor]) -> float:
    """Return the largest error of an output or gradient, relative to its largest value."""
    worst = 0.0
    for mine, truth in zip(found, exact, strict=True):
        require(bool(torch.isfinite(mine).all()), "an output or gradient is not finite")
        size = max(1.0, truth.abs().max().item())
        worst = max(worst, (mine.double() - truth).abs().max().item() / size)
    return worst


def _inputs(
    encoding: Encoding, heads: int, length: int, dtype: torch.dtype
) -> tuple[AttentionCall, list[Tensor]]:
    """Return one attention call and the leaf tensors it is a function of."""
    encoding = copy.deepcopy(encoding).double()
    randomise(encoding)
    encoding = encoding.to(dtype)
    q, k, v = (
        draw(2, heads, length, FUSED_DIM, seed=seed).to(dtype).requires_grad_()
        for seed in (1, 2, 3)
    )
    x = draw(2, length, heads * FUSED_DIM, seed=4).to(dtype).requires_grad_()
    inputs = prepare(encoding, q, k, v, x, Positions.span(length))
    return inputs, [q, k, v, x, *encoding.parameters()]


def _gradients(
    encoding: Encoding, heads: int, length: int, path: str, dtype: torch.dtype
) -> list[Tensor]:
    """Return the output of a path and the gradients of every leaf tensor."""
    inputs, leaves = _inputs(encoding, heads, length, dtype)
    out = attend.run(inputs, path)
    loss = (out * draw(*out.shape, seed=5).to(dtype)).sum()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [out.detach(), *gradients]


def _largest_score(encoding: Encoding, heads: int, length: int) -> float:
    with torch.no_grad():
        found = definition.scores(_inputs(encoding, heads, length, torch.float64)[0])
    return 1 + found.final[found.visible.expand_as(found.final)].abs().max().item()
