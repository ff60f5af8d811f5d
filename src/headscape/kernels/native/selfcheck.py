"""The native kernels against the definition on this machine, with small random inputs.

`headscape doctor` runs this, so a library that was built elsewhere shows whether it works here.
"""

import torch

from headscape.call import definition
from headscape.call.positions import Positions, Visible
from headscape.encodings import build
from headscape.kernels.layer import prepare
from headscape.kernels.native import adapter

ENCODINGS = (
    "nope",
    "alibi",
    "cable",
    "fire",
    "kerple-weight",
    "stick-breaking",
    "dape+kerple",
    "dapev2+kerple",
)
"""One encoding for every kind of bias, mixing and weights that the kernels have code for."""
LENGTH, HEADS, HEAD_DIM = 70, 4, 16
TOLERANCE = 1e-4
"""Largest allowed error, relative to the largest output or gradient."""


def largest_error() -> float:
    """Return the largest relative error of outputs and of the gradients of q, k and v."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, k, v = (random(1, HEADS, LENGTH, HEAD_DIM).requires_grad_() for _ in range(3))
    upstream, x = random(1, HEADS, LENGTH, HEAD_DIM), random(1, LENGTH, HEADS * HEAD_DIM)
    positions = Positions.span(LENGTH)
    worst = 0.0
    for name in ENCODINGS:
        encoding = build(
            name, heads=HEADS, head_dim=HEAD_DIM, width=HEADS * HEAD_DIM, train_length=LENGTH
        )
        inputs = prepare(encoding, q, k, v, x, positions, visible=Visible(), scale=None)
        found, expected = (
            [out, *torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True)]
            for out in (adapter.attend(inputs), definition.attend(inputs))
        )
        for ours, exact in zip(found, expected, strict=True):
            error = (ours - exact).detach().abs().max() / exact.detach().abs().max()
            worst = max(worst, error.item())
    return worst
