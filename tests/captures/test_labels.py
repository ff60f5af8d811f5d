from dataclasses import replace

import pytest

from headscape.captures.labels import default_name, method
from headscape.plots.compare import Difference, SideBySide
from headscape.plots.curves import Curves
from headscape.plots.grid import Grid
from headscape.plots.overview import Overview
from headscape.plots.row import Row
from headscape.plots.training import Training
from plots.synthetic import alibi, cable, capture, scores


@pytest.fixture
def cables():
    return [
        capture(cable(4, 8, seed=0), encoding="cable", layers=(0, 5), step=step, trained=True)
        for step in (300, 1200)
    ]


def test_names_say_encoding_step_layer_head_quantity_and_kind(cables):
    early, late = cables
    assert Grid.of(late, heads=[3]).stem == "cable-step1200-layer6-head4-bias-grid"
    names = [
        Grid.of(early).stem,
        Grid.of(late).stem,
        Grid.of(late, layer=0).stem,
        Grid.of(late, quantity="weights").stem,
        Grid.of(late, heads=[0, 3]).stem,
        Curves.of(late).stem,
        Row.of(late, query=3).stem,
        Row.of(late, query=4).stem,
        Overview.of(late).stem,
        SideBySide.of([early, late], head=1).stem,
        SideBySide.of([early, late], head=2).stem,
        Difference.of(late, early).stem,
        Difference.of(early, late).stem,
        Training.of(cables).stem,
        Grid.of(replace(late, encoding="dapev2+cable")).stem,
    ]
    assert len(set(names)) == len(names)
    assert names[4] == "cable-step1200-layer6-heads1-4-bias-grid"
    assert names[6] == "cable-step1200-layer6-query4-bias-row"
    assert names[9] == "cable-step300-vs-cable-step1200-layer6-head2-bias-compare"
    assert names[13] == "cable-step300-to-1200-layer6-bias-training"
    assert names[14] == "dapev2-cable-step1200-layer6-bias-grid"
    for name in names:
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_two_steps_have_two_titles(cables):
    assert [method(each) for each in cables] == ["cable, step 300", "cable, step 1,200"]
    assert method(capture(alibi(1, 4))) == "alibi, untrained"


def test_quantity_in_the_name_is_the_one_shown():
    made = capture(scores(2, 8, seed=0), encoding="rope")
    assert Grid.of(made).stem == "rope-layer1-final-grid"
    assert default_name("map", made, quantity="bias") == "rope-bias-map"
