"""What the tests of the viewer do on a page, by mouse and by keyboard."""

from pathlib import Path
from typing import Any

import pytest

from browser.captures import capture
from browser.conftest import Open, Opened

AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
HEAD: dict[str, Any] = {"screen": "head", "layer": 0, "head": 1}


def head(open_page: Open, **state: Any) -> Opened:
    opened = open_page([capture("cable")], {**HEAD, **state})
    opened.settle()
    return opened


def two(open_page: Open, **state: Any) -> Opened:
    packs = [capture("cable"), capture("alibi"), capture("t5", length=60)]
    opened = open_page(packs, {**HEAD, "other": "p1", **state})
    opened.settle()
    return opened


def press(opened: Opened, *keys: str) -> None:
    for key in keys:
        opened.page.keyboard.press(key)


def pick(opened: Opened, label: str, value: str) -> None:
    opened.page.locator("label.field", has_text=label).locator("select").first.select_option(value)


def violations(page: Any) -> list[tuple[str, str, list[Any]]]:
    """What axe-core finds: the rule, what it asks for, and the first elements that break it."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: run `make web/node_modules`")
    # Evaluated, not added: the page's policy allows no script of others.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then(({ violations }) => violations)")
    return [
        (each["id"], each["help"], [node["target"] for node in each["nodes"]][:3]) for each in found
    ]


# The overview


def names(opened: Opened) -> list[str]:
    return [each.strip() for each in opened.page.locator(".card .name").all_inner_texts()]


def numbers(opened: Opened) -> list[float]:
    texts = opened.page.locator(".card .value").all_inner_texts()
    return [float(text.replace("−", "-")) for text in texts]


def bar(opened: Opened) -> list[float]:
    return [
        float(handle.get_attribute("aria-valuenow"))
        for handle in opened.page.locator(".bar .handle").all()
    ]
