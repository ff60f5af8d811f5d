"""How the processes of one attempt find each other, and not those of the attempt before.

torchrun keeps one key-value store over all restarts, and a process group that is set up from it
meets addresses that a dead attempt has left there. So the first process makes up a name for the
attempt and everybody's keys go under that name. Nobody can read a stale name: each of the others
asks with a question of its own, made fresh, and takes only the answer to that question; the first
goes on answering until all of them have confirmed.
"""

import time
from datetime import timedelta
from uuid import uuid4

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

BETWEEN = 0.02


def meet(patience: timedelta) -> tuple[Store, int, int]:
    """A store for this attempt alone, this process's rank, and how many there are."""
    store, rank, size = next(iter(rendezvous("env://", timeout=patience)))
    fresh = uuid4().hex
    name = _answer(store, size, fresh, patience) if rank == 0 else _ask(store, rank, fresh)
    return PrefixStore(name, store), rank, size


def _ask(store: Store, rank: int, question: str) -> str:
    store.set(f"question/{rank}", question)
    name = store.get(f"answer/{question}").decode()
    store.add(f"confirmed/{name}", 1)
    return name


def _answer(store: Store, size: int, name: str, patience: timedelta) -> str:
    until = time.monotonic() + patience.total_seconds()
    while store.add(f"confirmed/{name}", 0) < size - 1:
        for rank in range(1, size):
            if store.check([f"question/{rank}"]):
                question = store.get(f"question/{rank}").decode()
                store.set(f"answer/{question}", name)
        if time.monotonic() > until:
            raise TimeoutError(f"not all of {size} processes came within {patience}")
        time.sleep(BETWEEN)
    return name
