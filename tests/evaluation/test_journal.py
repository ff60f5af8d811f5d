"""What was computed is read back to the bit; what is damaged is computed again."""

import math
from pathlib import Path

import pytest

from headscape.evaluation.journal import Journal, resumed

LOSSES = [[math.pi, 1e-300], [0.1 + 0.2, math.inf]]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    journal = Journal(tmp_path, {"model": "m"})
    for batch in range(3):
        journal.record(batch, LOSSES)
    return journal.path


def test_numbers_come_back_to_the_bit(written: Path) -> None:
    assert Journal(written.parent, {"model": "m"}).finished == dict.fromkeys(range(3), LOSSES)
    assert Journal(written.parent, {"model": "n"}).finished == {}


@pytest.mark.parametrize("at", ["3.14", "batch", "]} "])
def test_a_changed_line_is_dropped_with_those_after_it(written: Path, at: str) -> None:
    header, first, second, third, _ = written.read_text().split("\n")
    changed = second.replace(at, at[:-1] + "9")
    assert changed != second
    written.write_text("\n".join([header, first, changed, third, ""]))
    assert list(Journal(written.parent, {"model": "m"}).finished) == [0]


def test_a_line_cut_short_is_computed_again(written: Path) -> None:
    written.write_bytes(written.read_bytes()[:-5])
    computed: list[str] = []

    def compute(batch: str) -> list[str]:
        computed.append(batch)
        return [batch]

    found = dict(resumed(written.parent, {"model": "m"}, "abcd", compute))
    assert computed == ["c", "d"]
    assert found == {"a": LOSSES, "b": LOSSES, "c": ["c"], "d": ["d"]}
    assert list(Journal(written.parent, {"model": "m"}).finished) == [0, 1, 2, 3]
