"""Chromium, driven by Playwright: every page is watched for requests and errors until it closes.

Debian's Chromium is used (HEADSCAPE_CHROMIUM names a different one). Where there is none, or no
Playwright, the tests skip and say so; `.ci/run` installs it.
"""

import base64
import csv
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pytest
from PIL import Image

from headscape.captures.pack import Pack
from headscape.viewer.page import write_page

CHROMIUM = os.environ.get("HEADSCAPE_CHROMIUM", "/usr/bin/chromium")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A running Chromium."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"there is no browser at {CHROMIUM}")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page that shows the viewer, and what it asked for and complained about."""

    def __init__(self, page: Any, allowed: str) -> None:
        self.page, self.allowed = page, allowed
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _console(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def check(self) -> None:
        """No request left the machine and nothing complained."""
        strangers = [
            url for url in self.requests if not url.startswith((self.allowed, "blob:", "data:"))
        ]
        assert strangers == []
        assert self.complaints == []

    def settle(self) -> None:
        """Wait until every map is complete."""
        self.page.wait_for_function(
            """() => {
                const root = document.querySelector(".headscape");
                if (!root || root.dataset.pending !== "0") return false;
                const part = { head: ".panel", reading: ".reading", overview: ".card" };
                const parts = root.querySelectorAll(part[root.dataset.screen]);
                const done = (part) => part.dataset.complete === "true";
                return parts.length > 0 && [...parts].every(done);
            }""",
            timeout=60_000,
        )

    def state(self) -> dict[str, Any]:
        """The state in the address, once it has been written."""
        self.page.wait_for_timeout(250)
        fragment = self.page.evaluate("location.hash.slice(1)")
        found: dict[str, Any] = json.loads(unquote(fragment)) if fragment else {}
        return found

    def readout(self) -> dict[str, float | None]:
        """The value of each quantity beside the map."""
        rows = self.page.locator(".readout tbody tr").all()
        found = {}
        for row in rows:
            text = row.locator("td").first.inner_text().replace("−", "-")
            found[row.get_attribute("data-quantity")] = None if text == "–" else float(text)
        return found

    def where(self) -> str:
        """The sentence that names the pair."""
        text: str = self.page.locator(".readout .where").inner_text()
        return text

    def cell(self, query: float, key: float) -> tuple[float, float]:
        """Where a pair's middle is on the screen."""
        box = self.page.locator(".stage").first.bounding_box()
        state = self.state()
        length = self.length
        view = state.get("view") or {"query": 0, "key": 0, "span": length}
        pixels = box["width"] / view["span"]
        return (
            box["x"] + (key + 0.5 - view["key"]) * pixels,
            box["y"] + (query + 0.5 - view["query"]) * pixels,
        )

    length = 0

    def pixels(self, selector: str = ".panel canvas.pixels") -> np.ndarray:
        """A canvas as [height, width, 4] bytes."""
        found = self.page.evaluate(
            "(selector) => document.querySelector(selector).toDataURL('image/png')", selector
        )
        image = Image.open(io.BytesIO(base64.b64decode(found.partition(",")[2])))
        return np.asarray(image.convert("RGBA"))

    def download(self, button: str) -> bytes:
        """What a button of the section "Export" saves."""
        with self.page.expect_download() as waiting:
            self.page.locator(".export").get_by_role("button", name=button, exact=True).click()
        return Path(waiting.value.path()).read_bytes()

    def csv(self) -> list[dict[str, str]]:
        """The rows of the CSV of what is visible."""
        return list(csv.DictReader(io.StringIO(self.download("CSV").decode())))

    def shown(self, size: int = 1) -> dict[tuple[int, int], float]:
        """Value of every visible pair or cell, by its first query and key."""
        rows = self.csv()
        assert rows
        assert {int(row["query_end"]) - int(row["query"]) for row in rows} >= {size}
        return {(int(row["query"]), int(row["key"])): float(row["value"]) for row in rows}


Open = Callable[..., Opened]


@pytest.fixture
def open_page(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """Write packs into a page and open it from disk."""
    opened: list[tuple[Any, Opened]] = []

    def make(
        packs: Sequence[Pack],
        state: dict[str, Any] | None = None,
        *,
        precision: Any = "float32",
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        url: str | None = None,
        first_visit: bool = False,
        touch: bool = False,
    ) -> Opened:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
            has_touch=touch,
        )
        if not first_visit:
            context.add_init_script("try { localStorage['headscape-welcome'] = 'seen' } catch {}")
        page = context.new_page()
        target = url
        if target is None:
            path = tmp_path / f"page{len(opened)}.html"
            write_page(path, packs, precision=precision)
            target = path.as_uri()
        one = Opened(page, re.sub(r"(/open/[\w-]+)?[?#].*|/open/[\w-]+$", "", target))
        one.length = packs[0].length
        opened.append((context, one))
        page.goto(target + ("#" + quote(json.dumps(state)) if state else ""))
        page.wait_for_selector(".headscape[data-screen]")
        return one

    yield make
    for context, one in opened:
        one.check()
        context.close()
