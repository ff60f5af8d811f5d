"""A measure is one record: registered, it is in every table, file and page of heads.

The part between the lines is all that a new measure needs.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import headscape as hs
from headscape.errors import InputError

# ---
from headscape.measures import MEASURES, Measure, register_measure
from viewer.test_atlas import data_of

OWN_TOKEN = Measure(
    name="own_token",
    label="own token",
    text="Mean w of late queries on their own token, at d = 0.",
    reads="weights",
    compute=lambda layer: layer.weights.at_distance(0),
    main=True,
)
# ---


@pytest.fixture(autouse=True)
def registered():
    register_measure(OWN_TOKEN)
    yield
    del MEASURES["own_token"]


@pytest.fixture
def model() -> hs.Model:
    return hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))


def own_weights(model, tokens, layer: int, head: int) -> float:
    """The definition: the diagonal of the second half of the queries."""
    weights = model.capture(tokens, layers="all").weights(layer=layer, head=head)
    return float(np.diagonal(weights)[len(tokens) // 2 :].mean())


def test_it_is_computed_for_a_capture_and_a_model(model) -> None:
    tokens = list(range(200))
    expected = own_weights(model, tokens[:64], 0, 3)
    of_capture = model.capture(tokens[:64], layers="all").measures()
    assert of_capture.row(0, 3)["own_token"] == pytest.approx(expected, rel=1e-6)
    windows = [tokens[start : start + 64] for start in (0, 64)]
    expected = np.mean([own_weights(model, window, 0, 3) for window in windows])
    of_model = model.measures(tokens, length=64, sequences=2)
    assert of_model.row(0, 3)["own_token"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["capture", "model"])
def test_it_is_in_every_table_and_file(model, kind: str) -> None:
    tokens = list(range(200))
    measures = (
        model.capture(tokens[:64]).measures()
        if kind == "capture"
        else model.measures(tokens, length=64, sequences=2)
    )
    value = measures.rows()[3]["own_token"]
    assert value > 0
    rows = list(csv.DictReader(measures.to_csv().splitlines()))
    assert float(rows[3]["own_token"]) == value
    assert "| own token |" in measures.to_markdown().splitlines()[0]
    assert f'title="{OWN_TOKEN.text}">own token</th>' in measures.to_html()
    read = json.loads(measures.to_json())
    assert read["values"]["own_token"][0][-1][3] == measures.rows()[-9]["own_token"]
    assert read["definitions"]["own_token"]["text"] == OWN_TOKEN.text
    assert type(measures).from_json(measures.to_json()) == measures
    [shown] = [each for each in measures.for_viewer() if each["name"] == "own_token"]
    assert (shown["label"], shown["values"][0][3]) == ("own token", value)


def test_it_is_on_the_page_of_the_atlas(model, tmp_path: Path) -> None:
    hs.atlas(model, tmp_path, list(range(200)), length=64, sequences=2)
    header, _ = data_of((tmp_path / "atlas.html").read_text())
    [shown] = [each for each in header["measures"] if each["name"] == "own_token"]
    assert shown["text"] == OWN_TOKEN.text
    assert "own_token,own_token_low,own_token_high" in (tmp_path / "heads.csv").read_text()


def test_a_file_with_it_opens_where_it_is_not_defined(model) -> None:
    measures = model.measures(list(range(200)), length=64, sequences=2)
    text = measures.to_json()
    del MEASURES["own_token"]
    again = type(measures).from_json(text)
    assert again.row(1, 2)["own_token"] == measures.row(1, 2)["own_token"]
    assert ",own_token," in again.to_csv()
    register_measure(OWN_TOKEN)


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(InputError, match="a measure named own_token is already defined"):
        register_measure(OWN_TOKEN)
