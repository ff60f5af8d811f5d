"""`view`: what it opens and where it shows it."""

import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import headscape as hs
from headscape.errors import InputError
from headscape.viewer import page, serve
from headscape.viewer import view as viewer
from headscape.viewer.page import with_measures
from headscape.viewer.viewer_answers import Answers
from pack_files import write
from viewer.packs import made, quantities
from viewer.test_page import packs_of

pytestmark = pytest.mark.usefixtures("module")


def test_a_file_is_written(tmp_path: Path) -> None:
    write(made(40), tmp_path / "a.safetensors")
    found = viewer.view(tmp_path / "a.safetensors", made(30, title="B"), html=tmp_path / "out.html")
    assert found == tmp_path / "out.html"
    one, two = packs_of(found.read_text())
    assert (one.title, two.title) == ("ALiBi", "B")
    assert one.header["precision"] == "float32"


def test_many_heads_are_float16(tmp_path: Path) -> None:
    large = made(2100, heads=4, dims=64)
    assert page.default_precision([made(40)]) == "float32"
    assert page.default_precision([large]) == "float16"
    viewer.view(made(40), html=tmp_path / "a.html", precision="float16")
    (pack,) = packs_of((tmp_path / "a.html").read_text())
    assert pack.header["precision"] == "float16"


def test_the_server_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(
        serve, "serve", lambda answers, **options: called.append((answers, options))
    )
    assert viewer.view(made(20), port=8123, open_browser=False) is None
    ((answers, options),) = called
    assert isinstance(answers, Answers)
    assert options == {"port": 8123, "open_browser": False}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "at least one capture, run, model or array"),
        ([5], "cannot view a int"),
        ([None], "cannot view a NoneType"),
    ],
)
def test_mistakes_are_told(sources: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        viewer.view(*sources)


def test_a_damaged_capture_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="not a whole safetensors file"):
        viewer.view(tmp_path / "a.safetensors", html=tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_figures_link_into_one_page(tmp_path: Path) -> None:
    links = page.write_figures_page(
        tmp_path / "viewer.html",
        {"fig-1": (made(30, layers=2), "bias"), "fig-2": (made(20, title="CABLE"), "final")},
    )
    assert [pack.title for pack in packs_of((tmp_path / "viewer.html").read_text())] == [
        "ALiBi",
        "CABLE",
    ]
    assert unquote(links["fig-1"]) == 'viewer.html#{"capture":"p0","layer":1,"quantity":"bias"}'
    assert unquote(links["fig-2"]) == 'viewer.html#{"capture":"p1","layer":0,"quantity":"final"}'


def test_a_page_brings_the_measures_of_its_heads(tmp_path: Path) -> None:
    pack = made(40, heads=3, layers=2)
    viewer.view(pack, html=tmp_path / "a.html")
    (found,) = packs_of((tmp_path / "a.html").read_text())
    share, *_ = found.header["measures"]
    assert (share["name"], share["label"]) == (
        "position_share",
        "position share (position only)",
    )
    assert "variation of the positional part of the scores that the distance" in share["text"]
    assert share["values"] == [[1.0] * 3] * 2  # ALiBi's bias is a function of the distance
    reach = next(each for each in found.header["measures"] if each["name"] == "reach_mean")
    weights = quantities(pack, 1, 2)["weights"]
    distances = [int((np.cumsum(row[query::-1]) < 0.9).sum()) for query, row in enumerate(weights)]
    assert reach["values"][1][2] == pytest.approx(np.mean(distances), rel=1e-5)


def test_a_long_capture_is_not_measured_while_somebody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headscape.viewer.page.MAX_PAIRS", 3 * 40**2)
    assert "measures" in with_measures(made(40)).header
    assert "measures" not in with_measures(made(41)).header


def test_a_page_knows_the_variable_of_what_was_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hs.load(
        hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257), tokenizer="bytes"
    )
    cap = model.capture("The cat sat.")
    for name, value in (("_3", cap), ("story", cap), ("net", model)):
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
    assert viewer.open_source(cap)[0].header["variable"] == "story"
    pack, run = viewer.open_source(model, "The dog.")
    assert run is not None
    for each, text in ((pack, "The dog."), (run("A bird."), "A bird.")):
        assert each.header["variable"] == "net"
        assert each.header["origin"] == {"model": None, "text": text}
    monkeypatch.delattr(sys.modules["__main__"], "story")
    assert "variable" not in viewer.open_source(cap)[0].header
