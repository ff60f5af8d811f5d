"""Every measure equals a direct float64 computation on a small case."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.call.definition import AttentionCall, scores
from headscape.call.positions import Positions
from headscape.kernels.assemble import prepare
from headscape.measures import sums
from headscape.measures.definitions import computed
from headscape.measures.interval import estimate, largest, tails
from headscape.measures.measure_model import LayerStatistics, layer_statistics
from headscape.measures.rotation import wavelengths
from headscape.measures.sums import sheared, sums_of_call
from measures import direct

BATCH, HEADS, LENGTH, DIMS = 3, 2, 21, 8
CASES = [
    ("rope", True, {}),
    ("rope", False, {}),
    ("alibi", True, {}),
    ("alibi", False, {}),
    ("nope", True, {"sink": True}),
    ("nope", True, {"window": 6}),
    ("kerple", True, {"softcap": 3.0}),
]


def attention_inputs(name: str, *, causal: bool, **fields: object) -> AttentionCall:
    encoding = hs.build(
        name, heads=HEADS, head_dim=DIMS, width=HEADS * DIMS, train_length=12, causal=causal,
        **fields,
    ).double()  # fmt: skip
    if encoding.sink_score is not None:
        torch.nn.init.constant_(encoding.sink_score, 1.3)
    q, k, v = 2 * torch.randn(3, BATCH, HEADS, LENGTH, DIMS, dtype=torch.float64)
    # A part that all tokens share, so that kernels are not noise alone.
    q, k = q + torch.randn(1, HEADS, 1, DIMS), k + torch.randn(1, HEADS, 1, DIMS)
    return prepare(encoding, q, k, v, None, Positions.span(LENGTH))


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}")
def case(request: pytest.FixtureRequest) -> tuple[AttentionCall, LayerStatistics, bool]:
    name, causal, fields = request.param
    inputs = attention_inputs(name, causal=causal, **fields)
    return inputs, layer_statistics(inputs, context=12), causal


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_every_measure_of_scores_and_weights(
    case: tuple[AttentionCall, LayerStatistics, bool],
) -> None:
    inputs, found, causal = case
    every = scores(inputs)
    seen = every.visible[0, 0].numpy()
    for b in range(BATCH):
        for h in range(HEADS):
            final = every.final[b, h].detach().numpy()
            weights = every.weights[b, h].detach().numpy()
            own = {name: values[b, h] for name, values in found.measures.items()}
            kappa = direct.kernel(final, seen)
            close([found.kernel[b, h, d + LENGTH - 1] for d in kappa], list(kappa.values()))
            assert np.isfinite(found.kernel[b, h]).sum() == len(kappa)
            beta = direct.kernel(every.bias[b, h].detach().numpy(), seen)
            close([found.bias_kernel[b, h, d + LENGTH - 1] for d in beta], list(beta.values()))
            close(own["position_share"], direct.position_share(final, seen))
            leak = direct.absolute_leak(every.final[:, h].detach().numpy(), seen, b)
            close(own["absolute_leak"], leak)
            close(own["decay"], direct.decay(final, seen, causal=causal))
            close(own["slash_score"], list(direct.slash(weights, causal=causal).values()))
            late = direct.late(LENGTH, causal=causal)
            taken = [1 - weights[i].sum() + weights[i, 0] for i in late]
            close(own["sink_score"], np.mean(taken))
            for share in (0.5, 0.9):
                name = f"reach_{share * 100:.0f}"
                close(own[name], direct.reach(weights, share, causal=causal, sink=True))
                close(
                    own[name + "_no_sink"],
                    direct.reach(weights, share, causal=causal, sink=False),
                )
            close(own["entropy"], direct.entropy(weights, late))
            close(own["entropy_growth"], direct.entropy_growth(weights, seen))


def test_blocks_of_any_size_give_the_same(
    case: tuple[AttentionCall, LayerStatistics, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, whole, _ = case
    monkeypatch.setattr(sums, "ENTRIES", 2 * BATCH * HEADS * LENGTH)
    blocks = layer_statistics(inputs, context=12)
    for name, values in whole.measures.items():
        close(blocks.measures[name], values)
    close(blocks.kernel, whole.kernel)
    close(blocks.map, whole.map)


def test_a_sample_of_all_late_queries_is_the_whole(
    case: tuple[AttentionCall, LayerStatistics, bool],
) -> None:
    inputs, whole, _ = case
    sampled = computed(sums_of_call(inputs, sample=1000))
    for name in ("slash_score", "sink_score", "entropy", "reach_90", "reach_50_no_sink"):
        close(sampled[name], whole.measures[name])


@pytest.mark.parametrize("causal", [True, False])
def test_what_a_rotation_does(causal: bool) -> None:
    inputs = attention_inputs("rope", causal=causal)
    found = layer_statistics(inputs, context=12)
    assert inputs.unrotated is not None
    q, k = (x.numpy() for x in inputs.unrotated)
    assert found.closed_form is not None
    assert found.bands is not None
    for b in range(BATCH):
        for h in range(HEADS):
            mean_q, mean_k = q[b, h].mean(axis=0), k[b, h].mean(axis=0)
            fit = {
                d: mean_q @ direct.rotation(-d, DIMS, 10_000.0) @ mean_k / DIMS**0.5
                for d in range(1 - LENGTH, LENGTH)
            }
            close(found.closed_form[b, h], list(fit.values()))
            final = scores(inputs).final[b, h].numpy()
            seen = scores(inputs).visible[0, 0].numpy()
            kappa = direct.kernel(final, seen)
            pairs = [int(i - j) for i, j in zip(*np.nonzero(seen), strict=True)]
            left = sum((kappa[d] - fit[d]) ** 2 for d in pairs)
            mean = np.mean([kappa[d] for d in pairs])
            r2 = 1 - left / sum((kappa[d] - mean) ** 2 for d in pairs)
            close(found.measures["closed_form_r2"][b, h], r2)
            use = [
                np.hypot(*q[b, h, :, 2 * m : 2 * m + 2].T).mean()
                * np.hypot(*k[b, h, :, 2 * m : 2 * m + 2].T).mean()
                for m in range(DIMS // 2)
            ]
            close(found.bands[b, h], np.array(use) / sum(use))
            slow = [2 * np.pi * 10_000 ** (2 * m / DIMS) > 12 for m in range(DIMS // 2)]
            close(found.measures["low_band"][b, h], np.array(use)[slow].sum() / sum(use))
            ratios = []
            for x in (q, k):
                norms = [np.sqrt((x[b, h, :, dim] ** 2).sum()) for dim in range(DIMS)]
                ratios.append(max(norms) / np.mean(norms))
            close(found.measures["massive_ratio"][b, h], max(ratios))


def test_halves_and_partial_rotation_use_the_same_bands() -> None:
    pairs = attention_inputs("rope", causal=True, pairing="halves", rotary_fraction=0.5)
    found = layer_statistics(pairs)
    assert pairs.unrotated is not None
    assert found.bands is not None
    q, k = (x.numpy()[0, 0] for x in pairs.unrotated)
    use = [
        np.hypot(q[:, m], q[:, m + 2]).mean() * np.hypot(k[:, m], k[:, m + 2]).mean()
        for m in range(2)
    ]
    use.append(np.linalg.norm(q[:, 4:], axis=1).mean() * np.linalg.norm(k[:, 4:], axis=1).mean())
    close(found.bands[0, 0], np.array(use) / sum(use))
    assert wavelengths(pairs)[-1] == np.inf  # type: ignore[index]


def test_grouped_keys_are_measured_by_query_head() -> None:
    every = attention_inputs("rope", causal=True)
    shared = every.k[:, :1]
    raw_q, raw_k = every.unrotated or (every.q, every.k)
    grouped = replace(every, k=shared, v=every.v[:, :1], unrotated=(raw_q, raw_k[:, :1]))
    spread = replace(
        every,
        k=shared.expand(-1, HEADS, -1, -1),
        v=every.v[:, :1].expand(-1, HEADS, -1, -1),
        unrotated=(raw_q, raw_k[:, :1].expand(-1, HEADS, -1, -1)),
    )
    one, two = layer_statistics(grouped), layer_statistics(spread)
    for name, values in one.measures.items():
        close(values, two.measures[name])


def test_a_sheared_block_has_one_distance_per_column() -> None:
    first, rows, keys = 5, 4, 11
    distance = torch.arange(first, first + rows)[:, None] - torch.arange(keys) + 100
    moved = sheared(distance)
    for column in range(keys + rows - 1):
        found = moved[:, column][moved[:, column] > 0] - 100
        assert set(found.tolist()) == {first + 1 - keys + column}


def test_the_interval_contains_the_mean_and_skips_what_is_missing() -> None:
    values = np.random.default_rng(0).normal(5.0, 1.0, (40, 3))
    values[3, 1] = np.nan
    mean, low, high = estimate(values)
    close(mean, np.nanmean(values, axis=0))
    error = 1.96 * np.nanstd(values, axis=0) / 40**0.5
    np.testing.assert_allclose(high - low, 2 * error, rtol=0.15)
    assert ((low < mean) & (mean < high)).all()
    assert np.isnan(estimate(values[:5])[1:]).all()
    assert np.isfinite(estimate(values[:6])).all()
    assert np.isnan(estimate(np.full((4, 2), np.nan))).all()


def test_the_place_of_the_largest_mean_has_an_interval() -> None:
    random = np.random.default_rng(0)
    sure, unsure = random.normal(0, 0.1, (2, 12, 9))
    sure[:, 4] += 5
    place, low, high = largest(np.stack([sure, unsure], axis=1))
    assert place[0] == low[0] == high[0] == 4
    assert place[1] == unsure.mean(axis=0).argmax()
    assert low[1] <= place[1] <= high[1]
    assert low[1] < high[1]


def test_an_interval_over_few_sequences_covers_the_mean_as_often_as_it_says() -> None:
    """2,000 samples of 8 normal values: 95% of the intervals contain 0; of plain ones, 90%."""
    values = np.random.default_rng(7).normal(size=(8, 2000))
    _, low, high = estimate(values)
    covered = ((low <= 0) & (high >= 0)).mean()
    assert 0.93 < covered < 0.965
    # Student's quantiles for 5, 7 and 29 degrees of freedom, from tables.
    for sequences, quantile in ((6, 2.5706), (8, 2.3646), (30, 2.0452)):
        expected = NormalDist().cdf(-quantile * (sequences / (sequences - 1)) ** 0.5)
        assert tails(sequences)[0] == pytest.approx(100 * expected, rel=0.02)
