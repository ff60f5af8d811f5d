"""DeBERTa: content to position and position to content (He et al. 2021, arXiv:2006.03654).

    S_ij = (q_i . k_j + q_i . K_r[b] + k_j . Q_r[b]) / sqrt(3 e)      b = n + bucket(i - j)

as v2 and v3 compute it. Both terms read the same b; the paper writes delta(j, i) for the second,
which is not what runs. 3 is one more than the number of terms, so with one of them it is 2.

    bucket(d) = d                                                       for |d| <= m
              = sign(d) (ceil(ln(|d|/m) / ln((M-1)/m) (m - 1)) + m)     beyond, m = floor(n/2)

with n buckets a side and M the largest distance; b is clipped to 0 .. 2n - 1. DeBERTa v1, and v2 if
its position_buckets is -1, have no buckets (bucketing="none"): bucket(d) = d. K_r and Q_r are
projections of 2n learned rows of the model's width: through projections of their own, or with
share_att_key (v3) through the layer's own key and query projections, bias included. v3 normalises
the rows by a LayerNorm (`norm`) and has one set for all layers (a model's `share_encoding`).

The published models are bidirectional; under a causal mask the same formula is used.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.call.bias import RelativeCurves
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext, QueriesAndKeys
from headscape.errors import InputError, at_least


@dataclass(frozen=True, kw_only=True)
class DeBERTaConfig(Config):
    """Options of DeBERTa."""

    buckets: int = 256
    """n, distances and groups of distances a side; position_buckets in published configs."""
    max_distance: int = 512
    """M, where the last bucket begins; max_relative_positions in published configs."""
    bucketing: Literal["log", "none"] = "log"
    """Group distances above buckets / 2, or give each its own row and leave max_distance unused."""
    terms: Literal["both", "c2p", "p2c"] = "both"
    """Content to position, position to content, or both."""
    share_att_key: bool = False
    """Project the rows by the layer's own key and query projections."""
    norm: bool = False
    """Normalise the rows by a LayerNorm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, buckets=self.buckets)
        if self.bucketing == "none":
            return
        at_least(2, buckets=self.buckets)
        if self.max_distance - 1 <= self.buckets // 2:
            raise InputError(
                f"max_distance must be above buckets / 2 + 1 = {self.buckets // 2 + 1}, got "
                f"{self.max_distance}."
            )


class DeBERTa(Encoding):
    """Disentangled attention."""

    title = "DeBERTa"
    paper = "He et al. 2021, arXiv:2006.03654"
    formula = "S = (q_i.k_j + q_i.K_r[b(i-j)] + k_j.Q_r[b(i-j)]) / sqrt(3e)"
    published = (
        {
            "rel_embeddings.weight": "rows",
            "LayerNorm.weight": "row_norm.weight",
            "LayerNorm.bias": "row_norm.bias",
            "pos_key_proj.weight": "key.weight",
            "pos_key_proj.bias": "key.bias",
            "pos_query_proj.weight": "query.weight",
            "pos_query_proj.bias": "query.bias",
        },
    )
    toeplitz = False
    context_dependent = True
    config: DeBERTaConfig

    def __init__(self, shape: Shape, config: DeBERTaConfig) -> None:
        super().__init__(shape, config)
        self.rows = nn.Parameter(torch.randn(2 * config.buckets, shape.width) * 0.02)
        self.row_norm = nn.LayerNorm(shape.width, eps=1e-7) if config.norm else None
        wide, own = shape.heads * shape.head_dim, not config.share_att_key
        self.key = nn.Linear(shape.width, wide) if own and config.terms != "p2c" else None
        self.query = nn.Linear(shape.width, wide) if own and config.terms != "c2p" else None

    @property
    def content_scale(self) -> float:
        """1/sqrt(e times the number of terms, q.k included)."""
        terms = 3 if self.config.terms == "both" else 2
        return 1 / math.sqrt(terms * self.shape.head_dim)

    def bias(self, layer: LayerContext) -> RelativeCurves:
        """Return content to position by query and position to content by key, both scaled."""
        heads = self.need_heads(layer)
        distance, _ = self.distances(layer.positions, self.rows.device)
        # All distances from `far` on share one row, and a basis continues with its last column.
        far = self.config.buckets if self.config.bucketing == "none" else self.config.max_distance
        distance = distance[distance.abs() <= far]
        zero = -int(distance[0])
        row = (self.bucket(distance) + self.config.buckets).clamp(0, 2 * self.config.buckets - 1)
        q_rows, k_rows = (x.mT for x in heads.keep("rows", 0, lambda _: self.projected(heads)))
        by_query = heads.scale * heads.q, k_rows
        by_key = heads.scale * heads.keys(), q_rows
        if self.config.terms == "p2c":
            nothing = heads.q.new_zeros(1, *heads.q.shape[1:3], 1)
            by_query = nothing, k_rows.new_zeros(1, 1, k_rows.shape[2])
        return RelativeCurves(*by_query, zero, None if self.config.terms == "c2p" else by_key, row)

    def projected(
        self, heads: QueriesAndKeys
    ) -> tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]:
        """Return Q_r and K_r; of a term that is left out, the other's."""
        rows = self.rows if self.row_norm is None else self.row_norm(self.rows)
        if self.config.share_att_key:
            if heads.project is None:
                raise InputError(
                    "DeBERTa with share_att_key projects its rows by the layer's own projections: "
                    "use it in a model, or set share_att_key to false."
                )
            return heads.project(rows)
        q, k = (
            linear(rows).unflatten(-1, (self.shape.heads, -1)).transpose(0, 1)
            for linear in (self.query or self.key, self.key or self.query)
            if linear is not None
        )
        return q, k

    def bucket(self, distance: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Return the bucket of every distance, odd in the distance."""
        if self.config.bucketing == "none":
            return distance
        near = self.config.buckets // 2
        far = distance.abs().clamp(min=near).double()
        spread = (far / near).log() / math.log((self.config.max_distance - 1) / near)
        beyond = (spread * (near - 1)).ceil().long() + near
        return torch.where(distance.abs() <= near, distance, distance.sign() * beyond)
