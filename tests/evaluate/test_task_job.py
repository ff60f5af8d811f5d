"""Runs on a task, tested at lengths; files and plot."""

import json

import numpy as np
import pytest

from evaluate.models import tiny
from headscape.errors import InputError
from headscape.evaluate import task_job
from headscape.evaluate.accuracy import against_length
from headscape.evaluate.task_job import TaskConfig, default_lengths, evaluate_tasks, heat_map, write
from headscape.tasks import TASKS
from headscape.text.byte_tokenizer import ByteTokenizer
from headscape.train import TrainConfig
from headscape.train.run import Run


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Run folders by name `encoding/corpus`, without training."""

    def opened(source):
        encoding, corpus = source.split("/")
        return Run(
            folder=tmp_path,
            config=TrainConfig(corpus=corpus, encoding=encoding, tokenizer="bytes"),
            step=1,
            checkpoint=tmp_path,
            model=tiny(encoding, vocabulary=257),
            tokenizer=ByteTokenizer(),
        )

    monkeypatch.setattr(task_job.Run, "open", opened)


def test_accuracies_by_method_and_length(runs, tmp_path):
    config = TaskConfig(lengths=(4, 9), examples=3)
    sources = ["alibi/task:parity", "rope/task:parity", "rope/task:parity"]
    chosen, found = evaluate_tasks(sources, config)
    assert chosen is TASKS["parity"]
    assert list(found) == ["ALiBi", "RoPE", "RoPE (seed 0)"]
    model = tiny("alibi", vocabulary=257)
    assert found["ALiBi"] == against_length(
        model, TASKS["parity"], [4, 9], examples=3, seed=config.seed
    )
    paths = write(tmp_path, chosen, found)
    assert {path.suffix for path in paths} == {".json", ".csv", ".md", ".png", ".svg", ".pdf"}
    rows = json.loads((tmp_path / "tasks.json").read_text())
    assert [(row["method"], row["length"]) for row in rows[:2]] == [("ALiBi", 4), ("ALiBi", 9)]
    text = (tmp_path / "tasks.md").read_text()
    assert text.startswith("| length | ALiBi | RoPE |")
    assert "guessing gets 50% right" in text


def test_the_plot_is_linear_and_marks_the_longest_trained_question(runs):
    chosen, found = evaluate_tasks(["alibi/task:copy"], TaskConfig(lengths=(4, 9), examples=2))
    (axes,) = task_job.plot(chosen, found).axes
    assert axes.get_yscale() == "linear"
    (mark,) = [line for line in axes.lines if line.get_gid() == "trained"]
    assert set(mark.get_xdata()) == {40}


def test_runs_on_text_or_on_two_tasks_are_refused(runs):
    for sources in (["alibi/stdlib"], ["alibi/task:copy", "alibi/task:sort"]):
        with pytest.raises(InputError, match="runs on one task are wanted"):
            evaluate_tasks(sources, TaskConfig())


@pytest.mark.parametrize("corpus", ["task:needle", "stdlib"])
def test_heat_maps_for_runs_on_the_task_and_on_text(runs, corpus):
    config = TaskConfig(examples=2, depths=(0.0, 1.0))
    depths = heat_map(f"alibi/{corpus}", "needle", [70, 90, 100], config)
    assert depths.accuracy.shape == (2, 3)
    assert np.isin(depths.accuracy, [0, 0.5, 1]).all()
    with pytest.raises(InputError, match="'parity' has no depth"):
        heat_map("alibi/stdlib", "parity", [70], config)


def test_default_lengths_go_from_trained_to_tested():
    lengths = default_lengths(TASKS["parity"])
    assert lengths[:2] == (20, 40)
    assert lengths[-1] == 500
    assert len(lengths) == 10
