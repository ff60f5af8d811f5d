"""From the overview to a head and a pair: sorting, hovering, moving, quantities, plots."""

import re

import numpy as np
import pytest

from browser.acting import HEAD, head, names, numbers, pick, press
from browser.captures import HEADS, LENGTH, capture, definition
from browser.conftest import Open

pytestmark = pytest.mark.browser


def test_a_measure_sorts_and_filters(open_page: Open) -> None:
    opened = open_page([capture("cable")])
    opened.settle()
    assert names(opened) == [f"layer {n + 1}, head {h + 1}" for n in range(2) for h in range(HEADS)]
    weights = np.nan_to_num(definition("cable", 0, 0)["weights"])
    at = np.arange(LENGTH)
    expected = (weights * (at[:, None] - at)).sum(axis=1).mean()
    opened.page.wait_for_function(
        "() => !document.querySelector('.overview').innerText.includes('…')"
    )
    assert numbers(opened)[0] == pytest.approx(expected, rel=0.01)
    pick(opened, "Order", "rising")
    opened.page.wait_for_selector("text=/By measure/")
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
    assert f"{len(kept)} of 8 heads" in opened.page.locator(".overview").inner_text()
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
    assert sorted(names(opened)) == [
        f"layer {n + 1}, head {h + 1}" for n in range(2) for h in range(HEADS)
    ]


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
    opened.settle()
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
    # Lines stand beside the row and the column; the cells themselves keep their colours.
    assert marked[int(61 * size) - 1 : int(61 * size) + 3].mean(axis=1).max() > 0.9
    assert marked[:, int(21 * size) - 1 : int(21 * size) + 3].mean(axis=0).max() > 0.9
    row, column = marked[int(60.5 * size)], marked[:, int(20.5 * size)]
    assert row.mean() < 0.05
    assert column.mean() < 0.05
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
    opened.page.get_by_label("position", exact=True).check()
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
        "Content",
        "Position",
        "Score",
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


def test_distances_with_few_pairs_are_faint(open_page: Open) -> None:
    """The last 15 of 96 distances, as in figures: curve and bands; the strong curve ends there."""
    opened = head(open_page, locked={"query": 60, "key": 20})
    plot = opened.page.locator("[data-plot=distance]")
    opened.page.wait_for_selector("[data-plot=distance] path.faint")
    assert "Faint: few pairs." in plot.inner_text()

    def ends(path: str) -> list[float]:
        numbers = re.findall(r"[ML]([\d.]+),", path)
        return [float(numbers[0]), float(numbers[-1])]

    strong, faint = (each.get_attribute("d") for each in plot.locator("path.curve").all())
    left, right = 44, 312  # the plot's ends are distances 0 and 95
    at = [
        left + (right - left) * distance / (LENGTH - 1) for distance in (0, LENGTH - 16, LENGTH - 1)
    ]
    assert ends(strong) == pytest.approx(at[:2], abs=0.2)
    assert ends(faint) == pytest.approx(at[1:], abs=0.2)
    opacity = [
        float(plot.locator(each).first.evaluate("e => getComputedStyle(e).opacity"))
        for each in ("path.faint", "path:not(.faint)", ".band.wide.faint", ".band.wide:not(.faint)")
    ]
    assert opacity[0] < 0.5 * opacity[1]
    assert opacity[2] < 0.5 * opacity[3]
    # Where the bias is a function of the distance alone, no distance is less certain.
    exact = open_page([capture("alibi")], HEAD)
    exact.page.wait_for_selector("[data-plot=distance] path")
    exact.settle()
    assert exact.page.locator("[data-plot=distance] .faint").count() == 0


# Colour


def test_one_language_for_quantities(open_page: Open) -> None:
    """Radio buttons, values, the equation and titles say content, position, score and weight."""
    words = ["content", "position", "score", "weights"]
    opened = head(open_page, locked={"query": 60, "key": 20}, four=True, profile="shown")
    radios = opened.page.locator("fieldset.choices label").all_inner_texts()
    assert radios == words
    assert opened.page.locator(".readout tbody th").all_inner_texts() == words
    titles = opened.page.locator(".panel .title").all_inner_texts()
    for word, title in zip(words, titles, strict=True):
        assert word.removesuffix("s") in title.split(" ·")[0].lower()
    assert "weights: rank" in opened.where()
    press(opened, "f")
    shown = []
    for number in "1234":
        press(opened, number, "v", "ArrowUp", "ArrowDown")
        opened.settle()
        opened.page.wait_for_timeout(500)
        shown.append(opened.page.locator(".headscreen").inner_text())
    opened.page.get_by_role("button", name="Overview").click()
    opened.settle()
    shown.append(opened.page.locator("body").inner_text())
    for text in shown:
        assert not re.search(r"\b(bias|final)\b", text, re.IGNORECASE), text


def test_buttons_beside_the_map_lead_to_search_notes_and_export(open_page: Open) -> None:
    opened = open_page([capture("cable")], {"screen": "head"})
    opened.settle()
    opened.page.set_viewport_size({"width": 1280, "height": 720})
    for name, part in (("Search", ".search"), ("Notes", ".notes"), ("Export", ".export")):
        button = opened.page.locator(".jumps").get_by_role("button", name=name)
        button.scroll_into_view_if_needed()
        button.click()
        assert opened.page.evaluate(f"document.activeElement.closest('{part}') !== null")
