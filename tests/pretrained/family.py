"""A small model of one architecture with random weights, and what must be recognised in it."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

VOCABULARY = 67
POSITION = ("relative_attention_bias", "position", "wpe", "pos_bias", "rel_pos", "rel_attn")
"""Parts of the names of parameters that start at 0 or close to it."""
DEBERTA = {
    "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8,
    "max_relative_positions": 20,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A class of transformers, its config and what its layers are."""

    model: str
    config: dict[str, Any]
    encodings: tuple[str, ...]
    conventions: dict[str, Any] = field(default_factory=dict)
    """Of the last layer."""
    causal: bool = True
    dtype: torch.dtype = torch.float64
    eager: tuple[str, ...] | None = None
    """What its layers are with eager attention, where that differs."""

    def build(self, **more: Any) -> Any:
        """The model with random weights, the same at every call."""
        kind = getattr(transformers, self.model)
        torch.manual_seed(3)
        model = kind(kind.config_class(**{**self.config, **more})).eval()
        for name, parameter in model.named_parameters():
            # T5's tables and learned positions start at values too small to see a wrong one.
            if not parameter.requires_grad or self.encodings[0] == "sinusoidal":
                continue
            if any(part in name for part in POSITION):
                torch.nn.init.normal_(parameter)
        return model.to(self.dtype)

    def read(self, length: int, batch: int = 1) -> torch.Tensor:
        """What the model reads, of so many tokens or frames."""
        at = torch.Generator().manual_seed(5)
        if "conv_kernel" in self.config:
            length *= self.config.get("squeeze_factor", 1)
            layers = zip(self.config["conv_kernel"], self.config["conv_stride"], strict=True)
            for kernel, stride in reversed(list(layers)):
                length = (length - 1) * stride + kernel
            return torch.randn(batch, length, generator=at, dtype=self.dtype)
        if "feature_projection_input_dim" in self.config:
            features = self.config["feature_projection_input_dim"]
            return torch.randn(batch, length, features, generator=at, dtype=self.dtype)
        return torch.randint(3, VOCABULARY, (batch, length), generator=at)
