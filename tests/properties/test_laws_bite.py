"""Broken encodings, each with the laws it must break and no other.

Where a mistake cannot help breaking several laws (a leak from the future is also a prefix that
changes when the text grows), all of them are listed.
"""
# ruff: noqa: ARG002 - an override takes what the interface hands it

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from headscape.bias import Bias, Pairwise, Slope, Toeplitz
from headscape.encodings import Encoding, Shape, Stream
from headscape.encodings.alibi import ALiBi, ALiBiConfig, fairseq
from headscape.encodings.base import Config
from headscape.encodings.cable import CABLENW, UnweightedConfig
from headscape.encodings.dapev2 import DAPEv2, DAPEv2Config
from headscape.encodings.fire import FIRE, FIREConfig
from headscape.encodings.kerple import FLOOR, Kerple
from headscape.encodings.rope import RoPE, RoPEConfig
from headscape.types import Positions
from properties import laws

HEADS, LENGTH = 12, 19


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
    """Another rule's slopes than the config names."""

    def bias(self, positions: Positions, *streams: Stream | None) -> Toeplitz:
        right = super().bias(positions)
        slopes = torch.tensor(fairseq(self.shape.heads), dtype=torch.float64)
        return Toeplitz(-slopes[:, None] * torch.arange(right.table.shape[1]), right.zero)


class ForgetsTheOffset(Plain):
    """Counts queries from 0, so that decoding reads the first rows."""

    def bias(self, positions: Positions, *streams: Stream | None) -> Toeplitz:
        start = positions.q - positions.q[:, :1] + positions.k[:, :1]
        right = super().bias(positions)
        moved = Positions(start, positions.k)
        return Pairwise(lambda rows, cols: right.block(moved, rows, cols))


class StaleSlice(Plain):
    """Keeps the longest row it has seen and cuts it from the wrong end: off by a row constant."""

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
    """The same, out of the checkpoint's sight but on the module."""

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
    """Says that only distances matter, though the query's position does."""

    shift_invariant = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, FIREConfig(length=9.0))


class UnderClaims(Plain):
    """Says that it reads the tokens, which it does not."""

    context_dependent = True


class TurnsKeysTwice(RoPE):
    """Turns keys by twice their position."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, RoPEConfig())
        self.shift_invariant = False

    def rotate(self, x: Tensor, at: Tensor, role: str) -> Tensor:
        return super().rotate(x, 2 * at if role == "key" else at, role)


BROKEN: dict[type[Encoding], set[str]] = {
    OffByOne: {"formula"},
    WrongSlopes: {"formula"},
    TurnsKeysTwice: {"formula"},
    ForgetsTheOffset: {"decoding", "formula"},
    StaleSlice: {"no_memory"},
    Leak: {"causality", "prefix", "decoding", "packing", "padding", "formula"},
    SymmetricPadding: {"prefix", "decoding", "packing"},
    SeesPadding: {"packing", "padding"},
    ClampsInForward: {"no_side_effects"},
    KeepsABuffer: {"learned_only"},
    HidesABuffer: {"learned_only"},
    MixesTheBatch: {"rows", "formula"},
    OverClaims: {"claims"},
    UnderClaims: {"claims"},
}


def formula(factory: laws.Factory, heads: int, length: int) -> None:
    laws.formula(factory, heads, length)
    laws.formula(factory, heads, 2, past=length)


EVERY = {**laws.LAWS, "formula": formula}


def broken_by(kind: type[Encoding]) -> set[str]:
    """The laws that a broken encoding does not keep."""
    found = set()
    for name, law in EVERY.items():
        try:
            law(kind, HEADS, LENGTH)
        except AssertionError:
            found.add(name)
    return found


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_encoding_breaks_its_law_and_no_other(kind: type[Encoding]) -> None:
    assert broken_by(kind) == BROKEN[kind]


def test_every_law_bites() -> None:
    unproven = EVERY.keys() - set().union(*BROKEN.values())
    assert unproven == {"agreement"}, "a law that nothing broken has failed"


def test_the_sound_one_breaks_none() -> None:
    assert broken_by(Plain) == set()
