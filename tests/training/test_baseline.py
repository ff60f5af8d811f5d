"""nano with its defaults learns more than counting pairs does, with the paper's eight methods.

Two minutes for each encoding on two idle cores; thirty for the last test.
"""

from pathlib import Path

import pytest
import torch

from headscape.training import preset, train
from headscape.training.objective import open_data
from headscape.training.world import World
from training.ngram import bigram_loss, fivegram_loss

PAPER = (
    "cable", "dapev2+cable", "alibi", "kerple", "dapev2+kerple", "fire", "t5-clipped", "rope",
)  # fmt: skip
"""The eight methods; absolute positions (learned, sinusoidal) need more steps than nano takes."""

pytestmark = pytest.mark.slow


@pytest.fixture
def _two_threads() -> None:
    torch.set_num_threads(2)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("encoding", PAPER)
def test_two_minutes_beat_an_interpolated_bigram(
    encoding: str, cache: Path, tmp_path: Path
) -> None:
    config = preset("nano", encoding=encoding)
    result = train(config, out=tmp_path, cache=cache, quiet=True)
    data = open_data(config, World(), cache)
    counted = bigram_loss(
        data.dataset.train, data.held_out[:, 1:].ravel(), data.tokenizer.vocabulary
    )
    assert result.validation_loss is not None
    assert result.validation_loss < counted - 0.2


@pytest.mark.usefixtures("_two_threads")
def test_thirty_minutes_beat_a_five_gram(cache: Path, tmp_path: Path) -> None:
    config = preset("nano", encoding="cable", minutes=30.0)
    result = train(config, out=tmp_path, cache=cache, quiet=True)
    data = open_data(config, World(), cache)
    counted = fivegram_loss(
        data.dataset.train, data.held_out[:, 1:].ravel(), data.tokenizer.vocabulary
    )
    assert result.validation_loss is not None
    assert result.validation_loss < counted
