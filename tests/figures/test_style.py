import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest

from figures.synthetic import alibi, capture, scores
from headscape.errors import InputError
from headscape.figures.curves import Curves
from headscape.figures.grid import Grid
from headscape.figures.style import SIGNED, Scale, save


def lightness(colormap):
    """CIE L* of 256 colours, from their relative luminance (IEC 61966-2-1, CIE 15)."""
    rgb = colormap(np.linspace(0, 1, 256))[:, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return 116 * np.cbrt(luminance) - 16


@pytest.mark.parametrize(
    ("low", "high"), [(-3.0, 0.0), (0.0, 2.0), (-3.0, 2.0), (-7.0, -2.0), (1.0, 5.0)]
)
def test_colours_keep_their_order_in_grey(low, high):
    shades = np.diff(lightness(Scale.between(low, high).colormap))
    assert (shades > 0).all() or (shades < 0).all()


def test_zero_is_light_where_the_sign_is_kept_and_grey_where_it_changes():
    for low, high, zero in [(-3.0, 0.0, 1.0), (0.0, 3.0, 0.0)]:
        scale = Scale.between(low, high)
        assert scale.norm(0.0) == zero
        assert lightness(scale.colormap)[int(255 * zero)] > 85
    assert Scale.between(-9.0, 1.0).norm(0.0) == 0.5
    red, green, blue, _ = SIGNED(0.5)
    assert max(red, green, blue) - min(red, green, blue) < 0.03
    assert 0.5 < red < 0.75


def test_scale_of_odd_values():
    assert (Scale.of(np.full((2, 2), np.nan)).low, Scale.of(np.zeros(3)).high) == (-1, 0)
    assert (Scale.of(np.array([-2.0])).low, Scale.of(np.array([-2.0])).high) == (-2, 0)
    scale = Scale.of(np.array([np.nan, -np.inf, -2.5, -0.0]))
    assert (scale.low, scale.high, scale.signed) == (-2.5, 0, False)
    assert scale.label == "\N{MINUS SIGN}2.5 … 0"


def test_same_capture_same_bytes_whatever_the_users_settings(tmp_path):
    made = capture(scores(3, 40, seed=0))
    first = save(Grid.of(made, 0, "bias").draw(), tmp_path / "a")
    with mpl.rc_context({"font.size": 20, "axes.unicode_minus": False, "svg.fonttype": "path"}):
        second = save(Grid.of(made, 0, "bias").draw(), tmp_path / "b")
    assert [path.suffix for path in first] == [".png", ".svg", ".pdf"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"<dc:date>" not in first[1].read_bytes()
    assert b"CreationDate" not in first[2].read_bytes()


def test_same_bytes_in_another_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from headscape.figures.grid import Grid; from headscape.figures.style import save\n"
        "maps = -np.arange(32, dtype=np.float32).reshape(2, 4, 4)\n"
        "save(Grid(maps=maps, titles=('Head 1', 'Head 2')).draw(), Path(sys.argv[1]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    for name in ("a", "b"):
        subprocess.run([sys.executable, "-W", "error", "-c", code, tmp_path / name], check=True)
    for suffix in ("png", "svg", "pdf"):
        one, other = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
        assert one == other


def test_a_name_with_a_dot_keeps_it(tmp_path):
    figure = Curves.of(capture(alibi(1, 8)), 0).draw()
    assert save(figure, tmp_path / "v0.1", ["png"]) == [tmp_path / "v0.1.png"]


def test_refusals(tmp_path):
    figure = Curves.of(capture(alibi(1, 8)), 0).draw()
    with pytest.raises(InputError, match="'bmp' is not a figure format; choose from png, svg, pdf"):
        save(figure, tmp_path / "a", ["bmp"])
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="nosuch is not a colour map"):
        Scale.between(0.0, 1.0, "nosuch")
