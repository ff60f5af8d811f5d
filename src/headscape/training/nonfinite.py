"""Finding where an infinity or a NaN first appeared.

The failed step is run again with a hook on every module. The first parameter that is not finite is
named, or else the first module whose output is not finite. If the whole forward pass is finite, the
parameter nearest to the output whose gradient is not finite is named.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.training.parallel import is_dtensor


class NonFiniteError(InputError):
    """The loss or gradient of a step is not finite; no update was made from it."""


def is_bad(loss: float, norm: float = 0.0) -> bool:
    """Return whether a loss or gradient norm is not finite."""
    return not (math.isfinite(loss) and math.isfinite(norm))


@torch.no_grad()
def locate(model: nn.Module, tokens: Int[Tensor, "b t"]) -> str:
    """Return what first became non-finite in the forward pass; empty if nothing did."""
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return f"the parameter {name}"
    with _first_non_finite(model) as found:
        model(tokens)
    return f"the output of {found[0]}" if found else ""


def locate_gradient(model: nn.Module) -> str:
    """Return the parameter nearest to the output whose gradient is not finite."""
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"the gradient of {name}"
    return "the gradient's norm"


@contextmanager
def _first_non_finite(model: nn.Module) -> Iterator[list[str]]:
    """Collect the name of the first module whose output is not finite."""
    found: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def hook(_: nn.Module, given: Sequence[object], got: object, name: str = name) -> None:
            if found:
                return
            if any(isinstance(value, Tensor) and not _finite(value) for value in given):
                # It arose between modules, in the parent of this one.
                found.append(name.rpartition(".")[0] or "the model")
            elif isinstance(got, Tensor) and not _finite(got):
                found.append(name or "the model")

        handles.append(module.register_forward_hook(hook))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _finite(value: Tensor) -> bool:
    local = value.to_local() if is_dtensor(value) else value
    return bool(local.isfinite().all())
