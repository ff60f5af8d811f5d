"""Light and dark, wide and narrow: nothing overflows, and axe-core finds no violation."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser.acting import press, violations
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
    "arcs": {
        "screen": "reading",
        "reading": {
            "token": 50,
            "side": "to",
            "marks": "arcs",
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


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1400, 900), (1920, 1080)])
def test_four_maps_are_one_equation_in_the_window(width: int, height: int, open_page: Open) -> None:
    opened = open_page([capture("cable")], SCREENS["four"], width=width, height=height)
    opened.settle()
    stages = [stage.bounding_box() for stage in opened.page.locator(".stage").all()]
    bars = [each.bounding_box() for each in opened.page.locator(".bar").all()]
    assert len(stages) == len(bars) == 4
    assert len({round(box["width"]) for box in stages}) == 1
    assert stages[0]["width"] > 250
    assert max(box["y"] + box["height"] for box in bars) <= height
    assert max(box["x"] + box["width"] for box in stages) <= width
    signs = opened.page.locator(".sign:visible")
    assert signs.all_inner_texts() == ["+", "=", "softmax →"]
    for sign, before, after in zip(signs.all(), stages, stages[1:], strict=False):
        box = sign.bounding_box()
        assert before["x"] + before["width"] <= box["x"]
        assert box["x"] + box["width"] <= after["x"]
        assert before["y"] < box["y"] < before["y"] + before["height"] - box["height"]
    # Maps stand clear of each other.
    assert all(b["x"] - a["x"] - a["width"] > 20 for a, b in pairwise(stages))


@pytest.mark.parametrize("width", [1280, 1400])
def test_titles_of_an_equation_stand_apart(width: int, open_page: Open) -> None:
    """Each names its quantity; the head and the model are beside the equation, once."""
    opened = open_page([capture("cable")], SCREENS["four"], width=width)
    opened.settle()
    titles = opened.page.locator(".panel .title")
    assert titles.all_inner_texts() == ["Content", "Position", "Score", "Attention weight"]
    where = opened.page.locator(".equation .of").inner_text()
    assert where.startswith("layer 1, head 1 · ")
    opened = open_page(
        [capture("cable")],
        {**SCREENS["four"], "minus": "distance", "position": {"scale": 0.5, "only": None}},
        width=width,
    )
    opened.settle()
    words = opened.page.evaluate(
        """() => [...document.querySelectorAll(".panel .title")].map((each) => {
            const range = document.createRange();
            range.selectNodeContents(each);
            const { left, right, top, bottom } = range.getBoundingClientRect();
            return [left, right, bottom - top];
        })"""
    )
    assert all(b[0] - a[1] >= 10 for a, b in pairwise(words))
    opened = open_page([capture("cable")], SCREENS["head"], width=width)
    opened.settle()
    assert where in opened.page.locator(".panel .title").inner_text()
    assert opened.page.locator(".equation .of").is_hidden()


@pytest.mark.parametrize("locked", [True, False])
def test_the_mark_of_a_pair_leaves_its_cell_free(locked: bool, open_page: Open) -> None:
    state = {"screen": "head", "locked": {"query": 50, "key": 30} if locked else None}
    opened = open_page([capture("cable")], state)
    opened.settle()
    if not locked:
        opened.page.mouse.move(*opened.cell(50, 30))
        opened.page.wait_for_timeout(100)
    marks = opened.pixels(".panel canvas.overlay")
    side = len(marks) / opened.length
    top, left = (int(np.ceil(at * side)) for at in (50, 30))
    bottom, right = (int((at + 1) * side) for at in (50, 30))
    assert bottom - top >= 3
    assert (marks[top:bottom, left:right, 3] == 0).all()
    ring = marks[top - 6 : bottom + 6, left - 6 : right + 6, 3]
    assert (ring > 0).mean() > 0.3


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("query", [0, 44, 47, 51, 79])
def test_labels_beside_a_map_stand_clear_of_the_pairs(
    query: int, width: int, open_page: Open
) -> None:
    opened = open_page(
        [capture("cable")],
        {"screen": "head", "four": True, "locked": {"query": query, "key": query}},
        width=width,
    )
    opened.settle()
    for axis, side, end in (("query", "y", "height"), ("key", "x", "width")):
        labels = opened.page.locator(f".panel .strip.{axis} .token:visible").all()
        boxes = {each: each.bounding_box() for each in labels}
        active = [box for each, box in boxes.items() if "active" in each.get_attribute("class")]
        assert active
        for each, box in boxes.items():
            if "active" not in each.get_attribute("class"):
                near = [one for one in active if abs(one["x"] - box["x"]) < 150 or axis == "key"]
                for one in near:
                    gap = max(box[side] - one[side] - one[end], one[side] - box[side] - box[end])
                    assert gap > -1


@pytest.mark.parametrize(
    ("width", "height", "least"), [(1280, 720, 440), (1400, 900, 580), (390, 844, 290)]
)
def test_the_map_of_a_head_is_large(width: int, height: int, least: int, open_page: Open) -> None:
    """And it ends, with its colour bar, inside the window."""
    opened = open_page([capture("cable")], SCREENS["head"], width=width, height=height)
    opened.settle()
    stage, below = (opened.page.locator(each).bounding_box() for each in (".stage", ".bar"))
    assert stage["width"] >= least
    assert below["y"] + below["height"] <= height


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("screen", SCREENS)
def test_axe_finds_nothing(screen: str, width: int, dark: bool, open_page: Open) -> None:
    packs = [capture("cable"), capture("alibi")]
    opened = open_page(packs, SCREENS[screen], dark=dark, width=width, height=844)
    opened.settle()
    assert violations(opened.page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_list_of_keys(width: int, height: int, dark: bool, open_page: Open) -> None:
    """It names quantities as the radio buttons do, and needs no scrolling on a laptop."""
    opened = open_page([capture("cable")], dark=dark, width=width, height=height)
    opened.settle()
    words = opened.page.locator(".choices label").all_text_contents()
    press(opened, "?")
    dialog = opened.page.locator("dialog.keys")
    rows = dialog.locator("td").all_inner_texts()
    assert [row for row in rows if row.startswith("show ")][1:5] == [
        f"show {word}" for word in words
    ]
    high, seen, wide, across = dialog.evaluate(
        "e => [e.scrollHeight, e.clientHeight, e.scrollWidth, e.clientWidth]"
    )
    assert wide <= across
    assert high <= seen or width == 390
    assert violations(opened.page) == []
