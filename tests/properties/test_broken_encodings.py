"""Broken encodings, each with exactly the properties that it must violate.

Where a mistake violates several properties (a leak from the future also changes a prefix when the
text grows), all of them are listed.
"""
# ruff: noqa: ARG002 - an override takes what the interface hands it

from dataclasses import replace
from itertools import count

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from headscape.bias import Bias, Pairwise, Sheared, Slope, Toeplitz
from headscape.encodings import Encoding, Shape, Stream
from headscape.encodings.alibi import ALiBi, ALiBiConfig, fairseq
from headscape.encodings.base import Config
from headscape.encodings.cable import CABLENW, UnweightedConfig
from headscape.encodings.dapev2 import DAPEv2, DAPEv2Config
from headscape.encodings.deberta import DeBERTa, DeBERTaConfig
from headscape.encodings.fire import FIRE, FIREConfig
from headscape.encodings.grape import GRAPE, GRAPEConfig
from headscape.encodings.kerple import FLOOR, Kerple
from headscape.encodings.path import PaTH, PaTHConfig
from headscape.encodings.rope import RoPE, RoPEConfig
from headscape.encodings.selective_rope import SelectiveRoPE, SelectiveRoPEConfig
from headscape.encodings.shaw import Shaw, ShawConfig
from headscape.encodings.stick_breaking import StickBreaking, StickBreakingConfig
from headscape.properties import PROPERTIES
from headscape.properties.probe import Factory
from headscape.types import Positions
from properties import formulas

HEADS, LENGTH = 12, 19
SEEDS = count()


class Plain(ALiBi):
    """ALiBi built from a shape alone."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, ALiBiConfig())


class OffByOne(Plain):
    """Distance 0 is counted as 1."""

    def bias(self, positions: Positions, *streams: Stream | None) -> Toeplitz:
        right = super().bias(positions)
        step = right.table[:, 1:2] if right.table.shape[1] > 1 else right.table - 1
        return Toeplitz(right.table + step, right.zero)


class WrongSlopes(Plain):
    """Slopes of a different rule than the config's."""

    def bias(self, positions: Positions, *streams: Stream | None) -> Toeplitz:
        right = super().bias(positions)
        slopes = torch.tensor(fairseq(self.shape.heads), dtype=torch.float64)
        return Toeplitz(-slopes[:, None] * torch.arange(right.table.shape[1]), right.zero)


class ForgetsTheOffset(Plain):
    """Counts queries from 0, so decoding reads the first rows."""

    def bias(self, positions: Positions, *streams: Stream | None) -> Toeplitz:
        start = positions.q - positions.q[:, :1] + positions.k[:, :1]
        right = super().bias(positions)
        moved = Positions(start, positions.k)
        return Pairwise(lambda rows, cols: right.block(moved, rows, cols))


class StaleSlice(Plain):
    """Caches the longest row and slices it from the wrong end: off by a constant per row."""

    longest = 0

    def bias(self, positions: Positions, *streams: Stream | None) -> Toeplitz:
        right = super().bias(positions)
        keys = right.table.shape[1]
        self.longest = max(self.longest, keys)
        return Toeplitz(right.table + (self.longest - keys) * right.table[:, :2].sum(), right.zero)


class Leak(CABLENW):
    """Sums are measured from the end of the text, which an earlier query cannot know."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, UnweightedConfig())

    def bias(
        self, positions: Positions, queries: Stream | None = None, keys: Stream | None = None
    ) -> Bias:
        assert queries is not None
        assert keys is not None
        share = keys.total / keys.total[..., -1:]
        return Slope(None, queries.total / keys.total[..., -1:], share)


class SymmetricPadding(DAPEv2):
    """The hidden maps are zero beyond the last key, wherever that is."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, DAPEv2Config(boundary="released"), Plain(shape))


class SeesPadding(DAPEv2):
    """Hides later keys from the convolution, but not other documents' and padding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, DAPEv2Config(), Plain(shape))

    def mix(
        self,
        scores: Float[Tensor, "b h t s"],
        bias: Float[Tensor, "#b h t s"] | None,
        visible: Tensor,
        queries: Tensor | None = None,
    ) -> Float[Tensor, "b h t s"]:
        t, s = scores.shape[-2:]
        past = torch.ones(1, 1, t, s, dtype=torch.bool).tril(s - t)
        return super().mix(scores, bias, past, queries)


class ClampsInForward(Kerple):
    """The authors' way of keeping p and a in range."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, Config())

    def bias(self, positions: Positions, *streams: Stream | None) -> Toeplitz:
        self.raw_p.data.clamp_(min=FLOOR)
        return super().bias(positions)


