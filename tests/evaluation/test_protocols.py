"""Which tokens each protocol scores, against the protocols' definitions written out."""

import pytest

from headscape.errors import InputError
from headscape.evaluation.protocols import Protocol, parse, plan


def scored(name: str, tokens: int, length: int, longest: int | None = None) -> list[int]:
    return plan(parse(name), tokens, length, longest).targets().tolist()


def context(name: str, tokens: int, length: int, longest: int | None = None) -> dict[int, int]:
    """How many tokens each scored token sees."""
    windows = plan(parse(name), tokens, length, longest)
    return {
        start + index + 1: index + 1
        for start, first in zip(windows.start.tolist(), windows.first.tolist(), strict=True)
        for index in range(first, length)
    }


@pytest.mark.parametrize(("tokens", "length"), [(9, 8), (17, 8), (50, 7), (51, 10), (100, 1)])
def test_nonoverlap_scores_every_token_of_whole_windows_once(tokens, length):
    whole = (tokens - 1) // length
    assert scored("nonoverlap", tokens, length) == list(range(1, whole * length + 1))
    seen = context("nonoverlap", tokens, length)
    assert all(seen[target] == (target - 1) % length + 1 for target in seen)
    assert scored("per-position", tokens, length) == scored("nonoverlap", tokens, length)


def test_last_scores_only_the_end_of_each_window():
    assert scored("last-3", 25, 8) == [6, 7, 8, 14, 15, 16, 22, 23, 24]
    assert set(context("last-3", 25, 8).values()) == {6, 7, 8}


@pytest.mark.parametrize("stride", [1, 2, 3, 8])
@pytest.mark.parametrize("tokens", [9, 10, 31])
def test_sliding_scores_each_token_once_with_a_long_context(stride, tokens):
    length = 8
    targets = scored(f"sliding-{stride}", tokens, length)
    assert targets == list(range(1, targets[-1] + 1))
    assert tokens - 1 - targets[-1] < stride
    seen = context(f"sliding-{stride}", tokens, length)
    for target, tokens_seen in seen.items():
        if target <= length:
            assert tokens_seen == target
        else:
            assert length - stride + 1 <= tokens_seen <= length


@pytest.mark.parametrize("name", ["nonoverlap", "last-4", "sliding-3", "sliding-1", "per-position"])
@pytest.mark.parametrize("tokens", [33, 60, 97])
def test_same_tokens_means_the_same_tokens_at_every_length(name, tokens):
    lengths = [5, 8, 12, 32]
    every = [sorted(scored(name, tokens, length, 32)) for length in lengths]
    assert every[0]
    assert all(targets == every[-1] for targets in every)
    assert len(set(every[0])) == len(every[0])


def test_without_it_lengths_score_different_tokens():
    assert scored("nonoverlap", 60, 8) != scored("nonoverlap", 60, 32)


def test_windows_stay_inside_the_stream():
    for name in ("nonoverlap", "last-2", "sliding-3", "per-position"):
        windows = plan(parse(name), 41, 6, 20)
        assert windows.start.min() >= 0
        assert windows.start.max() + windows.length + 1 <= 41
        assert (windows.first < windows.length).all()


def test_names_round_trip():
    for name in ("nonoverlap", "last-256", "sliding-1", "per-position"):
        assert parse(name).name == name
    assert parse("last-7") == Protocol(kind="last", count=7)


@pytest.mark.parametrize("name", ["", "last", "last-0", "sliding--1", "last-x", "nonoverlap-3"])
def test_unknown_protocols_are_refused(name):
    with pytest.raises(InputError, match="unknown protocol"):
        parse(name)


def test_a_length_longer_than_the_text_is_refused():
    with pytest.raises(InputError, match=r"a length of 64 needs 65 tokens and .* has 64"):
        plan(parse("nonoverlap"), 64, 64)
    with pytest.raises(InputError, match="a length of 64 needs"):
        plan(parse("nonoverlap"), 64, 8, 64)


def test_scoring_more_than_a_window_holds_is_refused():
    with pytest.raises(InputError, match="last-256 scores 256 tokens, more than a length of 128"):
        plan(parse("last-256"), 1000, 128)
