"""Methods whose matrix products autocast must not round to half precision.

A factor of a decay may be exp(40), which float16 does not have, and a triangular solve amplifies
what its right-hand side was rounded by.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def full_precision(method: Callable[..., T]) -> Callable[..., T]:
    """Return the method of a dataclass of tensors, run without autocast."""

    @wraps(method)
    def run(self: Any, *args: Any) -> T:
        device = next(x.device for x in vars(self).values() if isinstance(x, Tensor))
        with torch.autocast(device.type, enabled=False):
            return method(self, *args)

    return run
