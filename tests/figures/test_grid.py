import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from matplotlib.ticker import MaxNLocator

from figures.synthetic import alibi, cable, capture, scores
from headscape.arrays.pyramid import Reducer
from headscape.figures.grid import Grid, shape
from headscape.figures.overview import Overview
from headscape.figures.style import context, save

SVG = "{http://www.w3.org/2000/svg}"
PRINTED = json.loads(Path(__file__).with_name("figure_ticks.json").read_text())["12"]["heads"]


@pytest.fixture(scope="module")
def figure_12(tmp_path_factory):
    """ALiBi at GPT-2 Small's size, read back from its SVG: id of an axes to its texts."""
    stem = tmp_path_factory.mktemp("figures") / "figure-12-alibi"
    save(Grid.of(capture(alibi(12, 512)), 0, "bias").draw(), stem, ["svg"])
    root = ET.parse(stem.with_suffix(".svg")).getroot()  # noqa: S314
    groups = {group.get("id"): group for group in root.iter(f"{SVG}g")}
    return {
        name: [text.text for text in group.iter(f"{SVG}text")]
        for name, group in groups.items()
        if name and re.fullmatch(r"(head|colorbar)-\d+", name)
    }


@pytest.mark.parametrize("head", range(1, 13))
def test_colour_bars_of_figure_12_read_as_printed(figure_12, head):
    drawn = figure_12[f"colorbar-{head}"][::-1]
    assert [float(text.replace("\N{MINUS SIGN}", "-")) for text in drawn] == PRINTED[str(head)]
    assert all(text.startswith("\N{MINUS SIGN}") for text in drawn[1:])
    assert not any("-" in text for text in drawn)


def test_panels_of_figure_12(figure_12):
    for head in range(1, 13):
        texts = figure_12[f"head-{head}"]
        ticks = [text for text in texts if text.isdigit()]
        assert ticks == ["0", "100", "200", "300", "400", "500"] * 2
        assert f"Head {head}" in texts


def test_colour_bar_rule_is_matplotlibs_own_on_a_tall_bar():
    figure = Grid.of(capture(alibi(12, 512)), 0, "bias").draw()
    for axes in _bars(figure):
        rule = axes.yaxis.get_major_locator()
        assert isinstance(rule, MaxNLocator)
        # Intervals for which matplotlib finds room by itself; it never takes more than nine.
        with context():
            assert axes.yaxis.get_tick_space() >= 9


def _panels(figure):
    return [axes for axes in figure.axes if axes.get_gid().startswith("head-")]


def _bars(figure):
    return [axes for axes in figure.axes if axes.get_gid().startswith("colorbar-")]


def test_images_hold_the_maps_and_leave_the_invisible_blank():
    made = capture(cable(12, 48, seed=1))
    figure = Grid.of(made, 0, "bias").draw()
    ahead = ~np.tri(48, dtype=bool)
    for values, axes in zip(made.values(0, "bias"), _panels(figure), strict=True):
        image = axes.images[0].get_array()
        np.testing.assert_array_equal(image.mask, ahead)
        np.testing.assert_array_equal(image.data[~ahead], values[~ahead])
        assert axes.images[0].get_clim() == (np.nanmin(values), np.nanmax(values))
        assert axes.get_ylim() == (47.5, -0.5)
        assert axes.get_xlim() == (-0.5, 47.5)
        assert axes.images[0].cmap(np.ma.masked)[3] == 0


def test_panels_lie_in_four_rows_of_three_in_reading_order():
    panels = _panels(Grid.of(capture(alibi(12, 16)), 0, "bias").draw())
    corners = [(-axes.get_position().y1, axes.get_position().x0) for axes in panels]
    assert corners == sorted(corners)
    assert len({round(top, 6) for top, _ in corners}) == 4
    assert len({round(left, 6) for _, left in corners}) == 3
    assert [axes.get_title() for axes in panels] == [f"Head {head}" for head in range(1, 13)]
    for axes in panels:
        box = axes.get_window_extent()
        assert box.width == pytest.approx(box.height)


