"""Tensors that are sharded over processes, without importing torch.distributed.tensor.

That import takes a second, and a program that never shards a model never has a DTensor.
"""

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_dtensor(value: object) -> "TypeGuard[DTensor]":
    """Return whether a tensor is sharded over processes."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def sharded_like(value: Tensor, like: "DTensor") -> Tensor:
    """Return a whole tensor with the sharding of another."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, list(like.placements))
