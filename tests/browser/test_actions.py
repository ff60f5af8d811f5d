"""Everything one can do in the viewer, by mouse and by keyboard, each with its effect."""

import io
import json
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from browser.captures import HEADS, LENGTH, capture, definition
from browser.conftest import Open, Opened
from pack_files import write

pytestmark = pytest.mark.browser
HEAD: dict[str, Any] = {"screen": "head", "layer": 0, "head": 1}


def head(open_page: Open, **state: Any) -> Opened:
    opened = open_page([capture("cable")], {**HEAD, **state})
    opened.settle()
    return opened


def two(open_page: Open, **state: Any) -> Opened:
    packs = [capture("cable"), capture("alibi"), capture("t5", length=60)]
    opened = open_page(packs, {**HEAD, "other": "p1", **state})
    opened.settle()
    return opened


def press(opened: Opened, *keys: str) -> None:
    for key in keys:
        opened.page.keyboard.press(key)


def pick(opened: Opened, label: str, value: str) -> None:
    opened.page.locator("label.field", has_text=label).locator("select").first.select_option(value)


# The overview


def names(opened: Opened) -> list[str]:
    return [each.strip() for each in opened.page.locator(".card .name").all_inner_texts()]


def numbers(opened: Opened) -> list[float]:
    texts = opened.page.locator(".card .value").all_inner_texts()
    return [float(text.replace("−", "-")) for text in texts]


def test_a_measure_sorts_and_filters(open_page: Open) -> None:
    opened = open_page([capture("cable")])
    opened.settle()
    assert names(opened) == [f"L{n + 1} H{h + 1}" for n in range(2) for h in range(HEADS)]
    weights = np.nan_to_num(definition("cable", 0, 0)["weights"])
    at = np.arange(LENGTH)
    expected = (weights * (at[:, None] - at)).sum(axis=1).mean()
    opened.page.wait_for_function(
        "() => !document.querySelector('.overview').innerText.includes('…')"
    )
    assert numbers(opened)[0] == pytest.approx(expected, rel=0.01)
    pick(opened, "Order", "rising")
    opened.page.wait_for_function("() => document.querySelectorAll('.overview h3').length === 1")
    rising = numbers(opened)
    assert rising == sorted(rising)
    assert rising != sorted(rising, reverse=True)
    pick(opened, "Order", "falling")
    opened.page.wait_for_timeout(100)
    assert numbers(opened) == rising[::-1]
    middle = rising[4]
    opened.page.get_by_label("Least measure shown").fill(str(middle))
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_timeout(150)
    kept = numbers(opened)
    assert 0 < len(kept) < 8
    assert min(kept) >= middle * 0.99
    assert f"of {len(kept)} of 8 heads" in opened.page.locator(".overview").inner_text()
    opened.page.get_by_role("button", name="Clear filter").click()
    opened.page.wait_for_timeout(150)
    assert len(numbers(opened)) == 8
    before = numbers(opened)
    options = opened.page.locator("label.field", has_text="Measure").locator("option").all()
    values = [option.get_attribute("value") for option in options]
    assert len(values) >= 4
    pick(opened, "Measure", values[1])
    opened.page.wait_for_timeout(200)
    assert numbers(opened) != before


def test_similar_heads_stand_together(open_page: Open) -> None:
    opened = open_page([capture("cable")])
    opened.settle()
    pick(opened, "Order", "similar")
    opened.page.wait_for_selector("text=/Group 1/")
    assert sorted(names(opened)) == [f"L{n + 1} H{h + 1}" for n in range(2) for h in range(HEADS)]


