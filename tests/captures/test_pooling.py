"""Pooled cells, norms and profiles of saved calls, against maps reduced with numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from captures.test_blocks import BENT, CASES, HEADS, LENGTH, made
from headscape.call.bias import Pairwise
from headscape.call.definition import AttentionCall, scores
from headscape.call.mixing import Rows
from headscape.call.positions import Visible
from headscape.call.quantities import QUANTITIES
from headscape.captures.call_blocks import CannotSaveError, save_call
from headscape.captures.pooling import (
    REDUCTIONS,
    CellGrid,
    Pooled,
    Reduction,
    bias_block,
    weight_cells,
)
from headscape.captures.profile import Minus, profile
from headscape.captures.saved_call import SavedCall
from headscape.errors import InputError
from headscape.viewer.tiles import MapRequest, Tiles


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


@pytest.mark.parametrize(("name", "fields", "causal"), CASES, ids=str)
def test_tiles_are_the_definition(name: str, fields: dict[str, object], causal: bool) -> None:
    inputs = made(name, fields, causal=causal)
    expected, layer = dense(inputs), save_call(inputs)
    windows = [
        (0, LENGTH, 0, LENGTH),
        (40, 61, 3, 44),
        (70, 75, 60, 75),
        (0, 1, 0, 1),
        (9, 9, 0, 4),
    ]
    for quantity in QUANTITIES:
        for top, bottom, left, right in windows:
            got = layer.tile(quantity, range(HEADS), slice(top, bottom), slice(left, right))
            want = expected[quantity][:, top:bottom, left:right]
            size = max(1.0, float(np.nanmax(np.abs(want), initial=0.0)))
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * size, err_msg=quantity)


def reduced(values: np.ndarray, grid: CellGrid, how: Reduction) -> np.ndarray:
    """Each cell reduced with numpy, one at a time."""
    out = np.full((len(grid.row_spans), len(grid.col_spans)), np.nan)
    function = {"mean": np.mean, "min": np.min, "max": np.max}[how]
    for y, (top, bottom) in enumerate(grid.row_spans):
        for x, (left, right) in enumerate(grid.col_spans):
            cell = values[top:bottom, left:right]
            gap = np.arange(top, bottom)[:, None] - np.arange(left, right)
            seen = (gap >= 0) | (not grid.causal)
            if grid.visible is not None:
                seen = grid.visible(slice(top, bottom), slice(left, right))
            elif grid.window is not None:
                seen &= gap < grid.window
            cell = cell[seen]
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
    + [(n, {}, True) for n in ("pope", "path", "stick-breaking", "rope+alibi", "kerple-weight")]
    + [("alibi", {"window": 9}, False)]
    + [(n, fields, True) for n, fields in BENT.values()],
    ids=str,
)
def test_cells_are_reduced_exactly(
    name: str, fields: dict[str, object], causal: bool, level: int
) -> None:
    layer = save_call(made(name, fields, causal=causal))
    pooled, every = Pooled(layer), range(-(-LENGTH // (1 << level)))
    parts = [(every, every), (every[1:], every[:2]), (every[:1], every)]
    for quantity in QUANTITIES:
        whole = layer.tile(quantity, [1], slice(0, LENGTH), slice(0, LENGTH))[0]
        for cell_rows, cell_cols in parts:
            grid = pooled.grid(level, cell_rows, cell_cols)
            for how, got in pooled.cells(quantity, 1, grid).items():
                size = max(1.0, float(np.nanmax(np.abs(whole))))
                np.testing.assert_allclose(
                    got, reduced(whole, grid, how), rtol=0, atol=1e-11 * size, err_msg=quantity
                )


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((n, {}) for n in ("alibi", "cable", "rope", "dapev2+kerple", "cope")),
        *((n, {}) for n in ("path", "wall", "stick-breaking")),
        *BENT.values(),
    ],
    ids=str,
)
@pytest.mark.parametrize("level", [0, 3, 6])
def test_one_pass_gives_weights_and_norms(name: str, fields: dict[str, object], level: int) -> None:
    layer = save_call(made(name, fields))
    cells = range(-(-LENGTH // (1 << level)))
    whole = layer.tile("weights", [2], slice(0, LENGTH), slice(0, LENGTH))[0]
    grid = Pooled(layer).grid(level, cells, cells)
    exact = weight_cells(layer, 2, level, cells, dtype=np.float64)
    if layer.has_norms:
        assert layer.lse is not None
        np.testing.assert_allclose(exact.lse, layer.lse[2], rtol=0, atol=1e-11)
    single = weight_cells(layer, 2, level, cells)
    for how in REDUCTIONS:
        np.testing.assert_allclose(exact.values(how), reduced(whole, grid, how), atol=1e-12)
        np.testing.assert_allclose(single.values(how), reduced(whole, grid, how), atol=2e-6)


def test_a_preview_takes_whole_rows() -> None:
    layer = save_call(made("cable"))
    whole = layer.tile("weights", [0], slice(0, LENGTH), slice(0, LENGTH))[0]
    some = weight_cells(layer, 0, 4, range(5), samples=1, dtype=np.float64)
    picked = np.array([8, 24, 40, 56, 69])
    expected = np.add.reduceat(whole[picked], np.arange(0, LENGTH, 16), axis=1)
    np.testing.assert_allclose(some.sum, expected, atol=1e-12)
    assert some.count[4].tolist() == [16, 16, 16, 16, 6]


@pytest.mark.parametrize("name", ["alibi", "dapev2+kerple", "cope"])
def test_log_sum_exp_of_some_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = made(name)
    layer = save_call(inputs)
    monkeypatch.setattr("headscape.captures.saved_call.BLOCK_PAIRS", 256)
    monkeypatch.setattr("headscape.captures.saved_call.MIXED_PAIRS", 256)
    part = layer.log_sum_exp([3, 1], slice(20, 60))
    assert layer.lse is not None
    np.testing.assert_allclose(part, layer.lse[[3, 1], 20:60], rtol=0, atol=1e-12)


def test_some_heads_are_those_heads() -> None:
    inputs = made("cable")
    every, some = save_call(inputs), save_call(inputs, [2, 0])
    part = slice(10, 40)
    for quantity in QUANTITIES:
        np.testing.assert_array_equal(
            some.tile(quantity, [0, 1], part, part), every.tile(quantity, [2, 0], part, part)
        )
    with pytest.raises(CannotSaveError, match="scores of all heads are mixed"):
        save_call(made("dapev2+kerple"), [2])


def test_grouped_keys_are_shared() -> None:
    call = made("alibi")
    shared = save_call(replace(call, k=call.k[:, [0, 3]], v=call.v[:, [0, 3]]))
    apart = save_call(replace(call, k=call.k[:, [0, 0, 3, 3]], v=call.v[:, [0, 0, 3, 3]]))
    assert len(shared.arrays["k"]) == 2
    part = slice(0, 30)
    np.testing.assert_array_equal(
        shared.tile("final", range(HEADS), part, part),
        apart.tile("final", range(HEADS), part, part),
    )


def test_mistakes_are_told() -> None:
    layer = save_call(made("alibi"))
    part = slice(0, 4)
    with pytest.raises(InputError, match="unknown quantity 'scores'"):
        layer.tile("scores", [0], part, part)
    with pytest.raises(InputError, match="keys 0:76 are outside the sequence of length 75"):
        layer.tile("final", [0], part, slice(0, 76))
    with pytest.raises(InputError, match="head 4 is not stored"):
        layer.tile("final", [4], part, part)


def test_weights_without_norms_come_from_whole_rows() -> None:
    call, part = made("alibi"), (slice(40, 60), slice(3, 30))
    known, unknown = save_call(call), save_call(call, lse=False)
    assert unknown.lse is None
    np.testing.assert_allclose(
        unknown.tile("weights", [0, 2], *part), known.tile("weights", [0, 2], *part), atol=1e-14
    )


class Doubled:
    """A mixing that no capture knows."""

    pointwise = True

    def final(self, rows: Rows) -> torch.Tensor:
        return 2 * rows.scores


def test_a_mixing_of_its_own_is_kept_as_maps() -> None:
    with pytest.raises(CannotSaveError, match=r"mixed in a way of its own \(Doubled\)"):
        save_call(replace(made("nope"), mixing=Doubled()))


def test_a_long_function_is_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscape.captures.call_blocks.DENSE_LENGTH", 70)
    call = replace(made("nope"), bias=Pairwise(lambda rows, cols: torch.zeros(1, 4, 75, 75)))
    with pytest.raises(CannotSaveError, match="written out up to 70 tokens, got 75"):
        save_call(call)
    save_call(made("shaw"))


def test_what_is_more_than_its_layer_is_told() -> None:
    inputs = replace(made("alibi"), turns=None, unrotated=None)
    hidden = Pairwise(lambda rows, cols: torch.randn(1, 4, 75, 75)[:, :, rows, cols])
    with pytest.raises(CannotSaveError, match="stored arrays do not reproduce its scores"):
        save_call(replace(inputs, bias=hidden))


def test_a_rotation_that_is_not_by_position_is_stored() -> None:
    call = made("rope")
    turned, flipped = save_call(call), save_call(replace(call, q=call.q.flip(2)))
    assert "turn.q" in turned.arrays
    assert "unrotated.0" in flipped.arrays
    want = dense(replace(call, q=call.q.flip(2)))["final"]
    every = slice(0, LENGTH)
    np.testing.assert_allclose(flipped.tile("final", range(HEADS), every, every), want, atol=1e-5)


def grouped() -> SavedCall:
    """A layer with padding and two documents."""
    call = made("alibi")
    group = torch.tensor([-1] * 5 + [0] * 40 + [1] * 30)[None]
    return save_call(replace(call, visible=Visible(True, group, group)))


@pytest.mark.parametrize(
    ("name", "fields", "causal"),
    [
        ("cable", {}, True),
        ("rope", {}, False),
        ("cope", {}, True),
        ("alibi", {"window": 9}, True),
        ("alibi", {"window": 9}, False),
        ("alibi", {"chunk": 16}, True),
        ("stick-breaking", {}, True),
    ],
)
def test_profiles_go_by_distance(name: str, fields: dict[str, object], causal: bool) -> None:
    layer = save_call(made(name, fields, causal=causal))
    every = slice(0, LENGTH)
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    for quantity in QUANTITIES:
        whole = layer.tile(quantity, [1], every, every)[0]
        seen = layer.visible(every, every)
        found = profile(layer, 1, quantity)
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
    layer = save_call(made(name))
    pooled, every = Pooled(layer), slice(0, LENGTH)
    for quantity in QUANTITIES:
        minus = profile(layer, 2, quantity).minus(what)
        assert minus is not None
        left = layer.tile(quantity, [2], every, every)[0] - bias_block(minus, every, every)
        left = np.where(layer.visible(every, every), left, np.nan)
        if what == "row":
            np.testing.assert_allclose(np.nanmean(left, axis=1), 0, atol=1e-10)
        else:
            means = [np.nanmean(np.diagonal(left, -d)) for d in range(LENGTH)]
            np.testing.assert_allclose(means, 0, atol=1e-10)
        grid = pooled.grid(3, range(10), range(10))
        for how, got in pooled.cells(quantity, 2, grid, minus=minus).items():
            np.testing.assert_allclose(got, reduced(left, grid, how), atol=1e-10, err_msg=quantity)


def test_a_long_profile_is_from_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscape.captures.profile.MAX_EXACT", 50)
    layer = save_call(made("alibi"))
    found = profile(layer, 0, "weights", samples=5)
    assert not found.complete
    assert np.isfinite(found.rows).sum() == 5
    assert found.count[0] == 5
    with pytest.raises(InputError, match="needs every pair"):
        found.minus("row")


def test_cells_of_groups_are_reduced_exactly() -> None:
    layer = grouped()
    pooled, cells = Pooled(layer), range(10)
    for quantity in QUANTITIES:
        whole = layer.tile(quantity, [1], slice(0, LENGTH), slice(0, LENGTH))[0]
        grid = pooled.grid(3, cells, cells)
        for how, got in pooled.cells(quantity, 1, grid).items():
            np.testing.assert_allclose(got, reduced(whole, grid, how), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "fields", "causal"), CASES, ids=str)
def test_served_tiles_are_the_definition(
    name: str, fields: dict[str, object], causal: bool
) -> None:
    """Every encoding opens in the served viewer."""
    from headscape.captures.pack import make_pack

    call = made(name, fields, causal=causal)
    expected = dense(call)
    heads = list(range(HEADS))
    served = Tiles(make_pack({0: save_call(call)}, encoding=name, heads=heads))
    for quantity in QUANTITIES:
        want = expected[quantity][2]
        seen = served.pack.layer(0).visible(slice(0, LENGTH), slice(0, LENGTH))
        size = max(1.0, float(np.nanmax(np.abs(want))))
        asked = MapRequest(layer=0, head=2, quantity=quantity)
        tile = served.tile(asked, 0, 0, 0)
        np.testing.assert_allclose(
            tile.values["mean"], np.where(seen, want, np.nan), rtol=0, atol=4e-6 * size
        )
        pooled = served.tile(asked, 3, 0, 0)
        assert pooled.exact == REDUCTIONS
        grid = Pooled(served.pack.layer(0)).grid(3, range(10), range(10))
        for how, values in pooled.values.items():
            want_cells = reduced(want, grid, how)
            np.testing.assert_allclose(values, want_cells, rtol=0, atol=1e-5 * size)
        found = served.profile(asked)
        rows = np.where(seen, want, 0.0).sum(axis=1) / seen.sum(axis=1)
        np.testing.assert_allclose(found.rows, rows, rtol=0, atol=1e-5 * size)
