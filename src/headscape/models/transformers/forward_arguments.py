"""The arguments of an attention module's forward, by name, and how to change them for a probe."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn


def arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a module's forward by name, those of **kwargs among them."""
    signature = inspect.signature(module.forward)
    bound = signature.bind(*args, **kwargs).arguments
    found = {}
    for name, value in bound.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


def neutral(module: nn.Module, given: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments that rotate by nothing; None if there are none."""
    rotation = given.get("position_embeddings")
    if isinstance(rotation, tuple) and len(rotation) == 2:
        cos, sin = rotation
        return {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))}
    if isinstance(rotation, Tensor) and rotation.is_complex():
        return {"position_embeddings": torch.ones_like(rotation)}
    if getattr(module, "position_embeddings_type", None) == "rotary":
        # The Conformers rotate their hidden states, before the projections to q and k.
        cos, sin = given["relative_position_embeddings"]
        still = torch.stack([torch.ones_like(cos), torch.zeros_like(sin)])
        return {"relative_position_embeddings": still}
    positions = given.get("position_ids")
    if isinstance(positions, Tensor) and hasattr(module, "embed_positions"):
        return {"position_ids": torch.zeros_like(positions)}
    return None


def uncached(given: dict[str, Any]) -> dict[str, None]:
    """The arguments that leave the cache alone."""
    return {name: None for name in given if name in {"past_key_values", "layer_past"}}


def crosses(given: dict[str, Any], q: Tensor, k: Tensor) -> bool:
    """Whether keys come from a different sequence than queries."""
    names = ("key_value_states", "encoder_hidden_states")
    return q.shape[2] != k.shape[2] or any(given.get(name) is not None for name in names)
