import time

import numpy as np
import pytest

from headscape.data.tokens.batches import (
    ROUNDS,
    Batches,
    keyed_numbers,
    permuted,
    validation_windows,
)
from headscape.errors import InputError


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10, 99, 100, 101, 4097])
def test_permutation_is_one(n):
    keys = keyed_numbers(ROUNDS, 1, n)
    assert sorted(permuted(np.arange(n), n, keys).tolist()) == list(range(n))


def test_permutation_looks_random():
    n = 10_000
    order = permuted(np.arange(n), n, keyed_numbers(ROUNDS, 5))
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.05
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert len(np.unique(np.diff(order))) > n / 3
    other = permuted(np.arange(n), n, keyed_numbers(ROUNDS, 6))
    assert (order == other).sum() < 10


def test_every_window_once_in_an_epoch():
    tokens = np.arange(1003, dtype=np.uint16)
    batches = Batches(tokens, 10, seed=3)
    n = (1003 - 1) // 10 - 1
    firsts = np.concatenate([batches.windows(step, 3)[:, 0] for step in range(n)])
    for epoch in range(3):
        starts = np.sort(firsts[epoch * n : (epoch + 1) * n])
        assert (np.diff(starts) == 10).all()
    assert len({int(firsts[epoch * n : (epoch + 1) * n].min()) for epoch in range(3)}) > 1
    assert firsts[:n].tolist() != firsts[n : 2 * n].tolist()


def test_every_token_is_reached():
    tokens = np.arange(57, dtype=np.uint16)
    batches = Batches(tokens, 10, seed=3)
    seen = np.unique([batches.windows(step, 4) for step in range(200)])
    assert seen.tolist() == tokens.tolist()


def test_windows_are_slices_of_the_stream():
    tokens = np.random.default_rng(0).integers(0, 65536, 5000, dtype=np.uint16)
    batches = Batches(tokens, 64, seed=1)
    windows = batches.windows(17, 5)
    assert windows.shape == (5, 65)
    assert windows.dtype == np.int64
    for row, start in zip(windows, batches.starts(17, 5, 64), strict=True):
        np.testing.assert_array_equal(row, tokens[start : start + 65])


def test_order_is_a_function_of_seed_and_step():
    tokens = np.arange(60_000, dtype=np.uint16)
    forward = [Batches(tokens, 32, seed=9).windows(step, 8) for step in range(20)]
    batches = Batches(tokens, 32, seed=9)
    for step in reversed(range(20)):
        batches.windows(step + 1, 2, length=7)
        np.testing.assert_array_equal(batches.windows(step, 8), forward[step])
    assert not np.array_equal(Batches(tokens, 32, seed=10).windows(0, 8), forward[0])


def test_rows_do_not_depend_on_who_takes_them():
    batches = Batches(np.arange(60_000, dtype=np.uint16), 32, seed=9)
    whole = batches.windows(4, 12)
    for processes in (1, 2, 3, 4):
        each = 12 // processes
        parts = [
            batches.windows(4, 12, rows=range(r * each, (r + 1) * each)) for r in range(processes)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(batches.windows(4, 12, rows=range(1, 12, 2)), whole[1::2])


def test_length_curriculum():
    batches = Batches(np.arange(60_000, dtype=np.uint16), 128, seed=9)
    assert batches.windows(5, 4, length=32).shape == (4, 33)
    short = np.concatenate([batches.windows(step, 4, 32)[:, 0] for step in range(100, 400)])
    assert len(np.unique(short)) == len(short)


def test_validation_windows():
    tokens = np.arange(101, dtype=np.uint16)
    windows = validation_windows(tokens, 10)
    np.testing.assert_array_equal(windows[:, 0], np.arange(0, 100, 10))
    np.testing.assert_array_equal(windows[:, -1], windows[:, 0] + 10)
    np.testing.assert_array_equal(validation_windows(tokens, 10, 4)[:, 0], [0, 20, 50, 70])
    assert len(validation_windows(tokens, 10, 99)) == 10


@pytest.mark.parametrize("size", [0, 1, 10])
def test_too_short(size):
    tokens = np.zeros(size, np.uint16)
    with pytest.raises(InputError, match=rf"{size} tokens and a window needs 10 \+ 1"):
        Batches(tokens, 10, seed=0)
    with pytest.raises(InputError, match="too short"):
        validation_windows(tokens, 10)
    with pytest.raises(InputError, match="at least 1"):
        Batches(tokens, 0, seed=0)
    batches = Batches(np.zeros(11, np.uint16), 10, seed=0)
    assert batches.windows(3, 2).shape == (2, 11)
    with pytest.raises(InputError, match="too short"):
        batches.windows(0, 2, length=11)


def test_a_batch_takes_no_time():
    batches = Batches(np.zeros(5_000_000, np.uint16), 512, seed=0)
    times = []
    for step in range(200):
        begun = time.perf_counter()
        batches.windows(step, 8)
        times.append(time.perf_counter() - begun)
    # A nano step takes over 100 ms; 1% of that is 1 ms.
    assert np.median(times) < 1e-3
