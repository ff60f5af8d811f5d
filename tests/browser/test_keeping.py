"""What is found and taken away: search, notes, links, pictures, the Python line."""

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

import headscape as hs
from browser.acting import HEAD, head, press, two
from browser.captures import LENGTH, capture, definition
from browser.conftest import Open
from headscape.viewer.view import open_source
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
    again.page.locator(".notes").get_by_role("button", name="layer 1, head 2").click()
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
        "view": "auto", "measure": "", "against": "", "order": "rising", "least": None,
        "greatest": None,
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
    assert {"key", "query", "Attention weight"} <= set(texts)


def test_a_picture_does_not_depend_on_the_window(open_page: Open) -> None:
    note = {"capture": "p0", "layer": 0, "head": 1, "query": 60, "key": 20, "text": "look here"}
    state = {**HEAD, "quantity": "final", "locked": {"query": 30, "key": 12}, "notes": [note]}
    made = []
    for width, height in ((1280, 900), (700, 600)):
        opened = open_page([capture("cable")], state, width=width, height=height)
        opened.settle()
        made.append((opened.download("PNG"), opened.download("SVG")))
    assert made[0] == made[1]
    svg = ET.fromstring(made[0][1])  # noqa: S314
    texts = " ".join(each.text or "" for each in svg.iter("{http://www.w3.org/2000/svg}text"))
    assert "Note at query 60, key 20: look here" in texts
    # Cells are whole pixels: 8 a token for 96 tokens in 840, each of one colour.
    image = next(svg.iter("{http://www.w3.org/2000/svg}image"))
    data = base64.b64decode(image.attrib["href"].partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert pixels.shape == (8 * LENGTH, 8 * LENGTH, 3)
    cell = pixels[8 * 80 : 8 * 81, 8 * 40 : 8 * 41].reshape(-1, 3)
    assert len(np.unique(cell, axis=0)) == 1
    circle = pixels[8 * 58 : 8 * 63, 8 * 18 : 8 * 23]
    assert (circle == (180, 80, 30)).all(axis=-1).any()  # the note's ring


def test_a_picture_of_an_equation_has_its_signs(open_page: Open) -> None:
    opened = head(open_page, four=True)
    svg = ET.fromstring(opened.download("SVG"))  # noqa: S314
    texts = [each.text or "" for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    for word in ("+", "=", "softmax", "→", "query"):
        assert texts.count(word) == 1
    for word in ("0.0001", "Content", "Position", "Score", "Attention weight"):
        assert word in texts


@pytest.mark.parametrize("four", [True, False])
def test_a_picture_names_the_locked_pair_with_its_numbers_once(four: bool, open_page: Open) -> None:
    opened = head(open_page, four=four, locked={"query": 50, "key": 41})
    maps = {name: each[50, 41] for name, each in definition("cable", 0, 1).items()}
    svg = ET.fromstring(opened.download("SVG"))  # noqa: S314
    texts = list(svg.iter("{http://www.w3.org/2000/svg}text"))
    words = " ".join(each.text or "" for each in texts).replace("\xa0", " ")
    values = {name: f"{value:.2f}".replace("-", "−") for name, value in maps.items()}
    sign = "−" if maps["bias"] < 0 else "+"
    expected = (
        f"Query 50 “the”, key 41 “cat”: {values['content']} {sign} {abs(maps['bias']):.2f} = "
        f"{values['final']} → "
    )
    assert words.count(expected) == 1
    weight = words.split(expected)[1].split("%")[0]
    assert float(weight) == pytest.approx(100 * maps["weights"], rel=0.06)
    assert words.count("layer 1, head 2") == 1
    # Nothing is blank below the caption.
    lowest = max(float(each.attrib["y"]) for each in texts)
    assert 5 < float(svg.attrib["height"]) - lowest < 25


def test_a_film_of_training_steps(open_page: Open) -> None:
    names = {"cable": 0, "alibi": 600, "t5": 1200}
    packs = [capture(name, step=step, encoding="cable") for name, step in names.items()]
    opened = open_page(packs, HEAD)
    opened.settle()
    gif = Image.open(io.BytesIO(opened.download("GIF")))
    assert gif.n_frames == 3
    png = np.asarray(Image.open(io.BytesIO(opened.download("PNG"))).convert("RGB")).astype(int)
    frames = []
    for number in range(3):
        gif.seek(number)
        frames.append(np.asarray(gif.convert("RGB")).astype(int))
    assert gif.info["duration"] == 700
    assert frames[0].shape[0] * 2 == png.shape[0]
    # The first frame is the picture of the first step, at half the size and in 256 colours.
    half = png.reshape(png.shape[0] // 2, 2, png.shape[1] // 2, 2, 3).mean(axis=(1, 3))
    assert np.abs(frames[0] - half).mean() < 6
    assert np.abs(frames[0] - frames[1]).mean() > 1
    assert np.abs(frames[1] - frames[2]).mean() > 1
    webm = opened.download("WebM")
    assert webm[:4] == bytes.fromhex("1a45dfa3")
    assert len(webm) > 5000
    opened.page.get_by_role("button", name="Play").click()
    seen = set()
    for _ in range(40):
        opened.page.wait_for_timeout(150)
        seen.add(opened.page.locator(".steps output").inner_text())
        if len(seen) == 3:
            break
    assert seen == {"0", "600", "1200"}
    opened.page.get_by_role("button", name="Pause").click()


@pytest.mark.parametrize(
    "state",
    [
        {"quantity": "final"},
        {"quantity": "weights", "position": {"scale": 0.5, "only": None}},
        {"quantity": "final", "minus": "row"},
        {"quantity": "weights", "minus": "distance"},
        {"quantity": "final", "compare": "difference", "other": "p1"},
    ],
    ids=str,
)
def test_the_python_line_makes_the_same_array(
    state: dict[str, Any], open_page: Open, tmp_path: Any
) -> None:
    packs = []
    for name in ("cable", "alibi"):
        packs.append(capture(name, source=str(tmp_path / f"{name}.safetensors")))
        write(packs[-1], tmp_path / f"{name}.safetensors")
    opened = open_page(packs, {**HEAD, "view": {"query": 10, "key": 5, "span": 20}, **state})
    opened.settle()
    opened.page.locator(".export").get_by_role("button", name="Python").click()
    text = opened.page.locator(".export textarea").input_value()
    found: dict[str, Any] = {}
    exec(text, found)  # noqa: S102
    values = found["values"]
    for (query, key), value in opened.shown().items():
        assert values[query - 10, key - 5] == pytest.approx(value, abs=1e-5)


def test_the_python_line_of_a_model_captures_again(open_page: Open, tmp_path: Path) -> None:
    """A model opened by its name, read from the widget's own messages, in a notebook's page."""
    folder = tmp_path / "model"
    gpt2 = hs.GPT2.from_preset("nano", encoding="cable", vocabulary=257)
    hs.load(gpt2, tokenizer="bytes").save(folder)
    pack, run = open_source(str(folder), "The cat sat on the mat.")
    typed = run("Another text.") if run else None
    for each, text in ((pack, "The cat sat on the mat."), (typed, "Another text.")):
        assert each is not None
        assert each.header["origin"] == {"model": str(folder), "text": text}
        opened = open_page([each], {**HEAD, "quantity": "final"})
        opened.settle()
        opened.page.locator(".export").get_by_role("button", name="Python").click()
        code = opened.page.locator(".export textarea").input_value()
        found: dict[str, Any] = {}
        exec(code, found)  # noqa: S102
        for (query, key), value in opened.shown().items():
            assert found["values"][query, key] == pytest.approx(value, abs=1e-5)


def test_the_python_line_of_what_is_in_memory_names_its_variable(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that was never saved, and a model that was never written to disk."""
    gpt2 = hs.GPT2.from_preset("nano", encoding="cable", vocabulary=257)
    model = hs.load(gpt2, tokenizer="bytes")
    cap = model.capture("The cat sat on the mat.")
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "mats", cap, raising=False)
    monkeypatch.setattr(main, "small", model, raising=False)
    for source, name in ((cap, "mats"), (model, "small")):
        text = None if source is cap else "The cat sat on the mat."
        opened = open_page([open_source(source, text)[0]], {**HEAD, "quantity": "final"})
        opened.settle()
        opened.page.locator(".export").get_by_role("button", name="Python").click()
        code = opened.page.locator(".export textarea").input_value()
        assert f"shown({name}" in code
        assert (f'{name}.save("{name}.safetensors")' in code) == (source is cap)
        found: dict[str, Any] = {"mats": cap, "small": model}
        exec(code, found)  # noqa: S102
        for (query, key), value in opened.shown().items():
            assert found["values"][query, key] == pytest.approx(value, abs=1e-5)


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
    assert 'cap.map("weights", layer=' in line
    opened.page.evaluate("location.hash = '#%7Bhalf'")
    opened.page.wait_for_selector("text=the state = ")
