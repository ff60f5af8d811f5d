import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import matplotlib as mpl
import pytest
from PIL import Image

from headscape.errors import InputError
from headscape.plots.curves import Curves
from headscape.plots.grid import Grid
from headscape.plots.style import save
from headscape.plots.view import targets
from plots.synthetic import alibi, capture, scores


def test_same_capture_same_bytes_whatever_the_users_settings(tmp_path):
    made = capture(scores(3, 40, seed=0))
    first = save(Grid.of(made, "bias", 0).draw(), tmp_path / "a")
    with mpl.rc_context({"font.size": 20, "axes.unicode_minus": False, "svg.fonttype": "path"}):
        second = save(Grid.of(made, "bias", 0).draw(), tmp_path / "b")
    assert [path.suffix for path in first] == [".png", ".svg", ".pdf"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"<dc:date>" not in first[1].read_bytes()
    assert b"CreationDate" not in first[2].read_bytes()


def test_same_bytes_in_another_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from headscape.plots.grid import Grid; from headscape.plots.style import save\n"
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
    figure = Curves.of(capture(alibi(1, 8)), layer=0).draw()
    assert save(figure, tmp_path / "v0.1", ["png"]) == [tmp_path / "v0.1.png"]


@pytest.mark.parametrize("suffix", ["png", "SVG", "pdf"])
def test_a_view_is_written_to_the_path_given(tmp_path, suffix):
    view = Grid.of(capture(alibi(1, 8)))
    path = tmp_path / "deep" / f"v0.1.{suffix}"
    assert view.save(str(path)) == path
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    (expected,) = save(view.draw(), tmp_path / "other", [suffix.lower()])
    assert path.read_bytes() == expected.read_bytes()


@pytest.mark.parametrize("name", ["a.bmp", "a", "a.gif"])
def test_other_suffixes_are_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"end its name in \.png, \.svg, \.pdf"):
        Grid.of(capture(alibi(1, 8))).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_pictures_have_full_colour(tmp_path):
    path = Grid.of(capture(alibi(4, 512))).save(tmp_path / "a.png")
    with Image.open(path) as picture:
        assert picture.mode == "RGBA"
        # A palette has at most 256 colours; each panel alone shows most of the map's.
        assert len(picture.getcolors(1 << 20)) > 500


def test_a_view_shows_itself_in_a_notebook():
    view = Grid.of(capture(alibi(3, 8), step=1200, trained=True, name="ALiBi"))
    assert view._repr_png_().startswith(b"\x89PNG")
    assert repr(view) == "<Grid: ALiBi, step 1,200, layer 1: positional bias>"
    html = view._repr_html_()
    assert 'alt="ALiBi, step 1,200, layer 1: positional bias"' in html
    picture = b64decode(html.split("base64,")[1].split('"')[0])
    assert picture == view.encode("png")


def test_files_are_named_after_what_they_show(tmp_path):
    view = Grid.of(capture(alibi(3, 8)))
    assert targets(view, None, None, tmp_path) == [tmp_path / f"{view.stem}.png"]
    assert targets(view, None, ["svg", "pdf"], tmp_path) == [
        tmp_path / f"{view.stem}.svg", tmp_path / f"{view.stem}.pdf",
    ]  # fmt: skip
    pic = Path("v0.1.png")
    assert targets(view, pic, None, tmp_path) == [pic]
    assert targets(view, pic, ["pdf"], tmp_path) == [Path("v0.1.pdf")]
    assert targets(view, Path("v0.1"), ["pdf"], tmp_path) == [Path("v0.1.pdf")]
    with pytest.raises(InputError, match="'gif' is not a format of this figure"):
        targets(view, None, ["gif"], tmp_path)


def test_refused_formats(tmp_path):
    figure = Curves.of(capture(alibi(1, 8)), layer=0).draw()
    with pytest.raises(InputError, match="'bmp' is not a figure format; choose from png, svg, pdf"):
        save(figure, tmp_path / "a", ["bmp"])
    assert not list(tmp_path.iterdir())
