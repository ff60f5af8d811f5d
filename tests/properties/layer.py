"""One attention layer around an encoding, and random weights that leave nothing at zero.

    at = span(5)                                 positions of queries and keys
    inputs = layer(encoding, q, k, v, x, at)     what attention is a function of
    reference.scores(inputs).final               raw scores

x [b s d] is the layer's input for every key; queries are its last t tokens.
"""

import torch
from torch import Tensor

from headscape.attention.reference import AttentionInputs
from headscape.encodings import Encoding, Stream
from headscape.types import Positions, Visible


@torch.no_grad()
def randomise(module: torch.nn.Module, seed: int = 0) -> None:
    """Every parameter from a normal distribution, so that no term is silently zero."""
    random = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        std = 0.5 if value.dim() < 2 else value[0].numel() ** -0.5
        value.copy_(torch.randn(value.shape, generator=random, dtype=torch.float64) * std)


def draw(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers in float64."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def layer(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    x: Tensor | None,
    positions: Positions,
    *,
    visible: Visible | None = None,
    scale: float | None = None,
) -> AttentionInputs:
    """Rotated queries and keys, the bias and everything else attention needs."""
    keys = None if x is None else encoding.stream(x)
    return AttentionInputs(
        encoding.rotate(q, positions.q, "query"),
        encoding.rotate(k, positions.k, "key"),
        v,
        encoding,
        encoding.bias(positions, _last(keys, q.shape[2]), keys),
        positions,
        Visible(encoding.shape.causal) if visible is None else visible,
        q.shape[-1] ** -0.5 if scale is None else scale,
        (q, k) if encoding.rotates else None,
    )


def _last(stream: Stream | None, tokens: int) -> Stream | None:
    if stream is None:
        return None
    weight, backward = stream.weight, stream.backward
    return Stream(
        stream.total[..., -tokens:],
        None if weight is None else weight[..., -tokens:],
        None if backward is None else backward[..., -tokens:],
    )
