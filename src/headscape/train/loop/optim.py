"""AdamW with the paper's settings, and its state as tensors.

Weight decay applies to tensors with two or more dimensions (matrices, embeddings), not to norms,
biases and an encoding's vectors. In a sharded model the few whole tensors are in groups of their
own, because a fused update cannot mix sharded and whole tensors.
"""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from headscape.train.config.train_config import TrainConfig


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return the optimizer of a model, in the order of `parameters()` within each group."""
    kinds: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
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


def moments(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return AdamW's two running means of every parameter, zeros before the first update.

    Together with the number of updates they are the whole state of the optimizer.
    """
    out: dict[str, Tensor] = {}
    known = {item for group in optimizer.param_groups for item in group["params"]}
    for name, parameter in model.named_parameters():
        assert parameter in known, name
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        out[f"mean.{name}"] = state["exp_avg"].detach()
        out[f"square.{name}"] = state["exp_avg_sq"].detach()
    return out


def set_updates(optimizer: torch.optim.AdamW, updates: int) -> None:
    """Set how many updates the running means have had."""
    for state in optimizer.state.values():
        state["step"].fill_(float(updates))
