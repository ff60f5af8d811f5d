"""What is kept of a diagnosis, and how its progress is shown."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.diagnosis import pass_bar
from headscape.diagnosis.pass_bar import blocks
from headscape.gpt2 import GPT2, ModelConfig
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
