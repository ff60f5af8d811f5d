"""The attention of an exported model.

With sdpa, an encoding that only rotates or adds a bias goes through transformers' attention
function, which receives the bias as `position_bias`. An encoding that acts on scores in a different
way always uses the dense definition. Attention functions that ignore biases and masks (flash
attention, vLLM, SGLang) are refused, because the model would run without its positions.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headscape.attention.reference import AttentionInputs, scores
from headscape.bias import dense
from headscape.encodings import Encoding, Stream
from headscape.errors import InputError
from headscape.huggingface.exported_cache import last_sum, pack, unpack
from headscape.huggingface.exported_config import HeadscapeConfig
from headscape.huggingface.exported_places import Placed
from headscape.types import Positions

SERVED = ("eager", "sdpa")
"""Attention implementations that keep biases and masks."""


class HeadscapeAttention(nn.Module):
    """Multi-head self-attention with a position encoding."""

    def __init__(self, config: HeadscapeConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads = config.num_attention_heads
        self.is_causal = True
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)
        head_dim = config.hidden_size // config.num_attention_heads
        sizes = {"head_dim": head_dim, "width": config.hidden_size, "one": 1}
        self.scaling = 1 / math.sqrt(sizes[config.score_scale])

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        encoding: Encoding,
        placed: Placed,
        past: Any,
        *,
        weights: bool,
    ) -> tuple[Float[Tensor, "b t d"], Tensor | None]:
        """Return what each token takes from those it sees, and the weights if asked for."""
        inputs = self._inputs(x, encoding, placed, past)
        if weights or self.config._attn_implementation == "eager" or not _adds(inputs):
            found = scores(inputs)
            mixed, shown = (found.weights @ inputs.v).transpose(1, 2), found.weights
        else:
            mixed, shown = self._through_interface(inputs), None
        return self.out(mixed.flatten(2)), shown if weights else None

    def _inputs(
        self,
        x: Float[Tensor, "b t d"],
        encoding: Encoding,
        placed: Placed,
        past: Any,
    ) -> AttentionInputs:
        at = placed.at
        raw_q, raw_k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        q = encoding.rotate(raw_q, at, "query")
        carry = last_sum(past, self.layer_idx) if encoding.streams and past is not None else None
        stream = encoding.stream(x, carry)
        total = None if stream is None else stream.total
        k, k_at = raw_k, at
        if encoding.cacheable_keys or past is None:
            k = encoding.rotate(k, at, "key")
        if past is not None:
            packed, v = past.update(pack(k, at, total), v, self.layer_idx)
            k, k_at, sums = unpack(packed, sums=total is not None)
            if total is not None and sums is not None:
                # Bits have no gradient, so the new sums are those that were computed.
                end = placed.old + x.shape[1]
                total = torch.cat([sums[..., : placed.old], total, sums[..., end:]], dim=-1)
            if not encoding.cacheable_keys:
                k = encoding.rotate(k, k_at, "key")
        positions = Positions(at, k_at)
        return AttentionInputs(
            q,
            k,
            v,
            encoding,
            encoding.bias(positions, stream, None if total is None else Stream(total)),
            positions,
            placed.visible(k.shape[2], encoding.window),
            self.scaling,
            temperature=encoding.temperature(at),
            softcap=encoding.softcap,
            sink=encoding.sink(),
        )

    def _through_interface(self, inputs: AttentionInputs) -> Float[Tensor, "b t h ev"]:
        """Return attention by the function that the config names."""
        name = self.config._attn_implementation
        seen = inputs.visible.dense(inputs.positions)
        # Padding sees nothing, and a softmax over nothing is not a number: let it see everything.
        seen = seen | ~seen.any(dim=-1, keepdim=True)
        bias = None
        if inputs.bias is not None:
            bias = dense(inputs.bias, inputs.positions).to(inputs.q.dtype)
        run = ALL_ATTENTION_FUNCTIONS.get_interface(name, None)
        mixed, _ = run(
            self,
            inputs.q,
            inputs.k,
            inputs.v,
            seen,
            scaling=inputs.scale,
            position_bias=bias,
            is_causal=False,
        )
        out: Tensor = mixed
        return out


def _adds(inputs: AttentionInputs) -> bool:
    """Whether scores are only q.k and a bias, as transformers' attention functions compute them."""
    plain = not (inputs.encoding.mixes or inputs.bends)
    return plain and inputs.sink is None


def refuse_backend(name: str | None) -> None:
    """Refuse an attention implementation that would drop the positions."""
    if name not in SERVED:
        raise InputError(
            f"attention implementation {name!r} ignores the additive bias and the mask of this "
            f"model, which would run without its positions: use "
            f"attn_implementation='sdpa' or 'eager'."
        )
