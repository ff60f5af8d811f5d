"""Which existing files may be replaced."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscape as hs
from headscape.errors import InputError
from headscape.evaluation.row import EvaluationRow
from headscape.evaluation.table import Table
from headscape.io.output_file import KINDS, check_output
from headscape.plots.gallery import write_gallery

MINE = "mine, and not of headscape"


@pytest.fixture(scope="module")
def cap() -> hs.Capture:
    model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
    return model.capture([5, 6, 7, 8])


def table() -> Table:
    text = {"protocol": "nonoverlap", "corpus": "c", "text": "t", "model": "m", "recipe": None}
    row = EvaluationRow(
        method="ALiBi", length=8, **text, longest=None, train_length=8, seed=0, windows=2,
        tokens=16, bytes=16, words=4, loss=1.5, low=1.0, high=2.0, refused=None,
    )  # fmt: skip
    return Table.of([row])


WRITERS: dict[str, Callable[[hs.Capture, Path], object]] = {
    "a.png": lambda cap, path: cap.grid(heads=[0]).save(path),
    "a.svg": lambda cap, path: cap.grid(heads=[0]).save(path),
    "a.pdf": lambda cap, path: cap.grid(heads=[0]).save(path),
    "a.html": lambda cap, path: cap.view(html=path),
    "a.safetensors": lambda cap, path: cap.save(path),
    "index.html": lambda _, path: write_gallery(path.parent, [], "Figures", {}),
    "entries.json": lambda _, path: write_gallery(path.parent, [], "Figures", {}),
    "evaluation.json": lambda _, path: table().save(path.parent),
    "evaluation.csv": lambda _, path: table().save(path.parent),
    "evaluation.md": lambda _, path: table().save(path.parent),
    "evaluation.tex": lambda _, path: table().save(path.parent),
    "model.safetensors": lambda *args: small().save(args[1].parent),
    "tokenizer.json": lambda *args: small().save(args[1].parent),
}


def small() -> Any:
    gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257, layers=1)
    return hs.load(gpt2, tokenizer="bytes")


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_the_same_kind_is_replaced_and_no_other(
    name: str, cap: hs.Capture, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.touch()
    WRITERS[name](cap, path)
    before = path.read_bytes()
    WRITERS[name](cap, path)
    assert path.read_bytes() == before
    path.write_text(MINE)
    (tmp_path / "headscape.json").unlink(missing_ok=True)
    everything = {other: other.read_bytes() for other in tmp_path.iterdir()}
    with pytest.raises(InputError, match="exists and is not a"):
        WRITERS[name](cap, path)
    # Nothing was written before the refusal either.
    assert {other: other.read_bytes() for other in tmp_path.iterdir()} == everything


def test_measures_are_recognised(cap: hs.Capture, tmp_path: Path) -> None:
    from headscape.measures.measures import written

    measured = cap.measures()
    for form in ("csv", "json", "md"):
        for files in ({"a": measured}, {"a": measured, "b|": measured}):
            path = tmp_path / f"a.{form}"
            path.write_text(written(files, form))
            check_output(path, KINDS[form])


def test_measures_of_a_model_and_its_atlas_are_recognised(tmp_path: Path) -> None:
    model, tokens = small(), list(range(100))
    hs.atlas(model, tmp_path, tokens, length=32, sequences=2)
    found = model.measures(tokens, length=32, sequences=2)
    (tmp_path / "heads.md").write_text(found.to_markdown())
    for path in tmp_path.iterdir():
        check_output(path, KINDS[path.suffix[1:]])
    (tmp_path / "heads.csv").write_text(MINE)
    with pytest.raises(InputError, match=r"heads\.csv exists and is not a CSV table of headscape"):
        hs.atlas(model, tmp_path, tokens, length=32, sequences=2)


@pytest.mark.parametrize("text", ["{}", '{"model_type": "gpt2"}', '{"format": 1, "model": 2}'])
def test_json_of_others_is_not_ours(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match="is not a JSON file of headscape"):
        check_output(tmp_path / "config.json", KINDS["json"])


@pytest.mark.parametrize("link", ["hard", "symbolic", "folder"])
def test_an_input_is_refused_under_any_name(link: str, tmp_path: Path) -> None:
    given = tmp_path / "texts" / "a.md"
    given.parent.mkdir()
    given.write_text("| layer | head | reach |\n")
    path = tmp_path / "b.md"
    check_output(given, KINDS["md"], reads=[path])
    if link == "hard":
        path.hardlink_to(given)
    else:
        path.symlink_to(given)
    reads = [given.parent if link == "folder" else given]
    with pytest.raises(InputError, match="it is one of the inputs"):
        check_output(path, KINDS["md"], reads=reads)


def test_a_capture_overwrites_when_told(cap: hs.Capture, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(MINE)
    cap.save(path, overwrite=True)
    np.testing.assert_array_equal(hs.Capture.load(path).bias(), cap.bias())
