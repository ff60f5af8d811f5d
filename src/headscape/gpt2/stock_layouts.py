"""Our tensors under the names and in the order of transformers' architectures, and back.

    gpt2        GPT2LMHeadModel: projections input-first (Conv1D); old exports carry causal masks
                as buffers (`attn.bias`), which are not weights and are left out
    gpt_neox    GPTNeoXForCausalLM: q, k and v of a head side by side; RoPE's pairs as halves
    headscape   HeadscapeForCausalLM (export/exported_model.py): an encoding shared by layers
                is stored once

Tensors are renamed, transposed or permuted and never computed, so both directions are exact. The
output matrix is the token embedding in all of them and is not stored twice.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headscape.encodings.rope import RoPE
from headscape.errors import InputError
from headscape.gpt2.model_config import ModelConfig

Tensors = dict[str, Tensor]
NAMES = {
    "ln_1.weight": "norm1.weight",
    "ln_1.bias": "norm1.bias",
    "attn.c_attn.weight": "attention.qkv.weight",
    "attn.c_attn.bias": "attention.qkv.bias",
    "attn.c_proj.weight": "attention.out.weight",
    "attn.c_proj.bias": "attention.out.bias",
    "ln_2.weight": "norm2.weight",
    "ln_2.bias": "norm2.bias",
    "mlp.c_fc.weight": "up.weight",
    "mlp.c_fc.bias": "up.bias",
    "mlp.c_proj.weight": "down.weight",
    "mlp.c_proj.bias": "down.bias",
}
TOP = {
    "wte.weight": "tokens.weight",
    "wpe.weight": "position.table.weight",
    "ln_f.weight": "norm.weight",
    "ln_f.bias": "norm.bias",
}
MASKS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)$")
NEOX_TOP = {
    "tokens.weight": "embed_in.weight",
    "norm.weight": "final_layer_norm.weight",
    "norm.bias": "final_layer_norm.bias",
}
NEOX_LAYER = {
    "norm1": "input_layernorm",
    "attention.qkv": "attention.query_key_value",
    "attention.out": "attention.dense",
    "norm2": "post_attention_layernorm",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
}
LAYER = re.compile(r"blocks\.(\d+)\.(.+)\.(weight|bias)$")


def to_layout(
    layout: str, config: ModelConfig, layers: Sequence[int], tensors: Mapping[str, Tensor]
) -> Tensors:
    """Return our tensors as an architecture stores them.

    `layers` has the number of each layer's encoding; only the layout headscape uses it.
    """
    if layout == "gpt2":
        return _to_gpt2(tensors)
    if layout == "gpt_neox":
        order = qkv_order(config)
        return {_neox_name(name): _permuted(name, value, order) for name, value in tensors.items()}
    return {_exported_name(name, layers): value for name, value in tensors.items()}


def from_layout(
    layout: str, config: ModelConfig, layers: Sequence[int], tensors: Mapping[str, Tensor]
) -> Tensors:
    """Return an architecture's tensors as ours; the inverse of `to_layout`."""
    stored = {name: value for name, value in tensors.items() if name != "lm_head.weight"}
    if layout == "gpt2":
        ours = rename(stored, "the export")
        if not config.encoding.startswith("learned"):
            ours.pop("position.table.weight", None)  # computed from the encoding's formula
        return ours
    if layout == "gpt_neox":
        back = qkv_order(config).argsort()
        names = {_neox_name(name): name for name in _names(config, stored)}
        return {names[name]: _permuted(names[name], value, back) for name, value in stored.items()}
    if layout == "headscape":
        return {_our_name(name, layers): value for name, value in stored.items()}
    raise InputError(f"unknown layout {layout!r} of an exported model: update headscape.")


def qkv_order(config: ModelConfig) -> Tensor:
    """Return which of our rows of q, k and v each of GPT-NeoX's rows is.

    NeoX has q, k and v of one head after another, and RoPE's pairs are m and m + R/2.
    """
    heads, dims = config.heads, config.head_dim
    encoding = config.build_encoding(config.schedule()[0])
    within = torch.arange(dims)
    if encoding.conventions().get("pairing") == "interleaved":
        assert isinstance(encoding, RoPE)
        pairs, rest = within[: encoding.dims], within[encoding.dims :]
        within = torch.cat([pairs[::2], pairs[1::2], rest])
    rows = torch.arange(3 * heads * dims).view(3, heads, dims)
    rows = torch.stack([rows[0][:, within], rows[1][:, within], rows[2]])
    return rows.transpose(0, 1).flatten()


def rename(tensors: Tensors, folder: object) -> Tensors:
    """Return the tensors of a Hugging Face GPT-2 under our names; `folder` is named in errors."""
    ours: Tensors = {}
    for full, value in tensors.items():
        name = full.removeprefix("transformer.")
        layer = re.match(r"h\.(\d+)\.(.+)$", name)
        if MASKS.match(name) or name == "lm_head.weight":
            continue
        if name in TOP:
            ours[TOP[name]] = value
        elif layer and layer[2] in NAMES:
            turned = value.dim() == 2
            ours[f"blocks.{layer[1]}.{NAMES[layer[2]]}"] = value.T if turned else value
        else:
            raise InputError(f"{folder} has the tensor {full!r}, which a GPT-2 does not.")
    return ours


def _to_gpt2(tensors: Mapping[str, Tensor]) -> Tensors:
    layer = {ours: theirs for theirs, ours in NAMES.items()}
    top = {ours: theirs for theirs, ours in TOP.items()}
    renamed = {}
    for name, value in tensors.items():
        if name in top:
            renamed[f"transformer.{top[name]}"] = value
            continue
        _, number, rest = name.split(".", 2)
        renamed[f"transformer.h.{number}.{layer[rest]}"] = value.T if value.dim() == 2 else value
    return renamed


def _names(config: ModelConfig, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of our tensors that GPT-NeoX has a place for."""
    parts = [f"{part}.{kind}" for part in NEOX_LAYER for kind in ("weight", "bias")]
    names = [*NEOX_TOP, *(f"blocks.{n}.{part}" for n in range(config.layers) for part in parts)]
    surplus = sorted(set(tensors) - {_neox_name(name) for name in names})
    if surplus:
        raise InputError(f"the export contains {surplus[0]!r}, which a GPT-NeoX has no place for.")
    return names


def _neox_name(name: str) -> str:
    if name in NEOX_TOP:
        return f"gpt_neox.{NEOX_TOP[name]}"
    layer = LAYER.match(name)
    assert layer is not None, name
    return f"gpt_neox.layers.{layer[1]}.{NEOX_LAYER[layer[2]]}.{layer[3]}"


def _permuted(name: str, value: Tensor, order: Tensor) -> Tensor:
    return value[order] if ".attention.qkv." in name else value


def _exported_name(name: str, layers: Sequence[int]) -> str:
    own = re.match(r"blocks\.(\d+)\.attention\.encoding\.(.+)$", name)
    if own:
        return f"model.encodings.{layers[int(own[1])]}.{own[2]}"
    return f"model.{re.sub('^position[.]', 'encodings.0.', name)}"


def _our_name(name: str, layers: Sequence[int]) -> str:
    name = name.removeprefix("model.")
    own = re.match(r"encodings\.(\d+)\.(.+)$", name)
    if own is None:
        return name
    number = int(own[1])
    if number and number not in layers:
        raise InputError(f"the export contains {name!r}, which no layer uses.")
    place = f"blocks.{list(layers).index(number)}.attention.encoding" if number else "position"
    return f"{place}.{own[2]}"
