"""The dial of the positional part: maps, values and curves, in the page and from the server."""

import numpy as np
import pytest

from browser.acting import HEAD, head, press
from browser.captures import LENGTH, capture, definition
from browser.conftest import Open
from browser.test_hosts import served
from captures.test_scaled_position import scaled
from headscape.viewer.viewer_answers import Answers

pytestmark = pytest.mark.browser
QUANTITIES = ("content", "bias", "final", "weights")
SINK = {"window": 30, "softcap": 5.0, "sink": True}


def maps(name: str, position: float, layer: int = 0, number: int = 1, **fields: object) -> dict:
    """The four maps by numpy, from the capture's own content, final scores and sink."""
    return scaled(name, position, layer, number, LENGTH, **fields)


@pytest.mark.parametrize("position", [0, 0.5, 1, 2])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("cable", {}),
        ("rope", {}),
        ("fire", {}),
        ("cope", {}),
        ("dapev2+kerple", {}),
        ("rope", SINK),
    ],
    ids=str,
)
def test_every_pair_is_numpys(
    name: str, fields: dict[str, object], position: float, open_page: Open
) -> None:
    expected = maps(name, position, **fields)
    state = {"position": {"scale": position, "only": None}, "locked": {"query": 60, "key": 50}}
    opened = open_page([capture(name, layers=1, fields=fields)], {**HEAD, **state})
    for number, quantity in enumerate(QUANTITIES, start=1):
        press(opened, str(number))
        opened.settle()
        size = max(1.0, float(np.nanmax(np.abs(expected[quantity]))))
        pairs = opened.shown()
        assert len(pairs) == np.isfinite(expected[quantity]).sum()
        worst = max(abs(value - expected[quantity][at]) for at, value in pairs.items())
        assert worst <= 4e-6 * size, quantity
    for quantity, value in opened.readout().items():
        assert value == pytest.approx(expected[quantity][60, 50], rel=2e-6, abs=4e-6)


@pytest.mark.parametrize("name", ["cable", "dapev2+kerple"])
def test_the_kernels_tiles_are_scaled(name: str, open_page: Open) -> None:
    """Zoomed out, where the kernel computes and pools."""
    length = 1200
    whole = scaled(name, 0.5, 0, 1, length)["weights"]
    opened = open_page(
        [capture(name, layers=1, length=length)],
        {**HEAD, "position": {"scale": 0.5, "only": None}},
    )
    opened.settle()
    level = int(opened.page.locator(".panel").get_attribute("data-level"))
    side = 1 << level
    shown = opened.shown(side)
    for query, key in ((800, 0), (800, 400), (1000, 992)):
        at = (query // side * side, key // side * side)
        cell = whole[at[0] : at[0] + side, at[1] : at[1] + side]
        assert shown[at] == pytest.approx(np.nanmax(cell), rel=1e-4, abs=1e-6)


def test_the_dial_turns_live_in_map_and_curves(open_page: Open) -> None:
    opened = head(open_page, locked={"query": 60, "key": 20}, profile="shown")
    slider = opened.page.get_by_label("Position: factor of the positional part")
    assert slider.input_value() == "1"
    before = opened.pixels()
    curves = {
        name: opened.page.locator(f"[data-plot={name}] path").first.get_attribute("d")
        for name in ("distance", "row", "column")
    }
    slider.fill("0.5")
    opened.settle()
    assert opened.state()["position"] == {"scale": 0.5, "only": None}
    assert "position × 0.5" in opened.page.locator(".panel .title").inner_text()
    assert not np.array_equal(opened.pixels(), before)
    expected = maps("cable", 0.5)["weights"]
    assert opened.readout()["weights"] == pytest.approx(expected[60, 20], abs=4e-6)
    for name, path in curves.items():
        opened.page.wait_for_function(
            "([name, path]) => document.querySelector(`[data-plot=${name}] path`)"
            "?.getAttribute('d') !== path",
            arg=[name, path],
        )
    opened.page.get_by_role("button", name="Switch position off").click()
    opened.settle()
    assert opened.readout()["final"] == opened.readout()["content"]
    opened.page.locator("h1").click()
    press(opened, "z")
    opened.settle()
    assert "position" not in opened.state()
    assert np.array_equal(opened.pixels(), before)
    press(opened, ">", ">")
    assert opened.state()["position"]["scale"] == pytest.approx(1.2)


def test_one_head_or_all(open_page: Open) -> None:
    opened = open_page([capture("cable")])
    opened.settle()
    cards = [f".card[data-layer='0'][data-head='{n}'] canvas" for n in (1, 2)]
    before = [opened.pixels(card) for card in cards]
    only = {"scale": 0, "only": {"layer": 0, "head": 1}}
    one = open_page([capture("cable")], {"position": only})
    one.settle()
    assert not np.array_equal(one.pixels(cards[0]), before[0])
    assert np.array_equal(one.pixels(cards[1]), before[1])
    opened.page.get_by_role("button", name="Switch position off").click()
    opened.settle()
    opened.page.wait_for_timeout(100)
    assert all(not np.array_equal(opened.pixels(c), b) for c, b in zip(cards, before, strict=True))
    alone = head(open_page, position={"scale": 0.5, "only": {"layer": 0, "head": 1}})
    press(alone, "]")
    alone.settle()
    assert alone.page.get_by_label("Position: factor of").input_value() == "1"
    assert "position ×" not in alone.page.locator(".panel .title").inner_text()


@pytest.mark.parametrize("position", [0, 0.5, 1])
def test_the_server_scales_by_the_definition(
    position: float, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscape.viewer.viewer_answers.WHOLE_BYTES", 0)
    for name in ("cable", "path"):
        expected = scaled(name, position, 1, 2, LENGTH)
        state = {
            "screen": "head", "layer": 1, "head": 2, "locked": {"query": 50, "key": 47},
            "position": {"scale": position, "only": None},
        }  # fmt: skip
        with served(open_page, Answers.of([capture(name)]), state) as opened:
            opened.settle()
            opened.page.wait_for_function(
                "() => !document.querySelector('.readout td').innerText.match('–')"
            )
            for quantity, value in opened.readout().items():
                assert value == pytest.approx(expected[quantity][50, 47], rel=1e-5, abs=1e-5)
            for pair, value in opened.shown().items():
                assert value == pytest.approx(expected["weights"][pair], abs=1e-5)


def test_a_layer_without_position_in_its_scores_says_so(open_page: Open) -> None:
    opened = open_page([capture("nope")], {**HEAD, "position": {"scale": 0, "only": None}})
    opened.settle()
    assert opened.page.get_by_label("Position: factor of").is_disabled()
    assert "position has no part in its scores" in opened.page.locator(".dial").inner_text()
    weights = definition("nope", 0, 1)["weights"]
    assert all(abs(value - weights[at]) < 4e-6 for at, value in opened.shown().items())
