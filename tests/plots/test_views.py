"""Curves, rows, comparisons, differences and the change over training."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image

from headscape.errors import InputError
from headscape.plots.colour import GREY
from headscape.plots.compare import Difference, SideBySide
from headscape.plots.curves import Curves
from headscape.plots.overview import Overview
from headscape.plots.row import CLOSE_UP, Row
from headscape.plots.training import Training
from plots.synthetic import alibi, cable, capture, causal, scores


def _axes(figure, gid):
    return next(axes for axes in figure.axes if axes.get_gid() == gid)


def test_curves_of_a_toeplitz_bias_are_lines_of_one_panel():
    figure = Curves.of(capture(alibi(12, 40)), layer=0).draw()
    (axes,) = figure.axes
    assert len(axes.lines) == 12
    for head, line in enumerate(axes.lines, start=1):
        distance, bias = line.get_data()
        np.testing.assert_allclose(bias, -(2.0 ** (-8 * head / 12)) * distance, rtol=1e-6)
        assert line.get_label() == f"Head {head}"
    assert len({tuple(line.get_color()) for line in axes.lines}) == 12
    assert not axes.collections
    assert axes.get_ylabel() == "Positional bias"
    assert [text.get_text() for text in axes.get_legend().texts][:2] == ["Head 1", "Head 2"]
    legend = axes.get_legend().get_tightbbox(figure.canvas.get_renderer())
    assert legend.x1 <= figure.bbox.x1
    assert (legend.y0 >= 0, legend.y1 <= figure.bbox.y1) == (True, True)


def test_curve_of_a_varying_bias_has_the_bands_of_the_viewer():
    maps = cable(2, 40, seed=0)
    made = capture(maps, encoding="cable")
    figure = Curves.of(made, layer=0).draw()
    bands = [each for each in figure.axes[1].collections if each.get_label()[0] != "_"]
    everything, deviation = (each.get_paths()[0].vertices for each in bands)
    diagonal = np.array([maps[1, i, i - 5] for i in range(5, 40)], np.float64)
    ends = [sorted(set(edge[edge[:, 0] == 5, 1])) for edge in (everything, deviation)]
    np.testing.assert_allclose(ends[0], [diagonal.min(), diagonal.max()])
    off = diagonal.std()
    np.testing.assert_allclose(ends[1], [diagonal.mean() - off, diagonal.mean() + off])
    assert [text.get_text() for text in figure.legends[0].texts] == [
        "all tokens", "one standard deviation", "mean",
    ]  # fmt: skip


def test_distances_with_few_pairs_are_faint():
    figure = Curves.of(capture(cable(2, 200, seed=0), encoding="cable")).draw()
    strong, faint = figure.axes[0].lines
    assert np.flatnonzero(np.isnan(strong.get_ydata())).tolist() == list(range(185, 200))
    assert np.flatnonzero(np.isfinite(faint.get_ydata())).tolist() == list(range(184, 200))
    assert (strong.get_alpha(), faint.get_alpha()) == (None, 0.3)
    short = Curves.of(capture(cable(2, 20, seed=0), encoding="cable")).draw().axes[0].lines[0]
    assert np.isnan(short.get_ydata()).sum() == 4


def test_curves_go_into_axes_of_ones_own():
    made = capture(cable(3, 40, seed=0), encoding="cable")
    one, *each = Figure().subplots(1, 4)
    made.curve(ax=one)
    assert [line.get_label() for line in one.lines if line.get_alpha() is None] == [
        "Head 1", "Head 2", "Head 3",
    ]  # fmt: skip
    figure = Figure(figsize=(9, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    capture(alibi(12, 40)).curves(ax=left)
    figure.draw_without_rendering()
    legend = left.get_legend().get_tightbbox()
    assert left.get_window_extent().x1 <= legend.x0
    assert legend.x1 <= right.get_tightbbox().x0
    made.curves(ax=each, limits=(-9, 1))
    assert [axes.get_title() for axes in each] == ["Head 1", "Head 2", "Head 3"]
    assert each[2].get_ylim() == (-9, 1)
    with pytest.raises(InputError, match="3 panels need 3 matplotlib axes, got 2"):
        made.curves(ax=each[:2])


def test_curves_of_chosen_heads_keep_a_given_width():
    made = capture(cable(4, 40, seed=0), encoding="cable")
    figure = Curves.of(made, heads=[3, 1], columns=2, width=3.3).draw()
    assert [axes.get_title() for axes in figure.axes] == ["Head 4", "Head 2"]
    assert figure.get_figwidth() == 3.3
    renderer = figure.canvas.get_renderer()
    for artist in (*figure.axes, *figure.legends, figure._suptitle):
        box = artist.get_tightbbox(renderer).transformed(figure.dpi_scale_trans.inverted())
        assert (box.x0 >= 0, box.x1 <= 3.3, box.y0 >= 0) == (True, True, True)
        assert box.y1 <= figure.get_figheight()


@pytest.mark.parametrize("shared", [False, True])
def test_row_has_one_meaning_of_colour_in_both_strips(shared):
    made = capture(alibi(3, 100))
    figure = Row.of(made, "bias", 0, query=79, shared_scale=shared).draw()
    everything, close = _axes(figure, "all-keys"), _axes(figure, "close-up")
    row = made.map("bias", 0)[:, 79, :80]
    low = row.min() if shared else row.min(axis=1, keepdims=True)
    high = row.max() if shared else row.max(axis=1, keepdims=True)
    (upper,), (lower,) = everything.images, close.images
    np.testing.assert_allclose(upper.norm(upper.get_array()), (row - low) / (high - low), atol=1e-6)
    np.testing.assert_allclose(
        lower.norm(lower.get_array()), upper.norm(upper.get_array())[:, -CLOSE_UP:], atol=1e-6
    )
    assert upper.cmap == lower.cmap
    bar = _axes(figure, "colorbar")
    labels = [text.get_text() for text in bar.get_yticklabels()]
    if shared:
        assert bar.get_ylim() == (row.min(), row.max())
    else:
        assert labels == ["lowest", "highest"]
        printed = [text.get_text() for text in everything.child_axes[0].get_yticklabels()]
        assert printed[0] == "\N{MINUS SIGN}12 … 0"


def test_a_head_without_a_bias_is_grey_beside_others():
    maps = alibi(3, 100)
    maps[0] *= 0
    made = capture(maps)
    figure = Row.of(made, layer=0).draw()
    for name in ("all-keys", "close-up"):
        axes = _axes(figure, name)
        assert axes.images[0].get_array().mask.all(axis=1).tolist() == [True, False, False]
        assert axes.images[0].cmap.name == "viridis"
        (patch,) = axes.patches
        assert patch.get_facecolor() == to_rgba(GREY)
        assert axes.child_axes[0].get_yticklabels()[0].get_text() == "0"
    labels = [text.get_text() for text in _axes(figure, "colorbar").get_yticklabels()]
    assert labels == ["lowest", "highest"]


@pytest.mark.parametrize("view", [Row, Overview])
def test_the_bar_of_heads_without_a_bias_has_one_value(view):
    figure = view.of(capture(alibi(2, 60) * 0)).draw()
    labels = [text.get_text() for text in _axes(figure, "colorbar").get_yticklabels()]
    assert labels == ["one value"]
    curves = Curves.of(capture(alibi(1, 60) * 0)).draw()
    assert [text.get_text() for text in curves.axes[0].get_yticklabels()] == ["0"]


@pytest.mark.parametrize("width", [None, 3.5])
def test_the_bar_of_a_row_and_the_panels_of_an_overview_cover_no_numbers(width):
    small = causal(np.linspace(-1.2345e-5, -6.7891e-7, 100 * 100 * 3).reshape(3, 100, 100))
    figure = Row.of(capture(small), width=width).draw()
    renderer = figure.canvas.get_renderer()
    bar = _axes(figure, "colorbar").get_window_extent(renderer)
    for name in ("all-keys", "close-up"):
        for text in _axes(figure, name).child_axes[0].get_yticklabels():
            assert text.get_window_extent(renderer).x1 < bar.x0
    overview = Overview.of(capture(small), width=width).draw()
    renderer = overview.canvas.get_renderer()
    labels = [
        _axes(overview, f"layer-1-head-{head}").xaxis.label.get_window_extent(renderer)
        for head in (1, 2, 3)
    ]
    assert labels[0].x1 < labels[1].x0
    assert labels[1].x1 < labels[2].x0


def test_row_shows_the_query_and_its_tokens():
    made = capture(scores(3, 100, seed=0))
    row = Row.of(made, "final", 0, query=79, shared_scale=True)
    figure = row.draw()
    everything, close = _axes(figure, "all-keys"), _axes(figure, "close-up")
    (image,) = everything.images
    np.testing.assert_array_equal(image.get_array(), made.map("final", 0)[:, 79, :80])
    assert everything.get_xlim() == (-0.5, 79.5)
    assert close.get_xlim() == (79.5 - CLOSE_UP, 79.5)
    shown = [text.get_text() for text in close.get_xticklabels()]
    assert len(shown) == CLOSE_UP
    words = made.sequence["pieces"][80 - CLOSE_UP : 80]
    assert shown[0] == words[0].replace(" ", "·")
    assert shown[-1] == "⏎"
    # The title and the file count from 1; the position in the title is the one of the axis.
    assert "of query 80 “⏎”, position 79" in figure.get_suptitle()
    assert row.stem.endswith("query80-final-row")
    assert shown[79 - int(close.get_xticks()[0])] == "⏎"
    assert [text.get_text() for text in close.get_yticklabels()] == ["Head 1", "Head 2", "Head 3"]


@pytest.mark.parametrize("width", [3.3, 6.75, None])
@pytest.mark.parametrize("kind", ["row", "weights", "overview", "one layer"])
def test_rows_and_overviews_keep_a_given_width_and_clip_nothing(kind, width):
    made = capture(
        alibi(3, 100), layers=(4,) if kind == "one layer" else (4, 5), name="DAPEv2+Kerple (power)"
    )
    if kind in ("row", "weights"):
        quantity = "weights" if kind == "weights" else None
        figure = Row.of(made, quantity=quantity, width=width).draw()
    else:
        heads = [0] if width is None else None
        figure = Overview.of(made, width=width, heads=heads).draw()
    width = width or figure.get_figwidth()
    assert figure.get_figwidth() == width
    renderer = figure.canvas.get_renderer()
    for artist in (*figure.axes, figure._suptitle):
        box = artist.get_tightbbox(renderer).transformed(figure.dpi_scale_trans.inverted())
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y0 >= 0
        assert box.y1 <= figure.get_figheight()


def test_rows_and_overviews_refuse_widths_that_are_too_small():
    made = capture(alibi(12, 16))
    with pytest.raises(InputError, match=r"at least 2\.9 inches, got 2"):
        Row.of(made, width=2).draw()
    with pytest.raises(InputError, match="12 heads needs a width of at least"):
        Overview.of(made, width=3.3).draw()


def test_row_of_weights_ends_at_the_query():
    figure = Row.of(capture(alibi(2, 30)), "weights", 0, query=10).draw()
    assert _axes(figure, "close-up").get_xlim() == (-0.5, 10.5)


def test_a_row_that_fits_is_drawn_once():
    made = capture(alibi(2, CLOSE_UP))
    figure = Row.of(made).draw()
    assert [axes.get_gid() for axes in figure.axes] == ["close-up", "colorbar"]
    assert _axes(figure, "close-up").get_title() == "All keys"
    assert len(Row.of(capture(alibi(2, CLOSE_UP + 1))).draw().axes) == 3


def test_row_draws_tokens_that_look_like_formulas():
    made = capture(alibi(1, 4))
    made = replace(made, sequence={"pieces": ["$x", "_$日", "\x00", "a" * 40]})
    figure = Row.of(made, "bias", 0).draw()
    figure.canvas.draw()
    shown = [text.get_text() for text in _axes(figure, "close-up").get_xticklabels()]
    assert shown == ["$x", "_$�", "�", "a" * 11 + "…"]


def test_row_refusals():
    made = capture(alibi(1, 8))
    with pytest.raises(InputError, match="query 8 is not in this capture of 8 tokens"):
        Row.of(made, "bias", 0, query=8)
    with pytest.raises(InputError, match="reduced to 4 cells"):
        Row.of(replace(made, resolution=4), "bias", 0)
    with pytest.raises(InputError, match="reduced to 4 cells"):
        Curves.of(replace(made, resolution=4), layer=0)


def test_compare_shows_one_head_of_each():
    made = [
        capture(alibi(4, 20), layers=(0, 1)),
        capture(cable(4, 20, seed=1), encoding="dapev2+cable", step=1200, trained=True),
        capture(cable(4, 20, seed=2), encoding="dapev2+cable", step=300, trained=True),
    ]
    view = SideBySide.of(made, layer=0, head=2)
    figure = view.draw()
    panels = [_axes(figure, f"panel-{index}") for index in (1, 2, 3)]
    assert [axes.get_title() for axes in panels] == [
        "alibi, untrained", "dapev2+cable, step 1,200", "dapev2+cable, step 300",
    ]  # fmt: skip
    assert view.heading == "Layer 1, head 3: positional bias"
    for each, axes in zip(made, panels, strict=True):
        np.testing.assert_array_equal(
            axes.images[0].get_array().filled(np.nan), each.map("bias", 0)[2]
        )
    assert SideBySide.of(made[:2]).titles == (
        "alibi, untrained, layer 2, head 1", "dapev2+cable, step 1,200, layer 1, head 1",
    )  # fmt: skip
    with pytest.raises(InputError, match="captures of 20, 8 tokens cannot be compared"):
        SideBySide.of([made[0], capture(alibi(4, 8))], layer=0, head=0)
    with pytest.raises(InputError, match="at least one capture"):
        SideBySide.of([])


def test_difference_is_first_minus_second_and_symmetric():
    first = capture(cable(4, 20, seed=1), encoding="cable", step=1200, trained=True)
    second = capture(alibi(4, 20), encoding="cable", step=300, trained=True)
    view = Difference.of(first, second, heads=[3, 0])
    expected = (first.map("bias", 0) - second.map("bias", 0))[[3, 0]]
    figure = view.draw()
    for index, values in enumerate(expected, start=1):
        axes = _axes(figure, f"panel-{index}")
        np.testing.assert_array_equal(axes.images[0].get_array().filled(np.nan), values)
        far = np.nanmax(np.abs(values))
        assert axes.images[0].get_clim() == (-far, far)
        assert axes.images[0].norm(0.0) == 0.5
        assert _axes(figure, f"colorbar-{index}").get_ylim() == (-far, far)
    assert view.heading == (
        "(cable, step 1,200) \N{MINUS SIGN} (cable, step 300), layer 1: positional bias"
    )
    weights = Difference.of(first, second, quantity="weights")
    ahead = ~np.tri(20, dtype=bool)
    assert np.isnan(weights.maps[:, ahead]).all()
    figure = weights.draw()
    image, bar = _axes(figure, "panel-1").images[0], _axes(figure, "colorbar-1")
    far = np.nanmax(np.abs(weights.maps[0]))
    for part in (-1, -0.1, -1e-3, 0, 1e-4, 0.01, 1):
        # As the viewer's colours: evenly spaced after asinh, in thousandths of the range.
        place = 0.5 + 0.5 * np.arcsinh(1000 * part) / np.arcsinh(1000)
        assert float(image.norm(part * far)) == pytest.approx(place)
    ticks = [text.get_text() for text in bar.get_yticklabels()]
    assert len(ticks) == 7
    assert ticks[3] == "0"
    assert ticks[2].removeprefix("\N{MINUS SIGN}") == ticks[4]
    other = replace(second, tokens=second.tokens + 1)
    assert Difference.of(first, other).heading.endswith("different input")
    with pytest.raises(InputError, match="captures of 20, 8 tokens cannot be compared"):
        Difference.of(first, capture(alibi(4, 8)))
    with pytest.raises(InputError, match="captures of 20, 5 cells a side"):
        Difference.of(first, replace(second, resolution=5))


@pytest.fixture
def run():
    level = causal(np.ones((3, 16, 16)))
    return [
        capture(alibi(3, 16) * step / 200 + level, step=step, trained=True)
        for step in (200, 0, 100)
    ]


def test_strip_goes_by_step_with_one_range_a_head(run):
    figure = Training.of(run, "bias", 0, heads=[2, 0]).draw()
    panels = [_axes(figure, f"panel-{index}") for index in range(1, 7)]
    assert [axes.get_title() for axes in panels] == [
        f"Head {head}, step {step}" for head in (3, 1) for step in (0, 100, 200)
    ]
    limits = [axes.images[0].get_clim() for axes in panels]
    assert len(set(limits[:3])) == len(set(limits[3:])) == 1
    assert limits[0] != limits[3]
    np.testing.assert_array_equal(
        panels[2].images[0].get_array().filled(np.nan), run[0].map("bias", 0)[2]
    )


def test_animation_has_a_frame_per_checkpoint_and_the_same_bytes(run, tmp_path):
    for name in ("a.gif", "b.gif"):
        Training.of(run, "bias", 0).save(tmp_path / name)
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    with Image.open(tmp_path / "a.gif") as film:
        assert film.n_frames == 3
        frames = []
        for index in range(3):
            film.seek(index)
            frames.append(np.asarray(film.convert("RGB")))
    assert (frames[0] != frames[2]).any()


def test_training_refusals(run):
    with pytest.raises(InputError, match="at least 2 checkpoints, got 1"):
        Training.of(run[:1], "bias", 0)
    with pytest.raises(InputError, match="does not say its training step"):
        Training.of([capture(alibi(3, 16)), *run], "bias", 0)
    with pytest.raises(InputError, match="captures of 8, 16, 16, 16 tokens"):
        Training.of([capture(alibi(3, 8), step=5), *run], "bias", 0)
    with pytest.raises(InputError, match="two captures are of step 100"):
        Training.of([*run, run[2]], "bias", 0)
    with pytest.raises(InputError, match=r"different encodings \(alibi, cable\)"):
        Training.of([run[0], replace(run[1], encoding="cable")], "bias", 0)
    with pytest.raises(InputError, match="different inputs; capture every checkpoint"):
        Training.of([run[0], replace(run[1], tokens=run[1].tokens + 1)], "bias", 0)
