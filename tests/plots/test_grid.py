import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from headscape.captures import capture_file
from headscape.captures.pooling import CellReducer, cell_edges
from headscape.errors import InputError
from headscape.plots.colour import GREY
from headscape.plots.figure_layout import shape
from headscape.plots.grid import Grid
from headscape.plots.overview import Overview
from headscape.plots.panel import cell_means, pixel_step
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
    if head % 3 == 0:
        assert drawn.pop(0) == "Positional bias"
    assert [float(text.replace("\N{MINUS SIGN}", "-")) for text in drawn] == PRINTED[str(head)]
    assert all(text.startswith("\N{MINUS SIGN}") for text in drawn[1:])
    assert not any("-" in text for text in drawn)


def test_panels_of_figure_12(figure_12):
    for head in range(1, 13):
        texts = figure_12[f"panel-{head}"]
        ticks = [text for text in texts if text.isdigit()]
        sides = (head % 3 == 1) + (head > 9)
        assert ticks == ["0", "100", "200", "300", "400", "500"] * sides
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
    for values, axes in zip(made.map("bias", 0), _panels(figure), strict=True):
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
    for values, axes, bar in zip(made.map("bias", 0), _panels(figure), _bars(figure), strict=True):
        expected = (np.nanmin(values), np.nanmax(values))
        assert axes.images[0].get_clim() == expected
        assert bar.get_ylim() == expected


def test_shared_scale_and_colour_map():
    made = capture(alibi(12, 32))
    figure = Grid.of(made, "bias", 0, shared_scale=True, cmap="cividis").draw()
    limits = {axes.images[0].get_clim() for axes in _panels(figure)}
    assert limits == {(np.nanmin(made.map("bias", 0)), 0.0)}
    assert {axes.images[0].cmap.name for axes in _panels(figure)} == {"cividis"}


def test_reduced_maps_keep_token_positions():
    maps = alibi(2, 600)
    edges = cell_edges(600, 64)
    reducer = CellReducer(edges, edges, heads=2)
    reducer.add(slice(0, 600), maps)
    grid = Grid(maps=reducer.result()["mean"], titles=("Head 1", "Head 2"), edges=edges)
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
        made.map("weights", 0), _panels(figure), _bars(figure), strict=True
    ):
        image = axes.images[0]
        np.testing.assert_array_equal(image.get_array().mask, ~np.tri(32, dtype=bool))
        np.testing.assert_array_equal(image.get_array().filled(0), values)
        assert [float(image.norm(x)) for x in (0, 1e-4, 1e-2, 1)] == pytest.approx([0, 0, 0.5, 1])
        assert bar.get_yscale() == "log"
        figure.canvas.draw()
        ticks = bar.get_yticklabels()
        labels = [text.get_text() for text in ticks if 9e-5 < text.get_position()[1] < 2]
        assert labels == ["0.0001", "0.001", "0.01", "0.1", "1"]


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
        panels[13].images[0].get_array().filled(np.nan), made.map("final", 4)[3]
    )
    assert (len({axes.images[0].get_clim() for axes in panels}) == 1) == shared


