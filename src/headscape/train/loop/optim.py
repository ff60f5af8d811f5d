"""The optimizer of a run, and its state as tensors.

AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) updates every parameter, or with
`optimizer="muon"` every parameter except the matrices inside the blocks, which Muon updates (see
muon.py). Embeddings, norms, an encoding's tensors and matrices with a dimension below 64 stay with
AdamW.

Weight decay applies to AdamW's tensors with two or more dimensions, not to norms, biases, an
encoding's vectors and Muon's matrices. In a sharded model the few whole tensors are in groups of
their own, because a fused update cannot mix sharded and whole tensors.
"""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from headscape.train.config.train_config import TrainConfig
from headscape.train.loop.muon import Muon

SMALLEST = 64
"""Smallest dimension of a matrix that Muon updates."""


class Optimizer:
    """AdamW, with Muon for the matrices inside the blocks if the config says so."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self._parameters = dict(model.named_parameters())
        self._matrices: set[str] = set()
        if config.optimizer == "muon":
            self._matrices = {
                name for name, item in self._parameters.items() if _is_muons(name, item)
            }
        self.adamw = _adamw(
            [item for name, item in self._parameters.items() if name not in self._matrices], config
        )
        self.muon: Muon | None = None
        if self._matrices:
            stacked = {name for name in self._matrices if name.endswith(".qkv.weight")}
            self.muon = Muon(
                [self._parameters[name] for name in sorted(self._matrices - stacked)],
                [self._parameters[name] for name in sorted(stacked)],
                config.muon_lr,
            )
        self._muon_share = config.muon_lr / config.lr

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for item in self._parameters.values():
            item.grad = None

    def step(self, lr: float) -> None:
        """Update every parameter; `lr` is AdamW's, and Muon's follows in proportion."""
        for group in self.adamw.param_groups:
            group["lr"] = lr
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


def _adamw(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.AdamW:
    kinds: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        kind = (parameter.ndim >= 2, isinstance(parameter, DTensor))
        kinds.setdefault(kind, []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": group, "weight_decay": config.weight_decay if decays else 0.0}
            for (decays, _), group in kinds.items()
        ],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
