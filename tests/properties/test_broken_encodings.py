"""Broken encodings, each with exactly the properties that it must violate.

Where a mistake violates several properties (a leak from the future also changes a prefix when the
text grows), all of them are listed.
"""

import pytest

from headscape.encodings import Encoding
from headscape.errors import InputError
from headscape.properties import PROPERTIES
from headscape.properties.probe import Factory
from properties import formulas
from properties.broken_biases import (
    ClampsInForward,
    DoublesItsTable,
    ForgetsTheOffset,
    HidesABuffer,
    KeepsABuffer,
    Leak,
    MixesTheBatch,
    OffByOne,
    OverClaims,
    Plain,
    RandomConstant,
    RotatesKeysTwice,
    SeesPadding,
    ShortRotation,
    ShortTable,
    StaleSlice,
    SymmetricPadding,
    UnderClaims,
    UnflaggedBias,
    WrongSlopes,
)
from properties.broken_shaping import (
    BreaksFromTheFarEnd,
    ChunkOffByOne,
    ConvolvesAcrossDocuments,
    CountsQueriesFromZero,
    ForgetsOldVectors,
    ForgetsTheCarry,
    ForgetsTheSink,
    HeatsTwice,
    KeepsOldKeys,
    PositionToContentBackwards,
    UnflaggedWeights,
    WindowOffByOne,
)

HEADS, LENGTH = 12, 19

BROKEN: dict[type[Encoding], set[str]] = {
    OffByOne: {"formula"},
    WrongSlopes: {"formula"},
    ShortTable: {"distant"},
    ShortRotation: {"distant"},
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
    DoublesItsTable: {"agreement", "formula", "packing", "padding"},
    OverClaims: {"claims", "distant"},
    UnderClaims: {"claims"},
    WindowOffByOne: {"formula"},
    HeatsTwice: {"formula"},
    ForgetsTheSink: {"decoding"},
    ChunkOffByOne: {"formula"},
    ForgetsTheCarry: {"decoding"},
    ConvolvesAcrossDocuments: {"packing", "padding"},
    KeepsOldKeys: {"decoding"},
    BreaksFromTheFarEnd: {"formula"},
    UnflaggedWeights: {"flags"},
    CountsQueriesFromZero: {"decoding", "formula"},
    PositionToContentBackwards: {"formula"},
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
        except (AssertionError, InputError):
            found.add(name)
    return found


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_encoding_violates_exactly_its_properties(kind: type[Encoding]) -> None:
    assert violated_by(kind) == BROKEN[kind]


def test_every_property_can_fail() -> None:
    assert EVERY.keys() == set().union(*BROKEN.values())


def test_a_sound_encoding_violates_none() -> None:
    assert violated_by(Plain) == set()
