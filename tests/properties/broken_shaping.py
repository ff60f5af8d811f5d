"""Encodings with one mistake each in windows, sinks, streams, caches or weights."""
# ruff: noqa: ARG002 - an override takes what the interface hands it

from dataclasses import replace

import torch
from torch import Tensor

from headscape.call.bias import Pairwise, RelativeCurves
from headscape.call.positions import Positions
from headscape.call.weighting import Sticks
from headscape.encodings import LayerContext, LayerInput, Shape, Side, Stream
from headscape.encodings.alibi import ALiBi, ALiBiConfig
from headscape.encodings.deberta import DeBERTa, DeBERTaConfig
from headscape.encodings.grape import GRAPE, GRAPEConfig
from headscape.encodings.path import PaTH, PaTHConfig
from headscape.encodings.selective_rope import SelectiveRoPE, SelectiveRoPEConfig
from headscape.encodings.shaw import Shaw, ShawConfig
from headscape.encodings.stick_breaking import StickBreaking, StickBreakingConfig


class WindowOffByOne(ALiBi):
    """Sees one key too many."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, ALiBiConfig(window=5))

    @property
    def window(self) -> int:
        return 6


class HeatsTwice(ALiBi):
    """Applies its temperature to the queries and to the scores."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, ALiBiConfig(temperature="llama4", temperature_start=4))

    def temperature(self, at: Tensor) -> Tensor:
        once = super().temperature(at)
        assert once is not None
        return once * once


class ForgetsTheSink(ALiBi):
    """Leaves the sink out when it decodes one token."""

    rotates = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, ALiBiConfig(sink=True))
        self.queries = 0

    def rotate(self, x: Tensor, side: Side) -> Tensor:
        self.queries = x.shape[2]
        return x

    def sink(self) -> Tensor | None:
        return None if self.queries == 1 else super().sink()


class CountsQueriesFromZero(Shaw):
    """Reads distances as if the first query stood at the first key."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, ShawConfig(left=13))

    def bias(self, layer: LayerContext) -> Pairwise:
        right, positions = super().bias(layer), layer.positions
        moved = Positions(positions.q - positions.q[:, :1] + positions.k[:, :1], positions.k)
        return Pairwise(lambda rows, cols: right.block(moved, rows, cols))


class PositionToContentBackwards(DeBERTa):
    """Position to content by bucket(j - i), as the paper prints it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, DeBERTaConfig(buckets=8, max_distance=30))

    def bias(self, layer: LayerContext) -> Pairwise:
        right, positions = super().bias(layer), layer.positions
        whole = Positions(positions.k, positions.k)
        both = DeBERTa.distances(self, whole, positions.k.device)[0]
        row = (self.bucket(-both) + self.config.buckets).clamp(0, 2 * self.config.buckets - 1)
        q_rows, _ = self.projected(layer.heads)
        by_query = right.basis[:, :, right.columns(both)]
        return RelativeCurves(right.r, by_query, 0, (right.key[0], q_rows.mT.index_select(2, row)))


class ForgetsOldVectors(GRAPE):
    """Keeps no vectors of older tokens, and takes those of the queries for all keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, GRAPEConfig(gate="path"))

    def bias(self, layer: LayerContext) -> Pairwise:
        queries, keys = self.need_streams(layer)
        missing = keys.key.shape[2] - queries.key.shape[2]
        stale = torch.nn.functional.pad(queries.key, (0, 0, missing, 0))
        return super().bias(replace(layer, keys=Stream(key=stale)))


class ChunkOffByOne(ALiBi):
    """Begins its chunks one position late."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, ALiBiConfig(chunk=5))

    @property
    def chunk(self) -> int:
        return 6


class ForgetsTheCarry(SelectiveRoPE):
    """Starts its sums and its convolution again in every pass over a cache."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, SelectiveRoPEConfig())

    def stream(self, read: LayerInput) -> Stream:
        return super().stream(replace(read, carry=None))


class ConvolvesAcrossDocuments(SelectiveRoPE):
    """The first tokens of a document read the last ones of the document before."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, SelectiveRoPEConfig())

    def stream(self, read: LayerInput) -> Stream:
        return super().stream(replace(read, starts=None))


class KeepsOldKeys(PaTH):
    """Leaves the reflections of new tokens out of the keys that a cache has."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, PaTHConfig())

    def stream(self, read: LayerInput) -> Stream:
        right = super().stream(read)
        if read.carry is None or right.reflections is None:
            return right
        none = replace(right.reflections, beta=torch.zeros_like(right.reflections.beta))
        return replace(right, reflections=none)


class Backwards(Sticks):
    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        return super().weights(scores.flip(-1), visible.flip(-1)).flip(-1)


class BreaksFromTheFarEnd(StickBreaking):
    """Gives the farthest key its share first."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, StickBreakingConfig(current="attended", remainder="dropped"))

    @property
    def weighting(self) -> Sticks:
        return Backwards(**vars(super().weighting))


class UnflaggedWeights(StickBreaking):
    """Makes its own weights and says that it does not."""

    weighs = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, StickBreakingConfig())
