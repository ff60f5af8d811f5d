import numpy as np
import pytest

from headscape.errors import InputError
from headscape.measures.context import context_dependence
from headscape.measures.interval import tails
from plots.synthetic import alibi, cable


def direct(maps):
    """The definition, entry by entry."""
    seen = np.tri(maps.shape[-1], dtype=bool)
    entries = maps[:, :, seen].astype(np.float64)
    within = ((entries - entries.mean(0)) ** 2).sum((0, 2))
    total = ((entries - entries.mean((0, 2), keepdims=True)) ** 2).sum((0, 2))
    return within / total, within.sum() / total.sum()


def test_equals_the_definition():
    maps = np.stack([3 * cable(4, 30, seed) + alibi(4, 30) for seed in range(20)])
    found = context_dependence(iter(maps))
    heads, overall = direct(maps)
    # Differences are kept in float32: relative error 6e-8 an entry, twice that squared.
    np.testing.assert_allclose(found.heads, heads, rtol=1e-6)
    assert found.overall == pytest.approx(overall, rel=1e-6)
    assert found.sequences == 20


def test_exactly_zero_where_the_maps_are_equal():
    found = context_dependence(alibi(12, 64) for _ in range(16))
    assert found.heads == (0.0,) * 12
    assert found.overall == 0.0
    assert found.interval == (0.0, 0.0)


def test_one_sequence_that_differs_in_one_entry_is_seen():
    maps = np.stack([alibi(2, 16)] * 16)
    maps[7, 1, 5, 2] += 0.5
    found = context_dependence(maps)
    assert found.heads[0] == 0.0
    assert 0 < found.heads[1] < 1
    np.testing.assert_allclose(found.heads, direct(maps)[0], rtol=1e-6)


def test_noise_is_all_input_and_a_constant_has_nothing_to_share():
    rng = np.random.default_rng(0)
    noise = context_dependence(rng.normal(size=(1, 40, 40)).astype(np.float32) for _ in range(16))
    assert noise.overall == pytest.approx(15 / 16, abs=0.01)
    assert context_dependence(np.zeros((1, 8, 8), np.float32) for _ in range(16)).overall == 0.0


def test_interval_is_that_of_a_direct_bootstrap():
    maps = np.stack([cable(2, 20, seed) for seed in range(16)])
    found = context_dependence(maps)
    rng = np.random.default_rng(9)
    drawn = [direct(maps[rng.integers(0, 16, 16)])[0] * 16 / 15 for _ in range(2000)]
    expected = np.percentile(drawn, tails(16), axis=0).T
    # Two bootstraps of 2000 differ in their quantiles by a few percent of the width.
    width = np.diff(expected, axis=1)
    assert (np.abs(np.array(found.head_intervals) - expected) < 0.15 * width).all()
    for (low, high), share in zip(found.head_intervals, found.heads, strict=True):
        assert low < share < high
    assert context_dependence(maps) == found


def test_refusals():
    with pytest.raises(InputError, match="at least 16 sequences, got 15"):
        context_dependence(alibi(1, 8) for _ in range(15))
    with pytest.raises(InputError, match="at least 16 sequences, got 0"):
        context_dependence(iter(()))
    with pytest.raises(InputError, match="one shape"):
        context_dependence(alibi(1, 8 + i % 2) for i in range(16))
