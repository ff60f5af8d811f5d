"""The page of the figures under its policy: its pictures load from disk, and nothing complains."""

from pathlib import Path
from typing import Any

from PIL import Image

from headscape.plots.gallery import GalleryEntry, write_gallery


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