def test_chosen_heads_in_the_order_given():
    made = capture(scores(12, 16, seed=0), layers=(2, 5))
    grid = Grid.of(made, layer=-1, heads=[9, 0, -1])
    figure = grid.draw()
    assert [axes.get_title() for axes in _panels(figure)] == ["Head 10", "Head 1", "Head 12"]
    for head, axes in zip([9, 0, 11], _panels(figure), strict=True):
        np.testing.assert_array_equal(
            axes.images[0].get_array().filled(np.nan), made.map("bias", 5)[head]
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
    np.testing.assert_array_equal(Grid.of(made).maps, made.map("final", 0))
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
    whole = cap.map("bias", 0, 2)
    monkeypatch.setattr(capture_file, "DRAWN_LENGTH", 39)
    monkeypatch.setattr(capture_file, "DRAWN_CELLS", 20)
    grid = Grid.of(cap, heads=[2])
    assert grid.maps.shape == (1, 20, 20)
    assert grid.edges[-1] == 40
    np.testing.assert_allclose(grid.maps[0, 9, 3], whole[18:20, 6:8].mean(), rtol=1e-6)
    assert np.isnan(grid.maps[0, 3, 9])


@pytest.mark.parametrize(("length", "pixels"), [(20, 23), (512, 1)])
def test_every_cell_is_whole_pixels_of_one_colour(length, pixels, tmp_path):
    """Read back from the PNG, away from the frame, which is drawn over the outermost cells."""
    values = np.random.default_rng(0).integers(0, 2, size=(1, length, length)).astype(np.float32)
    grid = Grid(maps=values, titles=("Head 1",), label="Positional bias", heading="A title")
    figure = grid.draw()
    box = _panels(figure)[0].get_window_extent()
    assert (box.width, box.height) == pytest.approx((pixels * length, pixels * length))
    picture = np.asarray(Image.open(grid.save(tmp_path / "a.png")).convert("RGB"))
    top, left = round(picture.shape[0] - box.y1), round(box.x0)
    inside = slice(2, length - 2)
    cells = picture[top : top + pixels * length, left : left + pixels * length]
    cells = cells.reshape(length, pixels, length, pixels, 3)[inside, :, inside]
    colours = {0: (68, 1, 84), 1: (253, 231, 36)}  # the ends of viridis
    expected = np.array([[colours[int(x)] for x in row] for row in values[0, inside, inside]])
    assert (cells == expected[:, None, :, None]).all()


def test_a_pixel_of_a_long_map_is_the_mean_of_whole_tokens():
    assert pixel_step(512, 2.3) == (1, 2.56)
    assert pixel_step(4096, 2.3) == (8, 2.56)
    step, side = pixel_step(1021, 2.3)
    assert (step, round(side * 200)) == (2, 511)
    values = np.arange(16.0).reshape(4, 4)
    values[0, 1:] = values[1, 2:] = np.nan
    means = cell_means(values, 2)
    assert means[0].tolist() == [pytest.approx((0 + 4 + 5) / 3), pytest.approx(np.nan, nan_ok=True)]
    assert means[1].tolist() == [10.5, 12.5]


def test_bars_have_an_arrow_where_values_are_beyond_the_limits():
    made = capture(alibi(2, 32))
    view = made.grid(limits=(-1, -0.05))
    figure = view.draw()
    bars = [axes.images[0].colorbar for axes in _panels(figure)]
    assert [bar.extend for bar in bars] == ["both", "max"]
    assert {axes.images[0].get_clim() for axes in _panels(figure)} == {(-1, -0.05)}
    assert made.grid().draw().axes[0].images[0].colorbar.extend == "neither"
    # Weights below 0.0001 have the colour of its lower end.
    steep = capture(20 * alibi(2, 32)).grid("weights").draw()
    assert steep.axes[0].images[0].colorbar.extend == "min"
    for view in (capture(20 * alibi(2, 60)).row("weights"), made.overview(limits=(-1, 0))):
        figure = view.draw()
        (bar,) = [axes for axes in figure.axes if axes.get_gid() == "colorbar"]
        assert bar._colorbar.extend == "min"
    for limits in [(1, 1), (2, 1), (np.nan, 1), 3, (1, 2, 3), ("a", "b")]:
        with pytest.raises(InputError, match="limits must be two numbers"):
            made.grid(limits=limits)
    with pytest.raises(InputError, match="limits start above 0, got 0"):
        made.grid("weights", limits=(0, 1)).draw()


def test_tokens_are_written_at_the_outer_axes():
    figure = capture(alibi(4, 10)).grid(tokens=True, columns=2).draw()
    one, two, three, _ = _panels(figure)
    words = ["The", "·old", "·house", "·by", "·the", "·river", ",", "·of", "·stone", "⏎"]
    assert [text.get_text() for text in one.get_yticklabels()] == words
    assert [text.get_text() for text in three.get_xticklabels()] == words
    assert not any(text.get_text() for text in (*one.get_xticklabels(), *two.get_yticklabels()))
    for box in _ink(figure).values():
        assert min(box.x0, box.y0) >= 0
    wide = capture(alibi(4, 60)).grid(tokens=True, columns=1, width=8).draw()
    assert _panels(wide)[0].get_yticklabels()[0].get_text() == "The"


def test_tokens_that_do_not_fit_are_refused_with_the_number_that_does():
    made = capture(alibi(4, 60))
    with pytest.raises(InputError, match=r"60 tokens do not fit .* which has room for \d\d:"):
        made.grid(tokens=True).draw()
    with pytest.raises(InputError, match="60 tokens do not fit"):
        made.grid(tokens=True, columns=2, width=4).draw()
    with pytest.raises(InputError, match="60 tokens do not fit"):
        made.grid(tokens=True, heads=[0], ax=Figure(figsize=(3, 3)).subplots())


def test_plain_axes_give_their_bar_room():
    """Without a layout: nothing overprints the neighbour, and names are inside the figure."""
    figure = Figure(figsize=(10, 3.6))
    left, middle, right = figure.subplots(1, 3)
    made = capture(alibi(3, 16))
    before = left.get_position()
    made.grid(heads=[0], ax=left)
    made.grid(heads=[1], ax=middle)
    made.curves(ax=right)
    boxes = [axes.get_tightbbox() for axes in (left, middle, right)]
    assert boxes[0].x1 <= boxes[1].x0
    assert boxes[1].x1 <= boxes[2].x0
    assert boxes[2].x1 <= figure.bbox.x1
    assert min(box.y0 for box in boxes) >= -0.5
    assert left.images[0].colorbar.ax.get_tightbbox().x1 <= before.x1 * figure.bbox.x1 + 0.5
    cells = left.get_window_extent()
    assert cells.width == pytest.approx(cells.height)
    assert cells.width > 100
    assert left.get_in_layout()
    legend, inside = right.get_legend().get_window_extent(), right.get_window_extent()
    assert inside.x0 <= legend.x0
    assert legend.x1 <= inside.x1


def test_titles_are_automatic_given_or_absent():
    made = capture(alibi(1, 8))
    assert made.grid().draw().get_suptitle() == "alibi, untrained, layer 1: positional bias"
    assert made.grid(title="Mine $x$").draw().get_suptitle() == "Mine $x$"
    assert made.grid(title=None).draw().get_suptitle() == ""


def test_a_grid_goes_into_axes_of_ones_own():
    made = capture(alibi(3, 16))
    figure = Figure()
    left, right = figure.subplots(1, 2)
    made.grid(heads=[2, 0], ax=[left, right])
    assert (left.get_title(), right.get_title()) == ("Head 3", "Head 1")
    np.testing.assert_array_equal(left.images[0].get_array().filled(np.nan), made.map("bias", 0)[2])
    assert left.images[0].colorbar.ax.get_ylabel() == "Positional bias"
    figure = Figure(figsize=(9, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    made.grid(heads=[2], ax=left)
    figure.draw_without_rendering()
    cells, bar = left.get_window_extent(), left.images[0].colorbar.ax
    assert cells.width == pytest.approx(cells.height)
    assert bar.get_window_extent().height == pytest.approx(cells.height)
    assert bar.get_tightbbox().x1 <= right.get_tightbbox().x0
    made.grid(heads=[1], ax=Figure().subplots())
    with pytest.raises(InputError, match="3 panels need 3 matplotlib axes, got 1"):
        made.grid(ax=left)


def test_a_model_of_many_layers_is_a_sheet():
    made = capture(scores(9, 12, seed=0), layers=range(30))
    figure = made.overview("final").draw()
    wide, high = figure.get_size_inches() * figure.dpi
    assert high < wide < 2600
    first, second = (
        next(axes for axes in figure.axes if axes.get_gid() == f"layer-{layer}-head-1")
        for layer in (1, 16)
    )
    assert first.get_position().y0 == pytest.approx(second.get_position().y0)
    assert first.get_position().x1 < second.get_position().x0
    assert second.get_title() == "Head 1"
    boxes = [axes.get_window_extent() for axes in figure.axes]
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])


def test_an_overview_prints_the_range_of_every_token():
    """Cells are means; what is printed is not."""
    made = capture(alibi(2, 512))
    view = made.overview()
    assert view.maps[0].shape == (2, 128, 128)
    assert view.ranges[0] == (np.nanmin(made.map("bias", 0)[0]), 0.0)
