"""The reading view: what heads give the tokens of the text, hovered, locked, overlaid."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from browser.acting import pick, press
from browser.captures import LENGTH, capture
from browser.conftest import Open, Opened
from browser.test_hosts import served
from captures.test_scaled_position import scaled
from headscape.viewer.viewer_answers import Answers

pytestmark = pytest.mark.browser
DEFAULT: dict[str, Any] = {
    "token": None, "side": "to", "marks": "shading", "heads": [], "beside": True,
}  # fmt: skip


def reading(
    open_page: Open,
    name: str = "cable",
    *,
    dark: bool = False,
    width: int = 1280,
    **fields: Any,
) -> Opened:
    known = {key: fields.pop(key) for key in list(fields) if key in DEFAULT}
    state = {"screen": "reading", "layer": 0, "head": 1, "reading": {**DEFAULT, **known}, **fields}
    opened = open_page([capture(name)], state, dark=dark, width=width)
    opened.settle()
    return opened


def token(opened: Opened, number: int, page: int = 0) -> Any:
    return opened.page.locator(".reading .text").nth(page).locator(f"[data-token='{number}']")


def listed(opened: Opened, page: int = 0, table: int = 0) -> list[tuple[int, float]]:
    """Tokens and numbers of a list of top keys."""
    rows = opened.page.locator(".reading .page").nth(page).locator("table").nth(table)
    found = []
    for row in rows.locator("tr").all():
        text = row.locator("td").last.inner_text().replace("−", "-")
        share = float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
        found.append((int(row.get_attribute("data-token")), share))
    return found


def shades(opened: Opened, page: int = 0) -> np.ndarray:
    """Opacity of every token's background."""
    found = opened.page.evaluate(
        """(n) => [...document.querySelectorAll(".reading .text")[n].querySelectorAll("span")]
            .map((each) => getComputedStyle(each).backgroundColor)""",
        page,
    )
    return np.array([rgba(each)[3] for each in found])


def rgba(colour: str) -> tuple[float, float, float, float]:
    """The numbers of a computed colour."""
    red, green, blue, *alpha = (float(each) for each in re.findall(r"[\d.]+", colour))
    return red, green, blue, alpha[0] if alpha else 1.0


def contrast(a: Sequence[float], b: Sequence[float]) -> float:
    """The contrast ratio of two colours, by WCAG."""

    def light(colour: Sequence[float]) -> float:
        parts = np.array(colour) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("position", [0, 0.5, 1])
@pytest.mark.parametrize("side", ["to", "from"])
@pytest.mark.parametrize("quantity", ["weights", "final"])
def test_lists_and_shades_are_numpys(
    quantity: str, side: str, position: float, open_page: Open
) -> None:
    opened = reading(
        open_page, token=60, side=side, quantity=quantity,
        position={"scale": position, "only": None},
    )  # fmt: skip
    given = []
    for factor in (position, 1 if position == 0 else 0):
        maps = scaled("cable", factor, 0, 1, LENGTH)[quantity]
        given.append(maps[60] if side == "to" else maps[:, 60])
    low = 0.0 if quantity == "weights" else np.nanmin(given)
    for page, values in enumerate(given):
        order = [int(at) for at in np.argsort(-values) if np.isfinite(values[at])][:8]
        rows = listed(opened, page)
        assert [at for at, _ in rows] == order
        for at, value in rows:
            assert value == pytest.approx(values[at], rel=0.06, abs=6e-6)
        part = np.nan_to_num((values - low) / (np.nanmax(given) - low))
        dark = np.sqrt(part) if quantity == "weights" else part
        np.testing.assert_allclose(shades(opened, page), 0.6 * dark, atol=0.6 / 80 + 0.002)


def test_the_text_opens_with_what_its_last_token_looks_at(open_page: Open) -> None:
    opened = reading(open_page, beside=False)
    last = str(opened.page.locator(".reading .text").first.locator("[data-token]").count() - 1)
    place = opened.page.locator(".reading")
    assert place.get_attribute("data-token") == last
    assert shades(opened).max() == pytest.approx(0.6, abs=0.01)
    token(opened, 40).hover()
    opened.page.wait_for_selector(".reading[data-token='40']")
    opened.page.locator("h1").hover()
    opened.page.wait_for_timeout(150)
    assert place.get_attribute("data-token") == "40"  # so that the list below can be read


def test_the_text_opens_with_what_looks_at_its_first_token(open_page: Open) -> None:
    opened = reading(open_page, beside=False, side="from")
    assert opened.page.locator(".reading").get_attribute("data-token") == "0"
    assert shades(opened).max() == pytest.approx(0.6, abs=0.01)


