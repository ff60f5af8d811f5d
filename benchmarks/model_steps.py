"""Training steps of transformers models as contenders, and how two of them compare."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.allocations import allocated_megabytes
from benchmarks.timing import Step, peak_megabytes, ratios, times

VOCABULARY = 2048
CLOCK: list[Callable[[], float]] = [time.perf_counter]
"""The clock of all parts, which --cpu replaces."""


def training(model: Any, kind: str, length: int) -> Step:
    """Return a step with this attention: forward, backward, gradients freed."""
    tokens = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": tokens, "labels": tokens, "use_cache": False}

    def step() -> None:
        model.set_attn_implementation(kind)
        model(**given).loss.backward()
        model.zero_grad(set_to_none=True)

    return step


def compare(
    name: str, steps: dict[str, Step], rounds: int, bar: float | None = None, *, memory: bool = True
) -> None:
    """Print the ratio of the first step to the second, and the memory of both."""
    ours, theirs = steps
    found = ratios(times(steps, rounds, CLOCK[0]), theirs)[ours]
    line = f"{name:34} {found:5.2f} of {theirs}"
    if bar is not None:
        line += f" (bar {bar:.2f})"
    if memory:
        for what, measure in (("tensors", allocated_megabytes), ("resident", peak_megabytes)):
            used = {key: measure(step) for key, step in steps.items()}
            line += f"   {what} {used[ours]:.0f} MB, theirs {used[theirs]:.0f} MB"
    print(line, flush=True)
