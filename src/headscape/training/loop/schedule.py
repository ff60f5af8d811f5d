"""The learning rate of every step.

    lr(k) = lr (k + 1) / warmup_steps                                 k < warmup_steps
          = final_lr + (lr - final_lr) (1 + cos(pi x)) / 2            after the warmup (cosine)

x goes from 0 at the end of the warmup to 1 at the end of the run, by steps or, in a run limited by
minutes, by time. The linear schedule has 1 - x in place of the cosine term, the constant one 1.
Muon's learning rate is muon_lr / lr times this one.
"""

import math

from headscape.training.config.train_config import TrainConfig


def lr_at(config: TrainConfig, step: int, progress: float) -> float:
    """Return the learning rate of a step; `progress` is the fraction of the run before it."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    warmup = config.warmup_steps / config.steps if config.steps else 0.0
    x = min(max((progress - warmup) / (1 - warmup), 0.0), 1.0)
    share = {"constant": 1.0, "linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2}
    return config.final_lr + (config.lr - config.final_lr) * share[config.schedule]
