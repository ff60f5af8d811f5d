"""The widget in a live JupyterLab: its map, the wheel, traits both ways, an exported notebook."""

import base64
import io
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.browser

CAPTURE = """import headscape as hs
model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", layers=2, vocabulary=257))
cap = model.capture(list(range(40, 104)), layers="all")
print("captured", len(cap.layers), "layers")"""
SHOW = "shown = cap.view(); shown"
READ = 'print("layer", shown.selection["layer"], "head", shown.selection["head"])'
SET = 'shown.selection = {"layer": 0, "head": 2, "quantity": "bias"}; print("set")'
LONG = "\n\n".join(f"Paragraph {n}." for n in range(200))
STATE = "import json; print(json.dumps(shown.state))"
CELLS = (CAPTURE, SHOW, READ, SET, STATE)
SCROLLED = "document.querySelector('.jp-WindowedPanel-outer').scrollTop"


class Lab:
    """A JupyterLab on loopback that keeps everything in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.notebooks, self.token = folder / "notebooks", secrets.token_hex()
        names = ("config", "data", "runtime", "settings", "workspaces", "ipython", "home")
        for path in (self.notebooks, *(folder / name for name in names)):
            path.mkdir()
        config = {
            "ServerApp": {
                "ip": "127.0.0.1",
                "port": 0,
                "open_browser": False,
                "allow_root": True,
                "root_dir": str(self.notebooks),
            },
            "IdentityProvider": {"token": self.token},
            "LabApp": {"extension_manager": "readonly"},
        }
        (folder / "config/jupyter_lab_config.json").write_text(json.dumps(config))
        # Nothing is asked of the network, nor of the user.
        quiet = folder / "settings/@jupyterlab/apputils-extension"
        quiet.mkdir(parents=True)
        (quiet / "notification.jupyterlab-settings").write_text(
            json.dumps({"checkForUpdates": False, "doNotDisturbMode": True, "fetchNews": "false"})
        )
        self.environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self.runtime, self.log = folder / "runtime", folder / "log"

    def __enter__(self) -> "Lab":
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab"],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self.url = self._started()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()  # it ends its kernels
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def _started(self) -> str:
        """The server's address, once it has written it."""
        path = self.runtime / f"jpserver-{self.process.pid}.json"
        for _ in range(600):
            assert self.process.poll() is None, self.log.read_text()
            try:
                return str(json.loads(path.read_text())["url"])
            except (FileNotFoundError, json.JSONDecodeError):
                time.sleep(0.1)
        self.process.kill()
        pytest.fail(f"JupyterLab has not started in 60 s: {self.log.read_text()}")


