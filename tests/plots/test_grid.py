import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.ticker import MaxNLocator

from headscape.captures import capture_file
from headscape.captures.pyramid import Reducer
from headscape.errors import InputError
from headscape.plots.colour import GREY
from headscape.plots.figure_layout import shape
from headscape.plots.grid import Grid
from headscape.plots.overview import Overview
from headscape.plots.style import context, save
from plots.synthetic import alibi, cable, capture, scores

SVG = "{http://www.w3.org/2000/svg}"
PRINTED = json.loads(Path(__file__).with_name("figure_ticks.json").read_text())["12"]["heads"]


@pytest.fixture(scope="module")
def figure_12(tmp_path_factory):
    """ALiBi at GPT-2 Small's size, read back from its SVG: id of an axes to its texts."""
    stem = tmp_path_factory.mktemp("figures") / "figure-12-alibi"
    save(Grid.of(capture(alibi(12, 512)), "bias", 0).draw(), stem, ["svg"])
    root = ET.parse(stem.with_suffix(".svg")).getroot()  # noqa: S314
    groups = {group.get("id"): group for group in root.iter(f"{SVG}g")}
    return {
        name: [text.text for text in group.iter(f"{SVG}text")]
        for name, group in groups.items()
        if name and re.fullmatch(r"(panel|colorbar)-\d+", name)
    }


@pytest.mark.parametrize("head", range(1, 13))
def test_colour_bars_of_figure_12_read_as_printed(figure_12, head):
    drawn = figure_12[f"colorbar-{head}"][::-1]
    assert [float(text.replace("\N{MINUS SIGN}", "-")) for text in drawn] == PRINTED[str(head)]
    assert all(text.startswith("\N{MINUS SIGN}") for text in drawn[1:])
    assert not any("-" in text for text in drawn)


def test_panels_of_figure_12(figure_12):
    for head in range(1, 13):
        texts = figure_12[f"panel-{head}"]
        ticks = [text for text in texts if text.isdigit()]
        assert ticks == ["0", "100", "200", "300", "400", "500"] * 2
        assert f"Head {head}" in texts


def test_colour_bar_rule_is_matplotlibs_own_on_a_tall_bar():
    figure = Grid.of(capture(alibi(12, 512)), "bias", 0).draw()
    bars = _bars(figure)
    assert len(bars) == 12
    for axes in bars:
        rule = axes.yaxis.get_major_locator()
        assert isinstance(rule, MaxNLocator)
        # Intervals for which matplotlib finds room by itself; it never takes more than nine.
        with context():
            assert axes.yaxis.get_tick_space() >= 9


def _panels(figure):
    return [axes for axes in figure.axes if axes.get_gid().startswith("panel-")]


def _bars(figure):
    return [axes for axes in figure.axes if axes.get_gid().startswith("colorbar-")]


def test_images_hold_the_maps_and_leave_the_invisible_blank():
    made = capture(cable(12, 48, seed=1))
    figure = Grid.of(made, "bias", 0).draw()
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
    panels = _panels(Grid.of(capture(alibi(12, 16)), "bias", 0).draw())
    corners = [(-axes.get_position().y1, axes.get_position().x0) for axes in panels]
    assert corners == sorted(corners)
    assert len({round(top, 6) for top, _ in corners}) == 4
    assert len({round(left, 6) for _, left in corners}) == 3
    assert [axes.get_title() for axes in panels] == [f"Head {head}" for head in range(1, 13)]
    for axes in panels:
        box = axes.get_window_extent()
        assert box.width == pytest.approx(box.height)


def test_bars_show_the_range_that_occurs():
    made = capture(scores(6, 32, seed=0))
    figure = Grid.of(made, "bias", 0).draw()
    for values, axes, bar in zip(
        made.values(0, "bias"), _panels(figure), _bars(figure), strict=True
    ):
        expected = (np.nanmin(values), np.nanmax(values))
        assert axes.images[0].get_clim() == expected
        assert bar.get_ylim() == expected


def test_shared_scale_and_colour_map():
    made = capture(alibi(12, 32))
    figure = Grid.of(made, "bias", 0, shared_scale=True, colormap="cividis").draw()
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


def test_the_bar_of_a_bias_of_zero_says_0_and_nothing_else():
    maps = alibi(2, 8)
    maps[1] *= 0
    figure = Grid(maps=maps, titles=("Head 1", "Head 2")).draw()
    figure.canvas.draw()
    labels = [[text.get_text() for text in bar.get_yticklabels()] for bar in _bars(figure)]
    assert len(labels[0]) > 1
    assert labels[1] == ["0"]
    image = _panels(figure)[1].images[0]
    assert {tuple(colour) for colour in image.to_rgba(maps[1][7])} == {to_rgba(GREY)}


