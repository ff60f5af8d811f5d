"""A narrow model of the same config with random weights.

Width, experts and vocabulary are cut, and heads to two; what position depends on stays: every layer
and its kind, the head dim, windows, RoPE parameters, and for ALiBi the number of heads. A model of
a trillion weights becomes one of some millions, whose code is the code that would run.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from headscape.errors import InputError
from headscape.io.files import read_json
from headscape.models.transformers.families import FAMILIES
from headscape.models.transformers.fetch import FETCHED, fetched
from headscape.models.transformers.hub import download_config, is_hub_id
from headscape.models.transformers.model_folder import checked_gguf, explained
from headscape.models.transformers.open_published import (
    import_transformers,
    model_class,
    new_model,
    quiet,
)

CONFIG: Final = "config.json"
MAX_LAYERS: Final = 1024
MAX_NUMBERS: Final = 1 << 28
"""Most weights and table entries of a narrow model; the largest real ones have some 10 million."""
VOCABULARY: Final = 64
WIDTH: Final = 64
ALIBI_HEAD_DIM: Final = 4

SIZES: Final[dict[str, int]] = {
    **dict.fromkeys(
        (
            "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size",
            "intermediate_size_mlp", "ffn_dim", "ffn_hidden_size", "d_ff", "n_inner",
            "encoder_ffn_dim", "decoder_ffn_dim", "expert_ffn_hidden_size",
            "moe_shared_expert_intermediate_size", "shared_intermediate_size",
        ),
        32,
    ),
    **dict.fromkeys(
        (
            "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts",
            "zero_expert_num",
        ),
        4,
    ),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "linear_num_heads"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 2),
}  # fmt: skip
"""Sizes that position does not depend on, and what they are cut to."""
STATE_HEADS: Final = {"mamba_n_heads": "mamba_d_head", "n_mamba_heads": "mamba_headdim"}
"""Heads of state space layers and their widths, whose product is the inner width."""
TOKENS: Final = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


@dataclass(frozen=True, kw_only=True)
class PublishedConfig:
    """A config as it is written, and the class of transformers that reads its text part."""

    name: str
    raw: Mapping[str, Any]
    """The content of config.json."""

    def without(self, path: tuple[str, ...]) -> "PublishedConfig":
        """Return the config without one of its entries."""
        raw = copy.deepcopy(dict(self.raw))
        inner = raw
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        return PublishedConfig(name=self.name, raw=raw)

    def text(self) -> Any:
        """Return the config of the text part, as transformers understands it."""
        transformers = import_transformers()
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        raw = _decoded(dict(self.raw))
        kind = raw.pop("model_type", None)
        if not isinstance(kind, str):
            raise InputError(f"{self.name} is not a model's config: it has no model_type.")
        if kind not in CONFIG_MAPPING:
            raise InputError(
                f"{self.name} is a {kind!r} model, a kind that transformers "
                f"{transformers.__version__} does not have: a card needs the code that would run."
            )
        for key in ("quantization_config", "auto_map"):
            raw.pop(key, None)
        failure = "has a config that transformers cannot read"
        with quiet(transformers), explained(Path(self.name), failure):
            config = transformers.AutoConfig.for_model(kind, **raw)
            return config.get_text_config()


def read_config(source: object) -> PublishedConfig:
    """Return the config of a folder, a file, a Hub id, a dict, or a transformers model or config.

    A path that exists wins over an id, and of the Hub only config.json is downloaded. A GGUF file
    has its config in its header.
    """
    given = getattr(source, "model", source)  # what `load` returns contains the model
    given = getattr(given, "config", given)
    if hasattr(given, "to_json_string") and hasattr(given, "name_or_path"):
        name = Path(str(given.name_or_path)).name or type(given).__name__
        return PublishedConfig(name=name, raw=json.loads(given.to_json_string(use_diff=False)))
    if isinstance(given, Mapping):
        name = Path(str(given.get("_name_or_path") or given.get("model_type") or "config")).name
        return PublishedConfig(name=name, raw=dict(given))
    if not isinstance(given, str | Path):
        raise InputError(
            f"card takes a folder, hf:ID, a config.json, a dict, a transformers config or model, "
            f"got {type(source).__name__}."
        )
    path = Path(str(given).removeprefix("hf:"))
    if str(given).startswith("hf:") and not path.exists() and is_hub_id(str(path)):
        if str(path) in FETCHED:
            return _gguf_config(fetched(str(path)))
        found = download_config(str(path))
        return PublishedConfig(name=found.name, raw=read_json(found.folder / CONFIG))
    file = path / CONFIG if path.is_dir() else path
    if not file.is_file():
        reason = f"{path} has no {CONFIG}" if path.is_dir() else f"there is no folder {path}"
        raise InputError(f"{reason}: give a model's folder, its {CONFIG}, or hf:ID.")
    if file.suffix == ".gguf":
        return _gguf_config(file)
    name = file.parent.resolve().name if file.name == CONFIG else file.stem
    return PublishedConfig(name=name, raw=read_json(file))


def _gguf_config(file: Path) -> PublishedConfig:
    """Return the config that transformers reads in the header of a GGUF file."""
    transformers = import_transformers()
    failure = "has no config that transformers reads"
    with quiet(transformers), checked_gguf(file) as files, explained(file, failure, files.view):
        config = transformers.AutoConfig.from_pretrained(
            files.view,
            gguf_file=str(files.view / file.name),
            local_files_only=True,
            trust_remote_code=False,
        )
    return PublishedConfig(name=file.stem, raw=json.loads(config.to_json_string(use_diff=False)))


def narrow_model(config: PublishedConfig) -> Any:
    """Return a model of the config's class in float32 with random weights, the same every time."""
    transformers = import_transformers()
    small = shrink(config.text(), config.name)
    kind = model_class(transformers, small, config.raw.get("architectures"), config.name)
    with quiet(transformers), explained(Path(config.name), "cannot be built by transformers"):
        with torch.device("meta"):
            _check_size(config.name, new_model(kind, copy.deepcopy(small)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: Any = new_model(kind, small).float().eval()
    model.name_or_path = model.config.name_or_path = config.name
    return model


def shrink(config: Any, name: str) -> Any:
    """Return a config of the same layers and head dim that is narrow everywhere else."""
    small = copy.deepcopy(config)
    if hasattr(small, "per_layer_config"):  # Gemma 4: head dims that differ are kept by layer
        small.allow_global_per_layer_attribute_access = True
    layers = getattr(config, "num_hidden_layers", None)
    if not isinstance(layers, int) or not 0 < layers <= MAX_LAYERS:
        raise InputError(f"{name} has {layers!r} layers: a card is of 1 to {MAX_LAYERS}.")
    if getattr(config, "num_attention_heads", None) is None:
        raise InputError(
            f"{name} is a {config.model_type!r} model, which has no attention heads: a card is of "
            f"models with attention."
        )
    with explained(Path(name), "has a config that cannot be made narrow"):
        _shrink_heads(small)
        for field, size in SIZES.items():
            _cut(small, field, size)
        small.vocab_size = VOCABULARY
        _cut(small, "vocab_size_per_layer_input", VOCABULARY)
        for field in TOKENS:
            number = getattr(small, field, None)
            if isinstance(number, list) or (number is not None and number >= small.vocab_size):
                setattr(small, field, 0)
        small.dtype = torch.float32
    return small


def head_dim_of(config: Any) -> int:
    """Return the width of a head's queries: with latent attention, both of their parts."""
    latent = getattr(config, "qk_nope_head_dim", None), getattr(config, "qk_rope_head_dim", None)
    if all(isinstance(part, int) for part in latent):
        return int(sum(latent))  # type: ignore[arg-type]
    given = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def _shrink_heads(config: Any) -> None:
    heads, width = config.num_attention_heads, config.hidden_size
    if not (isinstance(heads, int) and isinstance(width, int)) or heads < 1:
        raise InputError(f"a config needs whole numbers of heads and width, got {heads}, {width}.")
    grouped = _key_heads(config) != heads
    inner = getattr(config, "attn_config", None)
    if getattr(config, "alibi", False) or getattr(inner, "alibi", False) or _always_alibi(config):
        # Slopes depend on the number of heads and on nothing else.
        config.hidden_size = heads * ALIBI_HEAD_DIM
        return
    head_dim = getattr(config, "head_dim", None) or width // heads
    config.num_attention_heads = 2
    for field in ("num_key_value_heads", "num_kv_heads"):
        _cut(config, field, 1 if grouped else 2)
    for field in ("encoder_attention_heads", "decoder_attention_heads"):
        _cut(config, field, 2)
    tied = head_dim * heads == width
    config.hidden_size = 2 * head_dim if tied else WIDTH
    if getattr(config, "attention_hidden_size", None) == 2 * width:  # Zamba2 attends to two streams
        config.hidden_size = config.attention_head_dim
        config.attention_hidden_size = 2 * config.hidden_size
    for heads_field, width_field in STATE_HEADS.items():
        # The inner width of a state space layer is a multiple of the model's.
        if isinstance(getattr(config, width_field, None), int):
            inner_width = int(config.mamba_expand * config.hidden_size)
            setattr(config, heads_field, 2)
            setattr(config, width_field, inner_width // 2)
            if getattr(config, "mamba_d_ssm", None):
                config.mamba_d_ssm = inner_width


def _decoded(value: Any) -> Any:
    """Return a copy of a config's content; transformers spells infinite numbers out."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: _decoded(each) for key, each in value.items()}
    return [_decoded(each) for each in value] if isinstance(value, list) else value


def _key_heads(config: Any) -> int:
    found = getattr(config, "num_key_value_heads", None)
    return int(found or config.num_attention_heads)


def _always_alibi(config: Any) -> bool:
    """Return whether the config's family has ALiBi without a field that says so, as BLOOM."""
    return any(
        name.partition(".")[0] == config.model_type
        for family in FAMILIES
        if family.bias_by_key
        for name in family.attention
    )


def _cut(config: Any, field: str, size: int) -> None:
    """Cut a size, or a list with one per layer, where the config has it."""
    given = getattr(config, field, None)
    if isinstance(given, list):
        setattr(config, field, [min(size, each) for each in given])
    elif isinstance(given, int) and not isinstance(given, bool):
        setattr(config, field, min(size, given))


def _check_size(name: str, model: nn.Module) -> None:
    numbers = sum(each.numel() for each in (*model.parameters(), *model.buffers()))
    if numbers > MAX_NUMBERS:
        raise InputError(
            f"{name} has {numbers:,} numbers even when it is made narrow, more than the "
            f"{MAX_NUMBERS:,} that a card builds."
        )