def test_a_click_or_a_key_opens_a_head(open_page: Open) -> None:
    opened = open_page([capture("cable")])
    opened.settle()
    opened.page.locator(".card").nth(5).click()
    opened.settle()
    assert (opened.state()["layer"], opened.state()["head"]) == (1, 1)
    assert "layer 2, head 2" in opened.page.locator(".panel .title").inner_text()
    press(opened, "o")
    opened.page.locator(".card").nth(2).focus()
    press(opened, "Enter")
    opened.settle()
    assert "layer 1, head 3" in opened.page.locator(".panel .title").inner_text()
    press(opened, "]")
    assert opened.state()["head"] == 3
    press(opened, "}")
    assert opened.state()["layer"] == 1
    press(opened, "{", "[")
    assert "layer 1, head 3" in opened.page.locator(".panel .title").inner_text()
    pick(opened, "Head", "0")
    opened.settle()
    assert "layer 1, head 1" in opened.page.locator(".panel .title").inner_text()
    opened.page.get_by_role("button", name="Next layer").click()
    assert opened.state()["layer"] == 1


# One head


def test_hover_links_row_column_and_tokens(open_page: Open) -> None:
    expected = definition("cable", 0, 1)
    opened = head(open_page)
    opened.page.mouse.move(*opened.cell(60, 20))
    opened.page.wait_for_function(
        "() => document.querySelector('.where').innerText.includes('Query 60')"
    )
    assert "key 20" in opened.where()
    assert "distance 40" in opened.where()
    row = expected["weights"][60][:61]
    rank = int((row > row[20]).sum()) + 1
    assert f"rank {rank} of 61" in opened.where()
    found = opened.readout()
    for quantity, values in expected.items():
        assert found[quantity] == pytest.approx(values[60, 20], rel=1e-6, abs=4e-6)
    overlay = opened.pixels(".panel canvas.overlay")
    marked = overlay[..., 3] > 0
    size = overlay.shape[0] / LENGTH
    assert marked[int(60.5 * size)].mean() > 0.9
    assert marked[:, int(20.5 * size)].mean() > 0.9
    assert not marked[int(30.5 * size), int(70.5 * size)]
    # A hidden pair says so and has no value.
    opened.page.mouse.move(*opened.cell(10, 70))
    opened.page.wait_for_function(
        "() => document.querySelector('.where').innerText.includes('Query 10')"
    )
    assert "does not see" in opened.where()
    assert set(opened.readout().values()) == {None}


def test_click_locks_and_escape_unlocks(open_page: Open) -> None:
    opened = head(open_page)
    opened.page.mouse.click(*opened.cell(60, 20))
    assert opened.state()["locked"] == {"query": 60, "key": 20}
    opened.page.mouse.move(*opened.cell(80, 40))
    opened.page.wait_for_timeout(150)
    assert "Query 60" in opened.where()
    assert "Locked" in opened.where()
    press(opened, "Escape")
    assert "locked" not in opened.state()
    opened.page.mouse.move(*opened.cell(81, 41))
    opened.page.wait_for_function(
        "() => document.querySelector('.where').innerText.includes('Query 81')"
    )
    press(opened, "Enter")
    assert opened.state()["locked"] == {"query": 81, "key": 41}
    press(opened, "l")
    assert "locked" not in opened.state()


def test_arrow_keys_move_by_one_cell(open_page: Open) -> None:
    opened = head(open_page, locked={"query": 50, "key": 30})
    press(opened, "v", "ArrowDown", "ArrowRight", "ArrowRight")
    assert opened.state()["locked"] == {"query": 51, "key": 32}
    press(opened, "Shift+ArrowUp", "ArrowLeft")
    assert opened.state()["locked"] == {"query": 41, "key": 31}
    assert opened.readout()["weights"] == pytest.approx(
        definition("cable", 0, 1)["weights"][41, 31], rel=1e-6, abs=4e-6
    )


