"""AdamW as the paper uses it, and the learning rate of every step.

Decay is for tensors with two or more axes (matrices, embeddings); norms, biases and an encoding's
vectors go without. In a sharded model the few whole tensors have groups of their own, because one
update cannot mix both kinds. The fused update is one pass over memory.

    rate(k) = rate (k + 1) / warmup                                           k < warmup
            = final + (rate - final) (1 + cos(pi x)) / 2                      after it

where x runs from 0 at the end of the warm-up to 1 at the end of the run, by steps or, in a run of
so many minutes, by time.
"""

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from headscape.train.config.train_config import TrainConfig


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """The optimiser of a model, its parameters in named_parameters' order within each group."""
    kinds: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        kind = (parameter.ndim >= 2, isinstance(parameter, DTensor))
        kinds.setdefault(kind, []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": group, "weight_decay": config.decay if decays else 0.0}
            for (decays, _), group in kinds.items()
        ],
        lr=config.rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )


def rate_at(config: TrainConfig, step: int, progress: float) -> float:
    """The learning rate of a step; `progress` is the share of the run that lies behind it."""
    if step < config.warmup:
        return config.rate * (step + 1) / config.warmup
    begun = config.warmup / config.steps if config.steps else 0.0
    x = min(max((progress - begun) / (1 - begun), 0.0), 1.0)
    share = {"constant": 1.0, "linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2}
    return config.final_rate + (config.rate - config.final_rate) * share[config.schedule]


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Use a learning rate from the next update on."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def moments(model: nn.Module, optimiser: torch.optim.AdamW) -> dict[str, Tensor]:
    """AdamW's two running means for every parameter, made if there was no update yet.

    Together with the number of updates they are all that an optimiser remembers.
    """
    out: dict[str, Tensor] = {}
    known = {item for group in optimiser.param_groups for item in group["params"]}
    for name, parameter in model.named_parameters():
        assert parameter in known, name
        state = optimiser.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        out[f"mean.{name}"] = state["exp_avg"].detach()
        out[f"square.{name}"] = state["exp_avg_sq"].detach()
    return out


def set_updates(optimiser: torch.optim.AdamW, updates: int) -> None:
    """Say how many updates the running means have seen."""
    for state in optimiser.state.values():
        state["step"].fill_(float(updates))
