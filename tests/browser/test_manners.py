"""What a new user stumbles over: limits, Back, the wheel, the keyboard, screen readers, themes."""

from typing import Any

import numpy as np
import pytest
from benchmarks.viewer import random_capture

from browser.acting import HEAD, bar, head, press, two
from browser.captures import LENGTH, capture, definition
from browser.conftest import Open
from browser.notebook import show
from headscape.viewer.viewer_answers import Answers
from headscape.viewer.widget import _first

pytestmark = pytest.mark.browser


WATCH = """() => {
    window.said = [];
    const live = document.querySelectorAll("[aria-live], [role=status], [role=alert]");
    for (const each of live) new MutationObserver(() => window.said.push(each.textContent))
        .observe(each, { childList: true, characterData: true, subtree: true });
    return live.length;
}"""
"""Keeps what screen readers are told, and returns how many elements tell them something."""


@pytest.fixture
def page(chromium: Any) -> Any:
    opened = chromium.new_page(viewport={"width": 1000, "height": 700})
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.close()
    assert complaints == []


def test_labels_of_limits_stand_where_the_limits_are(open_page: Open) -> None:
    opened = head(open_page, quantity="bias")
    track = opened.page.locator(".bar .track").bounding_box()
    handle = opened.page.locator(".bar .handle").first.bounding_box()
    opened.page.mouse.move(handle["x"] + 5, handle["y"] + 10)
    opened.page.mouse.down()
    opened.page.mouse.move(track["x"] + 0.45 * track["width"], handle["y"] + 10, steps=4)
    opened.page.mouse.up()
    opened.settle()
    label, handle = (
        opened.page.locator(f".bar {name}").first.bounding_box() for name in (".limit", ".handle")
    )
    text = opened.page.locator(".bar .limit").first.inner_text().replace("−", "-")
    assert float(text) == pytest.approx(bar(opened)[0], rel=0.01)
    middle = handle["x"] + handle["width"] / 2
    assert label["x"] - 2 <= middle <= label["x"] + label["width"] + 2


def test_back_returns_to_where_one_was(open_page: Open) -> None:
    opened = open_page([capture("cable")])
    opened.settle()
    opened.page.locator(".card").nth(5).click()
    opened.settle()
    opened.state()
    press(opened, "+", "]")
    opened.settle()
    assert opened.state()["head"] == 2
    opened.page.go_back()
    opened.settle()
    assert "layer 2, head 2" in opened.page.locator(".panel .title").inner_text()
    opened.page.go_back()
    opened.settle()
    assert opened.page.locator(".card").first.is_visible()
    opened.page.go_forward()
    opened.settle()
    assert "layer 2, head 2" in opened.page.locator(".panel .title").inner_text()


def test_the_wheel_scrolls_a_notebook_and_zooms_after_a_click_or_with_ctrl(page: Any) -> None:
    show(page, capture("cable"), state={"screen": "head"})
    stage = page.locator(".stage")
    stage.scroll_into_view_if_needed()
    span = "() => window.traits.state.view?.span ?? 96"
    box = stage.bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 60)
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 40)
    page.wait_for_function("(before) => scrollY > before", arg=before)
    assert page.evaluate(span) == 96
    box = stage.bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function(f"() => ({span})() < 96")
    there, now = page.evaluate("scrollY"), page.evaluate(span)
    page.mouse.click(box["x"] + 50, box["y"] + 60)
    page.mouse.wheel(0, -100)
    page.wait_for_function(f"(now) => ({span})() < now", arg=now)
    assert page.evaluate("scrollY") == there


def test_a_notebooks_theme_is_the_viewers(page: Any) -> None:
    background = "getComputedStyle(document.querySelector('.headscape')).backgroundColor"
    show(page, capture("cable"), light=False)
    assert page.evaluate(background) == "rgb(20, 23, 27)"
    page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    page.wait_for_function(f"() => {background} === 'rgb(255, 255, 255)'")


def test_a_widget_shows_at_first_what_a_page_shows(page: Any, open_page: Open) -> None:
    pack = capture("cable")
    show(page, pack, selection=_first(Answers.of([pack])), state={"screen": "head"})
    alone = open_page([pack], {"screen": "head"})
    alone.settle()
    title = page.locator(".panel .title").inner_text()
    assert title == alone.page.locator(".panel .title").inner_text()


