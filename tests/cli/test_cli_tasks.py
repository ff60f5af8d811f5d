"""Tasks through the command line: from training to tables, plots and heat maps."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headscape.cli.app import app


@pytest.fixture(scope="module")
def parity_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of a nano model with learned positions on parity."""
    out = tmp_path_factory.mktemp("parity") / "run"
    words = ["train", "--corpus", "task:parity", "--tokenizer", "bytes", "--context-length", 64]
    words += ["--steps", 4, "--batch-size", 2, "--encoding", "learned", "--out", out]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def answers(parity_run: Path) -> Path:
    """Its evaluation at a length that it can read and one that it cannot."""
    out = parity_run.parent / "answers"
    words = ["evaluate", parity_run, "--lengths", 5, 90, "--examples", 4, "--out", out]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert "| 90 | - |" in result.output
    return out


def test_a_run_on_a_task_is_evaluated(answers: Path) -> None:
    for suffix in ("json", "csv", "md", "tex", "png", "svg", "pdf"):
        assert (answers / f"tasks.{suffix}").stat().st_size, suffix
    first, second = json.loads((answers / "tasks.json").read_text())["scores"]
    assert (first["method"], first["encoding"], first["seed"]) == ("Learnable", "learned", 0)
    assert (first["task"], first["length"], first["examples"]) == ("parity", 5, 4)
    assert 0 <= first["exact"] <= first["symbols"] <= 1
    assert second["exact"] is None
    assert "learned table" in second["refused"]


def test_evaluations_on_tasks_are_compared(call, answers: Path, tmp_path: Path) -> None:
    result = call("compare", answers, answers / "tasks.json", "--out", tmp_path / "both")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "both" / "tasks.csv").read_text() == (answers / "tasks.csv").read_text()


def test_a_heat_map_of_a_run_on_text(call, small_run: Path, tmp_path: Path) -> None:
    words = ["evaluate", small_run, "--task", "passkey", "--lengths", 60, 80, "--depths", 0, 1]
    result = call(*words, "--examples", 2, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "passkey-run.csv").read_text().splitlines()))
    assert [(row["length"], row["depth"]) for row in rows] == [
        ("60", "0.0"),
        ("60", "1.0"),
        ("80", "0.0"),
        ("80", "1.0"),
    ]
    assert all(0 <= float(row["exact"]) <= float(row["symbols"]) <= 1 for row in rows)
    assert (tmp_path / "passkey-run.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["TASK", "--quantity", "loss"], "unknown quantity 'loss': choose one of exact, symbols"),
        (["TASK", "--protocol", "nonoverlap"], "protocol applies to text"),
        (["TASK", "--same-tokens"], "same_tokens applies to text"),
        (["TASK", "--corpus", "stdlib"], "corpus applies to text"),
        (["TASK", "--depths", "0.5"], "depths need a heat map"),
        (["TASK", "--lengths", "-1"], "a length must be at least 1, got -1"),
        (["TASK", "--lengths", "0"], "a length must be at least 1, got 0"),
        (["TASK", "--lengths", "90"], "past the learned table's 64 rows"),
        (["TASK", "--examples", "0"], "examples must be at least 1, got 0"),
        (["TASK", "--batch-tokens", "0"], "batch_tokens must be at least 1, got 0"),
        (["TASK", "TEXT"], "not trained on the same task"),
        (["TEXT", "TASK"], "not trained on the same task"),
        (["TEXT", "--examples", "5"], "examples applies to tasks only"),
        (["TEXT", "--task", "parity"], "'parity' has no depth"),
        (["TEXT", "--task", "passkey", "--quantity", "loss"], "unknown quantity 'loss'"),
        (["TEXT", "--task", "passkey", "--lengths", "20"], "does not fit"),
    ],
)
def test_a_mistake_about_tasks_is_one_sentence_and_code_2(
    words: list[str],
    message: str,
    parity_run: Path,
    small_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Callable[[str], None],
) -> None:
    runs = {"TASK": str(parity_run), "TEXT": str(small_run)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["headscape", "evaluate", *(runs.get(w, w) for w in words)])
    refuses(message)
    assert not list(tmp_path.iterdir())


def test_tasks_and_texts_are_not_compared(
    answers: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Callable[[str], None],
) -> None:
    (tmp_path / "evaluation.json").write_text('{"format": 1, "measurements": []}')
    for words, message in (
        ([tmp_path, answers], "which cannot be compared"),
        ([answers, "--quantity", "loss"], "unknown quantity 'loss'"),
    ):
        monkeypatch.setattr(sys, "argv", ["headscape", "compare", *map(str, words)])
        refuses(message)
