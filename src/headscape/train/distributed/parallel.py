"""One model over several processes: DDP, or FSDP2's `fully_shard`.

DDP keeps a whole model in every process and averages gradients. FSDP2 cuts every parameter, its
gradient and its running means along the first axis (Zhao et al. 2023, arXiv 2304.11277) and puts a
block's parameters together only while that block computes. Either way a step's gradient is the mean
over all its tokens, so one process and many give the same curve up to rounding.

FSDP2 takes no tensor without axes (two numbers in FIRE), and an encoding that all layers share
belongs to no block: those few stay whole in every process and their gradients are averaged here.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.train.config.train_config import Strategy
from headscape.train.distributed.world import World


def spread(model: GPT2, strategy: Strategy, world: World) -> nn.Module:
    """The module to train: the model itself, or the model spread over processes."""
    model.to(world.device)
    if world.size == 1:
        return model
    if strategy == "none":
        raise InputError(
            f"{world.size} processes were started and distributed is 'none': "
            f"choose ddp or fsdp, or start one process."
        )
    if strategy == "ddp":
        devices = [world.device] if world.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)
    whole = {item for item in model.parameters() if item.ndim == 0}
    if model.config.share_encoding:
        whole |= set(model.encoding().parameters())
    for block in model.blocks:
        fully_shard(block, ignored_params=whole)
    fully_shard(model, ignored_params=whole)
    return model


def is_sharded(model: nn.Module) -> bool:
    """Whether the parameters are cut over processes."""
    return isinstance(model, FSDPModule)


@contextmanager
def exchange(module: nn.Module, *, now: bool) -> Iterator[None]:
    """A pass whose gradients are averaged over processes now, or left to a later pass."""
    if isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(now)
    yield
    if isinstance(module, FSDPModule) and now:
        for parameter in module.parameters():
            if parameter.grad is not None and not isinstance(parameter, DTensor):
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


def rest(model: nn.Module) -> None:
    """Take a sharded model apart again after a pass that had no way back.

    Embedding and last norm would otherwise stay together, as parameters no optimiser knows.
    """
    if isinstance(model, FSDPModule):
        model.reshard()


@torch.no_grad()
def clip(parameters: Iterable[Tensor], limit: float) -> float:
    """The norm of all gradients together; above `limit` they are scaled down to it."""
    grads = [item.grad for item in parameters if item.grad is not None]
    cut = [grad for grad in grads if isinstance(grad, DTensor)]
    norms = [nn.utils.get_total_norm([grad for grad in grads if not isinstance(grad, DTensor)])]
    if cut:
        partial = nn.utils.get_total_norm(cut)
        assert isinstance(partial, DTensor)
        norms.append(partial.full_tensor())
    norm = float(torch.stack([item.to(norms[-1].device) for item in norms]).norm())
    if 0 < limit < norm < float("inf"):
        for grad in grads:
            grad.mul_(limit / norm)
    return norm


@torch.no_grad()
def assign(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into a parameter that may be cut over processes."""
    if isinstance(target, DTensor):
        value = value.to(target.device)
        value = distribute_tensor(value, target.device_mesh, target.placements)
    target.copy_(value)
