"""What is kept of a diagnosis, and how its progress is shown."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscape as hs
from evaluation.models import tiny
from headscape.call.definition import scores
from headscape.diagnosis import pass_bar
from headscape.diagnosis.changes import Gap, Rotations
from headscape.diagnosis.heads import kernel_edges, measured
from headscape.diagnosis.pass_bar import blocks
from headscape.diagnosis.retrieval import Cell, by_length
from headscape.gpt2 import GPT2, ModelConfig
from headscape.models.changed import ChangedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.load import load
from pretrained.families import FAMILIES, VOCABULARY

TRAINED, LENGTH = 192, 384


def small() -> GPT2Model:
    torch.manual_seed(0)
    config = ModelConfig(
        layers=3, heads=2, width=16, vocabulary=64, train_length=TRAINED, encoding="rope"
    )
    return GPT2Model(GPT2(config).eval())


@pytest.mark.parametrize("quick", [True, False])
def test_a_longer_text_is_read_although_its_first_window_is_the_same(
    quick: bool, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    short = random.integers(64, size=500)
    long = np.concatenate([short, random.integers(64, size=1500)])
    given: dict[str, Any] = {
        "quick": quick, "windows": 1, "questions": 1, "effects": 0,
        "remedies": ["longrope", "clip"],
    }  # fmt: skip
    first = hs.diagnose(small(), LENGTH, short, out=tmp_path, **given)
    second = hs.diagnose(small(), LENGTH, long, out=tmp_path, **given)
    fresh = hs.diagnose(small(), LENGTH, long, **given)
    assert second.data == fresh.data
    assert second.data["retrieval"] != first.data["retrieval"]
    assert second.data["unchanged_retrieval"] != first.data["unchanged_retrieval"]


class Bar:
    """A bar that keeps what it was told."""

    every: "list[Bar]"

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self.steps: list[int] = []
        Bar.every.append(self)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, amount: int) -> None:
        self.steps.append(amount)


def test_every_stage_advances_its_bar_within_a_pass_and_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_bar, "SlowBar", Bar)
    text = np.random.default_rng(0).integers(64, size=2000)
    given: dict[str, Any] = {
        "quick": True, "remedies": ["clip", "longrope"], "effects": 1, "out": tmp_path,
    }  # fmt: skip
    for resumes in (False, True):
        Bar.every = []
        hs.diagnose(small(), LENGTH, text, **given)
        titles = [bar.title for bar in Bar.every]
        assert {"short context", "loss by position", "retrieval", "cost of clipped positions"} <= {
            *titles
        }
        for bar in Bar.every:
            assert sum(bar.steps) == bar.total, bar.title
            assert min(bar.steps) >= 0
        # One pass of the one window, and its beginning: three layers each.
        [whole] = [bar for bar in Bar.every if bar.title == "loss by position"]
        assert len(whole.steps) == (1 if resumes else 2 * 3 + 1)
        assert max(whole.steps) < 0.5 * whole.total or resumes


def test_a_slow_stage_prints_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small()
    monkeypatch.setattr(pass_bar, "LINE_SECONDS", 0.0)
    with pass_bar.PassBar(model, "a stage", [10, 10, 10, 10]) as bar:
        for _ in range(4):
            bar.finished()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("a stage: ") for line in lines)
    assert lines[-1].endswith("about 0 s left")
    monkeypatch.setattr(pass_bar, "LINE_SECONDS", 20.0)
    with pass_bar.PassBar(model, "a stage", [10]) as bar:
        bar.finished()
    assert capsys.readouterr().err == ""


def test_the_page_draws_the_excess_with_its_interval() -> None:
    text = np.random.default_rng(0).integers(64, size=4000)
    given: dict[str, Any] = {"questions": 0, "effects": 0, "remedies": [], "windows": 6}
    found = hs.diagnose(small(), LENGTH, text, **given)
    html = found.to_html()
    assert 'aria-label="Excess by position"' in html
    assert html.count("<polygon") == 1
    assert "svg { max-width: 100%; height: auto }" in html
    assert "what breaks is decided by Student's test" in found.to_markdown()
    assert (
        "1 windows"
        not in hs.diagnose(small(), LENGTH, text, quick=True, **{**given, "windows": 1}).to_html()
    )


def test_what_is_not_run_is_listed() -> None:
    text = np.random.default_rng(0).integers(64, size=2000)
    model = GPT2Model(tiny("alibi", train_length=64, vocabulary=64))
    given: dict[str, Any] = {"quick": True, "effects": 1, "remedies": []}
    left_out = " ".join(hs.diagnose(model, 128, text, **given).data["about"]["left_out"])
    assert "which need 192 tokens" in left_out
    assert "a bias is not changed in one head alone" in left_out
    left_out = " ".join(hs.diagnose(model, 256, text, **given).data["about"]["left_out"])
    assert "at two lengths" in left_out
    assert "need 192 tokens" not in left_out


def test_a_rotation_that_cannot_be_repeated_ends_no_diagnosis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small()
    other = GPT2Model(tiny("rope", train_length=TRAINED, vocabulary=64, base=500.0)).spec
    layers = other.layers * 2
    spec = replace(model.spec, layers=layers[: len(model.spec.layers)])
    monkeypatch.setattr(GPT2Model, "spec", property(lambda _: spec))
    text = np.random.default_rng(0).integers(64, size=2000)
    given: dict[str, Any] = {"quick": True, "questions": 0, "effects": 1}
    found = hs.diagnose(model, LENGTH, text, remedies=["clip", "log", "longrope"], **given)
    for name in ("clip", "longrope"):
        assert "does not rotate as its config says" in found.data["refused"][name]
    assert [each["name"] for each in found.data["remedies"]] == ["log"]
    assert found.data["far"] is found.data["heads"]["control"] is None
    assert found.data["heads"]["effects"] == {}
    assert "rotation" in found.findings
    [text_of] = [each["text"] for each in found.data["findings"] if each["kind"] == "rotation"]
    assert "does not rotate as its config says" in text_of
    monkeypatch.undo()
    assert "rotation" not in hs.diagnose(small(), LENGTH, text, remedies=["clip"], **given).findings


def test_a_pass_of_a_published_model_has_a_step_per_layer() -> None:
    model: Any = load(FAMILIES["llama"].build())
    assert len(blocks(model)) == len(model.spec.layers)
    tokens = torch.randint(3, VOCABULARY, (1, 33))
    Bar.every = []
    bar = pass_bar.PassBar(model, "title", [2 * model.cost(32)])
    bar._bar = Bar("title", 0)  # type: ignore[assignment]
    with bar:
        model.losses(tokens, 0)
        model.losses(tokens, 0)
    assert len(Bar.every[-1].steps) == 2 * len(model.spec.layers)
    assert sum(Bar.every[-1].steps) == pytest.approx(2 * model.cost(32), rel=1e-3)


def test_a_kernel_is_weight_and_score_by_distance_and_the_controls_is_far() -> None:
    model = small()
    tokens = np.random.default_rng(3).integers(64, size=100)
    calls: list[Any] = []
    model.observe(torch.from_numpy(tokens)[None], range(3), lambda _, call: calls.append(call))
    # Fewer late queries than are sampled, so all of them count.
    late, index = range(50, 100), torch.arange(100)
    for gap in (None, Gap(Rotations(model.spec), 50, 300)):
        found = measured(ChangedModel(model), tokens, gap)["kernel"]
        where = index if gap is None else index + 300 * (index >= 50)
        edges = [*kernel_edges(100 if gap is None else 400), 10_000]
        assert edges[:5] == [0, 1, 2, 4, 8]
        for layer, call in enumerate(calls):
            part = scores(call)
            for number, (low, high) in enumerate(pairwise(edges)):
                weight, score, pairs = np.zeros(2), np.zeros(2), 0
                for i in late:
                    for j in range(i + 1):
                        if low <= int(where[i] - where[j]) < high:
                            weight += part.weights[0, :, i, j].numpy()
                            score += part.final[0, :, i, j].numpy()
                            pairs += 1
                for head in range(2):
                    assert found["weight"][layer][head][number] == pytest.approx(
                        weight[head] / len(late), rel=1e-4, abs=1e-7
                    )
                    mean = found["score"][layer][head][number]
                    assert (mean is None) == (pairs == 0)
                    assert mean is None or mean == pytest.approx(
                        score[head] / pairs, rel=1e-3, abs=1e-6
                    )


def test_kernels_are_on_the_page() -> None:
    text = np.random.default_rng(0).integers(64, size=2000)
    found = hs.diagnose(small(), LENGTH, text, quick=True, questions=0, remedies=[])
    kernel = found.data["heads"]["kernel"]
    assert set(kernel) == {"from", "trained", "control", "length"}
    for name in ("trained", "control", "length"):
        total = np.sum(kernel[name]["weight"], axis=2)
        assert np.allclose(total, 1.0, atol=1e-3)
    html = found.to_html()
    most = found.data["heads"]["most_changed"][0]
    assert f"layer {most['layer'] + 1}, head {most['head'] + 1}" in html
    assert "as many keys, far" in html


def cell(length: int, right: list[float], depth: float = 0.5) -> Cell:
    return {"kind": "copy", "length": length, "depth": depth}, [[1.0, each] for each in right]


def test_the_last_length_at_which_retrieval_holds() -> None:
    sure = [1.0] * 8
    cells = [cell(64, sure), cell(128, sure), cell(256, [0.0] * 8), cell(512, sure)]
    found = by_length(cells, 64)["copy"]
    assert found["holds_to"] == 128
    assert [each["right"][0] for each in found["lengths"]] == [1.0, 1.0, 0.0, 1.0]
    assert found["lengths"][0]["right"][1:] == [1.0, 1.0]
    # Six of eight is not shown to be below 0.8.
    assert (
        by_length([cell(64, sure), cell(128, [1.0] * 6 + [0.0] * 2)], 64)["copy"]["holds_to"] == 128
    )
    # Fewer than six questions have no interval, so their mean counts.
    assert by_length([cell(64, sure), cell(128, [1.0, 0.0])], 64)["copy"]["holds_to"] == 64
    # A model that answers nothing at its trained length has no last length.
    assert by_length([cell(64, [0.0] * 8), cell(128, sure)], 64)["copy"]["holds_to"] is None
    assert by_length([cell(64, sure)], 64)["copy"]["holds_to"] is None
    # Depths count together.
    cells = [cell(64, sure[:4], 0.1), cell(64, [0.0] * 4, 0.9)]
    assert by_length(cells, 64)["copy"]["lengths"][0]["right"][0] == 0.5


def test_remedies_csv_has_retrieval() -> None:
    text = np.random.default_rng(0).integers(64, size=2000)
    for quick in (True, False):
        given: dict[str, Any] = {"quick": quick, "windows": 1, "effects": 0, "remedies": ["clip"]}
        found = hs.diagnose(small(), LENGTH, text, questions=1, **given)
        names, row = (line.split(",") for line in found.remedies_csv().splitlines())
        values = dict(zip(names, row, strict=True))
        [clip] = found.data["remedies"]
        assert float(values["copy_loss"]) == clip["retrieval"]["copy"]["loss"][0]
        assert float(values["copy_right"]) == clip["retrieval"]["copy"]["right"][0]
    assert "copy: share right over all depths" in found.to_markdown()
