"""Tiles and pooled cells from factors, against the dense definition, for every encoding."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headscape.call.bias import Pairwise
from headscape.call.definition import AttentionCall, scores
from headscape.call.positions import Positions
from headscape.captures.cells import REDUCTIONS, Grid, Reduction
from headscape.captures.factors import QUANTITIES, LayerFactors
from headscape.captures.factors_of import NoFactorsError, factors_of
from headscape.captures.pooled import Pooled
from headscape.captures.profile_factors import Minus, profile
from headscape.captures.row_pass import log_sum_exp, weight_cells
from headscape.encodings import ENCODINGS, build
from headscape.errors import InputError
from headscape.kernels.assemble import prepare
from headscape.properties.cases import FIELDS
from headscape.properties.probe import draw, randomise
from properties.subjects import WRAPPED

LENGTH, HEADS, DIM = 75, 4, 8
STREAMS = ("selective-rope", "carope", "repo", "grape-m", "path", "stick-breaking", "wall")
WITHOUT = ("pope", "kerple-weight", *STREAMS)
"""Encodings that widen, mix, rotate or weigh in a way that has no factors."""
SUBJECTS = (*(name for name in ENCODINGS if name not in WITHOUT), *WRAPPED)
VARIANTS = {
    "rope": (
        {"pairing": "halves"},
        {"rotary_fraction": 0.5, "pairing": "halves"},
        {"scaling": "yarn", "factor": 4.0},
        {"rotary_fraction": 0.25},
    ),
    "dapev2+kerple": ({"boundary": "released"}, {"kernel": 5}, {"kernel": 1}),
    "dape+kerple": ({"base_bias": "channel-only"},),
    "cope": ({"divide": "sum"},),
}
BENT: dict[str, tuple[str, dict[str, object]]] = {
    "window": ("alibi", {"window": 9}),
    "window, rope": ("rope", {"window": 30}),
    "softcap": ("cable", {"softcap": 2.0}),
    "softcap, rope": ("rope", {"softcap": 30.0}),
    "temperature": ("fire", {"temperature": "llama4", "temperature_start": 5}),
    "ssmax": ("nope", {"temperature": "ssmax", "window": 20}),
    "sink": ("kerple", {"sink": True}),
    "all": ("rope", {"window": 17, "softcap": 5.0, "temperature": "inkling", "sink": True}),
}
"""What acts on the scores of any encoding."""
BIDIRECTIONAL = ("nope", "rope", "alibi", "t5", "kerple", "cable", "fox", "dapev2+kerple")


def made(
    name: str, fields: dict[str, object] | None = None, *, causal: bool = True
) -> AttentionCall:
    options = {**FIELDS.get(name.rpartition("+")[2], {}), **(fields or {})}
    encoding = build(
        name,
        heads=HEADS,
        head_dim=DIM,
        width=HEADS * DIM,
        train_length=16,
        causal=causal,
        **options,
    )
    randomise(encoding)
    q, k, v = (draw(1, HEADS, LENGTH, DIM, seed=seed).float() for seed in (1, 2, 3))
    x = draw(1, LENGTH, HEADS * DIM, seed=4).float()
    with torch.no_grad():
        return prepare(encoding, q, k, v, x, Positions.span(LENGTH))


def dense(inputs: AttentionCall) -> dict[str, np.ndarray]:
    """Every quantity by the definition, NaN where hidden (0 in weights), heads first."""
    with torch.no_grad():
        every = scores(inputs)
    hidden = ~every.visible[0].numpy()
    return {
        name: np.where(
            hidden, 0.0 if name == "weights" else np.nan, getattr(every, name)[0].numpy()
        )
        for name in QUANTITIES
    }


CASES = [
    *((name, {}, True) for name in SUBJECTS),
    *((name, fields, True) for name, several in VARIANTS.items() for fields in several),
    *((name, {}, False) for name in BIDIRECTIONAL),
    *((name, fields, True) for name, fields in BENT.values()),
]


@pytest.mark.parametrize(("name", "fields", "causal"), CASES, ids=str)
def test_tiles_are_the_definition(name: str, fields: dict[str, object], causal: bool) -> None:
    inputs = made(name, fields, causal=causal)
    expected, factors = dense(inputs), factors_of(inputs)
    windows = [
        (0, LENGTH, 0, LENGTH),
        (40, 61, 3, 44),
        (70, 75, 60, 75),
        (0, 1, 0, 1),
        (9, 9, 0, 4),
    ]
    for quantity in QUANTITIES:
        for top, bottom, left, right in windows:
            got = factors.tile(quantity, range(HEADS), slice(top, bottom), slice(left, right))
            want = expected[quantity][:, top:bottom, left:right]
            size = max(1.0, float(np.nanmax(np.abs(want), initial=0.0)))
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * size, err_msg=quantity)


def reduced(values: np.ndarray, grid: Grid, how: Reduction) -> np.ndarray:
    """Each cell reduced with numpy, one at a time."""
    out = np.full((len(grid.row_spans), len(grid.col_spans)), np.nan)
    function = {"mean": np.mean, "min": np.min, "max": np.max}[how]
    for y, (top, bottom) in enumerate(grid.row_spans):
        for x, (left, right) in enumerate(grid.col_spans):
            cell = values[top:bottom, left:right]
            gap = np.arange(top, bottom)[:, None] - np.arange(left, right)
            cell = cell[(gap >= 0) & (gap < (grid.window or grid.length))] if grid.causal else cell
            if cell.size:
                out[y, x] = function(cell)
    return out


@pytest.mark.parametrize("level", [1, 3, 5, 6, 7])
@pytest.mark.parametrize(
    ("name", "fields", "causal"),
    [
        (n, {}, True)
        for n in (
            "nope",
            "alibi",
            "cable",
            "fox",
            "rope",
            "fire",
            "k-cable",
            "cope",
            "dape+kerple",
            "dapev2+rope",
        )
    ]
    + [(n, {}, False) for n in ("alibi", "t5", "rope", "cable")]
    + [(n, fields, True) for n, fields in BENT.values()],
    ids=str,
)
def test_cells_are_reduced_exactly(
    name: str, fields: dict[str, object], causal: bool, level: int
) -> None:
    factors = factors_of(made(name, fields, causal=causal))
    pooled, every = Pooled(factors), range(-(-LENGTH // (1 << level)))
    parts = [(every, every), (every[1:], every[:2]), (every[:1], every)]
    for quantity in QUANTITIES:
        whole = factors.tile(quantity, [1], slice(0, LENGTH), slice(0, LENGTH))[0]
        for cell_rows, cell_cols in parts:
            grid = pooled.grid(level, cell_rows, cell_cols)
            for how, got in pooled.cells(quantity, 1, grid).items():
                size = max(1.0, float(np.nanmax(np.abs(whole))))
                np.testing.assert_allclose(
                    got, reduced(whole, grid, how), rtol=0, atol=1e-11 * size, err_msg=quantity
                )


@pytest.mark.parametrize(
    ("name", "fields"),
    [*((n, {}) for n in ("alibi", "cable", "rope", "dapev2+kerple", "cope")), *BENT.values()],
    ids=str,
)
@pytest.mark.parametrize("level", [0, 3, 6])
def test_one_pass_gives_weights_and_norms(name: str, fields: dict[str, object], level: int) -> None:
    factors = factors_of(made(name, fields))
    cells = range(-(-LENGTH // (1 << level)))
    whole = factors.tile("weights", [2], slice(0, LENGTH), slice(0, LENGTH))[0]
    grid = Pooled(factors).grid(level, cells, cells)
    exact = weight_cells(factors, 2, level, cells, dtype=np.float64)
    assert factors.lse is not None
    np.testing.assert_allclose(exact.lse, factors.lse[2], rtol=0, atol=1e-11)
    single = weight_cells(factors, 2, level, cells)
    for how in REDUCTIONS:
        np.testing.assert_allclose(exact.values(how), reduced(whole, grid, how), atol=1e-12)
        np.testing.assert_allclose(single.values(how), reduced(whole, grid, how), atol=2e-6)


def test_a_preview_takes_whole_rows() -> None:
    factors = factors_of(made("cable"))
    whole = factors.tile("weights", [0], slice(0, LENGTH), slice(0, LENGTH))[0]
    some = weight_cells(factors, 0, 4, range(5), samples=1, dtype=np.float64)
    picked = np.array([8, 24, 40, 56, 69])
    expected = np.add.reduceat(whole[picked], np.arange(0, LENGTH, 16), axis=1)
    np.testing.assert_allclose(some.sum, expected, atol=1e-12)
    assert some.count[4].tolist() == [16, 16, 16, 16, 6]


@pytest.mark.parametrize("name", ["alibi", "dapev2+kerple", "cope"])
def test_log_sum_exp_of_some_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = made(name)
    factors = factors_of(inputs)
    monkeypatch.setattr("headscape.captures.row_pass.BLOCK_PAIRS", 256)
    monkeypatch.setattr("headscape.captures.row_pass.MIXED_PAIRS", 256)
    done: list[int] = []
    part = log_sum_exp(factors, [3, 1], slice(20, 60), progress=done.append)
    assert factors.lse is not None
    np.testing.assert_allclose(part, factors.lse[[3, 1], 20:60], rtol=0, atol=1e-12)
    assert sum(done) == 40


def test_some_heads_are_those_heads() -> None:
    inputs = made("cable")
    every, some = factors_of(inputs), factors_of(inputs, [2, 0])
    part = slice(10, 40)
    for quantity in QUANTITIES:
        np.testing.assert_array_equal(
            some.tile(quantity, [0, 1], part, part), every.tile(quantity, [2, 0], part, part)
        )
    with pytest.raises(NoFactorsError, match="scores of all heads are mixed"):
        factors_of(made("dapev2+kerple"), [2])


def test_grouped_keys_are_shared() -> None:
    factors = factors_of(made("alibi"))
    shared = LayerFactors(q=factors.q, k=factors.k[[0, 3]], scale=factors.scale, bias=factors.bias)
    apart = LayerFactors(
        q=factors.q, k=factors.k[[0, 0, 3, 3]], scale=factors.scale, bias=factors.bias
    )
    part = slice(0, 30)
    np.testing.assert_array_equal(
        shared.tile("final", range(HEADS), part, part),
        apart.tile("final", range(HEADS), part, part),
    )


def test_mistakes_are_told() -> None:
    factors = factors_of(made("alibi"))
    part = slice(0, 4)
    with pytest.raises(InputError, match="unknown quantity 'scores'"):
        factors.tile("scores", [0], part, part)
    with pytest.raises(InputError, match="keys 0:76 are outside the sequence of length 75"):
        factors.tile("final", [0], part, slice(0, 76))
    with pytest.raises(InputError, match="head 4 is not stored"):
        factors.tile("final", [4], part, part)
    with pytest.raises(InputError, match="no log-sum-exp"):
        factors_of(made("alibi"), lse=False).tile("weights", [0], part, part)


@pytest.mark.parametrize(
    ("name", "fields", "causal", "message"),
    [
        ("pope", {}, True, "queries and keys are not turned in pairs of dims"),
        ("kerple-weight", {}, True, "scores are mixed in a way of its own"),
        ("alibi", {"window": 9}, False, "the window has two sides"),
        ("cope", {"window": 9}, True, "scores are mixed within a window"),
    ],
)
def test_what_has_no_factors_is_told(
    name: str, fields: dict[str, object], causal: bool, message: str
) -> None:
    with pytest.raises(NoFactorsError, match=message):
        factors_of(made(name, fields, causal=causal))


def test_what_is_more_than_its_factors_is_told() -> None:
    inputs = replace(made("alibi"), turns=None, unrotated=None)
    hidden = Pairwise(lambda rows, cols: torch.randn(1, 4, 75, 75)[:, :, rows, cols])
    with pytest.raises(NoFactorsError, match="stored arrays do not reproduce its scores"):
        factors_of(replace(inputs, bias=hidden))


def test_a_rotation_that_is_not_by_position_is_told() -> None:
    inputs = made("rope")
    with pytest.raises(NoFactorsError, match="not turned by position alone"):
        factors_of(replace(inputs, q=inputs.q.flip(2)))


@pytest.mark.parametrize(
    ("name", "fields", "causal"),
    [("cable", {}, True), ("rope", {}, False), ("cope", {}, True), ("alibi", {"window": 9}, True)],
)
def test_profiles_go_by_distance(name: str, fields: dict[str, object], causal: bool) -> None:
    factors = factors_of(made(name, fields, causal=causal))
    every = slice(0, LENGTH)
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    for quantity in QUANTITIES:
        whole = factors.tile(quantity, [1], every, every)[0]
        seen = factors.visible(every, every)
        found = profile(factors, 1, quantity)
        assert found.complete
        assert found.first == (0 if causal else 1 - LENGTH)
        for index, d in enumerate(range(found.first, LENGTH)):
            values = whole[seen & (distance == d)]
            assert found.count[index] == len(values)
            if not len(values):
                assert np.isnan(found.mean[index])
                continue
            wanted = [values.mean(), values.std(), values.min(), values.max()]
            got = [found.mean[index], found.std[index], found.min[index], found.max[index]]
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-7)
        rows = np.where(seen, whole, 0.0).sum(axis=1) / seen.sum(axis=1)
        np.testing.assert_allclose(found.rows, rows, rtol=0, atol=1e-10)


@pytest.mark.parametrize("what", ["row", "distance"])
@pytest.mark.parametrize("name", ["cable", "rope", "dapev2+kerple"])
def test_what_is_taken_away_is_gone(name: str, what: Minus) -> None:
    factors = factors_of(made(name))
    pooled, every = Pooled(factors), slice(0, LENGTH)
    for quantity in QUANTITIES:
        minus = profile(factors, 2, quantity).minus(what)
        assert minus is not None
        left = factors.tile(quantity, [2], every, every)[0] - minus.block(0, every, every)
        left = np.where(factors.visible(every, every), left, np.nan)
        if what == "row":
            np.testing.assert_allclose(np.nanmean(left, axis=1), 0, atol=1e-10)
        else:
            means = [np.nanmean(np.diagonal(left, -d)) for d in range(LENGTH)]
            np.testing.assert_allclose(means, 0, atol=1e-10)
        grid = pooled.grid(3, range(10), range(10))
        for how, got in pooled.cells(quantity, 2, grid, minus=minus).items():
            np.testing.assert_allclose(got, reduced(left, grid, how), atol=1e-10, err_msg=quantity)


def test_a_long_profile_is_from_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscape.captures.profile_factors.LONGEST", 50)
    factors = factors_of(made("alibi"))
    found = profile(factors, 0, "weights", samples=5)
    assert not found.complete
    assert np.isfinite(found.rows).sum() == 5
    assert found.count[0] == 5
    with pytest.raises(InputError, match="needs every pair"):
        found.minus("row")
