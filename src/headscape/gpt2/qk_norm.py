"""Queries and keys of a layer's input: their norm, before or after rotation, and the factor of q.k.

    rms      x / sqrt(mean(x^2) + eps) * weight      means over a head's dims, or over all heads'
    layer    RMS norm of x - mean(x)
    l2       x / |x| * weight
    clip     y min(1, limit / |y|), y = x * weight

RMS before the rotation: Qwen 3, EXAONE 4, Gemma 3 (whose stored weight is ours minus 1), OLMo 3
(over all heads). After: Llama 4 and nanochat (no weight), Hunyuan and GRAPE (a weight). LayerNorm
before: Cohere, with a weight per head and dim. L2 before: x-transformers, which multiplies q.k by
10 (`qk_norm_scale`), or has a weight per head and dim. RMS and L2 without a weight commute with a
rotation. Inkling 2 clips (limit sqrt(512), a weight per head and dim for queries, none for keys)
and rotates nothing. LayerNorms with a bias (Phi, Persimmon) are absent.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscape.encodings.context import Role
from headscape.encodings.inkling import clipped
from headscape.errors import InputError

SHORTEST = 1e-12
"""The L2 norm divides by at least this, as torch's `normalize` does."""


class QKNorm(nn.Module):
    """A norm over the dims of a head, or of all heads together."""

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        over: str,
        epsilon: float,
        weight: bool,
        kind: str = "rms",
        per_head: bool = False,
        limit: float | None = None,
    ) -> None:
        super().__init__()
        self.jointly = over == "all"
        self.epsilon = epsilon
        self.kind = kind
        self.limit = limit
        shape = (heads if self.jointly or per_head else 1, 1, head_dim)
        self.weight = nn.Parameter(torch.ones(shape)) if weight else None

    def forward(self, x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b h t e"]:
        """Return x normed."""
        if self.weight is not None and self.weight.shape[-1] != x.shape[-1]:
            raise InputError(
                f"qk_norm='after' has weights for {self.weight.shape[-1]} dims, but the encoding "
                f"makes queries and keys {x.shape[-1]} wide: use qk_norm='before'."
            )
        if self.limit is not None:
            return clipped(x if self.weight is None else x * self.weight, self.limit)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        dims = (1, 3) if self.jointly else (3,)
        if self.kind == "layer":
            wide = wide - wide.mean(dim=dims, keepdim=True)
        if self.kind == "l2":
            length = wide.square().sum(dim=dims, keepdim=True).sqrt()
            normed = (wide / length.clamp(min=SHORTEST)).to(x.dtype)
        else:
            size = wide.square().mean(dim=dims, keepdim=True)
            normed = (wide * (size + self.epsilon).rsqrt()).to(x.dtype)
        return normed if self.weight is None else normed * self.weight


def score_scale(scale: str, qk_norm_scale: float | None, *, head_dim: int, width: int) -> float:
    """Return the model's factor of q.k: that of its norm, or 1/sqrt of what `scale` names."""
    if qk_norm_scale is not None:
        return qk_norm_scale
    return 1 / math.sqrt({"head_dim": head_dim, "width": width, "one": 1}[scale])


def qk_norm(config: Any, heads: int, head_dim: int, *, epsilon: float, rotates: bool) -> nn.Module:
    """Return the norm of a layer's queries or keys; the identity where it has none.

    Args:
        config: The config of a GPT-2 or of an exported model: both have the fields `qk_norm...`.
        heads: Number of heads.
        head_dim: Width of a head.
        epsilon: The epsilon of the model's norms.
        rotates: Whether the layer's encoding rotates queries and keys.
    """
    if config.qk_norm == "none" or not (rotates or config.qk_norm_layers == "all"):
        return nn.Identity()
    return QKNorm(
        heads,
        head_dim,
        over=config.qk_norm_over,
        epsilon=epsilon,
        weight=config.qk_norm_weight,
        kind=config.qk_norm_kind,
        per_head=config.qk_norm_per_head,
        limit=config.qk_norm_limit,
    )


class HeadProjections(nn.Module):
    """What the attention of a GPT-2 and of an exported model share: q, k and v of their input."""

    heads: int
    qkv: nn.Linear
    q_norm: nn.Module
    k_norm: nn.Module

    def split(self, x: Float[Tensor, "b t d"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [b h t e] before their norm."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        return q, k, v

    def project(
        self, rows: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]:
        """Return queries and keys of any rows of the model's width."""
        q, k, _ = self.qkv(rows).unflatten(-1, (3, self.heads, -1)).movedim(0, 2)
        return q, k

    def norm(self, x: Float[Tensor, "b h t e"], role: Role) -> Float[Tensor, "b h t e"]:
        """Return queries or keys normed."""
        normed: Tensor = (self.q_norm if role == "query" else self.k_norm)(x)
        return normed
