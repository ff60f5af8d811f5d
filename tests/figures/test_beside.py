"""The figures beside the grid: curves, rows, comparisons and the change over training."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from figures.synthetic import alibi, cable, capture, causal, scores
from headscape.errors import InputError
from headscape.figures.compare import Compare
from headscape.figures.curves import Curves
from headscape.figures.row import CLOSE_UP, Row
from headscape.figures.training import Training


def _axes(figure, gid):
    return next(axes for axes in figure.axes if axes.get_gid() == gid)


def test_curve_of_a_toeplitz_bias_is_one_line():
    figure = Curves.of(capture(alibi(12, 40)), 0).draw()
    assert len(figure.axes) == 12
    for head, axes in enumerate(figure.axes, start=1):
        distance, bias = axes.lines[0].get_data()
        np.testing.assert_allclose(bias, -(2.0 ** (-8 * head / 12)) * distance, rtol=1e-6)
        assert not axes.collections
        assert axes.get_title() == f"Head {head}"
    assert not figure.legends


def test_curve_of_a_varying_bias_has_bands():
    maps = cable(2, 40, seed=0)
    figure = Curves.of(capture(maps, encoding="cable"), 0).draw()
    everything, middle = figure.axes[1].collections
    top = everything.get_paths()[0].get_extents()
    assert (top.ymin, top.ymax) == (pytest.approx(np.nanmin(maps[1])), 0)
    assert middle.get_paths()[0].get_extents().ymin >= top.ymin
    assert [text.get_text() for text in figure.legends[0].texts] == [
        "all tokens", "middle 80% of tokens", "mean",
    ]  # fmt: skip


def test_row_shows_the_query_and_its_tokens():
    made = capture(scores(3, 100, seed=0))
    figure = Row.of(made, 0, "final", query=79).draw()
    everything, close = _axes(figure, "all-keys"), _axes(figure, "close-up")
    for head, image in enumerate(everything.images):
        np.testing.assert_array_equal(image.get_array()[0], made.values(0, "final")[head, 79, :80])
    assert everything.get_xlim() == (-0.5, 79.5)
    assert close.get_xlim() == (79.5 - CLOSE_UP, 79.5)
    shown = [text.get_text() for text in close.get_xticklabels()]
    assert len(shown) == CLOSE_UP
    words = made.sequence["pieces"][80 - CLOSE_UP : 80]
    assert shown[0] == words[0].replace(" ", "␣")
    assert shown[-1] == "↵"
    assert "Query 79" in everything.get_title()


def test_row_of_weights_ends_at_the_query():
    figure = Row.of(capture(alibi(2, 30)), 0, "weights", query=10).draw()
    assert _axes(figure, "all-keys").get_xlim() == (-0.5, 10.5)


def test_row_draws_tokens_that_look_like_formulas():
    made = capture(alibi(1, 4))
    made = replace(made, sequence={"pieces": ["$x", "_$日", "\x00", "a" * 40]})
    figure = Row.of(made, 0, "bias").draw()
    figure.canvas.draw()
    shown = [text.get_text() for text in _axes(figure, "close-up").get_xticklabels()]
    assert shown == ["$x", "_$�", "�", "a" * 11 + "…"]


def test_row_refusals():
    made = capture(alibi(1, 8))
    with pytest.raises(InputError, match="query 8 is not in this capture of 8 tokens"):
        Row.of(made, 0, "bias", query=8)
    with pytest.raises(InputError, match="reduced to 4 cells"):
        Row.of(replace(made, resolution=4), 0, "bias")
    with pytest.raises(InputError, match="reduced to 4 cells"):
        Curves.of(replace(made, resolution=4), 0)


def test_compare_shows_one_head_of_each():
    made = [capture(alibi(4, 20)), capture(cable(4, 20, seed=1), encoding="dapev2+cable")]
    figure = Compare.of(made, 0, 2, "bias").draw()
    panels = [_axes(figure, f"head-{index}") for index in (1, 2)]
    assert [axes.get_title() for axes in panels] == ["ALiBi", "DAPEv2+CABLE"]
    for each, axes in zip(made, panels, strict=True):
        np.testing.assert_array_equal(
            axes.images[0].get_array().filled(np.nan), each.values(0, "bias")[2]
        )
    with pytest.raises(InputError, match="captures of 20, 8 tokens do not compare"):
        Compare.of([made[0], capture(alibi(4, 8))], 0, 0, "bias")


@pytest.fixture
def run():
    level = causal(np.ones((3, 16, 16)))
    return [
        capture(alibi(3, 16) * step / 200 + level, step=step, trained=True)
        for step in (200, 0, 100)
    ]


def test_strip_goes_by_step_with_one_range_a_head(run):
    figure = Training.of(run, 0, "bias", heads=[2, 0]).draw()
    panels = [_axes(figure, f"head-{index}") for index in range(1, 7)]
    assert [axes.get_title() for axes in panels] == [
        f"Head {head}, step {step}" for head in (3, 1) for step in (0, 100, 200)
    ]
    limits = [axes.images[0].get_clim() for axes in panels]
    assert len(set(limits[:3])) == len(set(limits[3:])) == 1
    assert limits[0] != limits[3]
    np.testing.assert_array_equal(
        panels[2].images[0].get_array().filled(np.nan), run[0].values(0, "bias")[2]
    )


def test_animation_has_a_frame_per_checkpoint_and_the_same_bytes(run, tmp_path):
    for name in ("a.gif", "b.gif"):
        Training.of(run, 0, "bias").animate(tmp_path / name)
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    with Image.open(tmp_path / "a.gif") as film:
        assert film.n_frames == 3
        frames = []
        for index in range(3):
            film.seek(index)
            frames.append(np.asarray(film.convert("RGB")))
    assert (frames[0] != frames[2]).any()


def test_training_refusals(run):
    with pytest.raises(InputError, match="at least two checkpoints, not 1"):
        Training.of(run[:1], 0, "bias")
    with pytest.raises(InputError, match="must say its `step`"):
        Training.of([capture(alibi(3, 16)), *run], 0, "bias")
    with pytest.raises(InputError, match="one length"):
        Training.of([capture(alibi(3, 8), step=5), *run], 0, "bias")
