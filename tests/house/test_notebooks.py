"""Every notebook runs from the first cell to the last, and its outputs are stored with it."""

import base64
import io
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from nbclient.exceptions import CellExecutionError
from PIL import Image
from transformers import LlamaConfig, LlamaForCausalLM

import headscape as hs
from docs.site import notebook_outputs, notebook_pages
from headscape.models.transformers.fetch import fetch

NOTEBOOKS = sorted(notebook_outputs.NOTEBOOKS.glob("*.ipynb"))
PUBLISHED = [path for path in NOTEBOOKS if "hf:smollm2" in path.read_text()]
BOOK, SHORT = re.compile(r"topics\.values\(\)"), "list(topics.values())[:24]"
"""The text in a notebook's source, and the part of it that the tests take."""
STEPS = re.compile(r'(\bsteps(?:=|\\": ))\d+')
"""Training steps in a notebook's source; the tests run fewer."""
NOTICE = "**What to notice.**"
YELLOW = (253, 231, 37)
"""The highest value of viridis."""
named = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path) -> list[dict[str, Any]]:
    stored: dict[str, Any] = json.loads(path.read_text())
    assert stored["nbformat"] == 4
    return list(stored["cells"])


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in cells(path) for output in cell.get("outputs", [])]


@pytest.mark.notebooks
@named
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path in PUBLISHED:
        fetch("smollm2")
    else:
        monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    copy, shown = tmp_path / path.name, tmp_path / "shown.ipynb"
    copy.write_text(BOOK.sub(SHORT, STEPS.sub(r"\g<1>5", path.read_text())))
    notebook_outputs.run(copy, shown)
    assert [kinds(cell) for cell in cells(shown)] == [kinds(cell) for cell in cells(path)]


def kinds(cell: dict[str, Any]) -> list[list[str]]:
    """Return what a cell shows, output by output."""
    return [sorted(each.get("data", {"text": ""})) for each in cell.get("outputs", [])]


@named
def test_it_asks_shows_says_what_to_notice_and_what_to_try(path: Path) -> None:
    first, *_, last = cells(path)
    assert re.match(r"# .*\?\n", "".join(first["source"]))
    assert "".join(last["source"]).startswith("## Try it\n")
    pictures = [n for n, cell in enumerate(cells(path)) if ["image/png"] in kinds(cell)]
    noticed = [n for n, cell in enumerate(cells(path)) if NOTICE in "".join(cell["source"])]
    assert pictures[-1] < noticed[-1]
    assert len(path.read_bytes()) <= notebook_outputs.MOST_BYTES


@named
def test_what_is_stored_is_of_one_run_from_the_top(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for output in outputs(path):
        assert output["output_type"] != "error"
        assert set(output.get("data", {})) <= set(notebook_outputs.SHOWN)
        assert output.get("name") in {None, "stdout"}
        assert "/tmp" not in json.dumps(output)  # noqa: S108


def test_a_picture_keeps_its_rare_colours() -> None:
    """The diagonal of a map is a few pixels; median cut would paint it like its neighbours."""
    grey = np.linspace(0, 255, 600 * 400).reshape(400, 600).astype(np.uint8)
    before = np.stack([grey, grey[::-1], grey // 2], axis=-1)
    before[:20, :20] = YELLOW
    out = io.BytesIO()
    Image.fromarray(before).save(out, "PNG")
    small = notebook_outputs.smaller(base64.b64encode(out.getvalue()).decode())
    after = Image.open(io.BytesIO(base64.b64decode(small)))
    assert len(after.getcolors() or ()) <= 256
    assert np.abs(np.asarray(after.convert("RGB"))[:20, :20].astype(int) - YELLOW).max() < 12


def test_the_first_three_read_published_weights() -> None:
    assert [path.name[0] for path in PUBLISHED] == ["1", "2", "3"]


def test_the_first_works_with_a_model_of_a_different_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}
    config = LlamaConfig(hidden_size=32, intermediate_size=32, **sizes)
    monkeypatch.setattr(hs, "load", partial(hs.load, LlamaForCausalLM(config), tokenizer="bytes"))
    variables: dict[str, Any] = {}
    for cell in cells(NOTEBOOKS[0]):
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace('hs.load("hf:smollm2")', "hs.load()")
            exec(source, variables)  # noqa: S102
    assert variables["weights"].shape[:2] == (2, 4)
    panel = variables["axes"][0]
    assert panel.images[0].get_extent() == [0.5, 4.5, 2.5, 0.5]
    assert list(panel.get_xticks()) == [1, 2, 4]
    assert variables["block"].max() < 300
    plt.close("all")


def test_tests_train_for_fewer_steps() -> None:
    """Each notebook that trains has the text and the steps where the tests find them."""
    trains = [path for path in NOTEBOOKS if re.search(r"hs\.train\(|def train\(", path.read_text())]
    assert [path.name[0] for path in trains] == [*"3456789"]
    for path in trains:
        assert STEPS.search(path.read_text()), path.name


def test_a_page_shows_stored_outputs(tmp_path: Path) -> None:
    names = notebook_pages.write(tmp_path, notebook_outputs.NOTEBOOKS)
    assert names == [path.stem for path in NOTEBOOKS]
    text = (tmp_path / "1-find-heads.md").read_text()
    assert "layer 17, head 1: 0.69" in text
    table = (tmp_path / "6-extrapolation.md").read_text()
    assert '<div class="table-wrapper docutils container"><table class="docutils">' in table
    card = (tmp_path / "9-export.md").read_text()
    assert "``````text\n---\nlibrary_name" in card  # the card has fences of its own
    for name in re.findall(r"!\[\]\((.*?)\)", text):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_run_stores_what_is_printed_without_stderr_and_the_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "import sys",
        "from pathlib import Path",
        "print(Path('book.txt').resolve(), flush=True)",
        "print('progress', file=sys.stderr, flush=True)",
        "print('done')",
    )
    path = one_cell(tmp_path, "\n".join(lines))
    notebook_outputs.run(path, path)
    (output,) = outputs(path)
    assert output["name"] == "stdout"
    assert "".join(output["text"]) == "book.txt\ndone\n"
    assert "TCP" not in capfd.readouterr().err


def test_a_failing_cell_fails_the_notebook(tmp_path: Path) -> None:
    path = one_cell(tmp_path, "1 / 0")
    with pytest.raises(CellExecutionError):
        notebook_outputs.run(path, path)


def one_cell(folder: Path, source: str) -> Path:
    """Write a notebook of one cell; return its path."""
    cell = {"cell_type": "code", "source": source, "metadata": {}, "outputs": []}
    cells = [cell | {"id": "cell-1", "execution_count": None}]
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": KERNEL}, "cells": cells}
    path = folder / "one.ipynb"
    path.write_text(json.dumps(whole))
    return path


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
