import csv
import json
import sys
from dataclasses import replace
from html import escape
from types import ModuleType

import numpy as np
import pytest

from headscape.captures import saved_call
from headscape.errors import InputError
from headscape.measures.context import context_dependence
from headscape.measures.measures import (
    Measures,
    effective_reach,
    head_similarity,
    measure_layer,
    shift_invariance,
    written,
)
from headscape.measures.measures_table import COLUMNS
from plots.synthetic import alibi, cable, capture, causal, scores, softmax


def test_toeplitz_is_exactly_shift_invariant():
    assert (shift_invariance(alibi(12, 64)) == 1.0).all()
    table = np.random.default_rng(0).normal(size=64).astype(np.float32)
    places = np.arange(64)
    assert shift_invariance(causal(table[None, np.abs(places[:, None] - places)]))[0] == 1.0
    assert shift_invariance(np.zeros((1, 8, 8), np.float32))[0] == 1.0


@pytest.mark.parametrize("hidden", [np.nan, np.inf, -np.inf, 0.0])
def test_hidden_entries_of_given_weights_do_not_count(hidden):
    weights = softmax(alibi(3, 12))
    ahead = np.triu(np.ones((12, 12), dtype=bool), 1)
    expected = effective_reach(np.where(ahead, 0.0, weights))
    assert expected[0].min() > 0
    found = effective_reach(np.where(ahead, hidden, weights))
    assert (np.array(found) == np.array(expected)).all()


def test_hidden_entries_of_a_given_capture_do_not_count():
    cap = capture(alibi(3, 12))
    plain = Measures.of(cap)
    ahead = np.triu(np.ones((12, 12), dtype=bool), 1)
    for hidden in (np.nan, 7.0):
        given = {name: np.where(ahead, np.float32(hidden), each) for name, each in cap.maps.items()}
        assert Measures.of(replace(cap, maps=given)) == plain


def test_rows_in_blocks_measure_as_whole_maps(monkeypatch):
    maps = causal(np.random.default_rng(3).normal(size=(3, 40, 40)))
    weights = softmax(maps)
    whole = shift_invariance(maps), head_similarity(maps), *effective_reach(weights)
    monkeypatch.setattr(saved_call, "WHOLE_PAIRS", 3 * 40 * 7)
    parts = shift_invariance(maps), head_similarity(maps), *effective_reach(weights)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert (shift_invariance(alibi(3, 40)) == 1.0).all()


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


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_a_map_of_one_value_has_no_most_similar_head(value):
    maps = np.random.default_rng(0).normal(size=(3, 24, 24)).astype(np.float32)
    maps[1] = value
    maps[:, ~np.tri(24, dtype=bool)] = np.nan
    one = Measures(quantity="bias", layers=(measure_layer(layer=0, heads=(0, 1, 2), maps=maps),))
    found = [row["most_similar_head"] for row in one.rows()]
    assert found == [2, None, 0]
    assert one.rows()[1]["similarity"] is None
    lines = one.to_markdown().splitlines()
    assert [cell.strip() for cell in lines[3].split("|")][4:6] == ["none", ""]
    assert one.to_csv(first=1).splitlines()[2].endswith(",,")
    every = Measures(
        quantity="bias", layers=(measure_layer(layer=0, heads=(0, 1, 2), maps=maps * 0),)
    )
    assert "most similar head" in every.to_markdown()
    assert every.to_html().count("<td>none</td>") == 3


def test_similarity_is_correlation():
    maps = scores(5, 30, seed=3)
    maps[2] = -maps[1]
    maps[4] = causal(np.ones((1, 30, 30)))
    found = head_similarity(maps)
    seen = maps[:4, np.tri(30, dtype=bool)].astype(np.float64)
    np.testing.assert_allclose(found[:4, :4], np.corrcoef(seen), atol=1e-12)
    assert found[1, 2] == pytest.approx(-1)
    np.testing.assert_array_equal(found[4], [0, 0, 0, 0, 1])


@pytest.fixture
def found():
    made = capture(cable(3, 24, seed=0), encoding="cable", layers=(1, 5))
    context = context_dependence(cable(3, 24, seed) for seed in range(16))
    return Measures.of(made, context={5: context})


