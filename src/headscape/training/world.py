"""The processes of a run: one, or several started by torchrun.

torchrun sets RANK, WORLD_SIZE and LOCAL_RANK; without it there is one process. GPUs communicate
over nccl, CPUs over gloo. What only one process may do (write a file, fill a cache) goes through
`first`; if it fails, every process raises the same InputError instead of waiting forever.

torchrun keeps one key-value store over all restarts, and a process group set up from it would find
addresses of a dead attempt there. So rank 0 invents a name for the attempt, and all keys get that
prefix. No rank can read a stale name: each asks with a fresh random question and accepts only the
answer to it, and rank 0 answers until all ranks have confirmed.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from headscape.errors import InputError

T = TypeVar("T")
CPU = torch.device("cpu")
TIMEOUT = timedelta(hours=2)
"""How long processes wait for each other; encoding 10 billion words takes one of them long."""
POLL_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class World:
    """Rank and device of this process, and the number of processes."""

    rank: int = 0
    """Rank among all processes."""
    size: int = 1
    """Number of processes."""
    local: int = 0
    """Rank on this machine."""
    device: torch.device = CPU
    """Device of this process."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.rank == 0

    def first(self, act: Callable[[], T]) -> T:
        """Run `act` in the first process and return its result, or raise its InputError, in all."""
        if self.size == 1:
            return act()
        outcome: list[tuple[T | None, str | None]] = [(None, None)]
        if self.is_first:
            try:
                outcome = [(act(), None)]
            except InputError as error:
                outcome = [(None, str(error))]
        dist.broadcast_object_list(outcome, src=0)
        value, message = outcome[0]
        if message is not None:
            raise InputError(message)
        return value  # type: ignore[return-value]

    def once_per_machine(self, act: Callable[[], T]) -> T:
        """Return the result of `act`, run by one process per machine before the others run it."""
        values: list[T] = []
        message: str | None = None
        for is_turn_of_first in (True, False):
            if (self.local == 0) == is_turn_of_first and message is None:
                try:
                    values = [act()]
                except InputError as error:
                    message = str(error)
            message = next((text for text in self.gather(message) if text), None)
        if message is not None:
            raise InputError(message)
        return values[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def sums(self, *values: float) -> list[float]:
        """Return the sum of each value over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total]


@contextmanager
def joined() -> Iterator[World]:
    """Join the process group for the duration of a run."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if gpu else CPU
    if gpu:
        torch.cuda.set_device(device)
    if size == 1:
        yield World(device=device)
        return
    store, rank, size = attempt_store(TIMEOUT)
    backend = "cuda:nccl,cpu:gloo" if gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield World(rank=rank, size=size, local=local, device=device)
        # Free everything that holds the process group before it is destroyed: a DDP or FSDP model
        # freed after its peers have left waits for them forever. The barrier keeps them here.
        gc.collect()
        dist.barrier()
    finally:
        dist.destroy_process_group()


def restarted() -> bool:
    """Return whether torchrun restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def attempt_store(timeout: timedelta) -> tuple[Store, int, int]:
    """Return a store for this attempt, the rank of this process, and the number of processes."""
    store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
    fresh = uuid4().hex
    name = _answer(store, size, fresh, timeout) if rank == 0 else _ask(store, rank, fresh)
    return PrefixStore(name, store), rank, size


def _ask(store: Store, rank: int, question: str) -> str:
    store.set(f"question/{rank}", question)
    name = store.get(f"answer/{question}").decode()
    store.add(f"confirmed/{name}", 1)
    return name


def _answer(store: Store, size: int, name: str, timeout: timedelta) -> str:
    until = time.monotonic() + timeout.total_seconds()
    while store.add(f"confirmed/{name}", 0) < size - 1:
        for rank in range(1, size):
            if store.check([f"question/{rank}"]):
                question = store.get(f"question/{rank}").decode()
                store.set(f"answer/{question}", name)
        if time.monotonic() > until:
            raise TimeoutError(f"not all of {size} processes joined within {timeout}")
        time.sleep(POLL_SECONDS)
    return name