def test_weights_are_coloured_by_their_logarithm_and_blank_ahead():
    made = capture(alibi(2, 32))
    figure = Grid.of(made, "weights", 0).draw()
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
    bar = next(axes for axes in figure.axes if axes.get_gid() == "colorbar")
    labels = [text.get_text() for text in bar.get_yticklabels()]
    assert ("lowest" in labels) != shared
    assert panels[0].get_title() == "Head 1"
    assert panels[10].get_ylabel() == "Layer 5"
    np.testing.assert_array_equal(
        panels[13].images[0].get_array().filled(np.nan), made.values(4, "final")[3]
    )
    assert (len({axes.images[0].get_clim() for axes in panels}) == 1) == shared


def test_chosen_heads_in_the_order_given():
    made = capture(scores(12, 16, seed=0), layers=(2, 5))
    grid = Grid.of(made, layer=-1, heads=[9, 0, -1])
    figure = grid.draw()
    assert [axes.get_title() for axes in _panels(figure)] == ["Head 10", "Head 1", "Head 12"]
    for head, axes in zip([9, 0, 11], _panels(figure), strict=True):
        np.testing.assert_array_equal(
            axes.images[0].get_array().filled(np.nan), made.values(5, "bias")[head]
        )
    assert grid.heading == "alibi, untrained, layer 6: positional bias"
    assert figure.get_suptitle() == grid.heading
    for heads, message in [([12], "head 12"), ([], "empty"), ([1, 1], "listed twice")]:
        with pytest.raises(InputError, match=message):
            Grid.of(made, heads=heads)
    with pytest.raises(InputError, match="layer 0 is not in this capture, which contains"):
        Grid.of(made, layer=0)


def test_an_encoding_without_a_bias_shows_its_scores():
    made = capture(scores(2, 8, seed=0), encoding="rope")
    np.testing.assert_array_equal(Grid.of(made).maps, made.values(0, "final"))
    assert "final scores" in Grid.of(made).heading


def _ink(figure):
    """Boxes in inches of everything drawn, by axes id."""
    renderer = figure.canvas.get_renderer()
    return {
        axes.get_gid(): axes.get_tightbbox(renderer).transformed(figure.dpi_scale_trans.inverted())
        for axes in figure.axes
    }


@pytest.mark.parametrize(
    ("width", "columns", "heads"), [(3.3, 2, 4), (3.3, 1, 2), (4.5, 3, 3), (6.75, 4, 12), (5, 2, 3)]
)
@pytest.mark.parametrize(
    "made", [capture(alibi(12, 512), name="DAPEv2+Kerple"), capture(1e-3 * scores(12, 64, seed=0))]
)
def test_a_given_width_is_kept_and_nothing_is_clipped(made, width, columns, heads, tmp_path):
    grid = Grid.of(made, heads=range(heads), columns=columns, width=width)
    figure = grid.draw()
    wide, high = figure.get_size_inches()
    assert wide == width
    boxes = _ink(figure)
    for box in boxes.values():
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y0 >= 0
        assert box.y1 <= high
    heading = figure._suptitle.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    assert heading.x0 >= 0
    assert heading.x1 <= width
    assert heading.y0 >= max(box.y1 for box in boxes.values())
    places = [box for name, box in boxes.items() if name.startswith("panel")]
    bars = [box for name, box in boxes.items() if name.startswith("colorbar")]
    for index, bar in enumerate(bars):
        if (index + 1) % columns and index + 1 < heads:
            assert bar.x1 <= places[index + 1].x0
        if index + columns < heads:
            assert places[index].y0 >= places[index + columns].y1
    sizes = [text.get_fontsize() for axes in figure.axes for text in axes.get_yticklabels()]
    assert min(sizes) >= 6
    for axes in figure.axes:
        assert len([tick for tick in axes.get_yticks() if _inside(tick, axes.get_ylim())]) >= 2
    text = grid.save(tmp_path / "a.pdf").read_bytes()
    assert f"/MediaBox [ 0 0 {72 * width:g} ".encode() in text


def _inside(value, limits):
    return min(limits) <= value <= max(limits)


def test_widths_that_cannot_be_drawn():
    made = capture(alibi(12, 16))
    with pytest.raises(InputError, match=r"12 columns do not fit into 3\.3 inches"):
        Grid.of(made, columns=12, width=3.3).draw()
    with pytest.raises(InputError, match="at most 100, got -1"):
        Grid.of(made, width=-1).draw()
    with pytest.raises(InputError, match="columns must be at least 1, got 0"):
        Grid.of(made, columns=0)


def test_a_long_capture_is_drawn_from_cell_means(monkeypatch):
    cap = capture(cable(3, 40, seed=1))
    whole = cap.head(0, "bias", 2)
    monkeypatch.setattr(capture_file, "DRAWN_LENGTH", 39)
    monkeypatch.setattr(capture_file, "DRAWN_CELLS", 20)
    grid = Grid.of(cap, heads=[2])
    assert grid.maps.shape == (1, 20, 20)
    assert grid.edges[-1] == 40
    np.testing.assert_allclose(grid.maps[0, 9, 3], whole[18:20, 6:8].mean(), rtol=1e-6)
    assert np.isnan(grid.maps[0, 3, 9])
