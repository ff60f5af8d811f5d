"""One layer of GPT-2: attention with a position encoding, and a perceptron.

`Attention.inputs` returns all inputs of attention, with or without a cache; `Attention.output`
computes attention from them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.definition import AttentionCall
from headscape.call.positions import ALL, Positions, Visible
from headscape.encodings import Encoding, LayerInput, Side, Stream
from headscape.encodings.context import Role
from headscape.errors import InputError
from headscape.gpt2.cache import Cache
from headscape.gpt2.model_config import ModelConfig
from headscape.gpt2.qk_norm import qk_norm, score_scale
from headscape.kernels import attend
from headscape.kernels.assemble import assemble, rotated

Watch = Callable[[int, AttentionCall], None]
"""Called in every layer with its index and the inputs of its attention."""


class Attention(nn.Module):
    """Multi-head self-attention with a position encoding."""

    def __init__(self, config: ModelConfig, layer: int, encoding: Encoding) -> None:
        super().__init__()
        self.layer = layer
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.encoding = encoding
        self.q_norm, self.k_norm = (qk_norm(config, encoding) for _ in range(2))
        self.norm_after = config.qk_norm == "after"
        given = config.qk_norm_scale
        self.scale = score_scale(config.scale, given, head_dim=config.head_dim, width=config.width)
        if encoding.content_scale is not None and (given or config.scale != "head_dim"):
            name = "qk_norm_scale" if given else "scale"
            raise InputError(
                f"{encoding.title} has its own factor of q.k, but the model has "
                f"{name}={getattr(config, name)!r}: leave one of them out."
            )

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        positions: Positions,
        visible: Visible,
        cache: Cache | None,
        path: attend.Path,
        watch: Watch | None,
    ) -> Float[Tensor, "b t d"]:
        """Return the attention output of each token."""
        inputs = self.inputs(x, positions, visible, cache, path, watched=watch is not None)
        if watch is not None:
            watch(self.layer, inputs)
        return self.output(inputs, path)

    def inputs(
        self,
        x: Float[Tensor, "b t d"],
        positions: Positions,
        visible: Visible,
        cache: Cache | None = None,
        path: attend.Path = "auto",
        *,
        watched: bool = False,
    ) -> AttentionCall:
        """Return all inputs of this layer's attention, for normed input `x`."""
        encoding = self.encoding
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        if not self.norm_after:
            q, k = self.q_norm(q), self.k_norm(k)
        norm = self._norm if self.norm_after else None
        if cache is None:
            stream = encoding.stream(LayerInput(x, starts=visible.starts(x.shape[1])))
            return assemble(
                encoding, q, k, v, positions, visible, streams=(stream, stream),
                model_scale=self.scale, norm=norm, project=self._project, observed=watched,
            )  # fmt: skip
        stream = encoding.stream(LayerInput(x, cache.carry(self.layer), visible.starts(x.shape[1])))
        first, reach = 0, encoding.reach
        if reach is not None:
            shown = replace(visible, window=encoding.window, chunk=encoding.chunk)
            first = cache.first(self.layer, reach, positions, shown)
            positions = positions.block(ALL, slice(first, None))
            visible = visible.block(ALL, slice(first, None))
        if encoding.cacheable_keys:
            k = rotated(encoding, k, Side(positions.q, "key", stream), norm)
        whole = cache.extend(self.layer, k, v, stream, reach, first)
        keys = None if stream is None else Stream(whole.total, key=whole.vector)
        # One new token, on the only path that can take its row of the bias from the cache.
        one = x.shape[1] == 1 and visible.q_group is None and path in {"auto", "decode"}
        row = None
        if cache.counted and one and reach is None and not watched:
            row = partial(cache.bias, self.layer, encoding, q.dtype)
        else:
            cache.forget(self.layer)
        return assemble(
            encoding, q, whole.k, whole.v, positions, visible, streams=(stream, keys),
            model_scale=self.scale, norm=norm, cached=True, project=self._project,
            kept=cache.kept.setdefault(self.layer, {}), bias_of=row,
        )  # fmt: skip

    def output(self, inputs: AttentionCall, path: attend.Path) -> Float[Tensor, "b t d"]:
        """Attend, and project the heads back to the model's width."""
        mixed = attend.run(inputs, path).transpose(1, 2).flatten(2)
        out: Tensor = self.out(mixed)
        return out

    def _project(
        self, rows: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]:
        """Return queries and keys of any rows of the model's width."""
        q, k, _ = self.qkv(rows).unflatten(-1, (3, self.heads, -1)).movedim(0, 2)
        return q, k

    def _norm(self, x: Float[Tensor, "b h t e"], role: Role) -> Float[Tensor, "b h t e"]:
        """Return queries or keys normed."""
        normed: Tensor = (self.q_norm if role == "query" else self.k_norm)(x)
        return normed


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and a residual."""

    def __init__(self, config: ModelConfig, layer: int, encoding: Encoding) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.attention = Attention(config, layer, encoding)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Float[Tensor, "b t d"], *rest: Any) -> Float[Tensor, "b t d"]:
        """Return the output of the layer; the other arguments are those of its attention."""
        return self.finish(x, self.attention(self.norm1(x), *rest))

    def finish(
        self, x: Float[Tensor, "b t d"], attended: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b t d"]:
        """Add the attention's output, then the perceptron's."""
        x = x + attended
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return out
