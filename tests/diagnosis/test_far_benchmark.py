"""The benchmark of far positions runs on a tiny model and stores what it prints."""

import json
from pathlib import Path

import pytest
from benchmarks import far_positions

from pretrained.families import FAMILIES, VOCABULARY

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")


def test_the_benchmark_stores_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    text, table = tmp_path / "text.txt", tmp_path / "table.json"
    text.write_text(" ".join(f"w{3 + number % 40}" for number in range(400)))
    given = [f"hf:{tmp_path}", str(text), "--tokens", "32", "--windows", "2", "--length", "128"]
    far_positions.main([*given, "--gaps", "90", "60", "--write", str(table)])
    stored = json.loads(table.read_text())
    assert stored["rows"] == [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert stored["about"]["gaps"] == [60, 90]
    rows = {row["change"]: row for row in stored["rows"] if "change" in row}
    assert rows["near"]["loss"][0] > 0
    assert any(name.startswith("far, YaRN") for name in rows)
    by_gap = rows["far"]["by_gap"]
    assert by_gap["60"] != by_gap["90"]
    assert sum(each[0] for each in by_gap.values()) / 2 == pytest.approx(
        rows["far"]["minus_near"][0], abs=2e-4
    )
    assert [row["heads"] for row in stored["rows"] if "heads" in row] == ["near", "far"]
