"""Light and dark, wide and narrow: nothing overflows, and axe-core finds no violation."""

import os
from pathlib import Path
from typing import Any

import pytest

from browser.captures import capture
from browser.conftest import Open

pytestmark = pytest.mark.browser

SCREENS: dict[str, dict[str, Any]] = {
    "overview": {},
    "head": {"screen": "head", "locked": {"query": 50, "key": 30}, "search": "cat"},
    "four": {"screen": "head", "four": True},
    "compare": {"screen": "head", "compare": "difference", "other": "p1"},
}


def axe_source() -> str:
    """axe-core's script: AXE_CORE names it, or node_modules has it."""
    places = [os.environ.get("AXE_CORE", ""), "viewer/node_modules/axe-core/axe.min.js"]
    for place in places:
        if place and Path(place).is_file():
            return Path(place).read_text(encoding="utf-8")
    pytest.skip("axe-core is not installed: npm install axe-core, or set AXE_CORE to axe.min.js")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_looks(screen: str, dark: bool, width: int, open_page: Open) -> None:
    opened = open_page(
        [capture("cable"), capture("alibi")], SCREENS[screen], width=width, dark=dark
    )
    opened.settle()
    wide = opened.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    folder = os.environ.get("HEADSCAPE_SCREENSHOTS")
    if folder:
        name = f"{screen}-{'dark' if dark else 'light'}-{width}.png"
        opened.page.screenshot(path=str(Path(folder) / name), full_page=True)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_axe_finds_nothing(screen: str, dark: bool, open_page: Open) -> None:
    source = axe_source()
    opened = open_page([capture("cable"), capture("alibi")], SCREENS[screen], dark=dark)
    opened.settle()
    opened.page.evaluate(source)
    found = opened.page.evaluate("axe.run().then(({ violations }) => violations)")
    told = [
        (each["id"], each["help"], [node["target"] for node in each["nodes"]][:3]) for each in found
    ]
    assert told == []
