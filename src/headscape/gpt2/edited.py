"""Run a GPT2 with one layer's attention changed."""

from collections.abc import Callable, Iterator, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.gpt2.block import Block
from headscape.gpt2.model import GPT2
from headscape.kernels import attend


def edited_hidden(
    gpt2: GPT2,
    tokens: Int[Tensor, "b t"],
    layer: int,
    edits: Sequence[Callable[[AttentionCall, Tensor], Tensor]],
) -> Iterator[Float[Tensor, "b t d"]]:
    """Yield `hidden` for each edit, which maps a layer's inputs and output to a new output.

    Layers before it run once for all edits.
    """
    where = Positions.span(tokens.shape[1], on=tokens.device)
    visible = Visible(gpt2.config.causal)
    x = gpt2.position.embed(gpt2.tokens(tokens), where.q)
    for block in gpt2.blocks[:layer]:
        x = block(x, where, visible, None, "auto", None)
    edited = gpt2.blocks[layer]
    assert isinstance(edited, Block)
    inputs = edited.attention.inputs(edited.norm1(x), where, visible, watched=True)
    own = attend.run(inputs)
    for edit in edits:
        mixed = edit(inputs, own).transpose(1, 2).flatten(2)
        y = edited.finish(x, edited.attention.out(mixed))
        for block in gpt2.blocks[layer + 1 :]:
            y = block(y, where, visible, None, "auto", None)
        yield gpt2.norm(y)
