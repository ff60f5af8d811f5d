"""A key-value store for the processes of one attempt, free of what earlier attempts left.

torchrun keeps one store over all restarts, and a process group set up from it would find addresses
of a dead attempt there. So rank 0 invents a name for the attempt, and all keys get that prefix. No
rank can read a stale name: each asks with a fresh random question and accepts only the answer to
it, and rank 0 answers until all ranks have confirmed.
"""

import time
from datetime import timedelta
from uuid import uuid4

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

POLL_SECONDS = 0.02


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
