"""Whole models: every head of 12 x 12 and 30 x 9 is computed, from the page and the server."""

import numpy as np
import pytest

import headscape as hs
from browser.acting import pick
from browser.conftest import Open, Opened
from browser.test_hosts import served
from headscape.captures.browser import Pack
from headscape.viewer.viewer_answers import Answers

pytestmark = pytest.mark.browser

SHAPES = [(12, 12, 278), (30, 9, 100)]
"""Layers, heads and tokens: GPT-2 Small's shape and SmolLM2-135M's."""


def model_capture(layers: int, heads: int, length: int) -> Pack:
    """Every head of a random GPT-2 over random bytes."""
    model = hs.load(
        hs.GPT2.from_preset(
            "nano", encoding="rope", vocabulary=257, layers=layers, heads=heads, width=8 * heads
        )
    )
    tokens = np.random.default_rng(0).integers(0, 256, length).tolist()
    return model.capture(tokens, layers="all", quantities=("weights",)).pack()


def check_every_head(opened: Opened, pack: Pack) -> None:
    """Every thumbnail is complete, every measure is a number, and the last head opens exactly."""
    opened.settle()
    count = len(pack.header["layers"]) * len(pack.header["heads"])
    values = opened.page.locator(".card .value").all_inner_texts()
    assert len(values) == count
    unfinished = [text for text in values if text == "…"]
    assert unfinished == []
    assert opened.page.locator('.card[data-complete="true"]').count() == count
    # A different measure needs every head again.
    pick(opened, "Measure", "position_share")
    opened.page.wait_for_function(
        "() => [...document.querySelectorAll('.card .value')].every((e) => e.innerText !== '…')",
        timeout=60_000,
    )
    opened.page.locator(".card").last.click()
    opened.settle()
    assert opened.page.evaluate("scrollY") < 20
    layer, head = pack.header["layers"][-1], pack.header["heads"][-1]
    rows = slice(0, pack.length)
    expected = pack.layer(layer).tile("weights", [head], rows, rows)[0]
    shown = opened.shown(1 << int(opened.page.locator(".panel").get_attribute("data-level")))
    assert shown[0, 0] == pytest.approx(1.0, abs=4e-3)
    at = pack.length - 2
    assert shown[at, at] == pytest.approx(expected[at, at], abs=4e-3)
    assert opened.page.locator("[role=alert]").is_hidden()


@pytest.mark.parametrize(("layers", "heads", "length"), SHAPES)
def test_every_head_of_a_page_is_computed(
    layers: int, heads: int, length: int, open_page: Open
) -> None:
    pack = model_capture(layers, heads, length)
    check_every_head(open_page([pack], precision="float16"), pack)


@pytest.mark.parametrize(("layers", "heads", "length"), SHAPES)
def test_every_head_from_the_server_is_computed(
    layers: int, heads: int, length: int, open_page: Open
) -> None:
    pack = model_capture(layers, heads, length)
    with served(open_page, Answers.of([pack]), {}) as opened:
        check_every_head(opened, pack)
