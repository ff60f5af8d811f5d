"""A short run of the forged captures."""

from pathlib import Path

import pytest

from fuzz.captures import bases, one


# The last one is reduced, and its two commands take whole maps only.
@pytest.mark.parametrize("seed", range(len(bases()) - 1))
def test_whole_captures_give_a_result(seed: int, tmp_path: Path) -> None:
    assert one(seed, tmp_path) == "result"


def test_forged_captures_end_in_a_result_or_a_sentence(tmp_path: Path) -> None:
    outcomes = set()
    for seed in [28, *range(100, 130)]:
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcomes.add(one(seed, folder))
    assert outcomes == {"result", "sentence"}
