"""The optimizer of a run, its state as tensors, and the learning rate of every step.

AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) updates every parameter, or with
`optimizer="muon"` every parameter except the matrices inside the blocks, which Muon updates.
Embeddings, norms, an encoding's tensors and matrices with a dimension below 64 stay with AdamW. Its
`lr` then suits tables and vectors, but is too high for a matrix by which an encoding multiplies the
layer's input: at 0.01, four of CABLE's twelve increments fell below zero for every token, where
ReLU has no gradient. These matrices train at a tenth of `lr`.

Weight decay applies to AdamW's tensors with two or more dimensions, not to norms, biases, an
encoding's vectors and Muon's matrices. In a sharded model the few whole tensors are in groups of
their own, because a fused update cannot mix sharded and whole tensors.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) is an optimizer for matrices:

    M <- 0.95 M + 0.05 G,    W <- W - 0.2 sqrt(max(W.shape)) lr NS(0.95 M + 0.05 G)

NS is five Newton-Schulz steps, which bring all singular values near 1; the factor gives an update
the size of AdamW's (Liu et al. 2025, arXiv 2502.16982). torch.optim.Muon does the same with whole
tensors. Here a tensor that stacks several matrices, like the projection to q, k and v, is updated
matrix by matrix: with q, k and v as one matrix, DAPEv2+CABLE needs more steps for the same loss.

The learning rate of AdamW; Muon's is muon_lr / lr times this one:

    lr(k) = lr (k + 1) / warmup_steps                                 k < warmup_steps
          = final_lr + (lr - final_lr) (1 + cos(pi x)) / 2            after the warmup (cosine)

x goes from 0 at the end of the warmup to 1 at the end of the run, by steps or, in a run limited by
minutes, by time. The linear schedule has 1 - x in place of the cosine term, the constant one 1.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from headscape.training.config import TrainConfig
from headscape.training.parallel import is_dtensor, sharded_like

SMALLEST = 64
"""Smallest dimension of a matrix that Muon updates."""
PROJECTION = 0.1
"""With Muon: `lr` of an encoding's projections of the layer's input, relative to AdamW's."""
MOMENTUM = 0.95
STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of X, X X' X and X X' X X' X in a Newton-Schulz step."""


class Optimizer:
    """AdamW, with Muon for the matrices inside the blocks if the config says so."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self._parameters = dict(model.named_parameters())
        self._matrices: set[str] = set()
        slow: set[str] = set()
        if config.optimizer == "muon":
            self._matrices = {
                name for name, item in self._parameters.items() if _is_muons(name, item)
            }
            slow = set(_projections(model))
        rates = {
            name: PROJECTION if name in slow else 1.0
            for name in self._parameters
            if name not in self._matrices
        }
        self.adamw = _adamw(self._parameters, rates, config)
        self.muon: Muon | None = None
        if self._matrices:
            stacked = {name for name in self._matrices if name.endswith(".qkv.weight")}
            self.muon = Muon(
                [self._parameters[name] for name in sorted(self._matrices - stacked)],
                [self._parameters[name] for name in sorted(stacked)],
                config.muon_lr,
            )
        self._muon_share = config.muon_lr / config.lr

    @property
    def parameters(self) -> Iterable[nn.Parameter]:
        """All parameters."""
        return self._parameters.values()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for item in self._parameters.values():
            item.grad = None

    def step(self, lr: float) -> None:
        """Update every parameter; `lr` is AdamW's, and Muon's follows in proportion."""
        for group in self.adamw.param_groups:
            group["lr"] = lr * group["rate"]
        self.adamw.step()
        if self.muon is not None:
            for group in self.muon.param_groups:
                group["lr"] = lr * self._muon_share
            self.muon.step()

    def state(self) -> dict[str, Tensor]:
        """Return the running means of every parameter, zeros before the first update.

        AdamW has mean.NAME and square.NAME, Muon momentum.NAME. Together with the number of updates
        they are the whole state of the optimizer.
        """
        out: dict[str, Tensor] = {}
        for name, item in self._parameters.items():
            if name in self._matrices:
                assert self.muon is not None
                state = self.muon.state[item]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(item)
                out[f"momentum.{name}"] = state["momentum_buffer"].detach()
                continue
            state = self.adamw.state[item]
            if not state:
                state["step"] = torch.zeros((), device=item.device)
                state["exp_avg"] = torch.zeros_like(item)
                state["exp_avg_sq"] = torch.zeros_like(item)
            out[f"mean.{name}"] = state["exp_avg"].detach()
            out[f"square.{name}"] = state["exp_avg_sq"].detach()
        return out

    def set_updates(self, updates: int) -> None:
        """Set how many updates the running means have had; Muon does not count them."""
        for state in self.adamw.state.values():
            state["step"].fill_(float(updates))


def _is_muons(name: str, parameter: Tensor) -> bool:
    inside = name.startswith("blocks.") and ".encoding." not in name
    return inside and parameter.ndim == 2 and min(parameter.shape) >= SMALLEST


def _projections(model: nn.Module) -> Iterator[str]:
    """Yield the names of the weights by which encodings multiply their layer's input."""
    for name, module in model.named_modules():
        inside = name.startswith("blocks.") and ".encoding." in name
        if inside and isinstance(module, nn.Linear) and module.in_features >= SMALLEST:
            yield f"{name}.weight"


def _adamw(
    parameters: dict[str, nn.Parameter], rates: dict[str, float], config: TrainConfig
) -> torch.optim.AdamW:
    """Return AdamW over the parameters named in `rates`, each with its fraction of `lr`."""
    kinds: dict[tuple[bool, bool, float], list[nn.Parameter]] = {}
    for name, rate in rates.items():
        parameter = parameters[name]
        kind = (parameter.ndim >= 2, is_dtensor(parameter), rate)
        kinds.setdefault(kind, []).append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": group,
                "weight_decay": config.weight_decay if decays else 0.0,
                "rate": rate,
            }
            for (decays, _, rate), group in kinds.items()
        ],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


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
    update: Tensor = x.T if tall else x
    return update.to(matrix.dtype)


def lr_at(config: TrainConfig, step: int, progress: float) -> float:
    """Return the learning rate of a step; `progress` is the fraction of the run before it."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    warmup = config.warmup_steps / config.steps if config.steps else 0.0
    x = min(max((progress - warmup) / (1 - warmup), 0.0), 1.0)
    share = {"constant": 1.0, "linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2}
    return config.final_lr + (config.lr - config.final_lr) * share[config.schedule]
