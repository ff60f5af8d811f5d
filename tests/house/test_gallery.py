"""The gallery's pictures: the lines that are printed draw them."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from docs.site import gallery, pictures

pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def variables() -> Iterator[dict[str, Any]]:
    """The variables after the lines that the page begins with."""
    with gallery.started() as found:
        yield found


@pytest.mark.parametrize("entry", gallery.ENTRIES, ids=lambda entry: entry.name)
def test_every_picture_is_drawn(entry: gallery.Entry, variables: dict[str, Any]) -> None:
    before = dict(variables)
    png = gallery.draw(entry, variables)
    assert variables == before  # no entry needs the ones above it
    picture = Image.open(io.BytesIO(png))
    assert 500 < picture.width <= 1400
    assert np.asarray(picture.convert("L")).std() > 10
    assert len(png) < 300_000


def test_a_picture_of_many_colours_is_small_and_keeps_its_maps(tmp_path: Path) -> None:
    """Such as the heads of an encoding's page: noise in all colours of a map."""
    noise = np.random.default_rng(0).normal(size=(6, 128, 128))
    pictures.draw_maps(pictures.Shown(noise, "noise"), tmp_path / "heads.png", 6)
    assert (tmp_path / "heads.png").stat().st_size < 300_000
    colours = {*Image.open(tmp_path / "heads.png").convert("RGB").get_flattened_data()}
    assert {(255, 255, 255), (0, 0, 0)} <= colours
    assert len(colours) > 60


def test_the_page_prints_the_lines_that_run(tmp_path: Path) -> None:
    gallery.write(tmp_path, draft=True)
    text = (tmp_path / "gallery.md").read_text()
    for entry in gallery.ENTRIES[:3]:
        assert (
            f"![{entry.title}](gallery/{entry.name}.png)\n\n```python\n{entry.code.strip()}\n"
            in text
        )
        assert (tmp_path / f"gallery/{entry.name}.png").is_file()
    assert gallery.START.strip() in text


def test_names_differ_and_the_page_is_short() -> None:
    names = [entry.name for entry in gallery.ENTRIES]
    assert len({*names}) == len(names)
    assert 10 <= len(names) <= 14
    assert all(len(entry.code.strip().splitlines()) <= 6 for entry in gallery.ENTRIES)