def test_zoom_and_pan(open_page: Open) -> None:
    opened = head(open_page)
    whole = opened.pixels()
    x, y = opened.cell(60, 20)
    opened.page.mouse.move(x, y)
    opened.page.mouse.wheel(0, -400)
    zoomed = opened.state()["view"]
    assert zoomed["span"] < LENGTH * 0.8
    opened.settle()
    after = opened.cell(60, 20)
    assert (
        np.hypot(after[0] - x, after[1] - y)
        < opened.page.locator(".stage").bounding_box()["width"] / LENGTH
    )
    assert not np.array_equal(opened.pixels(), whole)
    opened.page.mouse.down()
    opened.page.mouse.move(x - 80, y - 40, steps=4)
    opened.page.mouse.up()
    panned = opened.state()["view"]
    assert panned["span"] == zoomed["span"]
    assert panned["key"] > zoomed["key"]
    assert panned["query"] > zoomed["query"]
    assert "locked" not in opened.state()
    press(opened, "w")
    assert opened.state()["view"]["query"] < panned["query"]
    press(opened, "s", "d")
    assert opened.state()["view"]["key"] > panned["key"]
    press(opened, "a", "e")
    assert opened.state()["view"]["span"] < panned["span"]
    for _ in range(12):
        press(opened, "+")
    assert opened.state()["view"]["span"] == 4
    opened.settle()
    # 4 x 4 cells fill the stage: four different rows of pixels.
    pixels = opened.pixels()[..., :3].astype(int)
    assert len(np.unique(pixels[:, pixels.shape[1] // 8].reshape(-1, 3), axis=0)) <= 12
    press(opened, "q")
    assert opened.state()["view"]["span"] > 4
    press(opened, "0")
    assert "view" not in opened.state()
    opened.page.mouse.dblclick(*opened.cell(40, 20))
    assert opened.state()["view"]["span"] == pytest.approx(LENGTH / 2)


def test_strips_stay_readable(open_page: Open) -> None:
    opened = head(open_page, view={"query": 40, "key": 20, "span": 12})
    text = opened.page.locator(".frame").inner_text()
    assert "cat" in text
    assert "mat." in text
    assert "<b>" in text
    press(opened, "0")
    opened.settle()
    labels = opened.page.locator(".frame").inner_text().split()
    assert 4 < len(labels) < 120


def test_quantities_switch(open_page: Open) -> None:
    opened = head(open_page)
    seen = []
    for number, quantity in enumerate(("content", "bias", "final", "weights"), start=1):
        press(opened, str(number))
        opened.settle()
        seen.append(opened.pixels())
        assert opened.page.locator(f"tr[data-quantity={quantity}].shown").count() == 1
    assert all(not np.array_equal(a, b) for n, a in enumerate(seen) for b in seen[:n])
    opened.page.get_by_label("bias", exact=True).check()
    opened.settle()
    assert np.array_equal(opened.pixels(), seen[1])
    press(opened, "m")
    opened.settle()
    assert opened.state()["minus"] == "row"
    assert not np.array_equal(opened.pixels(), seen[1])
    assert "minus row mean" in opened.page.locator(".panel .title").inner_text()


def test_four_side_by_side_move_together(open_page: Open) -> None:
    opened = head(open_page)
    press(opened, "f")
    opened.settle()
    assert opened.page.locator(".panel").count() == 4
    titles = opened.page.locator(".panel .title").all_inner_texts()
    assert [title.split(" ·")[0] for title in titles] == [
        "Content score",
        "Positional bias",
        "Final score",
        "Attention weight",
    ]
    before = [opened.pixels(f".panel:nth-child({n}) canvas.pixels") for n in range(1, 5)]
    press(opened, "+")
    opened.settle()
    after = [opened.pixels(f".panel:nth-child({n}) canvas.pixels") for n in range(1, 5)]
    assert all(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_plots_are_linked(open_page: Open) -> None:
    expected = definition("cable", 0, 1)
    opened = head(open_page, locked={"query": 60, "key": 20})
    opened.page.wait_for_selector("[data-plot=distance] path")
    summary = opened.page.locator("[data-plot=distance] svg").get_attribute("aria-label")
    assert "at distance 0" in summary
    mean = np.nanmean(np.diagonal(expected["bias"], -47))
    found = float(summary.split("distance 0, ")[1].split(" at")[0].replace("−", "-"))
    assert found == pytest.approx(mean, rel=1e-3)
    drawn = {
        name: opened.page.locator(f"[data-plot={name}] svg").inner_html()
        for name in ("distance", "row", "column")
    }
    assert all("path" in svg for svg in drawn.values())
    press(opened, "v", "ArrowDown")
    opened.page.wait_for_timeout(200)
    for name, before in drawn.items():
        assert opened.page.locator(f"[data-plot={name}] svg").inner_html() != before, name


# Colour


def bar(opened: Opened) -> list[float]:
    return [
        float(handle.get_attribute("aria-valuenow"))
        for handle in opened.page.locator(".bar .handle").all()
    ]


def test_colour_limits(open_page: Open) -> None:
    lowest = {
        (layer, number): np.nanmin(definition("cable", layer, number)["bias"])
        for layer in range(2)
        for number in range(HEADS)
    }
    layer, number = max(lowest, key=lambda at: lowest[at])
    opened = head(open_page, quantity="bias", layer=layer, head=number)
    own = bar(opened)
    assert own[0] == pytest.approx(lowest[layer, number], rel=1e-4)
    press(opened, "h")
    opened.settle()
    assert bar(opened)[0] == pytest.approx(min(lowest.values()), rel=1e-4)
    press(opened, "h", "r")
    opened.settle()
    low, high = bar(opened)
    assert low == pytest.approx(-high)
    press(opened, "x", "r", "r")
    box = opened.page.locator(".bar .track").bounding_box()
    before = opened.pixels()
    opened.page.mouse.move(box["x"] + 1, box["y"] + box["height"] / 2)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5, steps=5)
    opened.page.mouse.up()
    opened.settle()
    dragged = bar(opened)
    assert dragged[0] > own[0] * 0.7
    assert not np.array_equal(opened.pixels(), before)
    press(opened, "d", "+", "s")
    opened.settle()
    assert bar(opened) == dragged
    opened.page.locator(".bar .handle").nth(1).focus()
    press(opened, "ArrowLeft")
    assert bar(opened)[1] < dragged[1]
    press(opened, "Escape", "x")
    opened.page.wait_for_timeout(200)
    assert (
        "limits" not in opened.state().get("colour", {}) or not opened.state()["colour"]["limits"]
    )


def test_colour_scales_and_maps(open_page: Open) -> None:
    opened = head(open_page)
    opened.page.locator("summary", has_text="Colour").click()
    seen = [opened.pixels()]
    for label, value in (("Scale", "linear"), ("Clip", "10")):
        pick(opened, label, value)
        opened.settle()
        opened.page.wait_for_timeout(100)
        seen.append(opened.pixels())
    options = opened.page.locator("label.field", has_text="Colours").locator("option").all()
    values = [option.get_attribute("value") for option in options]
    assert len(values) >= 4
    for value in values[1:]:
        pick(opened, "Colours", value)
        opened.page.wait_for_timeout(100)
        seen.append(opened.pixels())
    different = {each.tobytes() for each in seen}
    assert len(different) >= len(seen) - 1


def test_hidden_pairs_never_look_like_zero(open_page: Open) -> None:
    for theme in ("light", "dark"):
        opened = head(open_page, theme=theme)
        pixels = opened.pixels()
        size = pixels.shape[0] / LENGTH
        lower = np.tri(LENGTH, k=-1, dtype=bool)
        middle = ((np.arange(LENGTH) + 0.5) * size).astype(int)
        cells = pixels[np.ix_(middle, middle)].reshape(LENGTH, LENGTH, 4)[..., :3]
        visible = {tuple(colour) for colour in cells[lower]}
        hidden = {tuple(colour) for colour in cells[np.triu_indices(LENGTH, 2)]}
        assert not visible & hidden
        assert len(hidden) >= 2  # hatched, so that no single colour stands for hidden


def test_themes(open_page: Open) -> None:
    opened = head(open_page)
    background = "getComputedStyle(document.querySelector('.headscape')).backgroundColor"
    light = opened.page.evaluate(background)
    press(opened, "t", "t")
    opened.page.wait_for_timeout(150)
    assert opened.state()["theme"] == "dark"
    assert opened.page.evaluate(background) != light
    dark = open_page([capture("cable")], HEAD, dark=True)
    dark.settle()
    assert dark.page.evaluate(background) == opened.page.evaluate(background)


# Compare


def test_side_by_side_and_difference(open_page: Open) -> None:
    cable, alibi = definition("cable", 0, 1), definition("alibi", 0, 1)
    opened = two(open_page, quantity="final")
    press(opened, "c")
    opened.settle()
    assert opened.page.locator(".panel").count() == 2
    press(opened, "c")
    opened.settle()
    assert opened.state()["compare"] == "difference"
    difference = cable["final"] - alibi["final"]
    for pair, value in opened.shown().items():
        assert value == pytest.approx(difference[pair], abs=3e-5)
    opened.page.mouse.move(*opened.cell(60, 20))
    opened.page.wait_for_function(
        "() => document.querySelector('.where').innerText.includes('Query 60')"
    )
    cells = opened.page.locator("tr[data-quantity=final] td").all_inner_texts()
    found = [float(text.replace("−", "-")) for text in cells]
    wanted = [cable["final"][60, 20], alibi["final"][60, 20], difference[60, 20]]
    assert found == pytest.approx(wanted, rel=5e-5, abs=1e-4)
    opened.page.get_by_role("button", name="Swap").click()
    opened.settle()
    assert opened.state()["capture"] == "p1"


def test_one_in_each_triangle(open_page: Open) -> None:
    opened = two(open_page, compare="triangles", quantity="bias")
    both = opened.pixels()
    size = both.shape[0] / LENGTH
    middle = ((np.arange(LENGTH) + 0.5) * size).astype(int)
    cells = both[np.ix_(middle, middle)].reshape(LENGTH, LENGTH, 4)[..., :3].astype(int)
    # ALiBi above the diagonal is a function of the distance alone; CABLE below is not.
    above = [np.ptp(np.diagonal(cells.sum(-1), d)) for d in (20, 30, 40)]
    below = [np.ptp(np.diagonal(cells.sum(-1), -d)) for d in (20, 30, 40)]
    assert max(above) <= 3
    assert min(below) > 3


def test_lengths_may_differ(open_page: Open) -> None:
    opened = two(open_page, other="p2", compare="difference", quantity="final")
    assert max(query for query, _ in opened.shown()) == 59


def test_a_slider_over_training_steps(open_page: Open) -> None:
    names = {"cable": 0, "alibi": 600, "t5": 1200}
    packs = [capture(name, step=step, encoding="cable") for name, step in names.items()]
    opened = open_page([*packs, capture("kerple", step=900)], HEAD)  # the last is of another model
    opened.settle()
    slider = opened.page.get_by_label("Training step").last
    assert slider.get_attribute("max") == "2"
    first = opened.pixels()
    slider.focus()
    press(opened, "ArrowRight")
    opened.settle()
    assert opened.state()["capture"] == "p1"
    assert not np.array_equal(opened.pixels(), first)
    opened.page.locator("h1").click()
    press(opened, ".")
    assert opened.state()["capture"] == "p2"
    press(opened, ",", ",")
    assert opened.state().get("capture", "p0") == "p0"


# Search, notes, what to take away


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
    opened.page.locator(".takeaway").get_by_role("button", name="Link").click()
    text = opened.page.locator(".takeaway textarea").input_value()
    assert text.startswith("file://")
    state = json.loads(unquote(text.split("#")[1]))
    again = two(open_page, **state)
    again.page.locator(".takeaway").get_by_role("button", name="Link").click()
    copied = again.page.locator(".takeaway textarea").input_value()
    assert json.loads(unquote(copied.split("#")[1])) == state
    assert np.array_equal(again.pixels(), opened.pixels())


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
    opened.page.locator(".takeaway").get_by_role("button", name="Python").click()
    text = opened.page.locator(".takeaway textarea").input_value()
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