class Notebook:
    """A notebook that is open in JupyterLab."""

    def __init__(self, lab: Lab, page: Any) -> None:
        import nbformat

        self.lab, self.page, self.path = lab, page, lab.notebooks / "shown.ipynb"
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
        cells.append(nbformat.v4.new_markdown_cell(LONG))
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        made = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
        nbformat.write(made, self.path)
        page.goto(f"{lab.url}lab/tree/{self.path.name}?token={lab.token}")
        page.wait_for_selector("text=/^Python 3.* [|] Idle$/", timeout=60_000)
        assert "captured 2 layers" in self.run(CAPTURE)

    def run(self, source: str) -> str:
        """Run a cell as a user does; return the text of its output."""
        from playwright.sync_api import expect

        cell = self.page.locator(".jp-CodeCell").nth(CELLS.index(source))
        prompt = cell.locator(".jp-InputPrompt")
        cell.locator(".cm-content").click()
        expect(cell.locator(".cm-editor.cm-focused")).to_be_visible()
        before = prompt.inner_text()
        self.page.keyboard.press("Control+Enter")
        expect(prompt).not_to_have_text(before)
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"), timeout=120_000)
        text: str = cell.locator(".jp-Cell-outputArea").inner_text()
        return text

    def prints(self, source: str, text: str) -> bool:
        """Whether a cell comes to print a text; the widget tells Python after a moment."""
        for _ in range(20):
            if text in self.run(source):
                return True
            self.page.wait_for_timeout(250)
        return False

    def settle(self, screen: str, part: str) -> None:
        """Wait until the widget has drawn every map of a screen."""
        self.page.wait_for_function(
            """([screen, part]) => {
                const root = document.querySelector(".headscape");
                if (root?.dataset.screen !== screen || root.dataset.pending !== "0") return false;
                const parts = [...root.querySelectorAll(part)];
                return parts.length > 0 && parts.every((each) => each.dataset.complete === "true");
            }""",
            arg=[screen, part],
            timeout=60_000,
        )

    def colours(self, selector: str) -> int:
        """How many colours a canvas shows."""
        found = self.page.evaluate(
            "(selector) => document.querySelector(selector).toDataURL('image/png')", selector
        )
        image = Image.open(io.BytesIO(base64.b64decode(found.partition(",")[2]))).convert("RGBA")
        pixels = np.asarray(image).reshape(-1, 4)
        return len(np.unique(pixels[pixels[:, 3] > 0], axis=0))

    def point_at(self, selector: str) -> None:
        """Move the mouse over a part of the widget."""
        part = self.page.locator(selector).first
        part.scroll_into_view_if_needed()
        box = part.bounding_box()
        self.page.mouse.move(box["x"] + 40, box["y"] + 40)

    def wheel_scrolls(self, distance: int) -> None:
        """Turn the wheel; the notebook scrolls by as much."""
        before = self.page.evaluate(SCROLLED)
        self.page.mouse.wheel(0, distance)
        self.page.wait_for_function(f"(at) => {SCROLLED} === at", arg=before + distance)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    for name in ("jupyterlab", "nbconvert", "anywidget", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    with Lab(tmp_path_factory.mktemp("lab")) as started:
        yield started


@pytest.fixture(scope="module")
def opened(chromium: Any, lab: Lab) -> Iterator[Notebook]:
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    yield Notebook(lab, page)
    page.close()


@pytest.fixture
def notebook(opened: Notebook) -> Iterator[Notebook]:
    """A notebook that shows a new widget."""
    opened.run(SHOW)
    opened.settle("overview", ".card")
    yield opened
    assert opened.errors == []
    assert [
        url for url in opened.requests if not url.startswith((opened.lab.url, "blob:", "data:"))
    ] == []


def test_the_widget_draws(notebook: Notebook) -> None:
    assert notebook.page.locator(".card").count() == 2 * 12
    assert notebook.colours(".card canvas") > 10
    notebook.page.locator(".card").first.click()
    notebook.settle("head", ".panel")
    assert notebook.colours(".panel canvas.pixels") > 10


def test_the_notebook_scrolls_past_the_widget(notebook: Notebook) -> None:
    notebook.point_at(".card")
    notebook.wheel_scrolls(120)
    notebook.run(SET)
    notebook.settle("head", ".panel")
    notebook.point_at(".stage")
    notebook.wheel_scrolls(120)
    notebook.wheel_scrolls(3000)
    box = notebook.page.locator(".headscape").bounding_box()
    assert box is None or box["y"] + box["height"] < 0
    notebook.wheel_scrolls(-3000)
    notebook.settle("head", ".panel")
    assert notebook.colours(".panel canvas.pixels") > 10


def test_the_wheel_zooms_with_ctrl_alone(notebook: Notebook) -> None:
    notebook.run(SET)
    notebook.settle("head", ".panel")
    notebook.point_at(".stage")
    notebook.wheel_scrolls(120)
    notebook.page.wait_for_timeout(500)  # a zoom would have reached Python by now
    state = notebook.run(STATE)
    assert '"screen": "head"' in state
    assert '"view"' not in state
    notebook.point_at(".stage")
    notebook.page.keyboard.down("Control")
    notebook.page.mouse.wheel(0, -100)
    notebook.page.keyboard.up("Control")
    assert notebook.prints(STATE, '"view"')


def test_a_head_clicked_in_the_widget_reaches_python(notebook: Notebook) -> None:
    assert "layer 0 head 0" in notebook.run(READ)
    notebook.page.locator('.card[data-layer="1"][data-head="3"]').click()
    assert notebook.prints(READ, "layer 1 head 3")


def test_a_head_chosen_in_python_reaches_the_widget(notebook: Notebook) -> None:
    notebook.run(SET)
    notebook.settle("head", ".panel")
    assert "layer 1, head 3" in notebook.page.locator(".panel .title").inner_text()
    assert notebook.colours(".panel canvas.pixels") > 10


def test_an_exported_notebook_keeps_a_picture(notebook: Notebook, tmp_path: Path) -> None:
    notebook.page.keyboard.press("Control+s")
    notebook.page.wait_for_selector(".lm-TabBar-tab.jp-mod-current:not(.jp-mod-dirty)")
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--output-dir", str(tmp_path)]
    subprocess.run(
        [*command, str(notebook.path)],
        env=notebook.lab.environment,
        check=True,
        capture_output=True,
        timeout=120,
    )
    page = (tmp_path / "shown.html").read_text(encoding="utf-8")
    (picture,) = re.findall(r'<img[^>]* src="data:image/png;base64,([^"]+)"', page)
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    assert image.size == (4 * 64 + 3 * 4, 3 * 64 + 2 * 4)  # twelve heads, four in a row
    assert len(np.unique(np.asarray(image).reshape(-1, 3), axis=0)) > 10
