"""What float32 costs at 16,384 tokens, against float64 on the same inputs, at real sizes.

Some blocks of rows stand for all of them: the first, one in the middle, the last.
"""

import pytest
import torch

from headscape.call import definition
from headscape.call.bias import Slope
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.encodings import LayerContext, LayerInput, build
from headscape.kernels import torch_blocks
from headscape.kernels.native import adapter

LENGTH, HEADS, HEAD_DIM = 16_384, 12, 64
ROWS = [slice(0, 64), slice(8_000, 8_064), slice(LENGTH - 64, LENGTH)]
PATHS = {"native": adapter.run, "torch": torch_blocks.run}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("path", "name", "budget"),
    [
        ("native", "alibi", 2e-6),
        ("native", "kerple", 2e-6),
        ("native", "fire", 2e-6),
        ("native", "cable", 1.5e-5),
        ("native", "kerple-weight", 2e-6),
        ("native", "stick-breaking", 2e-6),
        ("torch", "alibi", 2e-6),
        ("torch", "kerple", 2e-6),
        ("torch", "cable", 1.5e-5),
    ],
)
def test_long_contexts_keep_their_precision(path: str, name: str, budget: float) -> None:
    if path == "native" and adapter.available() is not None:
        pytest.skip(str(adapter.available()))
    torch.manual_seed(0)
    encoding = build(name, heads=HEADS, head_dim=HEAD_DIM, width=HEADS * HEAD_DIM, train_length=512)
    q, k, v = (torch.randn(1, HEADS, LENGTH, HEAD_DIM) for _ in range(3))
    if name == "stick-breaking":
        # Scores around -7: a stick lasts for thousands of keys.
        q[..., 0], k[..., 0] = 7.5, -7.5
    where = Positions.span(LENGTH)
    with torch.no_grad():
        stream = encoding.stream(LayerInput(torch.randn(1, LENGTH, HEADS * HEAD_DIM)))
        layer = LayerContext(where, stream, stream)
        bias, rest = encoding.bias(layer), (where, Visible(), HEAD_DIM**-0.5)
        given = {"mixing": encoding.mixing(layer), "weighting": encoding.weighting}
        ours = PATHS[path](AttentionCall(q, k, v, bias, *rest, **given))
        exact_encoding = encoding.double()
        exact_bias = bias
        if not isinstance(bias, Slope):
            exact_bias = exact_encoding.bias(LayerContext(where))
        given["mixing"] = exact_encoding.mixing(LayerContext(where))
        exact = AttentionCall(*(x.double() for x in (q, k, v)), exact_bias, *rest, **given)
        for rows in ROWS:
            wanted = definition.scores(exact, rows).weights @ exact.v
            assert (ours[:, :, rows].double() - wanted).abs().max() <= budget
