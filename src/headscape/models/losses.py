"""Losses of single tokens in bounded memory, and the fingerprint of a model.

Only scored positions reach the output matrix, `BLOCK` of them at a time, so memory grows with
block x vocabulary and not with length x vocabulary. Logits have the model's dtype; the log-sum-exp
over them and every sum after it are float64.
"""

import hashlib
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 128
"""Rows that go through the output matrix at once."""


def losses_in_blocks(
    rows: Float[Tensor, "b t n"], target: Int[Tensor, "b t"], logits: Callable[[Tensor], Tensor]
) -> Float[Tensor, "b t"]:
    """Nats of each target, `BLOCK` rows at a time through `logits`."""
    found = target.new_empty(target.numel(), dtype=torch.float64)
    # Nothing that outlives a block is allocated between blocks: a small tensor above the logits
    # keeps the allocator from reusing their memory, and then every block takes new memory.
    every = (torch.split(x, BLOCK) for x in (rows.flatten(0, 1), target.flatten(), found))
    for block, wanted, out in zip(*every, strict=True):
        out.copy_(cross_entropy(logits(block), wanted))
    return found.view(target.shape)


def cross_entropy(logits: Float[Tensor, "n v"], target: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Nats of each target, in float64."""
    exact = logits.double()
    return exact.logsumexp(dim=-1) - exact.gather(1, target[:, None])[:, 0]


def digest(config: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a config and of weights by name."""
    whole = hashlib.sha256(config.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        whole.update(value.flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()
