import json

import numpy as np
import pytest

from figures.synthetic import alibi, cable, causal, scores, softmax
from headscape.arrays.context import context_dependence
from headscape.arrays.measures import (
    Measures,
    effective_reach,
    head_similarity,
    measure,
    shift_invariance,
)


def test_toeplitz_is_exactly_shift_invariant():
    assert (shift_invariance(alibi(12, 64)) == 1.0).all()
    table = np.random.default_rng(0).normal(size=64).astype(np.float32)
    places = np.arange(64)
    assert shift_invariance(causal(table[None, np.abs(places[:, None] - places)]))[0] == 1.0
    assert shift_invariance(np.zeros((1, 8, 8), np.float32))[0] == 1.0


def test_shift_invariance_equals_the_share_of_diagonal_means():
    maps = cable(3, 33, seed=2)
    for head, found in zip(maps.astype(np.float64), shift_invariance(maps), strict=True):
        means = [np.diagonal(head, -d).mean() for d in range(33)]
        left = sum(((np.diagonal(head, -d) - means[d]) ** 2).sum() for d in range(33))
        seen = head[np.tri(33, dtype=bool)]
        assert found == pytest.approx(1 - left / ((seen - seen.mean()) ** 2).sum(), rel=1e-10)
        assert found < 1


def test_a_map_of_keys_alone_is_not_shift_invariant():
    keys = np.random.default_rng(1).normal(size=200)
    assert shift_invariance(causal(np.tile(keys, (1, 200, 1))))[0] < 0.2


def reach_of(row, query):
    distances = np.abs(np.arange(len(row)) - query)
    for distance in range(len(row)):
        if row[distances <= distance].sum() >= 0.9 * row.sum():
            return distance
    raise AssertionError


@pytest.mark.parametrize("look_ahead", [False, True])
def test_reach_equals_counting_outwards(look_ahead):
    final = scores(2, 40, seed=1)
    if look_ahead:
        final = np.random.default_rng(0).normal(size=final.shape)
    weights = softmax(final).astype(np.float64)
    median, mean = effective_reach(weights)
    counted = [[reach_of(row, query) for query, row in enumerate(head)] for head in weights]
    np.testing.assert_array_equal(median, np.median(counted, axis=1))
    np.testing.assert_allclose(mean, np.mean(counted, axis=1), rtol=1e-12)


def test_reach_of_attention_to_oneself_is_zero():
    median, mean = effective_reach(np.eye(9)[None])
    assert (median[0], mean[0]) == (0, 0)


def test_similarity_is_correlation():
    maps = scores(5, 30, seed=3)
    maps[2] = -maps[1]
    maps[4] = causal(np.ones((1, 30, 30)))
    found = head_similarity(maps)
    seen = maps[:4, np.tri(30, dtype=bool)].astype(np.float64)
    np.testing.assert_allclose(found[:4, :4], np.corrcoef(seen), atol=1e-12)
    assert found[1, 2] == pytest.approx(-1)
    np.testing.assert_array_equal(found[4], [0, 0, 0, 0, 1])


def test_measures_as_json_and_as_a_table():
    maps = cable(3, 24, seed=0)
    found = measure(
        layer=5,
        heads=(0, 2, 7),
        quantity="bias",
        maps=maps,
        weights=softmax(maps),
        context=context_dependence(cable(3, 24, seed) for seed in range(16)),
    )
    assert Measures.from_json(found.to_json()) == found
    assert json.loads(found.to_json())["context"]["sequences"] == 16
    lines = found.to_markdown().splitlines()
    assert [line.split("|")[1].strip() for line in lines] == ["head", "---:", "1", "3", "8"]
    assert f"{found.context.heads[1]:.3g}" in lines[3]
    assert len({line.count("|") for line in lines}) == 1


def test_a_table_without_weights_or_sequences():
    found = measure(layer=0, heads=(0,), quantity="final", maps=alibi(1, 8))
    assert found.rows() == (["head", "shift-invariance"], [["1", "1"]])
    assert Measures.from_json(found.to_json()) == found