def test_signed_maps_are_centred_on_zero_and_their_bars_show_what_occurs():
    made = capture(scores(6, 32, seed=0))
    figure = Grid.of(made, 0, "bias").draw()
    for values, axes, bar in zip(
        made.values(0, "bias"), _panels(figure), _bars(figure), strict=True
    ):
        low, high = axes.images[0].get_clim()
        assert low == -high
        assert high == max(-np.nanmin(values), np.nanmax(values))
        assert bar.get_ylim() == (np.nanmin(values), np.nanmax(values))


def test_shared_scale_and_colour_map():
    made = capture(alibi(12, 32))
    figure = Grid.of(made, 0, "bias", shared_scale=True, colormap="cividis").draw()
    limits = {axes.images[0].get_clim() for axes in _panels(figure)}
    assert limits == {(np.nanmin(made.values(0, "bias")), 0.0)}
    assert {axes.images[0].cmap.name for axes in _panels(figure)} == {"cividis"}


def test_reduced_maps_keep_token_positions():
    maps = alibi(2, 600)
    reducer = Reducer(heads=2, length=600, resolution=64)
    reducer.add(slice(0, 600), maps)
    grid = Grid(maps=reducer.result()["mean"], titles=("Head 1", "Head 2"), edges=reducer.edges)
    axes = _panels(grid.draw())[0]
    assert axes.images[0].get_array().shape == (64, 64)
    assert axes.get_xlim() == (-0.5, 599.5)
    assert [tick for tick in axes.get_xticks() if 0 <= tick < 600] == [0, 100, 200, 300, 400, 500]


@pytest.mark.parametrize(
    ("panels", "expected"),
    [(1, (1, 1)), (3, (1, 3)), (4, (2, 2)), (8, (4, 2)), (12, (4, 3)), (16, (4, 4)), (25, (5, 5)),
     (32, (8, 4))],
)  # fmt: skip
def test_shape(panels, expected):
    assert shape(panels) == expected


def test_a_bias_of_zero_can_be_drawn():
    axes = _panels(Grid(maps=np.zeros((1, 8, 8), np.float32), titles=("Head 1",)).draw())[0]
    assert axes.images[0].get_clim() == (-1, 0)


def test_weights_are_coloured_by_their_logarithm_and_blank_ahead():
    made = capture(alibi(2, 32))
    figure = Grid.of(made, 0, "weights").draw()
    for values, axes, bar in zip(
        made.values(0, "weights"), _panels(figure), _bars(figure), strict=True
    ):
        image = axes.images[0]
        np.testing.assert_array_equal(image.get_array().mask, ~np.tri(32, dtype=bool))
        np.testing.assert_array_equal(image.get_array().filled(0), values)
        assert [float(image.norm(x)) for x in (0, 1e-4, 1e-2, 1)] == pytest.approx([0, 0, 0.5, 1])
        assert bar.get_yscale() == "log"


@pytest.mark.parametrize("shared", [False, True])
def test_overview_has_a_panel_per_layer_and_head(shared):
    made = capture(scores(5, 16, seed=0), layers=(0, 1, 4))
    figure = Overview.of(made, "final", shared_scale=shared).draw()
    panels = [axes for axes in figure.axes if axes.get_gid() != "colorbar"]
    assert len(panels) == 15
    assert len(figure.axes) == 15 + shared
    assert panels[0].get_title() == "Head 1"
    assert panels[10].get_ylabel() == "Layer 5"
    np.testing.assert_array_equal(
        panels[13].images[0].get_array().filled(np.nan), made.values(4, "final")[3]
    )
    assert (len({axes.images[0].get_clim() for axes in panels}) == 1) == shared


def test_one_picture_has_one_meaning_of_colour():
    maps = np.stack([alibi(1, 8)[0], np.full((8, 8), 0.01) + alibi(1, 8)[0]])
    mixed = Grid(maps=maps, titles=("Head 1", "Head 2")).scales()
    assert [scale.signed for scale in mixed] == [True, True]
    assert mixed[0].colormap is mixed[1].colormap
    assert not any(scale.signed for scale in Grid(maps=maps[:1], titles=("Head 1",)).scales())