def test_the_text_opens_with_the_locked_pair(open_page: Open) -> None:
    opened = reading(open_page, beside=False, locked={"query": 50, "key": 20})
    assert opened.page.locator(".reading").get_attribute("data-token") == "50"
    opened = reading(open_page, beside=False, side="from", locked={"query": 50, "key": 20})
    assert opened.page.locator(".reading").get_attribute("data-token") == "20"


def test_a_locked_token_says_how_it_is_released(open_page: Open) -> None:
    opened = reading(open_page, beside=False)
    assert opened.page.get_by_text("A click or Enter locks it").is_visible()
    token(opened, 40).click()
    opened.page.get_by_text("Locked. Esc, or a click on the token, releases it.").wait_for()
    press(opened, "Escape")
    opened.page.get_by_text("A click or Enter locks it").wait_for()


def test_hover_shades_a_click_locks_and_a_click_unlocks(open_page: Open) -> None:
    opened = reading(open_page, beside=False)
    token(opened, 40).hover()
    opened.page.wait_for_selector(".reading[data-token='40'][data-complete=true]")
    assert shades(opened)[:41].max() == pytest.approx(0.6, abs=0.01)
    assert shades(opened)[41:].max() == 0
    token(opened, 40).click()
    assert opened.state()["reading"]["token"] == 40
    token(opened, 70).hover()
    opened.page.wait_for_timeout(150)
    assert opened.page.locator(".reading").get_attribute("data-token") == "40"
    token(opened, 40).click()
    assert opened.state()["reading"]["token"] is None
    opened.page.locator("h1").hover()
    token(opened, 70).hover()
    opened.page.wait_for_selector(".reading[data-token='70']")


def test_heads_overlay_with_a_hue_each(open_page: Open) -> None:
    opened = reading(open_page, token=60, beside=False)
    opened.page.locator("label.field", has_text="Add a head").locator("select").select_option("1.2")
    opened.settle()
    assert opened.state()["reading"]["heads"] == [{"layer": 1, "head": 2}]
    style = token(opened, 60).evaluate("each => getComputedStyle(each).backgroundImage")
    colours = re.findall(r"rgba?\((\d+, \d+, \d+)", style)
    assert len(set(colours)) == 2
    second = scaled("cable", 1, 1, 2, LENGTH)["weights"][60]
    assert listed(opened, 0, 1)[0][0] == int(np.nanargmax(second))
    opened.page.get_by_role("button", name="Remove layer 2, head 3").click()
    opened.settle()
    assert opened.page.locator(".reading table").count() == 1


def test_arcs_in_place_of_shades(open_page: Open) -> None:
    opened = reading(open_page, token=60, marks="arcs", beside=False)
    assert opened.page.locator(".reading .arc").count() >= 3
    assert shades(opened).max() == 0
    widths = [
        float(each.get_attribute("stroke-width"))
        for each in opened.page.locator(".reading .arc").all()
    ]
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("at", [12, 60, 90])
def test_arcs_stay_in_their_box_and_heads_apart(at: int, width: int, open_page: Open) -> None:
    """Also those of the first line and those whose token begins a line."""
    heads = [{"layer": 1, "head": 2}, {"layer": 1, "head": 3}]
    opened = reading(open_page, width=width, token=at, marks="arcs", beside=False, heads=heads)
    box = opened.page.locator(".reading .text").first.bounding_box()
    arcs = opened.page.evaluate(
        """() => [...document.querySelectorAll(".reading .arc")].map((each) => {
            const { x, y, width, height } = each.getBoundingClientRect();
            const line = parseFloat(getComputedStyle(each).strokeWidth) / 2;
            const ends = each.getAttribute("d").match(/-?[\\d.]+/g).map(Number);
            return [x - line, y - line, x + width + line, y + height + line, ...ends];
        })"""
    )
    assert len(arcs) > 6
    for left, top, right, bottom, *_ in arcs:
        assert box["x"] <= left
        assert right <= box["x"] + box["width"]
        assert box["y"] <= top
        assert bottom <= box["y"] + box["height"]
    paths = [tuple(each[4:]) for each in arcs]
    assert len({*paths}) == len(paths)
    # Arcs end at words: where one begins a line, not in the middle of the line.
    ends = opened.page.evaluate(
        """() => [...document.querySelectorAll(".reading .text [data-token]")].map((each) => {
            const left = each.parentElement.getBoundingClientRect().left;
            const all = [...each.getClientRects()].map((r) => [r.left - left, r.right - left]);
            return all.sort((a, b) => b[1] - b[0] - (a[1] - a[0]))[0];
        })"""
    )
    for *_, end, _y in arcs:
        assert any(low - 6 <= end <= high + 6 for low, high in ends)
    shift = [opened.page.evaluate("() => document.querySelector('.reading .text').scrollHeight")]
    pick(opened, "Marks", "shading")
    opened.settle()
    shift.append(opened.page.evaluate("document.querySelector('.reading .text').scrollHeight"))
    assert shift[0] - shift[1] == pytest.approx(36, abs=2)  # the room above is there for arcs alone


