"""Where a transformers model has its positions: its self-attentions, and what acts beside them.

Three ways are known, each found by what a module has, not by a family's name:

    rotary    the attention is handed `position_embeddings` (cos, sin)        Llama, GPT-NeoX
    table     an nn.Embedding by position at the input                       GPT-2, BERT
    buckets   the attention has `has_relative_attention_bias`                T5
"""

import inspect
import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from headscape.errors import InputError
from headscape.huggingface.input_positions import PositionTable
from headscape.huggingface.mask_function import check_interface

TABLES = ("wpe", "position_embeddings", "embed_positions")
CROSS = re.compile(r"cross|EncDec|encoder_attn", re.IGNORECASE)


@dataclass(frozen=True)
class Holders:
    """The modules of a model that position enters by."""

    stacks: list[list[Any]]
    """Self-attentions by layer, of one stack or of an encoder and a decoder."""
    first: list[nn.Module]
    """The first layer of every stack."""
    rotary: bool
    """Whether every attention is handed angles."""
    table: tuple[nn.Module, str] | None
    """The parent and the name of a learned table at the input."""


def find_holders(model: Any) -> Holders:
    """Return where a model has its positions, or raise InputError if that is not known."""
    check_interface(model.config)
    stacks: dict[str, list[Any]] = {}
    first: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if not _is_attention(module) or CROSS.search(path):
            continue
        stack, _, rest = _split(path)
        stacks.setdefault(stack, []).append(module)
        first.setdefault(stack, model.get_submodule(rest))
    found = [each for each in stacks.values() if each]
    tables = [
        (model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2])
        for path, module in model.named_modules()
        if path.rpartition(".")[2] in TABLES and type(module) in (nn.Embedding, PositionTable)
    ]
    attentions = [attention for each in found for attention in each]
    takes = [inspect.signature(type(each).forward).parameters for each in attentions]
    rotary = bool(takes) and all("position_embeddings" in each for each in takes)
    buckets = bool(takes) and all(hasattr(x, "has_relative_attention_bias") for x in attentions)
    same = len({len(each) for each in found}) == 1
    if not same or len(tables) > 1 or (bool(tables) + rotary + buckets) != 1:
        raise InputError(
            f"set_encoding does not know where {model.config.model_type} adds its positions: it "
            f"takes models of Llama, GPT-2, GPT-NeoX, BERT and T5 type."
        )
    return Holders(found, list(first.values()), rotary, tables[0] if tables else None)


def _is_attention(module: nn.Module) -> bool:
    if not hasattr(module, "layer_idx") and not hasattr(module, "is_causal"):
        return False
    try:
        source = inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return False
    return "ALL_ATTENTION_FUNCTIONS.get_interface" in source


def _split(path: str) -> tuple[str, str, str]:
    """Return the path of the stack that an attention is in, its index, and the layer's path."""
    found = re.match(r"(.*?)\.?(\d+)\.", path)
    assert found is not None, path
    return found[1], found[2], found[0].removesuffix(".")
