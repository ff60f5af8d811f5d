"""Colours and themes, and two captures beside each other."""

import re

import numpy as np
import pytest

from browser.acting import HEAD, bar, head, pick, press, two
from browser.captures import HEADS, LENGTH, capture, definition
from browser.conftest import Open, Opened

pytestmark = pytest.mark.browser


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
    opened.page.wait_for_timeout(200)
    assert bar(opened)[1] < dragged[1]
    press(opened, "Escape", "x")
    opened.page.wait_for_timeout(200)
    assert (
        "limits" not in opened.state().get("colour", {}) or not opened.state()["colour"]["limits"]
    )


def test_grey_stays_zero_when_a_limit_is_dragged(open_page: Open) -> None:
    """And the bar marks it, with its label under the mark."""
    opened = head(open_page, quantity="content", pooling="mean")
    values = definition("cable", 0, 1)["content"]

    def grey() -> float:
        """Return the value whose cells are nearest to grey."""
        pixels = opened.pixels()
        middle = ((np.arange(LENGTH) + 0.5) * pixels.shape[0] / LENGTH).astype(int)
        cells = pixels[np.ix_(middle, middle)][..., :3].astype(int)
        far = np.abs(cells - [166, 167, 169]).sum(axis=-1)
        return float(values[np.isfinite(values) & (far <= 3)].mean())

    def zero() -> float:
        """Where the line on the bar is, 0 to 1."""
        bar = opened.pixels(".bar canvas")[0, :, :3].astype(int)
        (at,) = np.flatnonzero(bar.sum(axis=1) == 0)
        return float(at / (len(bar) - 1))

    for part in (None, 0.4):
        track = opened.page.locator(".bar .track").bounding_box()
        if part:
            y = track["y"] + 7
            opened.page.mouse.move(track["x"] + 1, y)
            opened.page.mouse.down()
            opened.page.mouse.move(track["x"] + part * track["width"], y, steps=5)
            opened.page.mouse.up()
            opened.page.mouse.move(5, 5)
            opened.settle()
        low, high = bar(opened)
        assert abs(grey()) < 0.03 * (high - low)
        label = opened.page.locator(".bar .limit").nth(1)
        assert label.inner_text() == "0"
        box = label.bounding_box()
        line = track["x"] + zero() * track["width"]
        assert box["x"] + box["width"] / 2 == pytest.approx(line, abs=3)
        whole = bar_ends(opened)
        assert zero() == pytest.approx(-whole[0] / (whole[1] - whole[0]), abs=0.01)
    assert low > whole[0] + 0.5  # the limit was moved


def bar_ends(opened: Opened) -> list[float]:
    handle = opened.page.locator(".bar .handle").first
    return [float(handle.get_attribute(f"aria-value{end}")) for end in ("min", "max")]


def test_a_symlog_bar_says_so(open_page: Open) -> None:
    opened = two(open_page, compare="difference")
    assert opened.page.locator(".bar .limit").nth(1).inner_text() == "0 (symlog)"
    svg = opened.download("SVG").decode()
    assert "Attention weight, difference (symlog)" in svg


def test_an_exported_bar_has_a_label_at_zero(open_page: Open) -> None:
    opened = head(open_page, quantity="content")
    low, high = bar(opened)
    texts = re.findall(r'<text x="([\d.]+)"[^>]*>([^<]+)</text>', opened.download("SVG").decode())
    (zero,) = [float(x) for x, text in texts if text == "0" and float(x) > 104]
    ends = [
        next(float(x) for x, text in texts if text == number)
        for number in opened.page.locator(".bar .limit").all_inner_texts()[::2]
    ]
    assert zero == pytest.approx(ends[0] - low / (high - low) * (ends[1] - ends[0]), abs=0.5)


@pytest.mark.parametrize(("name", "diverges"), [("cable", False), ("rope", True)])
def test_scores_of_an_equation_have_one_colour_map(
    name: str, diverges: bool, open_page: Open
) -> None:
    """Diverging only if each sign has a fifth of the range in content, position and score."""
    every = definition(name, 0, 1)
    share = [
        min(-np.nanmin(every[each]), np.nanmax(every[each]))
        / np.ptp(every[each][np.isfinite(every[each])])
        for each in ("content", "bias", "final")
    ]
    assert (min(share) >= 0.2) == diverges
    assert max(share) >= 0.2  # the maps alone would differ or all diverge
    opened = open_page([capture(name)], {**HEAD, "four": True})
    opened.settle()
    for panel in range(1, 4):
        ends = opened.pixels(f".panel:nth-child({panel}) .bar canvas")[0, [0, -1], :3]
        expected = [[10, 26, 63], [255, 243, 160]] if diverges else [[68, 1, 84], [253, 231, 37]]
        assert np.abs(ends.astype(int) - expected).max() <= 2
    alone = open_page([capture(name)], {**HEAD, "quantity": "content"})
    alone.settle()
    assert np.abs(alone.pixels(".bar canvas")[0, 0, :3].astype(int) - [10, 26, 63]).max() <= 2


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
    opened = open_page([*packs, capture("kerple", step=900)], HEAD)  # the last: a different model
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


def test_pairs_outside_a_window_are_hatched_too(open_page: Open) -> None:
    opened = open_page([capture("alibi", fields={"window": 20})], HEAD)
    opened.settle()
    pixels = opened.pixels()
    middle = ((np.arange(LENGTH) + 0.5) * pixels.shape[0] / LENGTH).astype(int)
    cells = pixels[np.ix_(middle, middle)][..., :3]
    ahead = {tuple(colour) for colour in cells[np.triu_indices(LENGTH, 2)]}
    outside = {tuple(colour) for colour in cells[np.tril_indices(LENGTH, -20)]}
    assert len(outside) >= 2
    assert outside <= ahead
