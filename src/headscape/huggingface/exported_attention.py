"""The attention of an exported model.

With eager it is the dense definition, which computes the weights. Otherwise no matrix of
queries x keys is built (exported_mixing.py). Attention functions that ignore biases and masks
(flash attention, vLLM, SGLang) are refused, because the model would run without its positions.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.definition import AttentionCall, scores
from headscape.call.positions import Positions, Visible
from headscape.encodings import Encoding, LayerInput, Side, Stream
from headscape.encodings.context import Role
from headscape.errors import InputError
from headscape.gpt2.qk_norm import QKNorm, score_scale
from headscape.huggingface.exported_cache import cached, keeps_input, pack, unpack
from headscape.huggingface.exported_config import HeadscapeConfig
from headscape.huggingface.exported_mixing import attend
from headscape.huggingface.exported_places import Placed
from headscape.kernels.assemble import assemble, rotated

SERVED = ("eager", "sdpa", "headscape")
"""Accepted values of attn_implementation. The model computes attention itself for all of them."""


class HeadscapeAttention(nn.Module):
    """Multi-head self-attention with a position encoding."""

    def __init__(self, config: HeadscapeConfig, layer_idx: int, *, rotates: bool) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads = config.num_attention_heads
        self.is_causal = True
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)
        head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = score_scale(
            config.score_scale, config.qk_norm_scale, head_dim=head_dim, width=config.hidden_size
        )
        self.q_norm, self.k_norm = (head_norm(config, rotates=rotates) for _ in range(2))

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
        shown = None
        if weights or self.config._attn_implementation == "eager":
            shown = scores(inputs).weights
        mixed = attend(inputs) if shown is None else shown @ inputs.v
        return self.out(mixed.transpose(1, 2).flatten(2)), shown if weights else None

    def _inputs(
        self,
        x: Float[Tensor, "b t d"],
        encoding: Encoding,
        placed: Placed,
        past: Any,
    ) -> AttentionCall:
        at, end = placed.at, placed.old + x.shape[1]
        visible = placed.visible(encoding.window, encoding.chunk)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        norm = self._norm if self.config.qk_norm == "after" else None
        if norm is None:
            q, k = self.q_norm(q), self.k_norm(k)
        queries, keys, beside = self._streams(x, encoding, visible, past)
        k_at = at
        if past is not None:
            if encoding.cacheable_keys:
                k = rotated(encoding, k, Side(at, "key", queries), norm)
            packed, v = past.update(pack(k, at, beside), v, self.layer_idx)
            # A static cache has more places than tokens.
            k, k_at, _ = unpack(packed[:, :, :end], beside)
            v = v[:, :, :end]
        return assemble(
            encoding, q, k, v, Positions(at, k_at), visible, streams=(queries, keys),
            model_scale=self.scaling, norm=norm, cached=past is not None, project=self._project,
        )  # fmt: skip

    def _norm(self, x: Float[Tensor, "b h t e"], role: Role) -> Float[Tensor, "b h t e"]:
        """Return queries or keys normed."""
        normed: Tensor = (self.q_norm if role == "query" else self.k_norm)(x)
        return normed

    def _streams(
        self, x: Float[Tensor, "b t d"], encoding: Encoding, visible: Visible, past: Any
    ) -> tuple[Stream | None, Stream | None, Tensor | None]:
        """Return the streams of new and of all tokens, and what a cache keeps of the new ones."""
        if not encoding.streams:
            return None, None, None
        new = x.shape[1]
        if keeps_input(encoding, x):
            beside = x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)
            old = None if past is None else cached(past, self.layer_idx, beside)
            if old is not None:
                x = torch.cat([old.transpose(1, 2).flatten(2), x], dim=1)
            whole = encoding.stream(LayerInput(x, None, visible.starts(x.shape[1])))
            return None if whole is None else whole.last(new), whole, beside
        like = x.new_empty(x.shape[0], self.heads, 1, dtype=torch.float64)
        old = None if past is None else cached(past, self.layer_idx, like)
        carry = None if old is None else old[:, :, -1]
        stream = encoding.stream(LayerInput(x, carry, visible.starts(new)))
        if stream is None or stream.total is None:
            return stream, stream, None
        total = stream.total
        return stream, Stream(total if old is None else torch.cat([old, total], dim=2)), total

    def _project(
        self, rows: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]:
        """Return queries and keys of any rows of the model's width."""
        q, k, _ = self.qkv(rows).unflatten(-1, (3, self.heads, -1)).movedim(0, 2)
        return q, k


def head_norm(config: HeadscapeConfig, *, rotates: bool) -> nn.Module:
    """Return the norm of queries or keys; the identity in a layer without one."""
    if config.qk_norm == "none" or not (rotates or config.qk_norm_layers == "all"):
        return nn.Identity()
    return QKNorm(
        config.num_attention_heads,
        config.hidden_size // config.num_attention_heads,
        over=config.qk_norm_over,
        epsilon=config.layer_norm_eps,
        weight=config.qk_norm_weight,
        kind=config.qk_norm_kind,
        per_head=config.qk_norm_per_head,
    )


def refuse_backend(name: str | None) -> None:
    """Refuse an attention implementation that would drop the positions."""
    if name not in SERVED:
        raise InputError(
            f"attention implementation {name!r} is not known to keep the bias and the mask of this "
            f"model, which would run without its positions: use attn_implementation='sdpa' or "
            f"'eager'."
        )
