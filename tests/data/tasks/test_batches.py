"""Batches of examples: the same whoever asks, and only answers count."""

import numpy as np
import pytest

from headscape.data.tasks import TASKS
from headscape.data.tasks.task_batches import TaskBatches, check_fits, scored, weights
from headscape.errors import InputError

END = 256


@pytest.mark.parametrize("name", TASKS)
def test_what_counts_is_the_answer_and_its_end(name):
    batches = TaskBatches(TASKS[name], 400, 0)
    windows = batches.windows(3, 8)
    assert windows.shape == (8, 401)
    mask = scored(windows)
    for row, (window, counts) in enumerate(zip(windows, mask, strict=True)):
        example = batches.example(3 * 8 + row)
        counted = window[1:][counts]
        assert bytes(counted[:-1].tolist()).decode() == example.answer
        assert counted[-1] == END
        assert (window[len(example.tokens()) :] == END).all()


def test_an_empty_answer_is_its_end_alone():
    windows = np.array([[END, ord("a"), ord(">"), END, END, END]])
    assert scored(windows).tolist() == [[False, False, True, False, False]]


def test_a_batch_cut_by_rows_is_the_same_batch():
    batches = TaskBatches(TASKS["copy"], 90, 7)
    whole = batches.windows(5, 12)
    parts = [batches.windows(5, 12, rows=range(start, start + 4)) for start in (0, 4, 8)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert np.array_equal(whole, TaskBatches(TASKS["copy"], 90, 7).windows(5, 12, 90))
    assert not np.array_equal(whole, TaskBatches(TASKS["copy"], 90, 8).windows(5, 12))
    assert not np.array_equal(whole, batches.windows(6, 12))


def test_training_lengths_are_drawn_evenly_and_from_nowhere_else():
    batches = TaskBatches(TASKS["reverse"], 90, 0)
    lengths = [len(batches.example(index).question) for index in range(4000)]
    counts = np.bincount(lengths, minlength=41)
    assert counts[0] == 0
    assert len(counts) == 41
    assert counts[1:].min() > 60
    assert counts[1:].max() < 140


def test_a_window_too_short_is_refused():
    with pytest.raises(
        InputError, match="has up to 122 tokens and a window only 20: set context_length"
    ):
        check_fits(TASKS["duplicate-string"], 20)
    check_fits(TASKS["duplicate-string"], 122)


def test_every_example_counts_alike_in_a_plain_mean():
    windows = TaskBatches(TASKS["copy"], 90, 0).windows(0, 16)
    losses = np.random.default_rng(0).random((16, 90))
    each = [loss[counts].mean() for loss, counts in zip(losses, scored(windows), strict=True)]
    assert (losses * weights(windows)).mean() == pytest.approx(np.mean(each), rel=1e-6)
