"""Every notebook runs from the first cell to the last, and is stored without outputs."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from docs.site import notebook_pages

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))
BOOK, SHORT = re.compile(r"topics\.values\(\)"), "list(topics.values())[:24]"
"""The text in a notebook's source, and the part of it that the tests take."""
STEPS = re.compile(r'(\bsteps(?:=|\\": ))\d+')
"""Training steps in a notebook's source; the tests run fewer, the site all of them."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    copy = tmp_path / path.name
    copy.write_text(BOOK.sub(SHORT, STEPS.sub(r"\g<1>5", path.read_text())))
    cells = notebook_pages.run(copy, tmp_path)
    shown = [cell for cell in cells if cell.output.png]
    assert len(shown) >= 1
    assert cells[0].source.startswith("# ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path: Path) -> None:
    stored = json.loads(path.read_text())
    assert stored["nbformat"] == 4
    for cell in stored["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_there_are_six() -> None:
    assert len(NOTEBOOKS) == 6
    assert [len(STEPS.findall(path.read_text())) for path in NOTEBOOKS] == [2, 1, 1, 0, 1, 1]
    assert [len(BOOK.findall(path.read_text())) for path in NOTEBOOKS] == [1, 1, 1, 0, 0, 1]


def test_a_cell_shows_what_it_prints_and_its_last_value() -> None:
    namespace: dict[str, object] = {}
    output = notebook_pages.execute("x = 2\nprint('hello')\nx + 1", "a cell", namespace)
    assert output.text == "hello\n3"
    assert notebook_pages.execute("x;", "a cell", namespace).text == ""


def test_a_failing_cell_fails_the_notebook(tmp_path: Path) -> None:
    path = tmp_path / "broken.ipynb"
    cell = {"cell_type": "code", "source": ["1 / 0"]}
    path.write_text(json.dumps({"cells": [cell]}))
    with pytest.raises(subprocess.CalledProcessError):
        notebook_pages.run(path, tmp_path)
