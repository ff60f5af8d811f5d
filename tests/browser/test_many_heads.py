"""Whole models: every head of up to 32 x 32 is computed, in pages and from the server."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks.viewer import random_capture

import headscape as hs
from browser.acting import pick
from browser.conftest import Open, Opened
from browser.test_hosts import served
from headscape.captures.pack import Pack
from headscape.viewer.viewer_answers import Answers

pytestmark = pytest.mark.browser

SHAPES = [(12, 12, 278), (30, 9, 100)]
"""Layers, heads and tokens: GPT-2 Small's shape and SmolLM2-135M's."""
LARGE = {(12, 12, 512): 25e6, (32, 32, 256): 88e6}
"""GPT-2 Small's shape, Llama-3-8B's with 64 dims a head, and the most bytes of their pages."""
MEMORY = 1.5e9
"""Most bytes that a tab may need."""


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
    word = "position only" if "bias" in pack.header["quantities"] else "weights"
    pick(opened, "Measure", f"position share ({word})")
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


def peak_memory() -> int:
    """Return the most memory that a tab of this process's browser had, in bytes."""
    parents, peaks = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (folder / "status").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        parents[int(folder.name)] = int(re.search(r"PPid:\s+(\d+)", status)[1])
        if b"--type=renderer" in command:
            peaks[int(folder.name)] = 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])

    def ours(process: int) -> bool:
        while process in parents and process != os.getpid():
            process = parents[process]
        return process == os.getpid()

    return max(peak for process, peak in peaks.items() if ours(process))


@pytest.mark.parametrize("shape", LARGE, ids=lambda shape: "x".join(map(str, shape)))
def test_a_large_model_is_on_one_screen(shape: tuple[int, int, int], open_page: Open) -> None:
    """Every head and measure is there, without scrolling and within the memory of a tab.

    How long it takes depends on the machine: `python -m benchmarks.viewer pages` measures it.
    """
    layers, heads, _ = shape
    pack = random_capture(*shape).pack()
    opened = open_page([pack], precision="float16", width=1400)
    opened.page.wait_for_selector('.card[data-complete="true"]')
    opened.settle()
    assert opened.page.locator('.card[data-complete="true"]').count() == layers * heads
    assert opened.page.evaluate("document.documentElement.scrollHeight") <= 900
    assert opened.page.locator(".grid").get_attribute("data-layout") == "sheet"
    unfinished = [text for text in opened.page.locator(".value").all_text_contents() if text == "…"]
    assert unfinished == []
    size = opened.page.evaluate("performance.getEntriesByType('navigation')[0].decodedBodySize")
    assert size <= LARGE[shape]
    assert peak_memory() < MEMORY
    # The rows of the sheet are layers, its columns heads.
    first, after, below = (
        opened.page.locator(f'.card[data-layer="{layer}"][data-head="{head}"]').bounding_box()
        for layer, head in ((0, 0), (0, 1), (1, 0))
    )
    assert (after["y"], below["x"]) == (first["y"], first["x"])
    assert after["x"] > first["x"]
    assert below["y"] > first["y"]
    # The head under the pointer is shown large where there is room.
    opened.page.locator('.card[data-layer="9"][data-head="2"]').hover()
    assert opened.page.locator(".pointed").inner_text().startswith("Layer 10, head 3: ")
    assert opened.page.locator(".preview").bounding_box()["width"] > 300
    opened.page.locator(".card").last.click()
    opened.settle()
    assert f"layer {layers}, head {heads}" in opened.page.locator(".panel .title").inner_text()
