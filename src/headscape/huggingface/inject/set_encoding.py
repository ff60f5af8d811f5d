"""Replace the position encoding of a transformers model by any of ours.

    set_encoding(model, "cable")                                 every layer
    set_encoding(model, "rope", scaling="yarn", factor=4.0)      keeps the model's base and pairing
    set_encoding(model, "nope", layers=[3, 7])                   some layers; the others keep theirs

How the model's own position goes: angles of RoPE become 0, a learned table at the input becomes
zeros, T5's buckets are removed. The encoding becomes a child of every attention module, so its
parameters are in state_dict, and the config records what was done, so that `load` can repeat it.
"""

import inspect
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headscape.encodings import Encoding, Shape, make
from headscape.encodings.registry import Entry, kinds, parse, per_layer, shared_fields
from headscape.encodings.rope import RoPE
from headscape.errors import InputError
from headscape.huggingface.attend.attention_function import register, set_attention
from headscape.huggingface.attend.biased_families import NAMES
from headscape.huggingface.attend.mask_rule import check_interface
from headscape.huggingface.inject.injected_encoding import (
    AT_INPUT,
    InjectionHook,
    PositionTable,
    add_before,
    argument_names,
)
from headscape.models.transformers.layer_reading import rope_parameters
from headscape.models.transformers.model_folder import checked_folder, explained
from headscape.models.transformers.observed_call import ENCODING, ENCODING_NAME

TABLES = ("wpe", "position_embeddings", "embed_positions")
CROSS = re.compile(r"cross|EncDec|encoder_attn", re.IGNORECASE)


@dataclass(frozen=True)
class PositionSites:
    """The modules of a model that position enters by."""

    stacks: list[list[Any]]
    """Self-attentions by layer, of one stack or of an encoder and a decoder."""
    first: list[nn.Module]
    """The first layer of every stack."""
    rotary: bool
    """Whether every attention is handed angles."""
    table: tuple[nn.Module, str] | None
    """The parent and the name of a learned table at the input."""


def find_sites(model: Any) -> PositionSites:
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
    return PositionSites(found, list(first.values()), rotary, tables[0] if tables else None)


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


def set_encoding(
    model: Any,
    encoding: str,
    *,
    layers: Sequence[int] | None = None,
    train_length: int | None = None,
    **fields: Any,
) -> None:
    """Replace the position encoding of a Llama-, GPT-2-, NeoX-, BERT- or T5-type model.

    Learned parameters are initialised as in our own models. T5's two stacks get the same encoding,
    layer by layer.

    Args:
        model: A transformers model, which is changed in place.
        encoding: A name, or a schedule of layers such as "rope*3,nope".
        layers: Which layers get it, counted from 0 (-1 is the last); all by default.
        train_length: The length it is built for; the config's max_position_embeddings by default.
        **fields: Fields of the encoding. RoPE, alone or in a combination, takes base, pairing and
            fraction from the model where they are not given.
    """
    sites = find_sites(model)
    rotating = [entry.fields for entry in parse(encoding) if RoPE in kinds(entry.name).all]
    if rotating and sites.rotary:
        set_by_all = fields.keys() | set.intersection(*map(set, rotating))
        fields = _rope_fields(model.config, sites, set_by_all) | fields
    _put(model, sites, encoding, layers, train_length, fields)


def _put(
    model: Any,
    sites: PositionSites,
    encoding: str,
    layers: Sequence[int] | None,
    train_length: int | None,
    fields: dict[str, Any],
) -> None:
    """Put an encoding with all of its fields into a model."""
    count = len(sites.stacks[0])
    chosen = _chosen(layers, count)
    length = train_length
    if length is None:
        length = getattr(model.config, "max_position_embeddings", None) or 512
    entries = per_layer(encoding, count, fields)
    record = {
        "encoding": encoding,
        "layers": None if layers is None else chosen,
        "train_length": length,
        "fields": fields,
    }
    at_input = entries[0].at_input
    whole = len(chosen) == count
    if not whole and (at_input or not sites.rotary):
        why = f"{encoding!r} acts" if at_input else f"{model.config.model_type} has its positions"
        raise InputError(f"{why} at the input of the whole model: leave layers out.")
    # Everything that can fail is built before the model is changed.
    made: list[tuple[nn.Module, str, Encoding]] = []
    for stack in sites.stacks:
        for index in chosen:
            entry = entries[index]
            acts = Entry("nope", shared_fields(entry.fields)) if at_input else entry
            made.append((stack[index], entry.name, _build(acts, model, stack[index], length)))
    entry = entries[0] if at_input else Entry("nope", {})
    inputs = [_build(entry, model, stack[0], length) for stack in sites.stacks]
    set_attention(model)
    for attention, name, own in made:
        _attach(attention, own)
        setattr(attention, ENCODING_NAME, name)
    if whole:
        _put_at_input(model, sites, inputs)
    earlier = [] if whole else list(getattr(model.config, ENCODING, None) or [])
    setattr(model.config, ENCODING, [*earlier, record])
    # Saved with the config, so that loading it without us fails instead of dropping the encoding.
    model.config.attn_implementation = NAMES[0]


