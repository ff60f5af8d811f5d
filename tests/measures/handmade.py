"""Small models built by hand so that a head does one known thing."""

import torch

import headscape as hs
from headscape.gpt2 import GPT2
from headscape.gpt2.model import Block
from headscape.models.loaded import LoadedModel

VOCABULARY = 24
LOUD = 60.0
"""Score of the key that a built head looks at."""


def previous_token() -> LoadedModel:
    """T5 with a table that is high at distance 1: head 0 of layer 0 looks at the token before."""
    gpt2 = _empty("t5", layers=1)
    with torch.no_grad():
        table = gpt2.encoding(0).table.weight
        table.zero_()
        table[1, 0] = LOUD  # bucket 1 is distance 1
    return hs.load(gpt2)


def sink() -> LoadedModel:
    """NoPE where token 0 has a loud key: head 0 looks at it from everywhere."""
    gpt2 = _empty("nope", layers=1)
    block = _block(gpt2, 0)
    with torch.no_grad():
        gpt2.tokens.weight[:, 0] = 1.0  # every token has a constant in dim 0
        gpt2.tokens.weight[0, 1] = 1.0  # and token 0 has dim 1
        block.norm1 = torch.nn.Identity()
        _query(block, 0, from_dim=0, to=0, by=LOUD)
        _key(block, 0, from_dim=1, to=0, by=1.0)
    return hs.load(gpt2)


def induction() -> LoadedModel:
    """Two layers: a previous-token head copies the token before, head 0 of layer 1 looks it up.

    Width is 2 x vocabulary: the first half is the token, the second half the token before it.
    """
    gpt2 = _empty("t5", layers=2, width=2 * VOCABULARY, heads=1)
    first, second = _block(gpt2, 0), _block(gpt2, 1)
    with torch.no_grad():
        gpt2.tokens.weight[:, :VOCABULARY] = torch.eye(VOCABULARY)
        gpt2.encoding(0).table.weight[1, 0] = LOUD
        eye = torch.eye(VOCABULARY)
        width = 2 * VOCABULARY
        first.attention.qkv.weight[2 * width : 2 * width + VOCABULARY, :VOCABULARY] = eye
        first.attention.out.weight[VOCABULARY:, :VOCABULARY] = eye
        second.attention.qkv.weight[:VOCABULARY, :VOCABULARY] = LOUD * width**0.5 * eye
        second.attention.qkv.weight[width : width + VOCABULARY, VOCABULARY:] = eye
        for block in (first, second):
            block.norm1 = torch.nn.Identity()
    return hs.load(gpt2)


def _empty(encoding: str, *, layers: int, width: int = 32, heads: int = 2) -> GPT2:
    """A model whose weights are all 0, so that attention is uniform until something is set."""
    gpt2 = GPT2.from_preset(
        "nano", encoding=encoding, vocabulary=VOCABULARY, layers=layers, width=width, heads=heads,
        train_length=64,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in gpt2.parameters():
            parameter.zero_()
    return gpt2


def _block(gpt2: GPT2, layer: int) -> Block:
    block = gpt2.blocks[layer]
    assert isinstance(block, Block)
    return block


def _query(block: Block, head: int, *, from_dim: int, to: int, by: float) -> None:
    size = block.attention.qkv.weight.shape[1] // block.attention.heads
    block.attention.qkv.weight[head * size + to, from_dim] = by * size**0.5


def _key(block: Block, head: int, *, from_dim: int, to: int, by: float) -> None:
    width = block.attention.qkv.weight.shape[1]
    size = width // block.attention.heads
    block.attention.qkv.weight[width + head * size + to, from_dim] = by
