"""The torch path equals the definition on the native kernels' random calls."""

import pytest

from headscape.call.positions import Visible
from headscape.kernels import torch_blocks
from kernels.calls import agree, plain_call, random_call


@pytest.mark.parametrize("seed", range(3000, 3060))
def test_random_calls(seed: int) -> None:
    agree(random_call(seed), torch_blocks.run)


@pytest.mark.parametrize("kind", ["none", "toeplitz", "weighted slope", "sheared"])
@pytest.mark.parametrize("window", [1, 63, 64, 65, 200])
def test_windows_at_block_borders(kind: str, window: int) -> None:
    call = plain_call(kind, 150)
    for causal in (True, False):
        call.visible = Visible(causal, window=window)
        agree(call, torch_blocks.run)
