import csv
import json
import re
import sys
from dataclasses import replace
from html import escape

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.measures.context import context_dependence
from headscape.measures.definitions import MEASURES, computed
from headscape.measures.measures import Measures, written
from headscape.measures.sums import LayerSums, sums_of_maps
from plots.synthetic import alibi, cable, capture, causal, scores, softmax


def layer_sums(maps, weights=None, step=None) -> LayerSums:
    """The sums of whole maps, `step` rows at a time."""
    heads, length, _ = maps.shape
    step = step or length
    parts = (slice(at, min(at + step, length)) for at in range(0, length, step))
    blocks = ((p, maps[:, p], None if weights is None else weights[:, p]) for p in parts)
    weighed = weights is not None
    return sums_of_maps(blocks, heads=heads, length=length, causal=False, weighed=weighed)


def position_share(maps, step=None):
    return computed(layer_sums(maps, step=step))["position_share"][0]


def head_similarity(maps, step=None):
    sums = layer_sums(maps, step=step)
    return sums.products.similarity(sums.scores.constant()[0]).numpy()


def effective_reach(weights, step=None):
    found = computed(layer_sums(np.zeros_like(weights), weights, step))
    return found["reach_median"][0], found["reach_mean"][0]


def test_toeplitz_is_exactly_1():
    assert (position_share(alibi(12, 64)) == 1.0).all()
    table = np.random.default_rng(0).normal(size=64).astype(np.float32)
    places = np.arange(64)
    assert position_share(causal(table[None, np.abs(places[:, None] - places)]))[0] == 1.0
    assert np.isnan(position_share(np.zeros((1, 8, 8), np.float32))[0]), "nothing varies"


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


def test_rows_in_blocks_measure_as_whole_maps():
    maps = causal(np.random.default_rng(3).normal(size=(3, 40, 40)))
    weights = softmax(maps)
    whole = position_share(maps), head_similarity(maps), *effective_reach(weights)
    parts = position_share(maps, 7), head_similarity(maps, 7), *effective_reach(weights, 7)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert (position_share(alibi(3, 40), 7) == 1.0).all()


def test_position_share_equals_the_share_of_diagonal_means():
    maps = cable(3, 33, seed=2)
    for head, found in zip(maps.astype(np.float64), position_share(maps), strict=True):
        means = [np.diagonal(head, -d).mean() for d in range(33)]
        left = sum(((np.diagonal(head, -d) - means[d]) ** 2).sum() for d in range(33))
        seen = head[np.tri(33, dtype=bool)]
        assert found == pytest.approx(1 - left / ((seen - seen.mean()) ** 2).sum(), rel=1e-10)
        assert found < 1


def test_distance_explains_little_of_a_map_of_keys_alone():
    keys = np.random.default_rng(1).normal(size=200)
    assert position_share(causal(np.tile(keys, (1, 200, 1))))[0] < 0.2


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
    one = Measures.of(capture(causal(maps)))
    found = [row["most_similar_head"] for row in one.rows()]
    assert found == [2, None, 0]
    assert one.rows()[1]["similarity"] is None
    heads, _, *lines = one.to_markdown().splitlines()
    cells = [cell.strip() for cell in lines[1].split("|")]
    assert cells[[cell.strip() for cell in heads.split("|")].index("most similar head")] == "none"
    row = list(csv.DictReader(one.to_csv(first=1).splitlines()))[1]
    assert row["most_similar_head"] == row["similarity"] == ""
    every = Measures.of(capture(causal(maps * 0)))
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
    assert len({tuple(row) for row in rows}) == 1
    assert list(rows[0])[:5] == [
        "layer", "head", "context_dependence", "context_dependence_low", "context_dependence_high",
    ]  # fmt: skip
    maps = cable(3, 24, seed=0)
    final = maps + causal(np.random.default_rng(0).normal(size=maps.shape))
    median, mean = effective_reach(softmax(final))
    similar = head_similarity(maps)
    np.fill_diagonal(similar, -2)
    context = found.context[5]
    for row in rows:
        head = row["head"]
        assert row["position_share"] == position_share(maps)[head]
        assert (row["reach_median"], row["reach_mean"]) == (median[head], mean[head])
        assert row["most_similar_head"] == similar[head].argmax()
        assert row["similarity"] == similar[head].max()
        if row["layer"] == 5:
            assert row["context_dependence"] == context.heads[head]
            ends = (row["context_dependence_low"], row["context_dependence_high"])
            assert ends == context.head_intervals[head]
        else:
            assert row["context_dependence"] is None
            assert row["context_dependence_low"] is row["context_dependence_high"] is None


@pytest.mark.parametrize("first", [0, 1])
def test_csv_counts_from_first(found, first):
    read = list(csv.DictReader(found.to_csv(first=first).splitlines()))
    assert len(read) == 6
    for row, expected in zip(read, found.rows(), strict=True):
        for name, text in row.items():
            if name == "kinds":
                assert text == "; ".join(expected[name])
                continue
            shift = first if name in ("layer", "head", "most_similar_head") else 0
            value = expected[name]
            assert text == "" if value is None else float(text) == value + shift


def test_json_is_read_back(found):
    assert Measures.from_json(found.to_json()) == found
    assert json.loads(found.to_json())["context"]["5"]["sequences"] == 16


