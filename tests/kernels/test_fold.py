"""The folded bias equals the first convolution over the dense bias, inside and at both edges."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from headscape.kernels.native import ops
from headscape.kernels.native.adapter import fold
from headscape.kernels.native.ops import FOLD

HEADS, HIDDEN, LENGTH, LOW = 3, 5, 20, -25


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("taps", [1, 3, 5])
def test_fold_is_the_convolution_of_the_bias(taps: int, *, causal: bool) -> None:
    double = {"dtype": torch.float64}
    table = torch.randn(HEADS, 51, **double)
    weight, in_bias = torch.randn(HIDDEN, HEADS, taps, **double), torch.randn(HIDDEN, **double)
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    dense = table[:, distance - LOW]
    dense = dense.masked_fill(distance < 0, 0.0) if causal else dense
    expected = F.conv2d(dense[None], weight[:, :, None], in_bias, padding=(0, taps // 2))[0]

    found = fold(table, LOW, weight, in_bias, causal=causal)
    assert found.shape == (1 + taps, HIDDEN, 51 + 2 * FOLD)
    by_pair = found[:, :, distance - LOW + FOLD]
    total = by_pair[0].clone()
    for t in range(taps):
        key = torch.arange(LENGTH) + t - taps // 2
        total -= by_pair[1 + t] * ((key < 0) | (key >= LENGTH))
    torch.testing.assert_close(total, expected)


def test_the_kernel_counts_on_the_same_margin() -> None:
    header = Path(ops.__file__).with_name("problem.hpp").read_text()
    assert f"kFoldMargin = {FOLD};" in header