class KeepsABuffer(Plain):
    """Stores its slopes in every checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.register_buffer("slopes", torch.ones(shape.heads))


class HidesABuffer(Plain):
    """The same with a buffer that checkpoints leave out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.register_buffer("slopes", torch.ones(shape.heads), persistent=False)


class MixesTheBatch(Plain):
    """A norm over the whole batch."""

    mixes = True
    toeplitz = False
    context_dependent = True

    def mix(
        self,
        scores: Float[Tensor, "b h t s"],
        bias: Tensor | None,
        visible: Tensor,
        queries: Tensor | None = None,
    ) -> Float[Tensor, "b h t s"]:
        return super().mix(scores + 0.1 * scores.mean(dim=0, keepdim=True), bias, visible, queries)


class OverClaims(FIRE):
    """Claims that only distances matter, though the query's position does."""

    shift_invariant = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, FIREConfig(length=9.0))


class UnderClaims(Plain):
    """Claims to depend on the tokens, which it does not."""

    context_dependent = True


class RotatesKeysTwice(RoPE):
    """Rotates keys by twice their position."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, RoPEConfig())
        self.shift_invariant = False

    def rotate(self, x: Tensor, at: Tensor, role: str, stream: Stream | None = None) -> Tensor:
        return super().rotate(x, 2 * at if role == "key" else at, role, stream)


class RandomConstant(Plain):
    """Draws a constant when it is built and does not store it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.factor = 1 + torch.rand(1, generator=torch.Generator().manual_seed(next(SEEDS))).item()

    def bias(self, positions: Positions, *streams: Stream | None) -> Toeplitz:
        right = super().bias(positions)
        return Toeplitz(right.table * self.factor, right.zero)


class UnflaggedBias(Plain):
    """Adds a bias without saying so."""

    adds_bias = False


class UnflaggedMix(Plain):
    """Changes the scores without saying so, so fused paths leave it out."""

    def mix(
        self,
        scores: Float[Tensor, "b h t s"],
        bias: Tensor | None,
        visible: Tensor,
        queries: Tensor | None = None,
    ) -> Float[Tensor, "b h t s"]:
        return super().mix(1.5 * scores, bias, visible, queries)


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

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, ALiBiConfig(sink=True))
        self.queries = 0

    def rotate(self, x: Tensor, at: Tensor, role: str, stream: Stream | None = None) -> Tensor:
        self.queries = x.shape[2]
        return x

    def sink(self) -> Tensor | None:
        return None if self.queries == 1 else super().sink()


class CountsQueriesFromZero(Shaw):
    """Reads distances as if the first query stood at the first key."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, ShawConfig(left=13))

    def bias(self, positions: Positions, *given: object) -> Pairwise:
        right = super().bias(positions, *given)
        moved = Positions(positions.q - positions.q[:, :1] + positions.k[:, :1], positions.k)
        return Pairwise(lambda rows, cols: right.block(moved, rows, cols))


class PositionToContentBackwards(DeBERTa):
    """Position to content by bucket(j - i), as the paper prints it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, DeBERTaConfig(buckets=8, max_distance=30))

    def bias(self, positions: Positions, *given: object) -> Pairwise:
        right = super().bias(positions, *given)
        whole = Positions(positions.k, positions.k)
        both = DeBERTa.distances(self, whole, positions.k.device)[0]
        row = (self.bucket(-both) + self.config.buckets).clamp(0, 2 * self.config.buckets - 1)
        q_rows, _ = self.projected(given[-1])
        by_query = right.basis[:, :, right.columns(both)]
        return Sheared(right.r, by_query, 0, (right.key[0], q_rows.mT.index_select(2, row)))


class ReadsNoHeads(Plain):
    """Says that it reads queries and keys, and does not."""

    reads_heads = True


