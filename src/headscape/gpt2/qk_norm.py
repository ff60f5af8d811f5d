"""The RMS norm of queries and keys, before or after their rotation.

    x / sqrt(mean(x^2) + eps) * weight        the mean over a head's dims, or over all heads' dims

Before: Qwen 3, EXAONE 4, Gemma 3 (whose stored weight is ours minus 1), OLMo 3 (over all heads).
After: Llama 4 and nanochat (no weight), Hunyuan and GRAPE (a weight). Without a weight the norm
commutes with a rotation. LayerNorm (Cohere) and L2 norm with a scale (x-transformers) are absent.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscape.encodings import Encoding
from headscape.errors import InputError
from headscape.gpt2.model_config import ModelConfig


class QKNorm(nn.Module):
    """An RMS norm over the dims of a head, or of all heads together."""

    def __init__(
        self, heads: int, head_dim: int, *, over: str, epsilon: float, weight: bool
    ) -> None:
        super().__init__()
        self.jointly = over == "all"
        self.epsilon = epsilon
        shape = (heads if self.jointly else 1, 1, head_dim)
        self.weight = nn.Parameter(torch.ones(shape)) if weight else None

    def forward(self, x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b h t e"]:
        """Return x normed."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        size = wide.square().mean(dim=(1, 3) if self.jointly else 3, keepdim=True)
        normed = (wide * (size + self.epsilon).rsqrt()).to(x.dtype)
        if self.weight is None:
            return normed
        if self.weight.shape[-1] != x.shape[-1]:
            raise InputError(
                f"qk_norm='after' has weights for {self.weight.shape[-1]} dims, but the encoding "
                f"makes queries and keys {x.shape[-1]} wide: use qk_norm='before'."
            )
        return normed * self.weight


def qk_norm(config: ModelConfig, encoding: Encoding) -> nn.Module:
    """Return the norm of a layer with this encoding; the identity where it has none."""
    everywhere = config.qk_norm_layers == "all"
    if config.qk_norm == "none" or not (everywhere or encoding.rotates):
        return nn.Identity()
    return QKNorm(
        config.heads,
        config.head_dim,
        over=config.qk_norm_over,
        epsilon=config.norm_epsilon,
        weight=config.qk_norm_weight,
    )
