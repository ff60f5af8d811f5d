"""The short set, part of every test run: a page opens from disk and its numbers are numpy's."""

import numpy as np

from browser.captures import HEADS, LENGTH, capture, definition
from browser.conftest import Open


def test_the_overview_opens(open_page: Open) -> None:
    opened = open_page([capture("cable"), capture("alibi")])
    opened.settle()
    assert opened.page.locator(".card").count() == 2 * HEADS
    assert opened.page.locator("h1").inner_text() == "cable"
    colours = np.unique(opened.pixels(".card canvas").reshape(-1, 4), axis=0)
    assert len(colours) > 20


def test_a_head_shows_exact_values(open_page: Open) -> None:
    expected = definition("cable", 1, 2)
    state = {"screen": "head", "layer": 1, "head": 2, "locked": {"query": 50, "key": 47}}
    opened = open_page([capture("cable")], state)
    opened.settle()
    found = opened.readout()
    for quantity, values in expected.items():
        value = found[quantity]
        assert value is not None
        assert abs(value - values[50, 47]) <= 4e-6 * max(1.0, abs(values[50, 47]))
    assert "Query 50" in opened.where()
    shown = opened.shown()
    weights = expected["weights"]
    assert len(shown) == LENGTH * (LENGTH + 1) // 2
    assert max(abs(value - weights[at]) for at, value in shown.items()) < 4e-6


def test_text_of_a_capture_stays_text(open_page: Open) -> None:
    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    pack = capture("alibi", title=evil, pieces=[evil] * LENGTH)
    opened = open_page(
        [pack], {"screen": "head", "locked": {"query": 5, "key": 3}, "search": "<img"}
    )
    opened.settle()
    opened.page.wait_for_timeout(300)
    assert opened.page.title() == evil
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("h1").inner_text() == evil
    assert "onerror" in opened.where()
