"""RoPE-ID (Wertheimer et al. 2026, arXiv:2603.18017) as a setting of RoPE.

What is tested is what encodings/rope.py says of it: a half of the pairs turns, the fast half, and
each of them makes a whole turn within the trained length.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.encodings.context import Side
from headscape.properties.probe import draw
from oracle import proportional_frequencies

HEAD_DIM = 64
TRAINED = 512


def largest_base(trained: int, head_dim: int) -> float:
    """The base by which the slowest turning pair turns once within the trained length."""
    return (trained / (2 * math.pi)) ** (2 * head_dim / (head_dim - 4))


def rope_id(trained: int = TRAINED, head_dim: int = HEAD_DIM, stretch: float = 1.0) -> Any:
    base = stretch * largest_base(trained, head_dim)
    return hs.build(
        f"rope:scaling=proportional:rotary_fraction=0.5:pairing=halves:base={base!r}",
        heads=1, head_dim=head_dim, width=head_dim, train_length=trained,
    )  # fmt: skip


def turns(encoding: Any, trained: int = TRAINED) -> torch.Tensor:
    """How often each pair turns within the trained length."""
    found: torch.Tensor = encoding.frequencies(trained) * trained / (2 * math.pi)
    return found


@pytest.mark.parametrize(("trained", "head_dim"), [(512, 64), (4096, 128), (128, 16)])
def test_every_pair_that_turns_makes_a_whole_turn_within_the_trained_length(
    trained: int, head_dim: int
) -> None:
    found = turns(rope_id(trained, head_dim), trained)
    half = head_dim // 4
    assert float(found[:half].min()) == pytest.approx(1.0)
    assert bool((found[:half] >= 1 - 1e-9).all())
    assert not found[half:].any()
    slower = turns(rope_id(trained, head_dim, stretch=1.05), trained)
    assert float(slower[half - 1]) < 1
    plain = hs.build("rope", heads=1, head_dim=head_dim, width=head_dim, train_length=trained)
    assert float(turns(plain, trained).min()) < 1


def test_its_frequencies_are_the_fast_half_of_the_whole_head() -> None:
    encoding = rope_id()
    expected = proportional_frequencies(
        HEAD_DIM, 1.0, HEAD_DIM // 4, base=largest_base(TRAINED, HEAD_DIM)
    )
    np.testing.assert_allclose(encoding.frequencies(TRAINED).numpy(), expected, rtol=1e-12)


def test_dims_of_the_first_and_third_quarter_turn_and_the_others_pass() -> None:
    encoding, quarter = rope_id(), HEAD_DIM // 4
    x = torch.ones(1, 1, 40, HEAD_DIM, dtype=torch.float64)
    moved = (
        (encoding.rotate(x, Side(torch.arange(40)[None], "query")) - x).abs().amax(dim=(0, 1, 2))
    )
    still = torch.cat([torch.zeros(quarter), torch.ones(quarter)]).repeat(2).bool()
    assert bool((moved[~still] > 1e-3).all())
    assert not moved[still].any()


def test_its_scores_follow_the_distance_alone() -> None:
    encoding = rope_id()
    q, k = (draw(1, 1, 1, HEAD_DIM, seed=seed) for seed in (1, 2))

    def score(at: int, key: int) -> float:
        turned = encoding.rotate(q, Side(torch.tensor([[at]]), "query"))
        seen = encoding.rotate(k, Side(torch.tensor([[key]]), "key"))
        return float((turned * seen).sum())

    assert score(40, 11) == pytest.approx(score(629, 600))
    assert score(40, 11) != pytest.approx(score(40, 12), abs=1e-6)
