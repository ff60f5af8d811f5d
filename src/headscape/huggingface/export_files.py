"""The files of an exported model that transformers reads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from headscape.gpt2 import GPT2
from headscape.gpt2.stock_layouts import to_layout
from headscape.gpt2.weights import ENTRY, TOKENIZER, WEIGHTS, Exported, sha256, write_stream
from headscape.huggingface.exported_tokenizer import write_tokenizer
from headscape.huggingface.stock_architecture import CLASSES, sinusoidal_table
from headscape.io import atomic
from headscape.models.gpt2_model import GPT2Model

ABOUT = ("name", "preset", "trained", "task", "seed", "recipe", "provenance")
"""Fields of a model's spec that its config does not say."""
MODELING = "modeling_headscape"


def write_model(
    model: GPT2Model,
    part: Path,
    chosen: str,
    settings: dict[str, Any],
    positions: int,
    advance: Callable[[int], None],
) -> None:
    """Write weights, config.json and generation_config.json."""
    import transformers

    gpt2 = model.gpt2
    tensors = gpt2.tensors()
    kinds, encodings, layers = encoding_numbers(gpt2)
    if chosen == "gpt2" and gpt2.config.schedule()[0].name != "learned":
        tensors["position.table.weight"] = sinusoidal_table(gpt2, settings["n_positions"])
    write_stream(part / WEIGHTS, to_layout(chosen, gpt2.config, layers, tensors), advance)
    spec = model.spec
    entry = Exported(
        layout=chosen,
        model=gpt2.config,
        layers=tuple(layers),
        about={name: _plain(getattr(spec, name)) for name in ABOUT},
        sha256=sha256(part / WEIGHTS),
    )
    end = None if model.tokenizer is None else model.tokenizer.end_of_text
    shared: dict[str, Any] = {
        "architectures": [CLASSES[chosen]],
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "dtype": str(gpt2.tokens.weight.dtype).removeprefix("torch."),
        ENTRY: entry.to_json(),
    }
    if chosen == "headscape":
        from headscape.huggingface.exported_config import HeadscapeConfig

        config = gpt2.config
        written = HeadscapeConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            max_position_embeddings=positions,
            train_length=config.train_length,
            kinds=kinds,
            encodings=encodings,
            layers=layers,
            score_scale=config.scale,
            layer_norm_eps=config.norm_epsilon,
            qk_norm=config.qk_norm,
            qk_norm_over=config.qk_norm_over,
            qk_norm_weight=config.qk_norm_weight,
            qk_norm_layers=config.qk_norm_layers,
            qk_norm_kind=config.qk_norm_kind,
            qk_norm_per_head=config.qk_norm_per_head,
            qk_norm_scale=config.qk_norm_scale,
            **shared,
        )
    else:
        written = transformers.CONFIG_MAPPING[chosen](**settings, **shared)
    written.save_pretrained(part)
    transformers.GenerationConfig(
        bos_token_id=end, eos_token_id=end, pad_token_id=end
    ).save_pretrained(part)


def encoding_numbers(gpt2: GPT2) -> tuple[list[dict[str, Any]], list[int], list[int]]:
    """Return kinds, encodings and layers of a HeadscapeConfig."""
    entries = gpt2.config.schedule()
    at_input = entries[0].at_input
    found: list[nn.Module] = [gpt2.position]
    kinds: list[dict[str, Any]] = []
    numbers: list[int] = []

    def add(name: str, encoding: Any) -> None:
        kind = {"name": name, "fields": _plain(encoding.conventions())}
        if kind not in kinds:
            kinds.append(kind)
        numbers.append(kinds.index(kind))

    add(entries[0].name if at_input else "nope", gpt2.position)
    layers = []
    for entry, block in zip(entries, gpt2.blocks, strict=True):
        encoding = block.attention.encoding  # type: ignore[union-attr]
        if not any(encoding is other for other in found):
            found.append(encoding)  # type: ignore[arg-type]
            add("nope" if at_input else entry.name, encoding)
        layers.append(next(n for n, other in enumerate(found) if other is encoding))
    return kinds, numbers, layers


def write_code(part: Path, gpt2: GPT2) -> None:
    """Write the model's class as one file, and say so in config.json."""
    from headscape.huggingface.self_contained import modeling_file

    names = [kind["name"] for kind in encoding_numbers(gpt2)[0]]
    atomic.write_text(part / f"{MODELING}.py", modeling_file(names))
    path = part / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["auto_map"] = {
        "AutoConfig": f"{MODELING}.HeadscapeConfig",
        "AutoModel": f"{MODELING}.HeadscapeModel",
        "AutoModelForCausalLM": f"{MODELING}.HeadscapeForCausalLM",
    }
    atomic.write_text(path, json.dumps(config, indent=2) + "\n")


def write_both_tokenizers(model: GPT2Model, part: Path, positions: int) -> None:
    """Write transformers' tokenizer, and our description of it."""
    assert model.tokenizer is not None
    write_tokenizer(model.tokenizer, part, positions)
    atomic.write_text(part / TOKENIZER, json.dumps(model.tokenizer.describe()) + "\n")


def _plain(value: Any) -> Any:
    """Return a value as JSON reads it back."""
    return json.loads(json.dumps(value))
