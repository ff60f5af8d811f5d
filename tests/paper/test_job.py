"""The main job: the right figures of the right models, made once, side by side."""

import json
import os
import re
import time
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import headscape as hs
from headscape.captures import capture_file
from headscape.encodings import build
from headscape.errors import InputError
from headscape.paper import job
from headscape.paper.figure_job import FIGURES, Drawing, Job, figure_of, is_finished
from headscape.paper.job import JobLine, by_work
from headscape.training import Run
from paper.conftest import Settings
from viewer.test_page import packs_of

TICKS = Path(__file__).parents[1] / "plots" / "figure_ticks.json"

pytestmark = pytest.mark.xdist_group("figures")  # one worker makes the eight figures, once


@dataclass(frozen=True)
class Made:
    """The folder of a job, its page, and what all its processes wrote to stderr."""

    folder: Path
    page: Path
    said: str


@pytest.fixture(scope="module")
def eight(tiny: Settings, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All eight figures, made by two processes."""
    folder = tmp_path_factory.mktemp("eight")
    said, stderr = folder / "stderr.txt", os.dup(2)
    # The other processes inherit the descriptor; pytest's sys.stderr here does not write to it.
    with said.open("a", buffering=1) as file, redirect_stderr(file):
        os.dup2(file.fileno(), 2)
        try:
            page = make(folder, tiny, processes=2)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    return Made(folder, page, said.read_text())


def make(tmp_path: Path, tiny: Settings, *, processes: int = 1, **changes: Any) -> Path:
    drawing = Drawing(out=tmp_path / "out", length=32, formats=("png",))
    task = Job(drawing=drawing, run_folder=tmp_path / "runs", **{"settings": tiny, **changes})
    return job.run(task, processes)


def run_folder(tmp_path: Path, slug: str) -> Path:
    (found,) = (tmp_path / "runs").glob(f"nano-{slug}-seed0*")
    return found


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


def test_a_quick_figure_comes_first_and_the_slow_ones_next() -> None:
    costs = [figure.cost for figure in by_work(FIGURES)]
    assert costs[0] == 1
    assert costs[1:] == sorted(costs[1:], reverse=True)
    assert {f.name for f in by_work(FIGURES)} == {f.name for f in FIGURES}


def test_two_processes_make_all_eight_and_a_second_call_makes_nothing(
    eight: Made, tiny: Settings
) -> None:
    out, said = eight.page.parent, eight.said
    text = eight.page.read_text()
    assert re.match(r"Figure 12: ALiBi: .*figure-12-alibi\.png \(untrained\)", said)
    assert "Traceback" not in said
    for figure in FIGURES:
        assert (out / f"{figure.name}.png").is_file()
        assert f'href="{figure.name}.png"' in text
        held = capture_file.load(out / "data" / f"{figure.name}.safetensors")
        assert held.encoding == figure.encoding
        assert held.trained
        assert re.search(rf"{figure.name}\.png \(validation loss \d\.\d+\)", said)
        measured = json.loads((out / "data" / f"{figure.name}.json").read_text())
        [context] = measured["context"].values()
        share = context["overall"]
        made = build(figure.encoding, heads=12, head_dim=4, width=48, train_length=32)
        assert (share > 0) == made.context_dependent, figure.name
    before = {path: path.stat().st_mtime_ns for path in sorted(out.rglob("figure-*"))}
    make(eight.folder, tiny, processes=1)
    assert before == {path: path.stat().st_mtime_ns for path in sorted(out.rglob("figure-*"))}


def test_one_process_and_two_train_the_same_model(
    tmp_path: Path, eight: Made, tiny: Settings
) -> None:
    make(tmp_path, tiny, encodings=("kerple",))
    one, two = (Run.open(run_folder(folder, "kerple")) for folder in (tmp_path, eight.folder))
    assert one.checkpoint_hash == two.checkpoint_hash


@pytest.fixture(scope="module")
def untrained_page(tiny: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three models as initialised."""
    folder = tmp_path_factory.mktemp("untrained")
    return make(folder, tiny, encodings=("rope", "pope", "cable"), untrained=True)


def test_untrained_trains_nothing(untrained_page: Path) -> None:
    out = untrained_page.parent
    assert not (out.parent / "runs").exists()
    assert not capture_file.load(out / "data" / "figure-08-cable.safetensors").trained
    assert "as initialised" in untrained_page.read_text()


def test_every_figure_links_into_the_viewer(untrained_page: Path) -> None:
    page = untrained_page
    links = re.findall(r'class="viewer" href="(viewer\.html#[^"]+)"', page.read_text())
    states = [json.loads(unquote(link.partition("#")[2])) for link in links]
    assert [(each["capture"], each["quantity"]) for each in states] == [
        ("p0", "bias"), ("p1", "final"),
    ]  # fmt: skip
    cable, rope = packs_of((page.parent / "viewer.html").read_text())  # a page cannot compute PoPE
    assert (cable.header["encoding"], rope.header["encoding"]) == ("cable", "rope")
    assert cable.header["layers"] == [states[0]["layer"]]


@pytest.fixture(scope="module")
def fox(tiny: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that made a figure that is not in the paper."""
    folder = tmp_path_factory.mktemp("fox")
    make(folder, tiny, encodings=("fox",))
    return folder


def test_the_page_has_the_order_that_was_asked_for(tmp_path: Path, tiny: Settings) -> None:
    names = ["sandwich", "fox", "bam"]
    page = hs.paper_figures(
        names, out=tmp_path, untrained=True, length=16, formats=("png",), processes=1, **tiny
    )
    assert re.findall(r'<li><a href="#extra-([a-z]+)"', page.read_text()) == names


def test_earlier_figures_stay_on_the_page(fox: Path, tiny: Settings) -> None:
    page = make(fox, tiny, encodings=("kerple",))
    assert 'id="extra-fox"' in page.read_text()
    assert 'id="figure-10-kerple"' in page.read_text()


def test_quick_trains_less_beside_the_full_model(
    tmp_path: Path, tiny: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "QUICK", {"steps": 2})
    settings = {name: value for name, value in tiny.items() if name != "steps"}
    where = {"out": tmp_path / "out", "run_folder": tmp_path / "runs", "length": 32}
    page = hs.paper_figures(["fox"], quick=True, formats=["png"], **where, **settings)
    assert "trained for 2 steps" in page.read_text()
    hs.paper_figures(["fox"], formats=["png"], **where, **tiny)
    assert "trained for 3 steps" in page.read_text()
    assert len(list((tmp_path / "runs").iterdir())) == 2
    with pytest.raises(InputError, match="quick and untrained exclude each other"):
        hs.paper_figures(["fox"], quick=True, untrained=True, **where)


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name at least one encoding"):
        hs.paper_figures([], out=tmp_path / "out")
    with pytest.raises(InputError, match="processes must be at least 1, got 0"):
        hs.paper_figures(["alibi"], out=tmp_path / "out", processes=0)
    assert not (tmp_path / "out").exists()


def test_own_runs_are_used(tmp_path: Path, eight: Made, fox: Path, tiny: Settings) -> None:
    run, extra = run_folder(eight.folder, "cable"), run_folder(fox, "fox")
    runs = {"cable": run, "fox": extra}
    page = make(tmp_path / "other", tiny, encodings=("cable", "fox"), own_runs=runs)
    assert not (tmp_path / "other" / "runs").exists()
    for name, used in (("figure-08-cable", run), ("extra-fox", extra)):
        held = capture_file.load(page.parent / "data" / f"{name}.safetensors")
        assert held.provenance["run"] == used.name
    with pytest.raises(InputError, match="was trained with 'cable', not 'alibi'"):
        make(tmp_path / "b", tiny, encodings=("alibi",), own_runs={"alibi": run})
    with pytest.raises(InputError, match="exclude each other"):
        make(tmp_path / "b", tiny, encodings=("cable",), own_runs={"cable": run}, untrained=True)


def test_figures_do_not_go_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        Drawing(out=tmp_path / "file")


def test_a_run_without_checkpoints_is_refused_before_anything_is_done(
    tmp_path: Path, tiny: Settings
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is not a run"):
        make(tmp_path, tiny, encodings=("alibi", "fox"), own_runs={"fox": tmp_path / "empty"})
    assert not (tmp_path / "out").exists()


def test_a_finished_run_is_one_of_the_same_settings(
    tmp_path: Path, eight: Made, tiny: Settings
) -> None:
    run = run_folder(eight.folder, "alibi")
    same = Job(drawing=Drawing(out=tmp_path), settings=tiny)
    config = same.config_of(figure_of("alibi"))
    assert is_finished(run, config)
    assert not is_finished(run, replace(same, seed=1).config_of(figure_of("alibi")))
    assert not is_finished(tmp_path / "nowhere", config)


def test_a_mistake_in_a_process_is_one_sentence(tmp_path: Path, tiny: Settings) -> None:
    settings = {**tiny, "path": "native"}
    with pytest.raises(InputError, match="native"):
        make(tmp_path, settings, encodings=("cope", "fox"), processes=2)


def test_the_line_has_figures_time_left_and_what_is_at_work(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with JobLine({"Figure 8: CABLE": 1.0, "Figure 9: DAPEv2+CABLE": 2.0}) as line:
        now[0] = 10.0
        line.update("Figure 8: CABLE", "done", 1.0)
        assert capfd.readouterr().err == ""
        now[0] = 20.0
        line.update("Figure 9: DAPEv2+CABLE", "step 9/18 loss 2.00", 0.5)
    assert capfd.readouterr().err == (
        "1 of 2 figures, 0:10 left  |  Figure 9: DAPEv2+CABLE: step 9/18 loss 2.00\n"
    )


@pytest.mark.slow
def test_figure_12_at_gpt2_small_has_the_printed_colour_bars(tmp_path: Path) -> None:
    drawing = Drawing(out=tmp_path, formats=("svg",))
    job.run(Job(drawing=drawing, encodings=("alibi",), preset="small", untrained=True), 1)
    svg = (tmp_path / "figure-12-alibi.svg").read_text()
    printed = json.loads(TICKS.read_text())
    printed = printed.get("12", printed)["heads"]
    for head in range(1, 13):
        part = svg.split(f'id="colorbar-{head}"')[1].split('id="panel-')[0]
        labels = re.findall(r"<text[^>]*>([^<]+)</text>", part)
        ticks = [float(text.replace("\u2212", "-")) for text in labels[: len(printed[str(head)])]]
        assert sorted(ticks, reverse=True) == printed[str(head)], head
        assert all("-" not in text for text in labels)
