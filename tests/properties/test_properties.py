"""Every property on every encoding: heads that are and are not powers of two, lengths up to four
times the trained one, and chunkings, packings and positions that hypothesis draws."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscape.encodings import ENCODINGS, Encoding
from headscape.encodings.alibi import ALiBi
from headscape.encodings.dape import DAPE
from headscape.errors import InputError
from headscape.kernels import attend
from headscape.properties import PROPERTIES, Result, check
from headscape.properties.agreement import agreement
from headscape.properties.cases import factory
from headscape.properties.claims import claims, distant
from headscape.properties.invariants import decoding, packing, padding
from properties.subjects import HEADS, LENGTHS, QUICK, SUBJECTS

PATHS = attend.paths()
"""Every path there is; one that does not support an encoding has to say so."""

every = pytest.mark.parametrize("name", SUBJECTS)
NOW = [(name, heads) for name in SUBJECTS for heads in QUICK if name in ENCODINGS or heads == 12]
"""What runs by default: encodings with every number of heads, their variants with one."""
few = settings(max_examples=5)
by_property = pytest.mark.parametrize(
    "property_", [name for name in PROPERTIES if name not in ("agreement", "distant")]
)


@by_property
@pytest.mark.parametrize(("name", "heads"), NOW)
def test_property(name: str, heads: int, property_: str) -> None:
    for length in QUICK[heads]:
        PROPERTIES[property_](factory(name), heads, length)


@pytest.mark.slow
@every
@by_property
@pytest.mark.parametrize("heads", HEADS)
def test_property_at_every_length(name: str, heads: int, property_: str) -> None:
    for length in set(LENGTHS) - set(QUICK[heads] if (name, heads) in NOW else ()):
        PROPERTIES[property_](factory(name), heads, length)


@every  # at one size, since it takes a few tokens of two heads from any
def test_distant_positions_are_encoded_or_refused(name: str) -> None:
    distant(factory(name), 2, 3)


same_factory = cache(factory)


@pytest.mark.parametrize("path", PATHS)
@every  # the paths of an encoding run in a row and share what the reference computes
def test_every_path_agrees_with_the_reference(name: str, path: str) -> None:
    for heads, length in ((1, 1), (8, 2), (25, 7), (12, 65)):
        for dtype in (torch.float64, torch.float32):
            agreement(same_factory(name), heads, length, path, dtype)


@every
@few
@given(st.lists(st.integers(1, 12), min_size=1, max_size=9))
def test_decoding_in_any_chunks(name: str, chunks: list[int]) -> None:
    decoding(factory(name), 3, sum(chunks), chunks)


@every
@few
@given(st.integers(1, 40), st.data())
def test_packing_at_any_cut(name: str, length: int, data: st.DataObject) -> None:
    packing(factory(name), 3, length, data.draw(st.integers(0, length)))


@every
@few
@given(st.integers(1, 20), st.integers(1, 20))
def test_any_padding(name: str, length: int, pads: int) -> None:
    padding(factory(name), 3, length, pads)


@every
@few
@given(st.lists(st.integers(1, 5), min_size=7, max_size=30), st.integers(1, 60))
def test_claims_at_any_positions(name: str, gaps: list[int], shift: int) -> None:
    claims(factory(name), 3, len(gaps), shift, gaps)


@pytest.mark.parametrize("subject", ["fire", ALiBi, DAPE])
def test_check_returns_a_result_per_property(subject: str | type[Encoding]) -> None:
    results = check(subject, sizes=[(2, 7)])
    assert [result.property for result in results] == list(PROPERTIES)
    assert all(result.passed for result in results), [str(result) for result in results]
    assert all(result.detail.endswith(".") for result in results)


class Unstable(ALiBi):
    """Raises beyond three tokens."""

    def rotate(self, x: torch.Tensor, *_: object) -> torch.Tensor:
        if x.shape[2] > 3:
            raise RuntimeError("too long")
        return x


def test_check_reports_where_an_encoding_fails() -> None:
    (result,) = check(Unstable, properties=["causality"], sizes=[(2, 3), (4, 5)])
    assert result == Result(
        "causality",
        passed=False,
        detail="with 4 heads and 5 tokens, it raises RuntimeError('too long').",
    )
    assert str(result).startswith("FAILED  causality: ")


def test_check_passes_fields_on_and_refuses_what_it_cannot_check() -> None:
    with pytest.raises(InputError, match="buckets must be a multiple of 4, got 3"):
        check("t5", properties=["flags"], buckets=3)
    with pytest.raises(InputError, match="unknown property 'causal': there are causality"):
        check("t5", properties=["causal"])
    with pytest.raises(InputError, match="unknown encoding 'alib'"):
        check("alib")
    with pytest.raises(InputError, match="name or the class of an encoding, got 3"):
        check(3)