def test_rows_are_numbers_counted_from_0(found):
    rows = found.rows()
    assert [(row["layer"], row["head"]) for row in rows] == [
        (layer, head) for layer in (1, 5) for head in (0, 1, 2)
    ]
    assert all(list(row) == list(COLUMNS) for row in rows)
    maps = cable(3, 24, seed=0)
    final = maps + causal(np.random.default_rng(0).normal(size=maps.shape))
    median, mean = effective_reach(softmax(final))
    similar = head_similarity(maps)
    np.fill_diagonal(similar, -2)
    context = found.layers[1].context
    for row in rows:
        head = row["head"]
        assert row["shift_invariance"] == shift_invariance(maps)[head]
        assert (row["reach_median"], row["reach_mean"]) == (median[head], mean[head])
        assert row["most_similar_head"] == similar[head].argmax()
        assert row["similarity"] == similar[head].max()
        if row["layer"] == 5:
            assert row["context_dependence"] == context.heads[head]
            assert (row["low"], row["high"]) == context.head_intervals[head]
        else:
            assert row["context_dependence"] is row["low"] is row["high"] is None


@pytest.mark.parametrize("first", [0, 1])
def test_csv_counts_from_first(found, first):
    read = list(csv.DictReader(found.to_csv(first=first).splitlines()))
    assert len(read) == 6
    for row, expected in zip(read, found.rows(), strict=True):
        for name, text in row.items():
            shift = first if name in ("layer", "head", "most_similar_head") else 0
            value = expected[name]
            assert text == "" if value is None else float(text) == value + shift


def test_json_is_read_back(found):
    assert Measures.from_json(found.to_json()) == found
    assert json.loads(found.to_json())["layers"][1]["context"]["sequences"] == 16


def test_markdown_and_html_show_what_was_measured(found):
    lines = found.to_markdown().splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:]] == ["1", "2", "3"] * 2
    assert f"{found.layers[1].context.heads[1]:.3g}" in lines[6]
    assert len({line.count("|") for line in lines}) == 1
    html = found._repr_html_()
    assert html.count("<tr>") == 7
    assert all(f'title="{escape(COLUMNS[name])}"' in html for name in COLUMNS)
    assert repr(found) == "<Measures of bias: 2 layers, 6 heads>"


def test_columns_that_were_not_measured_are_left_out_of_tables():
    made = capture(alibi(1, 8))
    maps = {name: x for name, x in made.maps.items() if name.endswith("bias")}
    found = Measures.of(replace(made, maps=maps))
    assert found.to_markdown().splitlines()[0] == "| layer | head | shift invariance |"
    assert found.rows()[0]["most_similar_head"] is None
    assert Measures.from_json(found.to_json()) == found


def test_layers_and_refusals(found):
    made = capture(alibi(2, 8), layers=(1, 5))
    assert [each.layer for each in Measures.of(made, layers=[-1, 1]).layers] == [5, 1]
    with pytest.raises(InputError, match="layer 2 is not in this capture"):
        Measures.of(made, layers=[2])
    with pytest.raises(InputError, match="reduced to 4 cells cannot be measured"):
        Measures.of(replace(made, resolution=4))


def test_frame_has_the_rows(found, monkeypatch):
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda rows, columns: (rows, columns)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    rows, columns = found.to_frame()
    assert columns == list(COLUMNS)
    assert rows[3:] == found.rows()[3:]
    assert np.isnan([rows[0][name] for name in ("context_dependence", "low", "high")]).all()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="`pip install pandas`"):
        found.to_frame()


def test_one_or_several_captures_are_written(found):
    assert written({"a": found}, "csv") == found.to_csv(first=1)
    assert written({"a": found}, "md") == found.to_markdown()
    assert written({"a": found}, "json") == found.to_json()
    both = list(csv.DictReader(written({"a": found, "b": found}, "csv").splitlines()))
    assert [row["capture"] for row in both] == ["a"] * 6 + ["b"] * 6
    assert [row["head"] for row in both] == ["1", "2", "3"] * 4
    assert written({"a": found, "b": found}, "md").count("## ") == 2
    assert list(json.loads(written({"a": found, "b": found}, "json"))) == ["a", "b"]
    with pytest.raises(InputError, match="cannot be written as 'xls'; choose csv, json or md"):
        written({"a": found}, "xls")


def test_context_of_the_only_layer(found):
    made = capture(cable(3, 24, seed=0), encoding="cable", layers=(5,))
    context = found.layers[1].context
    assert Measures.of(made, context=context).layers == found.layers[1:]
    with pytest.raises(InputError, match="given for 2 layers"):
        Measures.of(replace(made, layers=(4, 5)), context=context)
