"""The main job: the right figures of the right models, made once."""

import json
import re
from pathlib import Path

import pytest

from headscape.arrays import capture_file
from headscape.encodings import build
from headscape.errors import InputError
from headscape.paper import job, subject
from headscape.paper.figure_files import Look
from headscape.paper.paper_figures import FIGURES, figure_of
from headscape.train.config import presets

TICKS = Path(__file__).parents[1] / "figures" / "figure_ticks.json"


@pytest.fixture(autouse=True)
def _tiny(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nano that is trained in no time, on a text of its own."""
    folder = tmp_path_factory.mktemp("corpus")
    text = folder / "text.txt"
    text.write_text("".join(f"{n} and {n % 7} and {n % 11}\n" for n in range(3000)))
    changes = {"corpus": str(text), "tokenizer": "bytes", "context_length": 32, "steps": 3}
    changes |= {"curriculum": (), "tokens_per_step": 64, "warmup_steps": 1}
    monkeypatch.setitem(presets.PRESETS, "nano", {**presets.PRESETS["nano"], **changes})
    monkeypatch.setenv("HEADSCAPE_CACHE", str(folder / "cache"))


def make(tmp_path: Path, said: list[str] | None = None, **changes: object) -> Path:
    look = Look(out=tmp_path / "out", length=32, formats=("png", "svg"))
    task = job.Job(look=look, run_folder=tmp_path / "runs", **changes)
    return job.run(task, "headscape figures", (said if said is not None else []).append)


def test_the_table_is_the_papers() -> None:
    assert [figure.number for figure in FIGURES] == list(range(8, 16))
    assert figure_of("rope").quantity == "final"
    assert figure_of("t5-clipped").scale == "width"
    assert figure_of("t5-bias") is figure_of("t5-clipped")
    for figure in FIGURES:
        build(figure.encoding, heads=12, head_dim=64, width=768, train_length=512, **figure.fields)


def test_any_other_encoding_is_drawn_in_the_same_manner() -> None:
    assert figure_of("fox").name == "extra-fox"
    assert figure_of("nope").quantity == "final"
    assert figure_of("dapev2+rope").quantity == "bias"
    with pytest.raises(InputError, match="acts on the embeddings"):
        figure_of("sinusoidal")


def test_all_eight_are_made_and_a_second_run_makes_nothing(tmp_path: Path) -> None:
    page = make(tmp_path)
    out = page.parent
    text = page.read_text()
    for figure in FIGURES:
        assert (out / f"{figure.name}.png").is_file()
        assert (out / f"{figure.name}.svg").is_file()
        assert f'href="{figure.name}.svg"' in text
        held = capture_file.load(out / "data" / f"{figure.name}.safetensors")
        assert held.encoding == figure.encoding
        assert held.trained
        measured = json.loads((out / "data" / f"{figure.name}.json").read_text())
        share = measured["layers"][0]["context"]["overall"]
        if build(
            figure.encoding, heads=12, head_dim=16, width=192, train_length=32
        ).context_dependent:
            assert share > 0, figure.name
        else:
            assert share == 0, figure.name
    before = {path: path.stat().st_mtime_ns for path in sorted(out.rglob("figure-*"))}
    make(tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in sorted(out.rglob("figure-*"))}


def test_alibi_comes_first_and_is_drawn_without_training(tmp_path: Path) -> None:
    said: list[str] = []
    make(tmp_path, said, encodings=("kerple", "alibi"))
    assert said[0].startswith("Figure 12: ALiBi")
    assert "training" in said[1]


def test_untrained_trains_nothing(tmp_path: Path) -> None:
    page = make(tmp_path, encodings=("cable",), untrained=True)
    assert not (tmp_path / "runs").exists()
    assert not capture_file.load(page.parent / "data" / "figure-08-cable.safetensors").trained
    assert "as initialised" in page.read_text()


def test_own_runs_are_used(tmp_path: Path) -> None:
    make(tmp_path, encodings=("fox",))
    folder = tmp_path / "runs" / "nano-fox-seed0"
    page = make(tmp_path / "other", encodings=("fox",), own_runs={"fox": folder})
    assert not (tmp_path / "other" / "runs").exists()
    held = capture_file.load(page.parent / "data" / "extra-fox.safetensors")
    assert held.provenance["run"] == "nano-fox-seed0"


def test_a_run_of_another_encoding_is_refused(tmp_path: Path) -> None:
    make(tmp_path, encodings=("fox",))
    folder = tmp_path / "runs" / "nano-fox-seed0"
    with pytest.raises(InputError, match="was trained with 'fox', not 'alibi'"):
        make(tmp_path / "b", encodings=("alibi",), own_runs={"alibi": folder})
    with pytest.raises(InputError, match="not both"):
        make(tmp_path / "b", encodings=("fox",), own_runs={"fox": folder}, untrained=True)


def test_figures_do_not_go_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        Look(out=tmp_path / "file")


def test_a_run_without_checkpoints_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is not a run"):
        make(tmp_path, encodings=("alibi", "fox"), own_runs={"fox": tmp_path / "empty"})
    assert not (tmp_path / "out").exists()


def test_a_finished_run_is_one_of_the_same_settings(tmp_path: Path) -> None:
    make(tmp_path, encodings=("alibi",))
    folder = tmp_path / "runs" / "nano-alibi-seed0"
    config = subject.settings(figure_of("alibi"), "nano", 0)
    assert subject.is_finished(folder, config)
    assert not subject.is_finished(folder, subject.settings(figure_of("alibi"), "nano", 1))
    assert not subject.is_finished(tmp_path / "nowhere", config)


@pytest.mark.slow
def test_figure_12_at_gpt2_small_has_the_printed_colour_bars(tmp_path: Path) -> None:
    look = Look(out=tmp_path, formats=("svg",))
    task = job.Job(look=look, encodings=("alibi",), preset="small", untrained=True)
    job.run(task, "headscape figures", lambda _: None)
    svg = (tmp_path / "figure-12-alibi.svg").read_text()
    printed = json.loads(TICKS.read_text())
    printed = printed.get("12", printed)["heads"]
    for head in range(1, 13):
        part = svg.split(f'id="colorbar-{head}"')[1].split('id="panel-')[0]
        labels = re.findall(r"<text[^>]*>([^<]+)</text>", part)
        ticks = [float(text.replace("\u2212", "-")) for text in labels[: len(printed[str(head)])]]
        assert sorted(ticks, reverse=True) == printed[str(head)], head
        assert all("-" not in text for text in labels)