def test_hovering_says_nothing_and_the_keyboard_one_sentence(open_page: Open) -> None:
    opened = head(open_page)
    assert opened.page.evaluate(WATCH) > 0
    for key in (10, 20, 30):
        opened.page.mouse.move(*opened.cell(60, key))
        opened.page.wait_for_timeout(120)
    opened.page.wait_for_timeout(500)
    assert opened.page.evaluate("window.said") == []
    press(opened, "v", "ArrowDown", "ArrowDown")
    opened.page.wait_for_function("() => window.said.length > 0")
    (sentence,) = opened.page.evaluate("window.said")
    assert sentence.startswith("Query 62, key 30: weights")


def test_an_overview_that_fills_says_so_once(open_page: Open) -> None:
    opened = open_page([random_capture(6, 8, 64).pack()])
    opened.settle()
    opened.page.evaluate(WATCH)
    press(opened, "3")
    opened.settle()
    opened.page.wait_for_timeout(300)
    (sentence,) = opened.page.evaluate("window.said")
    assert sentence == "Score: 48 of 48 heads."
    # Pointing at heads says nothing.
    for card in opened.page.locator(".card").all()[:5]:
        card.hover()
    opened.page.wait_for_timeout(100)
    assert len(opened.page.evaluate("window.said")) == 1


def test_a_finger_scrolls_past_a_map_until_it_is_tapped_or_zoomed(open_page: Open) -> None:
    opened = open_page([capture("cable")], HEAD, width=390, height=844, touch=True)
    opened.settle()
    page = opened.page
    touch = page.context.new_cdp_session(page)
    box = page.locator(".stage").bounding_box()
    x, y = box["x"] + 100, box["y"] + 200

    def swipe(by: int) -> float:
        """Move one finger over the map; returns how far the page is scrolled."""
        down = page.evaluate("scrollY")

        def send(kind: str, *at: float) -> None:
            points = [{"x": x, "y": each - down} for each in at]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        send("touchStart", y)
        for step in range(1, 11):
            send("touchMove", y + by * step / 10)
            page.wait_for_timeout(16)
        send("touchEnd")
        page.wait_for_timeout(400)
        found: float = page.evaluate("scrollY")
        return found

    assert swipe(-150) > 100
    assert "view" not in opened.state()
    assert "locked" not in opened.state()
    assert swipe(400) == 0
    page.touchscreen.tap(x, y)
    assert opened.state()["locked"]
    assert swipe(-150) == 0
    assert opened.state()["view"]["query"] > 10
    # Without the focus, a map that is zoomed is still moved, and one that shows all is not.
    page.locator("h1").tap()
    before = opened.state()["view"]["query"]
    assert swipe(50) == 0
    assert opened.state()["view"]["query"] < before
    page.locator("h1").tap()
    press(opened, "0")
    opened.settle()
    page.evaluate("document.activeElement.blur()")
    assert swipe(-150) > 100


@pytest.mark.parametrize("screen", ["overview", "head", "reading"])
def test_the_first_tab_skips_the_controls(screen: str, open_page: Open) -> None:
    opened = open_page([capture("cable")], {"screen": screen})
    opened.settle()
    press(opened, "Tab", "Enter")
    focused = opened.page.evaluate("document.activeElement.className")
    assert focused.split()[0] == {"overview": "card", "head": "stage", "reading": "text"}[screen]


def test_comparison_curves_have_a_legend(open_page: Open) -> None:
    opened = two(open_page, compare="side", locked={"query": 50, "key": 30})
    opened.page.wait_for_function("() => document.querySelectorAll('.plot .legend').length === 6")
    for name in ("distance", "row", "column"):
        legend = opened.page.locator(f"[data-plot={name}] .legend").all_text_contents()
        assert legend == ["cable", "alibi"]
    # Names stand above what is drawn.
    names = opened.page.locator("[data-plot=distance] .legend").all()
    below = max(box["y"] + box["height"] for box in (each.bounding_box() for each in names))
    drawn = opened.page.locator("[data-plot=distance] :is(.band, path, .grid)").all()
    assert min(each.bounding_box()["y"] for each in drawn) >= below - 2


