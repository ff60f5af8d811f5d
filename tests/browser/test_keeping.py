"""What is found and taken away: search, notes, links, pictures, the Python line."""

import io
import json
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from browser.acting import HEAD, head, press, two
from browser.captures import LENGTH, capture
from browser.conftest import Open
from pack_files import write

pytestmark = pytest.mark.browser


def test_tokens_are_found(open_page: Open) -> None:
    opened = head(open_page)
    press(opened, "/")
    opened.page.keyboard.type("CAT")
    opened.page.wait_for_timeout(150)
    assert "10 tokens contain" in opened.page.locator(".search").inner_text()
    press(opened, "Enter")
    opened.page.wait_for_timeout(150)
    assert "“cat”" in opened.where()
    first = opened.where()
    opened.page.locator(".search").get_by_role("button", name="Next").click()
    opened.page.wait_for_timeout(150)
    assert opened.where() != first
    assert opened.state()["search"] == "CAT"


def test_notes_are_kept_in_the_link(open_page: Open) -> None:
    opened = head(open_page, locked={"query": 60, "key": 20})
    press(opened, "n")
    opened.page.keyboard.type("look <b>here</b>")
    press(opened, "Enter")
    opened.page.wait_for_timeout(150)
    (note,) = opened.state()["notes"]
    assert note == {
        "capture": "p0",
        "layer": 0,
        "head": 1,
        "query": 60,
        "key": 20,
        "text": "look <b>here</b>",
    }
    again = head(open_page, **opened.state())
    assert "look <b>here</b>" in again.page.locator(".notes").inner_text()
    again.page.locator(".notes").get_by_role("button", name="L1 H2").click()
    assert again.state()["locked"] == {"query": 60, "key": 20}
    again.page.locator(".notes").get_by_role("button", name="Remove").click()
    again.page.wait_for_timeout(150)
    assert "notes" not in again.state()


def test_a_link_restores_everything(open_page: Open) -> None:
    opened = two(
        open_page,
        compare="difference",
        quantity="final",
        minus="row",
        pooling="greatest",
        view={"query": 10, "key": 5, "span": 40},
        locked={"query": 30, "key": 12},
        theme="dark",
        search="cat",
        colour={"scope": "shared", "clip": 2},
    )
    opened.page.locator(".export").get_by_role("button", name="Link").click()
    text = opened.page.locator(".export textarea").input_value()
    assert text.startswith("file://")
    state = json.loads(unquote(text.split("#")[1]))
    again = two(open_page, **state)
    again.page.locator(".export").get_by_role("button", name="Link").click()
    copied = again.page.locator(".export textarea").input_value()
    assert json.loads(unquote(copied.split("#")[1])) == state
    assert np.array_equal(again.pixels(), opened.pixels())


def test_a_link_to_what_is_not_there_says_what_was_left_out(open_page: Open) -> None:
    state = {
        "quantity": "speed",
        "layer": 7,
        "view": {"query": 5000, "key": 0, "span": 40},
        "overview": {"measure": "explained by distance", "order": "rising"},
    }
    opened = open_page([capture("cable")], state)
    opened.settle()
    told = opened.page.locator("[role=alert]").inner_text()
    for part in ('quantity = "speed"', "layer = 7", '"query":5000', "explained by distance"):
        assert part in told
    assert opened.state()["overview"] == {
        "measure": "", "order": "rising", "least": None, "greatest": None,
    }  # fmt: skip
    assert "view" not in opened.state()


def test_pictures(open_page: Open) -> None:
    opened = head(open_page)
    png = Image.open(io.BytesIO(opened.download("PNG")))
    assert min(png.size) > 400
    assert len(np.unique(np.asarray(png.convert("RGB")).reshape(-1, 3), axis=0)) > 50
    svg = ET.fromstring(opened.download("SVG"))  # noqa: S314
    texts = [element.text or "" for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    caption = " ".join(texts)
    assert "Attention weight, cable" in caption
    assert "layer 1, head 2" in caption
    assert f"of {LENGTH} tokens" in caption
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}image"))) == 2


def test_the_python_line_makes_the_same_array(open_page: Open, tmp_path: Any) -> None:
    pack = capture("cable", source=str(tmp_path / "cable.safetensors"))
    write(pack, tmp_path / "cable.safetensors")
    opened = open_page(
        [pack], {**HEAD, "quantity": "final", "view": {"query": 10, "key": 5, "span": 20}}
    )
    opened.settle()
    opened.page.locator(".export").get_by_role("button", name="Python").click()
    text = opened.page.locator(".export textarea").input_value()
    found: dict[str, Any] = {}
    exec(text, found)  # noqa: S102
    values = found["values"]
    for (query, key), value in opened.shown().items():
        assert values[query - 10, key - 5] == pytest.approx(value, abs=1e-12)


def test_all_keys_are_listed(open_page: Open) -> None:
    opened = head(open_page)
    press(opened, "?")
    dialog = opened.page.locator("dialog")
    assert dialog.is_visible()
    text = dialog.inner_text()
    for words in ("zoom in", "lock or unlock", "next head", "find a token", "copy a link", "theme"):
        assert words in text
    press(opened, "Escape")
    assert not dialog.is_visible()
    opened.page.get_by_role("button", name="? Keys").click()
    assert dialog.is_visible()


def test_a_hostile_link_is_told_and_copies_no_code(open_page: Open) -> None:
    evil = 'weights"); __import__("os").system("true") #'
    state = {"screen": "head", "quantity": evil, "colour": None, "notes": [None], "layer": 99}
    opened = open_page([capture("cable")], state)
    opened.settle()
    said = opened.page.locator("[role=alert]").inner_text()
    for part in ("quantity =", "colour = null", "notes[0] = null", "layer = 99"):
        assert part in said
    opened.page.locator(".export").get_by_role("button", name="Python", exact=True).click()
    line = opened.page.get_by_label("Text to copy").input_value()
    assert "__import__" not in line
    assert '"weights", "nothing"' in line
    opened.page.evaluate("location.hash = '#%7Bhalf'")
    opened.page.wait_for_selector("text=the state = ")
