"""The command line: evaluate, compare, measure and atlas."""

import csv
import sys
from pathlib import Path

import pytest

from viewer.test_atlas import data_of


def test_runs_are_evaluated_and_compared(call, small_run: Path, tmp_path: Path) -> None:
    words = ["evaluate", small_run, "--lengths", 32, 64, "--out", tmp_path / "a"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "| 64 |" in result.output
    result = call("compare", tmp_path / "a", "--out", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "b").glob("*.tex"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--lengths", "100000"],
            "a length of 100000 needs 100001 tokens and the held-out text",
        ),
        (["--lengths", "64", "0"], "a length must be at least 1, got 0"),
        (["--lengths", "64", "--protocol", "first-3"], "unknown protocol 'first-3': there are"),
        (["--lengths", "64", "--extend", "yarn"], "'yarn' stretches RoPE, and"),
        (["--lengths", "64", "--quantity", "ppl"], "unknown quantity 'ppl'"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused_in_a_sentence(
    words: list[str],
    message: str,
    small_run: Path,
    tmp_path: Path,
    refuses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    filled = ["headscape", "evaluate", str(small_run), *words, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", filled)
    refuses(message)
    assert not out.exists()


def test_a_model_is_measured_on_its_validation_text(call, small_run: Path, tmp_path: Path) -> None:
    words = ("measure", small_run, "--length", 32, "--sequences", 2, "--drift", "1,2")
    rows = list(csv.DictReader(call(*words, "--csv").stdout.splitlines()))
    assert len(rows) == 24
    assert 0 < float(rows[0]["sink_score"]) < 1
    assert float(rows[0]["entropy_2x"]) != float(rows[0]["entropy_1x"])
    assert call(*words).stdout.startswith("| layer | head | position share |")
    out = tmp_path / "heads.json"
    assert call(*words, "--out", out).stdout.strip() == str(out)
    assert out.read_text().startswith("{")


def test_the_atlas_of_a_run(call, small_run: Path, tmp_path: Path) -> None:
    words = ("atlas", small_run, "--length", 32, "--sequences", 2, "--out", tmp_path / "a")
    done = call(*words)
    assert done.stdout.strip() == str(tmp_path / "a" / "atlas.html")
    header, _ = data_of((tmp_path / "a" / "atlas.html").read_text())
    assert any(line.startswith("layer 1-2: cable") for line in header["recognised"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["atlas", "{run}", "--out", "{out}", "--drift", "half"], "--drift 'half'"),
        (["atlas", "{run}", "--out", "{out}", "--text", "nowhere.txt"], "no file nowhere.txt"),
        (["measure", "{run}", "--quantity", "bias"], "does not use --quantity"),
        (["measure", "{run}", "--out", "heads.xls"], "cannot be written as 'xls'"),
        (
            ["measure", "{run}", "--length", "16", "--kind", "next"],
            "no head is of kind 'next token'",
        ),
        (["measure", "{run}", "--length", "16", "--kind", "big"], "'big' is not a kind of head"),
    ],
)
def test_a_wrong_measurement_is_refused(
    words, message, small_run: Path, tmp_path: Path, refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = [word.format(run=small_run, out=tmp_path) for word in words]
    monkeypatch.setattr(sys, "argv", ["headscape", *filled])
    refuses(message)
