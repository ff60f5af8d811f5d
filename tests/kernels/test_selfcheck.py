"""The self-check passes on this machine's kernel and notices a wrong one."""

import pytest
import torch

from headscape.call.definition import AttentionCall
from headscape.kernels.native import adapter

pytestmark = pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))


def test_this_machines_kernel_agrees() -> None:
    assert 0 < adapter.largest_error() < adapter.TOLERANCE


def test_a_wrong_output_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = adapter.run

    def wrong(inputs: AttentionCall) -> torch.Tensor:
        return right(inputs) * 1.001

    monkeypatch.setattr(adapter, "run", wrong)
    assert adapter.largest_error() > adapter.TOLERANCE
