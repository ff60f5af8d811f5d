"""Runs on a task, tested at lengths and depths; scores, tables, files and plots."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluate.knowing import knowing
from evaluate.models import tiny
from headscape.errors import InputError
from headscape.evaluate import task_job, task_report, task_score
from headscape.evaluate.accuracy import Question, Sheet, mark
from headscape.evaluate.scoring import GPT2Scorer
from headscape.evaluate.task_job import TaskConfig, default_lengths, evaluate_depths, evaluate_tasks
from headscape.evaluate.task_score import Score
from headscape.evaluate.task_table import TaskTable
from headscape.tasks import TASKS
from headscape.tasks.retrieval import RETRIEVAL
from headscape.text.tokenize.byte_tokenizer import ByteTokenizer
from headscape.train import TrainConfig
from headscape.train.run import Run


@pytest.fixture
def runs(monkeypatch):
    """Run folders by name `CORPUS/ENCODING-SEED`, without training."""
    models = {}

    def opened(folder):
        encoding, _, seed = Path(folder).name.rpartition("-")
        model = tiny(encoding, vocabulary=257, train_length=64, seed=int(seed))
        return Run(
            folder=Path(folder),
            config=TrainConfig(
                corpus=str(Path(folder).parent),
                encoding=encoding,
                tokenizer="bytes",
                seed=int(seed),
            ),
            step=1,
            checkpoint=Path(folder),
            model=models.get(str(folder), model),
            tokenizer=ByteTokenizer(),
        )

    monkeypatch.setattr(task_job.Run, "open", opened)
    return models


def score(method, length, exact, *, seed=0, **others):
    fields = {"task": "parity", "depth": None, "examples": 10, "questions": f"asked {length}"}
    fields |= {"symbols": exact, "model": f"{method} {seed}", "encoding": method.lower()}
    fields["recipe"] = "r"
    return Score(method=method, length=length, exact=exact, seed=seed, **(fields | others))


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_row_says_who_was_asked_what_and_both_accuracies(runs):
    config = TaskConfig(lengths=(9, 4, 9), examples=6)
    asked = [TASKS["parity"].example(config.seed, index, 9) for index in range(6)]
    questions = [Question.in_layout(TASKS["parity"], one) for one in asked]
    runs["task:parity/rope-1"] = knowing(questions, wrong=[(0, 11), (1, 12)], encoding="rope")
    found = evaluate_tasks(["task:parity/alibi-0", "task:parity/rope-1"], config)
    rows = [(one.method, one.encoding, one.seed, one.task, one.length) for one in found]
    assert rows == [
        ("ALiBi", "alibi", 0, "parity", 4),
        ("ALiBi", "alibi", 0, "parity", 9),
        ("RoPE", "rope", 1, "parity", 4),
        ("RoPE", "rope", 1, "parity", 9),
    ]
    assert (found[3].symbols, found[3].exact) == pytest.approx((5 / 6, 4 / 6))
    assert {one.examples for one in found} == {6}
    alone = mark(GPT2Scorer(tiny("alibi", vocabulary=257)), Sheet(questions=questions))
    assert (found[1].symbols, found[1].exact) == (alone.symbols, alone.exact)


def test_a_length_past_a_learned_table_is_a_dash_and_no_length_at_all_is_refused(runs):
    sources = ["task:copy/learned-0", "task:copy/alibi-0"]
    found = evaluate_tasks(sources, TaskConfig(lengths=(5, 31, 32), examples=2))
    assert [one.exact is None for one in found] == [False, False, True, False, False, False]
    assert "64 rows" in found[2].refused
    table = TaskTable.of(found)
    assert "| 32 | - | " in table.markdown()
    assert "\n32 & - & " in table.latex()
    with pytest.raises(InputError, match="learned-0: position 65 is past"):
        evaluate_tasks(sources, TaskConfig(lengths=(32, 50), examples=2))


def test_an_evaluation_that_was_stopped_goes_on(runs, tmp_path, monkeypatch):
    config = TaskConfig(lengths=(4, 9), examples=3)
    whole = evaluate_tasks(["task:copy/alibi-0"], config)
    asked = []

    def answer(model, batch):
        if len(asked) == 1:
            raise KeyboardInterrupt
        asked.append(batch)
        return genuine(model, batch)

    from headscape.evaluate import accuracy

    genuine = accuracy._mark
    with monkeypatch.context() as patch:
        patch.setattr(accuracy, "_mark", answer)
        with pytest.raises(KeyboardInterrupt):
            evaluate_tasks(["task:copy/alibi-0"], config, tmp_path)
        asked[:] = []
        patch.setattr(accuracy, "_mark", lambda *a: asked.append(a) or genuine(*a))
        assert evaluate_tasks(["task:copy/alibi-0"], config, tmp_path) == whole
    assert len(asked) == 1


def test_the_bar_ends_full(runs, monkeypatch):
    class Bar:
        def __init__(self, _, total):
            bars.append([total, 0])

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def advance(self, amount):
            bars[-1][1] += amount

    bars = []
    monkeypatch.setattr(task_job, "SlowBar", Bar)
    sources = ["task:copy/learned-0", "task:copy/alibi-0"]
    evaluate_tasks(sources, TaskConfig(lengths=(5, 40), examples=3, batch_tokens=20))
    ((total, done),) = bars
    assert total == done > 0


def test_what_cannot_be_asked_is_refused(runs):
    for sources in (["stdlib/alibi-0"], ["task:copy/alibi-0", "task:sort/alibi-0"]):
        with pytest.raises(InputError, match="runs on one task are wanted"):
            evaluate_tasks(sources, TaskConfig())
    with pytest.raises(InputError, match="no length of -1"):
        TaskConfig(lengths=(4, -1))
    with pytest.raises(InputError, match="no length of 0"):
        TaskConfig(lengths=(0,))
    with pytest.raises(InputError, match="addition has no question of 2 symbols: its shortest"):
        evaluate_tasks(["task:addition/alibi-0"], TaskConfig(lengths=(2, 9)))
    with pytest.raises(InputError, match="batch_tokens must be at least 1, not 0"):
        TaskConfig(batch_tokens=0)
    with pytest.raises(InputError, match="'parity' has no depth"):
        evaluate_depths(["stdlib/alibi-0"], "parity", TaskConfig())
    with pytest.raises(InputError, match=r"0 to 1, not 1\.5"):
        TaskConfig(depths=(1.5,))


def test_two_models_of_one_name_and_seed_are_refused():
    with pytest.raises(InputError, match="both called ALiBi with seed 0"):
        TaskTable.of([score("ALiBi", 4, 0.5), score("ALiBi", 4, 0.5, model="another")])


def test_seeds_become_mean_and_spread_in_table_and_plot():
    rows = [score("ALiBi", 41, value, seed=seed) for seed, value in enumerate((0.2, 0.4, 0.6))]
    rows += [score("RoPE", 41, 0.9), score("RoPE", 20, 0.0), score("ALiBi", 20, 0.004)]
    table = TaskTable.of(rows)
    lines = table.markdown().splitlines()
    assert lines[:4] == [
        "| length | ALiBi | RoPE |",
        "|---:|---:|---:|",
        "| 20 | 0.00 | 0.00 |",
        "| 41 | 0.40 ± 0.20 | **0.90** |",
    ]
    assert r"41 & 0.40 $\pm$ 0.20 & \textbf{0.90} \\" in table.latex()
    assert "parity (regular): share of exact answers; 10 questions" in table.note("exact")
    assert "commonest answer alone gets 0.50" in table.note("exact")
    assert "over 1-3 seeds" in table.note("exact")
    (axes,) = task_report.plot(table, "exact").draw().axes
    line = next(line for line in axes.lines if line.get_label() == "ALiBi")
    assert np.allclose(line.get_ydata(), [0.004, 0.4])
    edges = axes.collections[0].get_paths()[0].vertices
    assert np.allclose(sorted(set(edges[edges[:, 0] == 41, 1])), [0.2, 0.6])


def test_the_plot_is_linear_and_marks_what_was_trained_and_what_needs_no_learning():
    table = TaskTable.of([score("ALiBi", 4, 0.5), score("ALiBi", 90, None)])
    (axes,) = task_report.plot(table, "symbols").draw().axes
    assert axes.get_yscale() == "linear"
    assert axes.get_ylabel() == "Right symbols, parity"
    (mark_,) = [line for line in axes.lines if line.get_gid() == "trained"]
    assert set(mark_.get_xdata()) == {40}
    (level,) = [line for line in axes.lines if line.get_gid() == "reference"]
    assert set(level.get_ydata()) == {0.5}
    assert axes.lines[0].get_xdata().tolist() == [4]


def test_files_hold_the_numbers(tmp_path):
    rows = [score("ALiBi", 4, 0.25), score("RoPE", 4, None, refused="too long, it says")]
    paths = task_report.write(tmp_path, rows)
    suffixes = {".json", ".csv", ".md", ".tex", ".png", ".svg", ".pdf"}
    assert {path.suffix for path in paths} == suffixes
    assert all(path.stat().st_size for path in paths)
    assert task_score.read(tmp_path / "tasks.json") == rows
    first, second = rows_of(tmp_path / "tasks.csv")
    assert (first["method"], first["exact"], first["symbols"]) == ("ALiBi", "0.25", "0.25")
    assert (second["exact"], second["refused"]) == ("", "too long, it says")


def test_evaluations_are_merged_and_those_that_do_not_compare_refused(tmp_path):
    one, two = score("ALiBi", 4, 0.25), score("ALiBi", 4, 0.75, seed=1)
    task_score.write(tmp_path / "a" / "tasks", [one])
    task_score.write(tmp_path / "b" / "tasks", [one, two])
    paths = [tmp_path / "a", tmp_path / "b" / "tasks.json"]
    assert task_report.on_tasks(paths)
    assert TaskTable.of(task_report.compare(paths)).scores == (one, two)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "evaluation.json").write_text('{"format": 1, "measurements": []}')
    assert not task_report.on_tasks([tmp_path / "text"])
    with pytest.raises(InputError, match=r"is on a task and .* on a text"):
        task_report.on_tasks([tmp_path / "text", tmp_path / "a"])
    (tmp_path / "a" / "evaluation.json").write_text("{}")
    with pytest.raises(InputError, match="name the file"):
        task_report.on_tasks([tmp_path / "a"])
    for other, reason in {
        replace(two, task="copy"): "on parity and ALiBi on copy",
        replace(two, questions="others"): "other questions at length 4",
        replace(two, depth=0.5): "heat maps",
    }.items():
        with pytest.raises(InputError, match=reason):
            TaskTable.of([one, other])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no scores"),
        ('{"format": 9, "scores": []}', "has format 9"),
        ('{"format": 1, "scores": [{"method": "a"}]}', "see its field 'depth'"),
    ],
)
def test_damaged_files_are_refused(tmp_path, text, reason):
    (tmp_path / "tasks.json").write_text(text)
    with pytest.raises(InputError, match=reason):
        task_score.read(tmp_path / "tasks.json")


def layouts(config, length, depth):
    """The questions of a needle sheet as the task spells them, and as plain text."""
    task, encode, seed = RETRIEVAL["needle"], ByteTokenizer().encode, config.seed
    numbers = range(config.examples)
    return (
        [Question.in_layout(task, task.example_at(seed, n, length, depth)) for n in numbers],
        [Question.in_text(*task.tokens_at(seed, n, length, depth, encode)) for n in numbers],
    )


@pytest.mark.parametrize("corpus", ["task:needle", "stdlib"])
def test_a_run_on_the_task_is_asked_in_its_layout_and_one_on_text_in_text(runs, corpus):
    config = TaskConfig(lengths=(90, 70), examples=2, depths=(1.0, 0.0))
    learned, plain = layouts(config, 90, 1.0)
    mine, others = (learned, plain) if corpus == "task:needle" else (plain, learned)
    for known, right in ((mine, 0.5), (others, 0.0)):
        runs[f"{corpus}/alibi-0"] = knowing(known, wrong=[(0, known[0].answer + 1)])
        (found,) = evaluate_depths([f"{corpus}/alibi-0"], "needle", config).values()
        assert [(one.length, one.depth, one.exact) for one in found] == [
            (70, 0.0, 0.0),
            (70, 1.0, 0.0),
            (90, 0.0, 0.0),
            (90, 1.0, right),
        ]


def test_a_heat_map_writes_its_numbers_and_runs_of_one_name_do_not_meet(runs, tmp_path):
    config = TaskConfig(lengths=(58, 70), examples=2, depths=(0.0, 0.5))
    sources = ["a/stdlib/learned-0", "b/stdlib/learned-0", "a/stdlib/learned-0"]
    maps = evaluate_depths(sources, "needle", config)
    assert list(maps) == ["a-stdlib-learned-0", "b-stdlib-learned-0"]
    paths = task_report.write_maps(tmp_path, maps)
    assert len(paths) == len(set(paths)) == 2 * 5
    rows = task_score.read(tmp_path / "needle-a-stdlib-learned-0.json")
    assert rows == maps["a-stdlib-learned-0"]
    depths = task_report.heat_map(rows)
    assert depths.accuracy.shape == (2, 2)
    assert np.isfinite(depths.accuracy).tolist() == [[True, False], [True, False]]
    table = rows_of(tmp_path / "needle-b-stdlib-learned-0.csv")
    assert [(row["length"], row["depth"]) for row in table][1] == ("58", "0.5")
    assert json.loads((tmp_path / "needle-a-stdlib-learned-0.json").read_text())["format"] == 1


def test_default_lengths_go_from_trained_to_tested():
    lengths = default_lengths(TASKS["parity"])
    assert lengths[:3] == (20, 40, 41)
    assert lengths[-1] == 500
    assert len(lengths) == 10
