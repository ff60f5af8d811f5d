"""What is said of the ranking, of losses that are given."""

from typing import Any

import numpy as np
import pytest

from headscape.diagnosis.advice import Tried, sentence
from headscape.diagnosis.loss_by_position import BANDS, LossPlan, LossTable, breaks, student
from headscape.diagnosis.remedies import Remedy

WINDOWS = 8
PLAN = LossPlan(trained=64, length=256, windows=np.zeros((WINDOWS, 257), np.int64))
NOISE = 0.2 * np.array([1, -1, 1, -1, 1, -1, 1, -1.0])


def table(loss: float, noise: np.ndarray = NOISE) -> LossTable:
    """A mean loss past the trained length, where 1 is that of a short context."""
    long = np.full((WINDOWS, len(PLAN.at)), 1.0)
    long[:, PLAN.past] = loss + noise[:, None]
    return LossTable(
        plan=PLAN,
        long=long,
        short=np.ones((WINDOWS, 4)),
        control=np.ones((WINDOWS, int(PLAN.past.sum()))) + NOISE[:, None],
    )


def tried(name: str, losses: LossTable, **more: Any) -> Tried:
    remedy = Remedy(name=name, title=name, text=name, change=lambda _, call: call, **more)
    return Tried(remedy=remedy, losses=losses, answers={})


def test_the_best_is_compared_with_every_other_remedy_that_keeps_the_text() -> None:
    own = table(3.0)
    # Its gain is uncertain, so it is not named the best, although its mean is lower.
    unsure = tried("unsure", table(1.9, NOISE * 12))
    best, near, far = (tried(n, table(x)) for n, x in (("best", 2.0), ("near", 2.3), ("far", 2.6)))
    said = sentence(own, [far, near, best])
    assert said.startswith("Best is best")
    assert "every other one that keeps the text in view is worse beyond its interval" in said
    said = sentence(own, [far, near, best, unsure])
    assert "these are not shown to be worse: unsure." in said
    # Its loss is higher than the best one's, with an interval that contains 0.
    wild = tried("wild", table(2.4, NOISE * 12))
    assert "these are not shown to be worse: wild." in sentence(own, [best, near, wild])
    assert "worse" not in sentence(own, [best, tried("sinks", table(1.5), forgets=True)])


def test_bands_of_noise_break_in_five_of_a_hundred_models_or_fewer() -> None:
    """Without a correction about a third of them do."""
    random = np.random.default_rng(0)
    alarms, uncorrected = 0, 0
    for _ in range(200):
        noise = random.normal(0, 0.3, (BANDS - 1, WINDOWS, 1)) + random.normal(
            0, 1, (BANDS - 1, WINDOWS, 16)
        )
        alarms += any(breaks(band, BANDS - 1) for band in noise)
        uncorrected += any(breaks(band) for band in noise)
    assert alarms <= 10
    assert uncorrected > 40


@pytest.mark.parametrize(
    ("share", "free", "expected"),
    [(0.975, 5, 2.5706), (0.995, 5, 4.0321), (0.9975, 7, 4.0293), (0.999, 23, 3.4850)],
)
def test_quantiles_of_student(share: float, free: int, expected: float) -> None:
    """The expected ones are from printed tables."""
    assert student(share, free) == pytest.approx(expected, rel=0.02)