@pytest.mark.parametrize(
    ("marks", "word"), [("shading", "strongest shade"), ("arcs", "thickest arc")]
)
def test_lists_say_what_the_strongest_mark_is(marks: str, word: str, open_page: Open) -> None:
    opened = reading(open_page, token=60, marks=marks, beside=False)
    caption = opened.page.locator(".reading caption").inner_text().strip()
    assert caption.startswith("“")
    assert not caption.startswith("“·")
    greatest = listed(opened)[0][1]
    assert word in caption
    assert float(caption.split()[-1].rstrip("%")) == pytest.approx(100 * greatest)


def test_a_quarter_is_seen_and_text_is_read_on_every_shade_of_a_dark_page(open_page: Open) -> None:
    """Weights of 25% and 100% of the range have half and all of a shade."""
    heads = [{"layer": 0, "head": 2}, *({"layer": 1, "head": n} for n in range(4))]
    opened = reading(open_page, dark=True, token=60, beside=False, heads=heads)
    page, ink = (
        rgba(opened.page.locator(".headscape").evaluate(f"each => getComputedStyle(each).{name}"))
        for name in ("backgroundColor", "color")
    )
    every = opened.page.evaluate(
        """() => [...document.querySelectorAll(".reading .text [data-token]")]
            .map((each) => getComputedStyle(each).backgroundImage)"""
    )
    strongest = {}
    for each in every:
        for text in re.findall(r"rgba?\([^)]*\)", each):
            *hue, alpha = rgba(text)
            strongest[tuple(hue)] = max(alpha, strongest.get(tuple(hue), 0))
    assert len(strongest) == 6
    for hue, alpha in strongest.items():
        on, half = (
            [a * h + (1 - a) * p for h, p in zip(hue, page, strict=False)]
            for a in (alpha, alpha / 2)
        )
        assert contrast(on, ink[:3]) >= 4.5
        assert contrast(half, page[:3]) >= 1.6


def test_the_keyboard_reads_too(open_page: Open) -> None:
    opened = reading(open_page)
    press(opened, "v", "ArrowRight", "ArrowRight", "ArrowDown")
    opened.page.wait_for_selector(".reading[data-token='12'][data-complete=true]")
    said = opened.page.locator(".reading [role=status]").inner_text()
    assert said.startswith("“sat” (12) looks at")
    press(opened, "Enter")
    assert opened.state()["reading"]["token"] == 12
    press(opened, "End", "Escape")
    assert "reading" not in opened.state()
    press(opened, "k")
    opened.settle()
    assert opened.state()["screen"] == "head"


def test_words_beside_the_text_follow_the_dial(open_page: Open) -> None:
    """With position off in the text, the text beside it has position on, and says so."""
    for scale, words in ((1, "position off"), (0, "position on"), (0.5, "position off")):
        opened = reading(open_page, position={"scale": scale, "only": None})
        beside = opened.page.locator(".reading .page").nth(1)
        assert beside.locator(".text").get_attribute("aria-label") == f"Text with {words}"
        assert words in beside.locator("h3").inner_text()
        assert opened.page.get_by_label(f"Beside it with {words}").is_checked()


def test_a_capture_without_text_says_so(open_page: Open) -> None:
    opened = open_page([capture("cable", pieces=[])], {"screen": "reading"})
    opened.settle()
    assert "has no text" in opened.page.locator(".reading").inner_text()
    assert opened.page.locator(".reading .text").first.is_hidden()


def test_a_served_text_is_read_too(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several heads and both texts, from a server that sends values and no factors."""
    monkeypatch.setattr("headscape.viewer.viewer_answers.WHOLE_BYTES", 0)
    heads = [{"layer": 1, "head": 2}, {"layer": 1, "head": 3}]
    state = {"screen": "reading", "head": 1, "reading": {**DEFAULT, "token": 60, "heads": heads}}
    with served(open_page, Answers.of([capture("cable")]), state) as opened:
        opened.settle()
        for page, position in enumerate((1, 0)):
            for table, (layer, number) in enumerate(((0, 1), (1, 2), (1, 3))):
                values = scaled("cable", position, layer, number, LENGTH)["weights"][60]
                assert listed(opened, page, table)[0][0] == int(np.nanargmax(values))
        pick(opened, "A token", "from")
        opened.settle()
        values = scaled("cable", 0, 0, 1, LENGTH)["weights"][:, 60]
        assert listed(opened, 1)[0][0] == int(np.nanargmax(values))
