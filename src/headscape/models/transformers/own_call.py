"""The parts of a call that every family with attention of its own computes alike."""

from typing import Any

from torch import Tensor

from headscape.models.transformers.attention_call import ObservedCall
from headscape.models.transformers.mask_reader import split_mask


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Return [b t h e] merged to [b t d] as [b h t e]."""
    return x.reshape(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def own_call(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    bias: Tensor | None,
    unrotated: tuple[Tensor, Tensor] | None = None,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> ObservedCall:
    """Return a call from what a family's forward computes; `mask` as the family writes it."""
    seen, _ = split_mask(mask, q.shape[2], k.shape[2])
    causal = bool(getattr(module, "is_causal", False))
    return ObservedCall(
        module=module, q=q, k=k, v=v, scale=scale, causal=causal, mask=seen, bias=bias,
        unrotated=unrotated, rotation=rotation,
    )  # fmt: skip