def test_a_phone_shows_the_map_before_the_settings(open_page: Open) -> None:
    opened = open_page([capture("cable")], HEAD, width=390, height=844)
    opened.settle()
    assert opened.page.locator(".stage").bounding_box()["y"] < 844 / 2
    opened.page.locator("summary", has_text="Settings").click()
    assert opened.page.get_by_label("Position: factor of").is_visible()


def test_closing_the_first_visits_note_gives_its_room_to_the_heads(open_page: Open) -> None:
    """The overview is laid out as on a later visit."""
    sizes = []
    for first_visit in (True, False):
        opened = open_page([capture("cable")], width=1280, height=720, first_visit=first_visit)
        opened.settle()
        if first_visit:
            opened.page.get_by_role("button", name="Got it").click()
            opened.page.wait_for_timeout(200)
        sizes.append(opened.page.locator(".card").first.bounding_box())
    assert sizes[0] == sizes[1]


def test_a_first_visit_explains_itself_once(open_page: Open) -> None:
    opened = open_page([capture("cable")], first_visit=True)
    opened.settle()
    note = opened.page.locator(".welcome")
    assert note.inner_text().count(". ") == 2
    opened.page.get_by_role("button", name="Got it").click()
    assert note.is_hidden()
    opened.page.reload()
    opened.settle()
    assert note.is_hidden()


def test_the_equation_has_the_numbers_of_the_pair(open_page: Open) -> None:
    every = definition("cable", 0, 1)
    key = int(np.nanargmax(every["weights"][60]))
    maps = {name: each[60, key] for name, each in every.items()}
    opened = head(open_page, locked={"query": 60, "key": key})

    def number(value: float) -> str:
        return f"{value:.2f}".replace("-", "−")

    sign = "−" if maps["bias"] < 0 else "+"
    expected = (
        f"{number(maps['content'])} content {sign} {abs(maps['bias']):.2f} position = "
        f"{number(maps['final'])} score softmax →"
    )
    line = opened.page.locator(".equation")
    words = " ".join(line.locator("b, .term").all_inner_texts())
    assert words.startswith(expected)
    weight = words.removeprefix(expected).split("%")[0]
    assert float(weight) == pytest.approx(100 * maps["weights"], rel=0.06)
    press(opened, "f")
    opened.settle()
    signs = opened.page.locator(".panel .sign:visible").all_inner_texts()
    assert signs == ["+", "=", "softmax →"]


def test_words_are_explained_on_hover_and_on_focus(open_page: Open) -> None:
    opened = head(open_page)
    for word in ("content", "position", "score", "weight"):
        term = opened.page.locator(".equation").get_by_role("button", name=word)
        tip = opened.page.locator(f"#{term.get_attribute('aria-describedby')}")
        assert tip.is_hidden()
        term.hover()
        assert tip.is_visible()
        opened.page.locator("h1").hover()
        assert tip.is_hidden()
        term.focus()
        assert tip.is_visible()
        assert tip.inner_text().lower().startswith(word)


def test_rough_values_have_few_digits(open_page: Open) -> None:
    opened = open_page(
        [capture("cable")], {**HEAD, "locked": {"query": 50, "key": 47}}, precision="float16"
    )
    opened.settle()
    for cell in opened.page.locator(".readout tbody td:visible").all_inner_texts():
        assert len(cell.strip("−").replace(".", "").lstrip("0")) <= 3


def test_the_keyboard_alone_goes_everywhere(open_page: Open) -> None:
    """From the overview to a head, a pair, its equation, the text, position off, and back."""
    opened = open_page([capture("cable")])
    opened.settle()
    press(opened, "Tab", "Enter", "ArrowRight", "Enter")  # past the controls, to the second head
    opened.settle()
    assert opened.state() == {"screen": "head", "head": 1, "capture": "p0"}
    press(opened, "v", "ArrowDown", "Enter", "f", "z")
    opened.settle()
    state = opened.state()
    assert state["four"]
    assert state["position"]["scale"] == 0
    assert state["locked"] is not None
    assert "(off)" in opened.page.locator(".equation").inner_text()
    press(opened, "k", "v", "End", "Enter")
    opened.settle()
    assert opened.state()["reading"]["token"] == LENGTH - 1
    press(opened, "Escape", "z", "k", "o")
    opened.settle()
    assert opened.page.locator(".card").first.is_visible()
