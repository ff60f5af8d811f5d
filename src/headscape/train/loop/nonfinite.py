"""Where an infinity or a NaN began.

The failed step is gone through once more with an eye on every module: the first whose output is
not finite is named, or the first parameter that was not finite before. If every value on the way
forward is finite, it began on the way back, and the
parameter nearest to the output whose gradient is not finite is named.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from headscape.errors import InputError


class NonFiniteError(InputError):
    """Training met a loss or gradient that is not finite; no update was made from it."""


def is_bad(loss: float, norm: float = 0.0) -> bool:
    """Whether a step's numbers rule out an update."""
    return not (math.isfinite(loss) and math.isfinite(norm))


@torch.no_grad()
def locate(model: nn.Module, tokens: Int[Tensor, "b t"]) -> str:
    """Name what first became non-finite on the way forward; empty if nothing did."""
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return f"the parameter {name}"
    with _watched(model) as seen:
        model(tokens)
    return f"the output of {seen[0]}" if seen else ""


def locate_gradient(model: nn.Module) -> str:
    """Name the parameter nearest to the output whose gradient is not finite."""
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"the gradient of {name}"
    return "the gradient's norm"


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[str]]:
    """The name of the first module that makes something that is not finite, once it did."""
    seen: list[str] = []
    hooks = []
    for name, module in model.named_modules():

        def look(_: nn.Module, given: Sequence[object], got: object, name: str = name) -> None:
            if seen:
                return
            if any(isinstance(value, Tensor) and not _finite(value) for value in given):
                # It came about between modules: in the one around this.
                seen.append(name.rpartition(".")[0] or "the model")
            elif isinstance(got, Tensor) and not _finite(got):
                seen.append(name or "the model")

        hooks.append(module.register_forward_hook(look))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _finite(value: Tensor) -> bool:
    local = value.to_local() if isinstance(value, DTensor) else value
    return bool(local.isfinite().all())
