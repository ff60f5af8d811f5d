"""Pieces are worked on once each, by threads of one torch thread, and the caller's number stays."""

import threading

import pytest
import torch

from headscape.attention.head_threads import for_each

CPU = torch.device("cpu")


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_every_piece_once_and_one_torch_thread_each() -> None:
    found: list[tuple[int, int, int]] = []
    for_each(
        lambda i: found.append((i, torch.get_num_threads(), threading.get_ident())), range(20), CPU
    )
    assert sorted(i for i, _, _ in found) == list(range(20))
    assert {count for _, count, _ in found} == {1}
    assert threading.get_ident() not in {thread for _, _, thread in found}


@pytest.mark.usefixtures("three_threads")
def test_the_number_of_threads_is_the_callers_again() -> None:
    for_each(lambda _: None, range(3), CPU)
    assert torch.get_num_threads() == 3
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [3]


@pytest.mark.usefixtures("three_threads")
def test_an_error_of_a_piece_is_raised() -> None:
    def work(piece: int) -> None:
        if piece == 1:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        for_each(work, range(3), CPU)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_results_can_be_written_in_the_callers_mode(mode: type) -> None:
    weight = torch.ones(3, requires_grad=True)
    with mode():
        out = torch.empty(3)
        for_each(lambda i: out[i : i + 1].copy_(2 * weight[i : i + 1]), range(3), CPU)
    assert out.tolist() == [2, 2, 2]
    assert not out.requires_grad
