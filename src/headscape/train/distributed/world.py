"""The processes of a run: one alone, or many under torchrun.

torchrun says who a process is (RANK, WORLD_SIZE, LOCAL_RANK); without it there is one. GPUs talk
over nccl, CPUs over gloo. What only one process may do (write a file, build a cache) is done by
`first`, and when it fails there every process raises the same sentence instead of waiting forever.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from headscape.errors import InputError
from headscape.train.distributed.rendezvous import meet

T = TypeVar("T")
CPU = torch.device("cpu")
PATIENCE = timedelta(hours=2)
"""How long the others wait for one of them, which may be turning 10 billion words into tokens."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Who this process is among the others."""

    rank: int = 0
    """Its number among all processes."""
    size: int = 1
    """How many processes there are."""
    local: int = 0
    """Its number on this machine."""
    device: torch.device = CPU
    """Where it computes."""

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def first(self, act: Callable[[], T]) -> T:
        """What the first process makes of `act`, for all; its InputError is everybody's."""
        if self.size == 1:
            return act()
        told: list[tuple[T | None, str | None]] = [(None, None)]
        if self.leads:
            try:
                told = [(act(), None)]
            except InputError as error:
                told = [(None, str(error))]
        dist.broadcast_object_list(told, src=0)
        result, complaint = told[0]
        if complaint is not None:
            raise InputError(complaint)
        return result  # type: ignore[return-value]

    def once_per_machine(self, act: Callable[[], T]) -> T:
        """What `act` gives, run by one process of each machine before the others run it."""
        result: list[T] = []
        complaint: str | None = None
        for turn in (True, False):
            if (self.local == 0) == turn and complaint is None:
                try:
                    result = [act()]
                except InputError as error:
                    complaint = str(error)
            complaint = next((told for told in self.gather(complaint) if told), None)
        if complaint is not None:
            raise InputError(complaint)
        return result[0]

    def gather(self, value: T) -> list[T]:
        """Everybody's value, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def sums(self, *values: float) -> list[float]:
        """The sum of each value over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total]


@contextmanager
def joined() -> Iterator[World]:
    """Join the other processes for the length of a run."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if gpu else CPU
    if gpu:
        torch.cuda.set_device(device)
    if size == 1:
        yield World(device=device)
        return
    store, rank, size = meet(PATIENCE)
    backend = "cuda:nccl,cpu:gloo" if gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield World(rank=rank, size=size, local=local, device=device)
        # A model that is spread over processes and is freed after its peers have gone waits for
        # them forever, so it goes first, and nobody leaves before all have come this far.
        gc.collect()
        dist.barrier()
    finally:
        dist.destroy_process_group()


def restarted() -> bool:
    """Whether torchrun started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
