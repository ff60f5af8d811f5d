"""Inputs like those the fuzzer found, and mutations of whole files, without the fuzzer."""

import random
from pathlib import Path

import pytest

from fuzz.readers import READERS, read, seeds
from fuzz.viewer_messages import application, check
from viewer.packs import module as module  # noqa: PLC0414 - a fixture

FOUND = sorted(Path(__file__).with_name("found").iterdir())
MUTATIONS = 100


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_was_found_ends_in_a_sentence_or_is_dropped(path: Path, tmp_path: Path) -> None:
    name = next(name for name in READERS if path.name.startswith(name))
    # A journal drops damaged lines; everything else is refused.
    assert read(name, path.read_bytes(), tmp_path) == (name == "journal")


@pytest.mark.parametrize("name", READERS)
def test_the_first_seed_is_read(name: str, tmp_path: Path) -> None:
    assert read(name, seeds(name)[0], tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_mutations_end_in_a_sentence_or_a_read(name: str, tmp_path: Path) -> None:
    draw = random.Random(name)  # noqa: S311 - mutations, not secrets
    for number in range(MUTATIONS):
        data = bytearray(draw.choice(seeds(name)))
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            data[at : at + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
            data = data or bytearray(b"0")
        folder = tmp_path / str(number)
        folder.mkdir()
        read(name, bytes(data), folder)


@pytest.mark.usefixtures("module")
def test_viewer_messages_get_an_answer_or_a_sentence() -> None:
    pytest.importorskip("starlette", reason="the server's extra is missing")
    with application() as app:
        kinds = {check(app, seed) for seed in range(MUTATIONS)}
    assert {"refused", "not JSON", "tile", "values", "profile", "pack", "run"} <= kinds
