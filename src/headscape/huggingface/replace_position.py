"""Replace the position encoding of a transformers model by any of ours.

    set_encoding(model, "cable")                                 every layer
    set_encoding(model, "rope", scaling="yarn", factor=4.0)      keeps the model's base and pairing
    set_encoding(model, "nope", layers=[3, 7])                   some layers; the others keep theirs

How the model's own position goes: angles of RoPE become 0, a learned table at the input becomes
zeros, T5's buckets are removed. The encoding becomes a child of every attention module, so its
parameters are in state_dict, and the config records what was done, so that `load` can repeat it.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from headscape.encodings import Encoding, Shape, make
from headscape.encodings.registry import Entry, per_layer, shared_fields
from headscape.errors import InputError
from headscape.huggingface.attention_function import set_attention
from headscape.huggingface.input_positions import AT_INPUT, PositionTable, add_before
from headscape.huggingface.own_encoding import ENCODING, HandOver, argument_names
from headscape.huggingface.position_holders import Holders, find_holders
from headscape.huggingface.position_table import NAMES
from headscape.models.transformers.rotary_reader import rope_parameters


def set_encoding(
    model: Any,
    encoding: str,
    *,
    layers: Sequence[int] | None = None,
    train_length: int | None = None,
    **fields: Any,
) -> None:
    """Replace the position encoding of a Llama-, GPT-2-, NeoX-, BERT- or T5-type model.

    `encoding` is a name or a schedule of layers ("rope*3,nope"), `layers` count from 0 (-1 is the
    last), `train_length` defaults to the config's max_position_embeddings. Learned parameters are
    initialised as in our own models. T5's two stacks get the same encoding, layer by layer.
    """
    holders = find_holders(model)
    count = len(holders.stacks[0])
    chosen = _chosen(layers, count)
    length = train_length or getattr(model.config, "max_position_embeddings", None) or 512
    if encoding == "rope" and holders.rotary:
        fields = _rope_fields(model.config, holders, fields) | fields
    entries = per_layer(encoding, count, fields)
    record = {
        "encoding": encoding,
        "layers": None if layers is None else chosen,
        "train_length": length,
        "fields": fields,
    }
    at_input = entries[0].at_input
    whole = len(chosen) == count
    if not whole and (at_input or not holders.rotary):
        why = f"{encoding!r} acts" if at_input else f"{model.config.model_type} has its positions"
        raise InputError(f"{why} at the input of the whole model: leave layers out.")
    # Everything that can fail is built before the model is changed.
    made: list[tuple[nn.Module, Encoding]] = []
    for stack in holders.stacks:
        for index in chosen:
            entry = entries[index]
            if at_input:
                entry = Entry("nope", shared_fields(entry.fields))
            made.append((stack[index], _build(entry, model, stack[index], length)))
    entry = entries[0] if at_input else Entry("nope", {})
    inputs = [_build(entry, model, stack[0], length) for stack in holders.stacks]
    set_attention(model)
    for attention, own in made:
        _attach(attention, own)
    if whole:
        _put_at_input(model, holders, inputs)
    earlier = [] if whole else list(getattr(model.config, ENCODING, None) or [])
    setattr(model.config, ENCODING, [*earlier, record])
    # Saved with the config, so that loading it without us fails instead of dropping the encoding.
    model.config.attn_implementation = NAMES[0]


def _chosen(layers: Sequence[int] | None, count: int) -> list[int]:
    if layers is None:
        return list(range(count))
    for layer in layers:
        if not -count <= layer < count:
            raise InputError(f"layer {layer} is out of range: the model has {count} layers.")
    if not layers:
        raise InputError("layers is empty: name at least one layer, or leave it out for all.")
    return sorted({layer % count for layer in layers})


def _rope_fields(config: Any, holders: Holders, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the base, rotary fraction and pairing of the model's own RoPE."""
    if {"base", "rotary_fraction", "pairing"} <= fields.keys():
        return {}
    own = rope_parameters(config, 0)
    kind = own.get("rope_type", "default")
    if kind != "default" and "scaling" not in fields:
        raise InputError(
            f"the model's RoPE is scaled by {kind!r}: pass scaling= and its fields, or "
            f"scaling='none'."
        )
    half = getattr(sys.modules[type(holders.stacks[0][0]).__module__], "rotate_half", None)
    # rotate_half turns (0, 1, 2, 3) into (-2, -3, 0, 1), or into (-1, 0, -3, 2) if interleaved.
    halves = half is None or float(half(torch.arange(4.0))[0]) == -2.0
    return {
        "base": float(own.get("rope_theta", 10_000.0)),
        "rotary_fraction": float(own.get("partial_rotary_factor") or 1.0),
        "pairing": "halves" if halves else "interleaved",
    }


def _build(entry: Entry, model: Any, attention: Any, length: int) -> Encoding:
    config = model.config
    head_dim = next(
        getattr(attention, name)
        for name in ("head_dim", "head_size", "attention_head_size", "key_value_proj_dim")
        if hasattr(attention, name)
    )
    shape = Shape(
        heads=config.num_attention_heads,
        head_dim=head_dim,
        width=config.hidden_size,
        train_length=length,
        causal=bool(attention.is_causal),
    )
    encoding = make(entry.name, shape, entry.fields)
    for module in encoding.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    encoding.initialise()
    weight = next(attention.parameters())
    return encoding.to(device=weight.device, dtype=weight.dtype)


def _attach(attention: Any, encoding: Encoding) -> None:
    """Make an encoding a child of an attention module, and hand the layer's input to it."""
    if not hasattr(attention, ENCODING):
        names = argument_names(attention)
        hook = HandOver(names, attention.layer_idx, encoding.shape.heads)
        attention.register_forward_pre_hook(hook, with_kwargs=True)
        if getattr(attention, "has_relative_attention_bias", False):
            attention.has_relative_attention_bias = False
            del attention.relative_attention_bias
    setattr(attention, ENCODING, encoding)


def _put_at_input(model: Any, holders: Holders, inputs: list[Encoding]) -> None:
    """Put an encoding in place of a learned table, or before the first layer of every stack."""
    if holders.table is not None:
        parent, name = holders.table
        setattr(parent, name, PositionTable(inputs[0], model.get_input_embeddings()))
        return
    for layer, encoding in zip(holders.first, inputs, strict=True):
        if encoding.at_input or hasattr(layer, AT_INPUT):
            add_before(layer, encoding)
