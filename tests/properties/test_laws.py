"""Every law on every encoding: heads that are and are not powers of two, lengths up to four times
the trained one, and chunkings, packings and positions as hypothesis draws them."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscape.attention import attend
from properties import laws
from properties.subjects import HEADS, LENGTHS, QUICK, SUBJECTS, factory

PATHS = get_args(attend.Path)
"""Every path there is; one that cannot serve an encoding has to say so."""

every = pytest.mark.parametrize("name", SUBJECTS)
few = settings(max_examples=5)
by_law = pytest.mark.parametrize("law", [name for name in laws.LAWS if name != "agreement"])


@every
@by_law
@pytest.mark.parametrize("heads", HEADS)
def test_law(name: str, heads: int, law: str) -> None:
    for length in QUICK[heads]:
        laws.LAWS[law](factory(name), heads, length)


@pytest.mark.slow
@every
@by_law
@pytest.mark.parametrize("heads", HEADS)
def test_law_at_every_length(name: str, heads: int, law: str) -> None:
    for length in set(LENGTHS) - set(QUICK[heads]):
        laws.LAWS[law](factory(name), heads, length)


@every
@pytest.mark.parametrize("path", PATHS)
def test_every_path_agrees_with_the_reference(name: str, path: str) -> None:
    for heads, length in ((1, 1), (8, 2), (25, 7), (12, 65)):
        for dtype in (torch.float64, torch.float32):
            laws.agreement(factory(name), heads, length, path, dtype)


@every
@few
@given(st.lists(st.integers(1, 12), min_size=1, max_size=9))
def test_decoding_in_any_chunks(name: str, chunks: list[int]) -> None:
    laws.decoding(factory(name), 3, sum(chunks), chunks)


@every
@few
@given(st.integers(1, 40), st.data())
def test_packing_at_any_cut(name: str, length: int, data: st.DataObject) -> None:
    laws.packing(factory(name), 3, length, data.draw(st.integers(0, length)))


@every
@few
@given(st.integers(1, 20), st.integers(1, 20))
def test_any_padding(name: str, length: int, pads: int) -> None:
    laws.padding(factory(name), 3, length, pads)


@every
@few
@given(st.lists(st.integers(1, 5), min_size=7, max_size=30), st.integers(1, 60))
def test_claims_at_any_positions(name: str, gaps: list[int], shift: int) -> None:
    laws.claims(factory(name), 3, len(gaps), shift, gaps)
