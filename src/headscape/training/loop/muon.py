"""Muon, an optimizer for matrices (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    M <- 0.95 M + 0.05 G,    W <- W - 0.2 sqrt(max(W.shape)) lr NS(0.95 M + 0.05 G)

NS is five Newton-Schulz steps, which bring all singular values near 1; the factor gives an update
the size of AdamW's (Liu et al. 2025, arXiv 2502.16982). torch.optim.Muon does the same with whole
tensors. Here a tensor that stacks several matrices, like the projection to q, k and v, is updated
matrix by matrix: with q, k and v as one matrix, DAPEv2+CABLE needs more steps for the same loss.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from headscape.training.distributed.dtensors import is_dtensor, sharded_like

MOMENTUM = 0.95
STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of X, X X' X and X X' X X' X in a Newton-Schulz step."""


class Muon(torch.optim.Optimizer):
    """Muon; `stacked` are tensors of three matrices below each other."""

    def __init__(
        self, whole: Iterable[nn.Parameter], stacked: Iterable[nn.Parameter], lr: float
    ) -> None:
        groups = [{"params": list(whole), "matrices": 1}, {"params": list(stacked), "matrices": 3}]
        super().__init__([group for group in groups if group["params"]], {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                state["momentum_buffer"].lerp_(parameter.grad, 1 - MOMENTUM)
                wanted = parameter.grad.lerp(state["momentum_buffer"], MOMENTUM)
                whole = wanted.full_tensor() if is_dtensor(wanted) else wanted
                update = torch.cat([_scaled(part) for part in whole.chunk(group["matrices"])])
                if is_dtensor(parameter):
                    update = sharded_like(update, parameter)
                parameter.sub_(update, alpha=group["lr"])


def _scaled(matrix: Tensor) -> Tensor:
    return 0.2 * math.sqrt(max(matrix.shape)) * orthogonalised(matrix)


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return the matrix with all its singular values near 1."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = (matrix.T if tall else matrix).float()
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(STEPS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    found: Tensor = x.T if tall else x
    return found.to(matrix.dtype)
