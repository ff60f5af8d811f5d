"""Checks that encoding, bias, positions and mask of an attention call belong together.

Without these checks such a call would silently return a wrong result: a table built for causal
attention gives every key to the right the value of distance 0. That a table is long enough is
checked where the call is put together (AttentionInputs), for models too.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from headscape.attention.reference import AttentionInputs, check_direction
from headscape.bias import Bias, Pairwise, Perceptron, Sheared, Slope, Toeplitz
from headscape.errors import InputError
from headscape.types import Positions

REBUILD = "build it with encoding.bias(positions, ...) for this call"


def check_consistency(inputs: AttentionInputs) -> None:
    """Raise InputError if the encoding, bias, positions and mask contradict one another."""
    check_direction(inputs)
    encoding, bias = inputs.encoding, inputs.bias
    if bias is None:
        if encoding.adds_bias:
            raise InputError(
                f"{encoding.title} adds a bias, but bias is None: pass "
                f"encoding.bias(positions, ...) or call attention()."
            )
        return
    for name, (found, shape) in _shapes(bias, inputs).items():
        if tuple(found.shape) not in (shape, (1, *shape[1:])):
            raise InputError(
                f"bias.{name} has shape {tuple(found.shape)}, but this call needs {shape}: "
                f"{REBUILD}."
            )
    if isinstance(bias, Perceptron) and bias.at is not None:
        if not _equal(bias.at, inputs.positions.q):
            raise InputError(f"the bias was built for different query positions: {REBUILD}.")
    if isinstance(bias, Pairwise) and bias.positions is not None:
        _check_positions(bias.positions, inputs.positions)


def _shapes(bias: Bias, inputs: AttentionInputs) -> Mapping[str, tuple[Tensor, tuple[int, ...]]]:
    """Return the tensors of a bias that have an axis of heads, queries or keys; axis 0 may be 1."""
    b, h, t, _ = inputs.q.shape
    if isinstance(bias, Toeplitz):
        return {"table": (bias.table, (h, bias.table.shape[-1]))}
    if isinstance(bias, Slope):
        found = {"row": (bias.row, (b, h, t)), "col": (bias.col, (b, h, inputs.k.shape[2]))}
        return found if bias.weight is None else found | {"weight": (bias.weight, (b, h, t))}
    if isinstance(bias, Perceptron):
        units = bias.in_weight.shape[-1]
        return {"far": (bias.far, (b, t)), "out_weight": (bias.out_weight, (h, units))}
    if isinstance(bias, Sheared):
        per_query = {"r": (bias.r, (b, h, t, bias.r.shape[-1]))}
        if bias.key is None:
            return per_query
        u = bias.key[0]
        return per_query | {"key[0]": (u, (b, h, inputs.k.shape[2], u.shape[-1]))}
    return {}


def _check_positions(built: Positions, used: Positions) -> None:
    for role in ("q", "k"):
        if not _equal(getattr(built, role), getattr(used, role)):
            raise InputError(f"the bias was built for different positions.{role}: {REBUILD}.")


def _equal(ours: Tensor, theirs: Tensor) -> bool:
    return ours is theirs or (ours.shape[1] == theirs.shape[1] and bool(torch.all(ours == theirs)))
