"""Encodings with one mistake each in their bias, rotation, mixing or claims."""
# ruff: noqa: ARG002 - an override takes what the interface hands it

from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from headscape.call.bias import Bias, Pairwise, Slope, Toeplitz
from headscape.call.mixing import KeyConvolution, Mixing, Rows
from headscape.call.positions import Positions, Turn
from headscape.encodings import LayerContext, Shape, Side
from headscape.encodings.alibi import ALiBi, ALiBiConfig, fairseq
from headscape.encodings.base import Config
from headscape.encodings.cable import CABLENW, UnweightedConfig
from headscape.encodings.dapev2 import DAPEv2, DAPEv2Config
from headscape.encodings.fire import FIRE, FIREConfig
from headscape.encodings.kerple import FLOOR, Kerple
from headscape.encodings.rope import RoPE, RoPEConfig

SEEDS = count()


class Plain(ALiBi):
    """ALiBi built from a shape alone."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, ALiBiConfig())


class OffByOne(Plain):
    """Distance 0 is counted as 1."""

    def bias(self, layer: LayerContext) -> Toeplitz:
        right = super().bias(layer)
        step = right.table[:, 1:2] if right.table.shape[1] > 1 else right.table - 1
        return Toeplitz(right.table + step, right.zero)


class ShortTable(Plain):
    """A table of fixed length, whose last value every larger distance would get."""

    def bias(self, layer: LayerContext) -> Toeplitz:
        right = super().bias(layer)
        return Toeplitz(right.table[:, :8192], right.zero)


class ShortRotation(RoPE):
    """Angles from a table of fixed length, whose last row every larger position gets."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, RoPEConfig())

    def turn(self, side: Side) -> Turn:
        return super().turn(replace(side, at=side.at.clamp(max=4095)))


class WrongSlopes(Plain):
    """Slopes of a different rule than the config's."""

    def bias(self, layer: LayerContext) -> Toeplitz:
        right = super().bias(layer)
        slopes = torch.tensor(fairseq(self.shape.heads), dtype=torch.float64)
        return Toeplitz(-slopes[:, None] * torch.arange(right.table.shape[1]), right.zero)


class ForgetsTheOffset(Plain):
    """Counts queries from 0, so decoding reads the first rows."""

    def bias(self, layer: LayerContext) -> Toeplitz:
        positions = layer.positions
        start = positions.q - positions.q[:, :1] + positions.k[:, :1]
        right = super().bias(layer)
        moved = Positions(start, positions.k)
        return Pairwise(lambda rows, cols: right.block(moved, rows, cols))


class StaleSlice(Plain):
    """Caches the longest row and slices it from the wrong end: off by a constant per row."""

    longest = 0

    def bias(self, layer: LayerContext) -> Toeplitz:
        right = super().bias(layer)
        keys = right.table.shape[1]
        self.longest = max(self.longest, keys)
        return Toeplitz(right.table + (self.longest - keys) * right.table[:, :2].sum(), right.zero)


class Leak(CABLENW):
    """Sums are measured from the end of the text, which an earlier query cannot know."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, UnweightedConfig())

    def bias(self, layer: LayerContext) -> Bias:
        queries, keys = self.need_streams(layer)
        share = keys.total / keys.total[..., -1:]
        return Slope(None, queries.total / keys.total[..., -1:], share)


class SymmetricPadding(DAPEv2):
    """The hidden maps are zero beyond the last key, wherever that is."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, DAPEv2Config(boundary="released"), Plain(shape))


class _SeesPadding(KeyConvolution):
    def final(self, rows: Rows) -> Tensor:
        t, s = rows.scores.shape[-2:]
        past = torch.ones(1, 1, t, s, dtype=torch.bool).tril(s - t)
        return super().final(replace(rows, visible=past))


class SeesPadding(DAPEv2):
    """Hides later keys from the convolution, but not other documents' and padding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, DAPEv2Config(), Plain(shape))

    def mixing(self, layer: LayerContext) -> Mixing:
        return _SeesPadding(**vars(super().mixing(layer)))


class ClampsInForward(Kerple):
    """The authors' way of keeping p and a in range."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, Config())

    def bias(self, layer: LayerContext) -> Toeplitz:
        self.raw_p.data.clamp_(min=FLOOR)
        return super().bias(layer)


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


class BatchMean:
    """Adds a mean over the whole batch."""

    pointwise = True

    def final(self, rows: Rows) -> Tensor:
        return rows.added + 0.1 * rows.scores.mean(dim=0, keepdim=True)


class MixesTheBatch(Plain):
    """A norm over the whole batch."""

    toeplitz = False
    context_dependent = True

    def mixing(self, layer: LayerContext) -> Mixing:
        return BatchMean()


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

    def turn(self, side: Side) -> Turn:
        return super().turn(replace(side, at=2 * side.at) if side.role == "key" else side)


class RandomConstant(Plain):
    """Draws a constant when it is built and does not store it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.factor = 1 + torch.rand(1, generator=torch.Generator().manual_seed(next(SEEDS))).item()

    def bias(self, layer: LayerContext) -> Toeplitz:
        right = super().bias(layer)
        return Toeplitz(right.table * self.factor, right.zero)


class _Doubled(Toeplitz):
    def block(self, positions: Positions, rows: slice, cols: slice) -> Tensor:
        return 2 * super().block(positions, rows, cols)


class DoublesItsTable(Plain):
    """Returns a table whose blocks are not its entries, which kernels read."""

    def bias(self, layer: LayerContext) -> Toeplitz:
        return _Doubled(**vars(super().bias(layer)))


class UnflaggedBias(Plain):
    """Adds a bias without saying so."""

    adds_bias = False
