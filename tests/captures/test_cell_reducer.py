import numpy as np
import pytest

from headscape.captures.pooling import CellReducer, cell_edges


def dense(maps, edges, causal):
    heads, length, _ = maps.shape
    cells = len(edges) - 1
    seen = np.isfinite(maps) & (np.tri(length, dtype=bool) if causal else True)
    out = {name: np.full((heads, cells, cells), np.nan) for name in ("mean", "min", "max")}
    for h in range(heads):
        for a in range(cells):
            for b in range(cells):
                cell = np.s_[h, edges[a] : edges[a + 1], edges[b] : edges[b + 1]]
                entries = maps[cell][seen[cell]].astype(np.float64)
                if entries.size:
                    for name, values in out.items():
                        values[h, a, b] = getattr(entries, name)()
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "resolution"), [(37, 8), (64, 16), (10, 10), (9, 1), (5, 50)])
@pytest.mark.parametrize("step", [1, 3, 64])
def test_streaming_equals_the_reduction_of_the_dense_map(length, resolution, step, causal):
    maps = np.random.default_rng(0).normal(size=(3, length, length)).astype(np.float32)
    maps[1, length // 2, 0] = np.nan
    edges = cell_edges(length, min(resolution, length))
    reducer = CellReducer(edges, edges, heads=3, dtype=np.float32)
    if causal:
        maps[:, ~np.tri(length, dtype=bool)] = np.nan
    for start in reversed(range(0, length, step)):
        stop = min(start + step, length)
        keys = stop if causal else length
        reducer.add(slice(start, stop), maps[:, start:stop, :keys])
    found = reducer.result()
    expected = dense(maps, edges, causal)
    np.testing.assert_array_equal(found["min"], expected["min"])
    np.testing.assert_array_equal(found["max"], expected["max"])
    # Entries are of order 1, so float64 sums agree far below float32's spacing of 6e-8.
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1.2e-7, atol=1e-8)


def test_cells_are_even_and_cover_every_token():
    for length, resolution in [(37, 8), (16384, 512), (7, 7), (1000, 3)]:
        sizes = np.diff(cell_edges(length, resolution))
        assert sizes.sum() == length
        assert sizes.max() - sizes.min() <= 1


def test_rows_once_and_all():
    edges = cell_edges(4, 2)
    reducer = CellReducer(edges, edges)
    reducer.add(slice(0, 2), np.zeros((1, 2, 4), np.float32))
    with pytest.raises(ValueError, match="already added"):
        reducer.add(slice(1, 3), np.zeros((1, 2, 4), np.float32))
    with pytest.raises(ValueError, match="2 of 4 rows"):
        reducer.result()
