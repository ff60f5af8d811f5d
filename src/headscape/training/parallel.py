"""One model over several processes: DDP, or FSDP2's `fully_shard`.

DDP keeps a whole model in every process and averages gradients. FSDP2 shards every parameter, its
gradient and its optimizer state along the first dimension (Zhao et al. 2023, arXiv 2304.11277) and
gathers a block's parameters only while that block computes. In both cases the gradient of a step is
the mean over all its tokens, so any number of processes gives the same curve up to rounding.

FSDP2 cannot shard scalars (FIRE has two), and an encoding shared by all layers belongs to no block.
These few parameters stay whole in every process and their gradients are averaged here.

Nothing of torch.distributed that takes a second to import (FSDP, DTensor) is imported before a
model is sharded.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.training.config import Strategy
from headscape.training.world import World

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def parallelize(model: GPT2, strategy: Strategy, world: World) -> nn.Module:
    """Return the module to train: the model, or its DDP or FSDP wrapper."""
    model.to(world.device)
    if world.size == 1:
        return model
    if strategy == "none":
        raise InputError(
            f"{world.size} processes were started but distributed is 'none': "
            f"choose ddp or fsdp, or start one process."
        )
    if strategy == "ddp":
        devices = [world.device] if world.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)
    from torch.distributed.fsdp import fully_shard

    whole = {item for item in model.parameters() if item.ndim == 0}
    if model.config.share_encoding:
        whole |= set(model.encoding().parameters())
    for block in model.blocks:
        fully_shard(block, ignored_params=whole)
    fully_shard(model, ignored_params=whole)
    return model


def is_sharded(model: nn.Module) -> bool:
    """Return whether the parameters are sharded over processes."""
    return _fsdp(model) is not None


def _fsdp(module: nn.Module) -> "FSDPModule | None":
    """Return the module if FSDP shards it, else None, without importing FSDP (a second)."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return module if fsdp is not None and isinstance(module, fsdp.FSDPModule) else None


@contextmanager
def gradient_sync(module: nn.Module, *, now: bool) -> Iterator[None]:
    """Average gradients over processes in this backward pass, or leave that to a later one."""
    if isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
        return
    sharded = _fsdp(module)
    if sharded is not None:
        sharded.set_requires_gradient_sync(now)
    yield
    if sharded is not None and now:
        for parameter in module.parameters():
            if parameter.grad is not None and not is_dtensor(parameter):
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


def reshard(model: nn.Module) -> None:
    """Reshard after a forward-only pass.

    The embedding and the last norm would otherwise stay gathered, as parameters that the optimizer
    does not have.
    """
    if (sharded := _fsdp(model)) is not None:
        sharded.reshard()


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], limit: float) -> float:
    """Return the norm of all gradients, and scale them down to `limit` if it is larger."""
    grads = [item.grad for item in parameters if item.grad is not None]
    sharded = [grad for grad in grads if is_dtensor(grad)]
    norms = [nn.utils.get_total_norm([grad for grad in grads if not is_dtensor(grad)])]
    if sharded:
        partial = nn.utils.get_total_norm(sharded)
        assert is_dtensor(partial)
        norms.append(partial.full_tensor())
    norm = float(torch.stack([item.to(norms[-1].device) for item in norms]).norm())
    if 0 < limit < norm < float("inf"):
        for grad in grads:
            grad.mul_(limit / norm)
    return norm


@torch.no_grad()
def assign(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into a parameter that may be sharded over processes."""
    target.copy_(sharded_like(value, target) if is_dtensor(target) else value)


def is_dtensor(value: object) -> "TypeGuard[DTensor]":
    """Return whether a tensor is sharded over processes."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def sharded_like(value: Tensor, like: "DTensor") -> Tensor:
    """Return a whole tensor with the sharding of another."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, list(like.placements))