class ForgetsOldVectors(GRAPE):
    """Keeps no vectors of older tokens, and takes those of the queries for all keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, GRAPEConfig(gate="path"))

    def bias(self, positions: Positions, queries: Stream, keys: Stream, *_: object) -> Pairwise:
        missing = keys.key.shape[2] - queries.key.shape[2]
        stale = torch.nn.functional.pad(queries.key, (0, 0, missing, 0))
        return super().bias(positions, queries, Stream(key=stale))


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

    def stream(
        self, x: Tensor, carry: Tensor | None = None, starts: Tensor | None = None
    ) -> Stream:
        return super().stream(x, None, starts)


class ConvolvesAcrossDocuments(SelectiveRoPE):
    """The first tokens of a document read the last ones of the document before."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, SelectiveRoPEConfig())

    def stream(
        self, x: Tensor, carry: Tensor | None = None, starts: Tensor | None = None
    ) -> Stream:
        return super().stream(x, carry)


class KeepsOldKeys(PaTH):
    """Leaves the reflections of new tokens out of the keys that a cache has."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, PaTHConfig())

    def stream(
        self, x: Tensor, carry: Tensor | None = None, starts: Tensor | None = None
    ) -> Stream:
        right = super().stream(x, carry, starts)
        if carry is None or right.reflections is None:
            return right
        none = replace(right.reflections, beta=torch.zeros_like(right.reflections.beta))
        return replace(right, reflections=none)


class BreaksFromTheFarEnd(StickBreaking):
    """Gives the farthest key its share first."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, StickBreakingConfig(current="attended", remainder="dropped"))

    def weigh(self, scores: Tensor, visible: Tensor) -> Tensor:
        return super().weigh(scores.flip(-1), visible.flip(-1)).flip(-1)


class UnflaggedWeights(StickBreaking):
    """Makes its own weights without saying so, so fused paths compute a softmax."""

    weighs = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, StickBreakingConfig())


BROKEN: dict[type[Encoding], set[str]] = {
    OffByOne: {"formula"},
    WrongSlopes: {"formula"},
    RotatesKeysTwice: {"formula"},
    ForgetsTheOffset: {"decoding", "formula"},
    StaleSlice: {"no_memory"},
    Leak: {"causality", "prefix", "decoding", "packing", "padding", "formula"},
    SymmetricPadding: {"prefix", "decoding", "packing"},
    SeesPadding: {"packing", "padding"},
    ClampsInForward: {"no_side_effects"},
    KeepsABuffer: {"learned_only"},
    HidesABuffer: {"learned_only"},
    MixesTheBatch: {"rows", "formula"},
    RandomConstant: {"round_trip", "formula"},
    UnflaggedBias: {"flags"},
    UnflaggedMix: {"flags", "agreement", "packing", "padding", "formula"},
    OverClaims: {"claims"},
    UnderClaims: {"claims"},
    WindowOffByOne: {"formula"},
    HeatsTwice: {"formula"},
    ForgetsTheSink: {"decoding"},
    ChunkOffByOne: {"formula"},
    ForgetsTheCarry: {"decoding"},
    ConvolvesAcrossDocuments: {"packing", "padding"},
    KeepsOldKeys: {"decoding"},
    BreaksFromTheFarEnd: {"formula"},
    UnflaggedWeights: {"flags", "agreement", "packing", "padding"},
    CountsQueriesFromZero: {"decoding", "formula"},
    PositionToContentBackwards: {"formula"},
    ReadsNoHeads: {"flags"},
    ForgetsOldVectors: {"decoding", "formula"},
}


def formula(factory: Factory, heads: int, length: int) -> None:
    formulas.formula(factory, heads, length)
    formulas.formula(factory, heads, 2, past=length)


EVERY = {**PROPERTIES, "formula": formula}


def violated_by(kind: type[Encoding]) -> set[str]:
    """The properties that a broken encoding violates."""
    found = set()
    for name, holds in EVERY.items():
        try:
            holds(kind, HEADS, LENGTH)
        except AssertionError:
            found.add(name)
    return found


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_encoding_violates_exactly_its_properties(kind: type[Encoding]) -> None:
    assert violated_by(kind) == BROKEN[kind]


def test_every_property_can_fail() -> None:
    assert EVERY.keys() == set().union(*BROKEN.values())


def test_a_sound_encoding_violates_none() -> None:
    assert violated_by(Plain) == set()