def _chosen(layers: Sequence[int] | None, count: int) -> list[int]:
    if layers is None:
        return list(range(count))
    for layer in layers:
        if not -count <= layer < count:
            raise InputError(f"no layer {layer}: the model has {count} layers, counted from 0.")
    if not layers:
        raise InputError("layers is empty: name at least one layer, or leave it out for all.")
    return sorted({layer % count for layer in layers})


def _rope_fields(config: Any, sites: PositionSites, given: Collection[str]) -> dict[str, Any]:
    """Return base, fraction and pairing of the model's own RoPE, unless all are given."""
    if {"base", "rotary_fraction", "pairing"} <= set(given):
        return {}
    own = rope_parameters(config, 0)
    kind = own.get("rope_type", "default")
    if kind != "default" and "scaling" not in given:
        raise InputError(
            f"the model's RoPE is scaled by {kind!r}: pass scaling= and its fields, or "
            f"scaling='none'."
        )
    half = getattr(sys.modules[type(sites.stacks[0][0]).__module__], "rotate_half", None)
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
        hook = InjectionHook(names, attention.layer_idx, encoding.shape.heads)
        attention.register_forward_pre_hook(hook, with_kwargs=True)
        if getattr(attention, "has_relative_attention_bias", False):
            attention.has_relative_attention_bias = False
            del attention.relative_attention_bias
    setattr(attention, ENCODING, encoding)


def _put_at_input(model: Any, sites: PositionSites, inputs: list[Encoding]) -> None:
    """Put an encoding in place of a learned table, or before the first layer of every stack."""
    if sites.table is not None:
        parent, name = sites.table
        setattr(parent, name, PositionTable(inputs[0], model.get_input_embeddings()))
        return
    for layer, encoding in zip(sites.first, inputs, strict=True):
        if encoding.at_input or hasattr(layer, AT_INPUT):
            add_before(layer, encoding)


def load(folder: Path | str, **options: Any) -> Any:
    """Return the model that was saved with one of our encodings, as the class it was saved from.

    As with `headscape.load`, only safetensors files inside the folder are opened and no code of the
    folder is run.

    Args:
        folder: What `save_pretrained` wrote.
        **options: Go to from_pretrained.
    """
    import transformers

    register()
    with checked_folder(Path(folder)) as files:
        return _load(transformers, Path(folder), files.view, options)


def _load(transformers: Any, folder: Path, view: Path, options: dict[str, Any]) -> Any:
    """Return the model whose checked files are linked from `view`."""
    given = {"local_files_only": True, "trust_remote_code": False}
    with explained(folder, "is not a model that transformers loads", view):
        config = transformers.AutoConfig.from_pretrained(view, **given)
    if not getattr(config, ENCODING, None):
        raise InputError(
            f"{folder} was not saved by a model with one of our encodings: load it with "
            f"from_pretrained."
        )
    encoded = with_encodings(getattr(transformers, config.architectures[0]), config)
    with explained(folder, "is not a model that transformers loads", view, runs_ours=True):
        model = encoded.from_pretrained(view, config=config, **{**given, **options})
    model.name_or_path = str(folder)
    return model


def with_encodings(kind: Any, config: Any) -> Any:
    """Return a class like `kind` whose models are built with the encodings that a config names.

    A model of transformers' own class has no place for their tensors until `set_encoding` has run.
    Its models are instances of `kind` itself.
    """
    register()
    records = getattr(config, ENCODING)

    def build(self: Any, config: Any, *args: Any, **more: Any) -> None:
        kind.__init__(self, config, *args, **more)
        for record in records:
            _put(self, find_sites(self), **record)
        self.__class__ = kind

    return type(kind.__name__, (kind,), {"__init__": build, "__module__": kind.__module__})
