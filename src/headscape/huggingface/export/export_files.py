"""The files of an exported model that transformers reads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from headscape.data.tokenize import tokenizer as ours
from headscape.data.tokenize.bpe import gpt2
from headscape.data.tokenize.byte_tokenizer import END_OF_TEXT
from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.gpt2.stock_layouts import to_layout
from headscape.gpt2.weights import ENTRY, TOKENIZER, WEIGHTS, Exported, sha256, write_stream
from headscape.huggingface.export.stock_architecture import CLASSES, sinusoidal_table
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
        from headscape.huggingface.export.exported_attention import FIELDS, HeadscapeConfig

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
            **{name: getattr(config, name) for name in FIELDS if name.startswith("qk_norm")},
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
    from headscape.huggingface.export.self_contained import modeling_file

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


def write_tokenizer(tokenizer: ours.Tokenizer, folder: Path, positions: int) -> None:
    """Write tokenizer.json and tokenizer_config.json; `positions` is the longest input."""
    from transformers import PreTrainedTokenizerFast

    built = as_tokenizers(tokenizer)
    end = tokenizer.end_of_text
    word = None if end is None else built.id_to_token(end)
    PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token=word,
        eos_token=word,
        pad_token=word,
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        add_prefix_space=False,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)


def as_tokenizers(tokenizer: ours.Tokenizer) -> Tokenizer:
    """Return the same tokenizer as an object of the package `tokenizers`."""
    described = tokenizer.describe()
    kind = described["kind"]
    if kind not in BUILDERS:
        raise InputError(f"a tokenizer of kind {kind!r} cannot be exported.")
    built = BUILDERS[kind](described)
    if kind != "published":
        built.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
        assert built.token_to_id(END_OF_TEXT) == tokenizer.end_of_text
    return built


def _bytes(_: dict[str, Any]) -> Tokenizer:
    """Return a byte-level BPE without merges whose token of a byte is the byte."""
    letters = _letters()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    return built


def _letters() -> dict[int, str]:
    """Return the character by which GPT-2's byte-level alphabet writes each byte.

    Printable bytes are themselves; the others are the characters from 256 on, in order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {byte: chr(byte) for byte in printable}
    return found | {byte: chr(256 + place) for place, byte in enumerate(others)}


def _from_json(described: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(described["json"])


def _gpt2(_: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(gpt2().to_str())


BUILDERS: dict[str, Callable[[dict[str, Any]], Tokenizer]] = {
    "bytes": _bytes,
    "bpe": _from_json,
    "gpt2": _gpt2,
    "published": _from_json,
}
