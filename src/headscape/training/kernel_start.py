"""Start a bias by distance from what position does in a trained model, by least squares.

In each layer of the old model, S_ij - scale q_i.k_j is what position adds to a score. Its mean at a
distance, over heads' own queries and keys of some text, is the head's kernel kappa_h(d). T5's
tables B_h(d), in which every weight is the bias of some distances, start at

    min over its weights of  sum_h sum_d n(d) (B_h(d) - kappa_h(d) - c_h)^2

n(d) is the number of pairs at a distance. c_h is free, because a softmax ignores it. Any other
encoding starts as in a new model, and so does a model that is not causal.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.call.bias import Toeplitz
from headscape.call.definition import scores
from headscape.call.positions import Positions, Visible
from headscape.encodings.t5 import T5, T5Clipped
from headscape.gpt2 import GPT2
from headscape.gpt2.model import Block

ROUNDS = 200
"""Most steps of the fit; a table of weights needs a few."""


@torch.no_grad()
def measured_kernels(
    old: GPT2, tokens: Int[Tensor, "b t"]
) -> tuple[list[Float[Tensor, "h t"]], list[Float[Tensor, "b t d"]]]:
    """Return every layer's kernel by distance 0, 1 ... t - 1, in float64, and its input."""
    where = Positions.span(tokens.shape[1], on=tokens.device)
    visible = Visible(old.config.causal)
    x = old.position.embed(old.tokens(tokens), where.q)
    kernels, inputs = [], []
    for block in old.blocks:
        assert isinstance(block, Block)
        inputs.append(x)
        call = block.attention.inputs(block.norm1(x), where, visible, watched=True)
        position = scores(call).bias.double().mean(dim=0)
        means = [position.diagonal(-d, dim1=1, dim2=2).mean(dim=1) for d in range(tokens.shape[1])]
        kernels.append(torch.stack(means, dim=1))
        x = block.finish(x, block.attention.output(call, "auto"))
    return kernels, inputs


def fit_kernels(old: GPT2, new: GPT2, tokens: Int[Tensor, "b t"]) -> list[int]:
    """Fit the new model's biases by distance to the old model's kernels, in place.

    Args:
        old: The trained model.
        new: The same weights with a new encoding.
        tokens: Text of the trained length.

    Returns:
        The layers that were fitted, counted from 0.
    """
    if not old.config.causal:
        return []
    kernels, inputs = measured_kernels(old, tokens)
    every = enumerate(zip(new.blocks, kernels, inputs, strict=True))
    return [layer for layer, (block, kernel, x) in every if _fit(block, kernel, x[:1])]


def _fit(block: nn.Module, kernel: Float[Tensor, "h t"], x: Float[Tensor, "1 t d"]) -> bool:
    """Fit one layer's bias and return True; False if it is not a table of weights."""
    assert isinstance(block, Block)
    attention, length = block.attention, kernel.shape[1]
    row, where = block.norm1(x).detach(), Positions.span(length, on=x.device)
    pairs = torch.arange(length, 0, -1, device=x.device).double()
    share = pairs / pairs.sum()
    weights = [each for each in attention.encoding.parameters() if each.requires_grad]

    def table() -> Tensor:
        bias = attention.inputs(row, where, Visible(causal=True), watched=True).bias
        assert isinstance(bias, Toeplitz)
        return bias.table[:, bias.zero : bias.zero + length]

    if not isinstance(attention.encoding, T5 | T5Clipped):
        return False
    fit = torch.optim.LBFGS(weights, max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def squares() -> Tensor:
        fit.zero_grad()
        off = table().double() - kernel
        off = off - (off * share).sum(dim=1, keepdim=True)
        loss = (share * off.square()).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        fit.step(squares)  # type: ignore[no-untyped-call]
    fit.zero_grad(set_to_none=True)
    return True
