"""The page of the figures under its policy: its pictures load from disk, and nothing complains."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browser.acting import violations
from headscape.plots.gallery import GalleryEntry, write_gallery

pytestmark = pytest.mark.browser


def test_its_pictures_load_from_disk(chromium: Any, tmp_path: Path) -> None:
    Image.new("RGB", (7, 5)).save(tmp_path / "one.png")
    entry = GalleryEntry(name="one", title="One", image="one.png", alt="One", caption="One.")
    address = write_gallery(tmp_path, [entry], "Figures", {}).as_uri()
    page = chromium.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(address)
    page.locator("img").scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('img').complete")
    assert page.evaluate("document.querySelector('img').naturalWidth") == 7
    assert page.evaluate("getComputedStyle(document.querySelector('figure')).margin") == "0px"
    assert complaints == []
    page.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(width: int, dark: bool, chromium: Any, tmp_path: Path) -> None:
    entries = []
    for name in ("one", "two"):
        Image.new("RGB", (70, 50)).save(tmp_path / f"{name}.png")
        shown = {"name": name, "title": name.title(), "image": f"{name}.png"}
        entries.append(GalleryEntry(**shown, alt=f"Picture {name}", caption="A caption."))
    address = write_gallery(tmp_path, entries, "Figures", {"command": "headscape figures"}).as_uri()
    scheme = "dark" if dark else "light"
    page = chromium.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.goto(address)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
