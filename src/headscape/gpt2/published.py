"""Published GPT-2 weights, from a Hugging Face checkpoint folder (config.json, safetensors).

Their projections are stored input-first (Conv1D), ours output-first; old exports carry causal
masks as buffers (`attn.bias`), which are not weights and are left out.
"""

import re
from pathlib import Path

import torch

from headscape.errors import InputError
from headscape.gpt2.model_config import ModelConfig
from headscape.gpt2.weights import read_tensors
from headscape.io.json_file import read_json

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
INDEX = "model.safetensors.index.json"


def read(folder: Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """The config and weights of a Hugging Face GPT-2 folder, under our names."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}.")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} contains neither headscape.json nor config.json.")
    theirs = read_json(folder / "config.json")
    return _config(theirs, folder), rename(all_tensors(folder), folder)


def _config(theirs: dict[str, object], folder: Path) -> ModelConfig:
    if theirs.get("model_type") != "gpt2":
        raise InputError(
            f"{folder} contains a {theirs.get('model_type')!r} model, not a 'gpt2': write "
            f"hf:{folder} to read it."
        )
    supported: dict[str, tuple[object, ...]] = {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
        "n_inner": (None, 4 * _whole(theirs, "n_embd", folder)),
    }
    for name, options in supported.items():
        if theirs.get(name, options[0]) not in options:
            raise InputError(f"{folder}: {name}={theirs[name]!r} is not supported.")
    epsilon = theirs.get("layer_norm_epsilon", 1e-5)
    if not isinstance(epsilon, float):
        raise InputError(f"{folder}: layer_norm_epsilon={epsilon!r} is not a number.")
    return ModelConfig(
        layers=_whole(theirs, "n_layer", folder),
        heads=_whole(theirs, "n_head", folder),
        width=_whole(theirs, "n_embd", folder),
        vocabulary=_whole(theirs, "vocab_size", folder),
        train_length=_whole(theirs, "n_positions", folder),
        encoding="learned",
        norm_epsilon=epsilon,
    )


def _whole(theirs: dict[str, object], name: str, folder: Path) -> int:
    value = theirs.get(name)
    if not isinstance(value, int):
        raise InputError(f"{folder}: {name}={value!r} is not a whole number.")
    return value


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder, in one file or in several with an index."""
    if not (folder / INDEX).is_file():
        return read_tensors(folder / "model.safetensors")
    parts = read_json(folder / INDEX).get("weight_map")
    if not isinstance(parts, dict):
        raise InputError(f"{folder / INDEX} has no weight_map.")
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(set(parts.values())):
        if Path(name).name != name:
            raise InputError(f"{folder / INDEX} names {name!r}, which is outside its folder.")
        tensors |= read_tensors(folder / name)
    return tensors


def rename(tensors: dict[str, torch.Tensor], folder: object) -> dict[str, torch.Tensor]:
    """Tensors of a Hugging Face GPT-2 under our names; `folder` is named in errors."""
    ours: dict[str, torch.Tensor] = {}
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