def test_a_saved_file_is_read_back(found, tmp_path):
    path = found.save(tmp_path / "heads.json")
    assert path == tmp_path / "heads.json"
    assert Measures.load(path) == found
    assert found.save(str(path)) == path, "a file of measures is replaced"


def test_a_file_of_something_else_is_neither_read_nor_replaced(found, tmp_path):
    path = tmp_path / "other.json"
    ragged = json.loads(found.to_json())
    ragged["values"] = {key: [[[1.0], [1.0, 2.0]]] for key in ragged["values"]}
    for text in ('{"a": 1}', "[1, 2]", "no JSON", '{"x": 0, "about": 3}'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"other\.json"):
            Measures.load(path)
        with pytest.raises(InputError, match=r"other\.json exists and is not a JSON file of head"):
            found.save(path)
        assert path.read_text() == text
    path.write_text(json.dumps(ragged))
    with pytest.raises(InputError, match=r"other\.json does not contain measures"):
        Measures.load(path)
    with pytest.raises(InputError, match=r"missing\.json"):
        Measures.load(tmp_path / "missing.json")


def test_a_file_of_an_earlier_version_is_refused_in_one_sentence():
    old = {"quantity": "bias", "layers": [{"layer": 0, "heads": [0], "shift": [1.0]}]}
    with pytest.raises(InputError, match=r"shift_invariance in place of position_share: measure"):
        Measures.from_json(json.dumps(old))


def test_markdown_and_html_show_what_was_measured(found):
    lines = found.to_markdown(first=1).splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:]] == ["1", "2", "3"] * 2
    assert f"{found.context[5].heads[1]:.3g}" in lines[6]
    assert len({line.count("|") for line in lines}) == 1
    html = found._repr_html_()
    assert html.count("<tr>") == 7
    assert html.count('<th scope="row">0</th>') == 2
    for column in found.columns():
        assert f'title="{escape(column.text)}">{column.label}<' in html
    assert repr(found) == "<measures of the bias of cable, untrained: 2 layers x 3 heads>"


def test_columns_that_were_not_measured_are_left_out_of_tables():
    made = capture(alibi(1, 8))
    maps = {name: x for name, x in made.maps.items() if name.endswith("bias")}
    found = Measures.of(replace(made, maps=maps))
    header = found.to_markdown().splitlines()[0]
    assert header == "| layer | head | position share | half-life | kinds |"
    assert found.rows()[0]["most_similar_head"] is None
    assert "reach_mean" not in found.rows()[0]
    assert Measures.from_json(found.to_json()) == found


def test_layers_and_refusals(found):
    made = capture(alibi(2, 8), layers=(1, 5))
    assert Measures.of(made, layers=[-1, 1]).layers == (5, 1)
    with pytest.raises(InputError, match="layer 2 is not in this capture"):
        Measures.of(made, layers=[2])
    with pytest.raises(InputError, match="reduced to 4 cells cannot be measured"):
        Measures.of(replace(made, resolution=4))


def test_frame_has_the_rows(found):
    pandas = pytest.importorskip("pandas")
    frame = found.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(found.rows()[0])
    assert frame["layer"].tolist() == [1, 1, 1, 5, 5, 5]
    assert frame["head"].tolist() == [0, 1, 2] * 2
    assert frame["most_similar_head"].tolist() == [x["most_similar_head"] for x in found.rows()]
    assert frame["position_share"].tolist() == [x["position_share"] for x in found.rows()]
    assert frame["context_dependence"].isna().tolist() == [True] * 3 + [False] * 3
    assert frame["context_dependence"].dtype == float


def test_frame_without_pandas_says_what_to_install(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="`pip install pandas`"):
        found.to_frame()


def test_the_viewer_gets_a_value_per_layer_and_head(found):
    given = {each["name"]: each for each in found.for_viewer()}
    assert set(given) <= set(MEASURES)
    share = given["position_share"]
    assert (share["label"], len(share["values"]), len(share["values"][0])) == (
        "position share (position only)",
        2,
        3,
    )
    assert share["values"][1][2] == found.row(5, 2)["position_share"]
    assert given["context_dependence"]["values"][0] == [None] * 3
    json.dumps(found.for_viewer(), allow_nan=False)


def test_texts_of_measures_use_words_and_name_what_was_measured():
    for each in MEASURES.values():
        assert not re.search(r"\b[Swdij]\b", each.text), each.text
        for quantity, word in (
            ("bias", "position only"),
            ("content", "content only"),
            ("weights", "weights"),
        ):
            other = each.measured_on(quantity)
            of_scores = each.compute is not None and each.reads in {"scores", "products"}
            assert other.label == each.label + f" ({word})" * of_scores
            assert (other.text != each.text) == (of_scores and "the scores" in each.text)
            if of_scores and each.name != "closed_form_r2":  # never measured on a capture
                assert "the scores" in each.text
        assert each.measured_on("final") == each


def test_one_or_several_captures_are_written(found):
    assert written({"a": found}, "csv") == found.to_csv(first=1)
    assert written({"a": found}, "md") == found.to_markdown(first=1)
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
    alone = Measures.of(made, context=found.context[5])
    assert alone.context == found.context
    assert alone.rows() == found.rows()[3:]
    with pytest.raises(InputError, match="given for 2 layers"):
        Measures.of(replace(made, layers=(4, 5)), context=found.context[5])
