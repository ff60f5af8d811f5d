import numpy as np
import pytest
from matplotlib.colors import to_rgba

from headscape.errors import InputError
from headscape.plots.colour import GREY, SIGNED, Scale, limits, range_label, scales
from headscape.plots.grid import Grid
from plots.synthetic import alibi, capture, causal, scores

BOTH = [(-3.0, 2.0), (-1.0, 4.0), (-4.0, 1.0)]


def lightness(colormap):
    """CIE L* of 256 colours, from their relative luminance (IEC 61966-2-1, CIE 15)."""
    rgb = colormap(np.linspace(0, 1, 256))[:, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return 116 * np.cbrt(luminance) - 16


@pytest.mark.parametrize(("low", "high"), [(-3.0, 0.0), (0.0, 2.0), (-8.0, 0.3), *BOTH])
def test_lighter_is_greater_everywhere(low, high):
    (scale,) = scales([(low, high)])
    assert (np.diff(lightness(scale.colormap)) > 0).all()
    placed = scale.norm(np.linspace(low, high, 50))
    assert (np.diff(placed) > 0).all()


@pytest.mark.parametrize(("low", "high"), [(-8.0, 0.3), (-0.3, 8.0), (-4.0, 0.99), (-5.0, -2.0)])
def test_nearly_one_sign_uses_the_whole_sequential_map(low, high):
    (scale,) = scales([(low, high)])
    assert scale.kind == "sequential"
    assert scale.colormap.name == "viridis"
    assert (scale.norm(low), scale.norm(high)) == (0, 1)
    assert scale.norm((low + high) / 2) == pytest.approx(0.5)


@pytest.mark.parametrize(("low", "high"), BOTH)
def test_both_signs_each_use_half_of_the_map_in_full(low, high):
    (scale,) = scales([(low, high)])
    assert (scale.kind, scale.colormap) == ("diverging", SIGNED)
    expected = {low: 0, low / 2: 0.25, 0.0: 0.5, high / 2: 0.75, high: 1}
    for value, place in expected.items():
        assert float(scale.norm(value)) == pytest.approx(place)


def test_the_middle_of_the_signed_map_is_grey_and_not_white():
    red, green, blue, _ = SIGNED(0.5)
    assert max(red, green, blue) - min(red, green, blue) < 0.03
    assert 0.5 < red < 0.75


def test_one_figure_has_one_map():
    mixed = scales([(-1.0, 1.0), (-8.0, 0.3)])
    assert {scale.colormap.name for scale in mixed} == {"viridis"}
    assert [(scale.low, scale.high) for scale in mixed] == [(-1.0, 1.0), (-8.0, 0.3)]
    assert {scale.kind for scale in scales(BOTH)} == {"diverging"}


def test_differences_are_symmetric():
    scale = Scale.symmetric(np.array([-1.0, np.nan, 0.25]))
    assert (scale.low, scale.high, scale.kind) == (-1.0, 1.0, "diverging")
    assert float(scale.norm(0.5)) == 0.75
    same = Scale.symmetric(np.zeros(3))
    assert (same.low, same.high, same.kind) == (0, 0, "single")


def test_odd_values():
    assert limits(np.full((2, 2), np.nan)) == (0, 0)
    assert limits(np.array([np.nan, -np.inf, -2.5, -0.0])) == (-2.5, 0)
    assert range_label(-2.0, 0.0) == "\N{MINUS SIGN}2 … 0"
    assert range_label(0.0, 0.0) == "0"


def test_one_value_is_grey_and_does_not_choose_the_map_of_others():
    *live, dead, level = scales([*BOTH, (0.0, 0.0), (3.0, 3.0)])
    assert {scale.kind for scale in live} == {"diverging"}
    for scale, value in ((dead, 0), (level, 3)):
        assert (scale.low, scale.high, scale.kind) == (value, value, "single")
        assert scale.colormap(float(scale.norm(value))) == to_rgba(GREY)
    assert [scale.kind for scale in scales([(-3.0, 0.0), (0.0, 0.0)])] == ["sequential", "single"]


def test_a_named_map_runs_evenly():
    (scale,) = scales([(-1.0, 3.0)], "cividis")
    assert (scale.colormap.name, float(scale.norm(1.0))) == ("cividis", 0.5)
    with pytest.raises(InputError, match="matplotlib has no colour map 'nosuch'"):
        scales([(0.0, 1.0)], "nosuch")


def _bar(figure):
    return next(axes for axes in figure.axes if axes.get_gid() == "colorbar-1")


def _zero(bar):
    return [line.get_ydata()[0] for line in bar.lines if line.get_gid() == "zero"]


@pytest.mark.parametrize(
    ("low", "high", "marks"), [(-8.0, 0.3, [0]), (-3.0, 2.0, [0]), (-8.0, 0.0, []), (1.0, 2.0, [])]
)
def test_zero_is_marked_where_it_lies_inside_the_range(low, high, marks):
    maps = causal(np.linspace(low, high, 64).reshape(1, 8, 8))
    maps[0, 7, 0], maps[0, 7, 7] = low, high
    bar = _bar(Grid(maps=maps, titles=("Head 1",)).draw())
    assert _zero(bar) == marks
    assert bar.get_ylim() == pytest.approx((low, high))
    assert bar.get_yscale() == "linear"
    if marks:
        assert 0 in bar.get_yticks()


def test_bars_of_two_slopes_show_the_colours_of_the_map():
    made = capture(scores(1, 32, seed=0))
    figure = Grid.of(made, "final", 0).draw()
    (image,) = next(axes for axes in figure.axes if axes.get_gid() == "panel-1").images
    (mesh,) = [each for each in _bar(figure).collections if hasattr(each, "get_coordinates")]
    values = mesh.get_array().ravel()
    np.testing.assert_allclose(mesh.to_rgba(values), image.cmap(image.norm(values)))
    low, high = limits(made.map("final", 0))
    assert image.norm(low) == 0
    assert image.norm(high) == 1


def test_alibi_has_no_zero_mark_and_no_diverging_colours():
    figure = Grid.of(capture(alibi(2, 16)), "bias", 0).draw()
    assert _zero(_bar(figure)) == []
    assert figure.axes[0].images[0].cmap.name == "viridis"
