"""Switches a model from our attention to one whose masks and biases can be read.

With attn_implementation="headscape" a mask is a row of integers and T5's bias is a table. While
such a model is observed, it runs on sdpa, or on eager where sdpa drops a part of the scores.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from headscape.errors import InputError

OURS = "headscape"
ENCODING = "headscape_encoding"


@contextmanager
def readable_attention(body: nn.Module) -> Iterator[None]:
    """Replace our attention by sdpa or eager in every config of a model, and restore it on exit."""
    configs: dict[int, Any] = {}
    for module in body.modules():
        config = getattr(module, "config", None)
        if str(getattr(config, "_attn_implementation", "")).startswith(OURS):
            configs[id(config)] = config
            if hasattr(module, ENCODING):
                raise InputError(
                    f"{type(body).__name__} has an encoding that set_encoding put in: its "
                    f"attention can be run and trained, not read."
                )
    chosen = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation_internal = _readable(body, config)
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = chosen[key]


def _readable(body: nn.Module, config: Any) -> str:
    """Return the attention that computes all of the scores and builds the smallest matrices."""
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    return "sdpa" if getattr(body, "_supports_sdpa", False) and not capped else "eager"
