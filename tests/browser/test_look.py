"""Light and dark, wide and narrow: nothing overflows, and axe-core finds no violation."""

import os
from pathlib import Path
from typing import Any

import pytest

from browser.acting import violations
from browser.captures import capture
from browser.conftest import Open

pytestmark = pytest.mark.browser

SCREENS: dict[str, dict[str, Any]] = {
    "overview": {},
    "head": {"screen": "head", "locked": {"query": 50, "key": 30}, "search": "cat"},
    "four": {"screen": "head", "four": True},
    "reading": {
        "screen": "reading",
        "reading": {
            "token": 50,
            "side": "to",
            "marks": "shading",
            "beside": True,
            "heads": [{"layer": 1, "head": 2}],
        },
    },
    "compare": {"screen": "head", "compare": "difference", "other": "p1"},
}


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
    opened = open_page([capture("cable"), capture("alibi")], SCREENS[screen], dark=dark)
    opened.settle()
    assert violations(opened.page) == []
