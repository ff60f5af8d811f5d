"""Write one of our models as a folder that transformers loads.

    config.json, model.safetensors, generation_config.json      what AutoModelForCausalLM reads
    tokenizer.json, tokenizer_config.json                       what AutoTokenizer reads
    headscape_tokenizer.json                                    our description of the tokenizer
    README.md, heads.png                                        the model card
    modeling_headscape.py                                       with_code: the model as one file

The written folder is loaded by transformers and its logits are compared with the model's own before
it gets its name, so a folder exists only if it is right.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from headscape.data.tokenize import tokenizer as ours
from headscape.data.tokenize.bpe import gpt2
from headscape.data.tokenize.byte_tokenizer import END_OF_TEXT
from headscape.encodings.learned import Learned
from headscape.encodings.rope import RoPE
from headscape.errors import InputError, at_least
from headscape.gpt2 import GPT2
from headscape.gpt2.stock_layouts import to_layout
from headscape.gpt2.weights import ENTRY, TOKENIZER, WEIGHTS, Exported, sha256, write_stream
from headscape.huggingface.export.model_card import ModelCard, losses, training, write_picture
from headscape.huggingface.export.model_card import evaluation as evaluation_of
from headscape.huggingface.export.stock_architecture import CLASSES, choose, sinusoidal_table
from headscape.io.files import empty_target, new_folder, write_text
from headscape.io.terminal import SlowBar
from headscape.models.gpt2_model import GPT2Model
from headscape.models.load import load
from headscape.models.loaded import LoadedModel
from headscape.models.stretched import StretchedModel

CHECK_TOKENS = 24
TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit; RoPE's angles are float32 there."""


def export(
    model: "LoadedModel | GPT2 | str | Path",
    out: Path | str,
    *,
    to: str = "hf",
    architecture: Literal["auto", "gpt2", "gpt_neox", "headscape"] | str = "auto",
    with_code: bool = False,
    max_positions: int | None = None,
    evaluation: Path | str | None = None,
    step: int | None = None,
) -> Path:
    """Write a model to a new folder that AutoModelForCausalLM loads; return the folder.

    Args:
        model: A run's folder, a loaded model or a GPT2.
        out: The folder to write; it must be new or empty.
        to: hf, for Hugging Face transformers.
        architecture: auto takes GPT2LMHeadModel or GPTNeoXForCausalLM where that is the same
            function, and otherwise headscape: our own class, which `import headscape.huggingface`
            registers.
        with_code: Also write that class and its encodings as one file, for trust_remote_code.
        max_positions: What config.json says as max_position_embeddings; default the trained context
            length, times the factor of a stretched RoPE.
        evaluation: A folder of `evaluate` for the model card; default one beside the run.
        step: Which checkpoint of a run.

    Example:
        >>> import headscape as hs
        >>> gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257)
        >>> folder = hs.export(hs.load(gpt2, tokenizer="bytes"), "exported")
        >>> hs.load(folder)
        <ALiBi: 2 layers x 12 heads, width 192, context 1024, untrained>
    """
    if to != "hf":
        raise InputError(f"export writes to hf (Hugging Face transformers), got {to!r}.")
    out = Path(out)
    empty_target(out)
    opened = _ours(load(model, step=step))
    gpt2 = opened.gpt2
    if not gpt2.config.causal:
        raise InputError(
            "this model is bidirectional, so it cannot be exported as a causal language model."
        )
    positions = _positions(gpt2, max_positions)
    chosen, settings = choose(gpt2, architecture, positions)
    if with_code and chosen != "headscape":
        raise InputError(
            f"{opened.spec.name} is exported as {CLASSES[chosen]}, which needs no code: leave "
            f"with_code out, or choose the architecture headscape."
        )
    table = evaluation_of(opened, evaluation)
    size = sum(value.numel() * value.element_size() for value in gpt2.tensors().values())
    with new_folder(out) as part, SlowBar("exporting", 2 * size) as bar:
        write_model(opened, part, chosen, settings, positions, bar.advance)
        if with_code:
            write_code(part, gpt2)
        if opened.tokenizer is not None:
            write_both_tokenizers(opened, part, positions)
        shown = write_picture(opened, part)
        card = ModelCard(
            model=opened,
            architecture=chosen,
            with_code=with_code,
            max_positions=positions,
            parameters=sum(value.numel() for value in gpt2.tensors().values()),
            training=training(opened),
            losses=losses(opened),
            evaluation=table,
            picture=shown,
        )
        write_text(part / "README.md", card.text())
        check(part, gpt2)
        bar.advance(size)
    return out


@torch.no_grad()
def check(folder: Path, gpt2: GPT2) -> None:
    """Raise unless transformers loads a folder with the logits of our model."""
    import transformers

    import headscape.huggingface  # noqa: F401 - registers the classes

    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=gpt2.tokens.weight.dtype
        ).eval()
    finally:
        if bars:
            transformers.logging.enable_progress_bar()
    length = min(CHECK_TOKENS, gpt2.config.train_length)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(gpt2.config.vocabulary, (1, length), generator=generator)
    ours = gpt2(tokens.to(gpt2.tokens.weight.device)).cpu()
    found = theirs(tokens).logits
    gap = float((found - ours).abs().max() / ours.abs().max().clamp(min=1))
    if not gap <= TOLERANCE:
        raise AssertionError(f"the exported logits differ by {gap:.2g} from the model's own")


def _ours(model: LoadedModel) -> GPT2Model:
    if isinstance(model, StretchedModel) and isinstance(model.base, GPT2Model):
        if model.extension.factor is None and model.extension.kind != "dynamic":
            raise InputError(
                f"{model.spec.name} stretches by what each length asks for, and an export has one "
                f"factor: write {model.extension.kind}:4, for example."
            )
        stretched = model.for_length(model.base.gpt2.config.train_length)
        assert isinstance(stretched, GPT2Model)
        return stretched
    if not isinstance(model, GPT2Model):
        raise InputError(
            f"{model.spec.name} is not one of our own models: it is a transformers model already."
        )
    return model


def _positions(gpt2: GPT2, asked: int | None) -> int:
    """Return max_position_embeddings: what is asked for, or what the encoding was made for."""
    encoding, longest = gpt2.encoding(), gpt2.config.train_length
    if isinstance(encoding, Learned):
        longest = encoding.length
        if asked not in {None, longest}:
            raise InputError(f"max_positions is {asked}, but the learned table has {longest} rows.")
    if isinstance(encoding, RoPE) and encoding.config.scaling != "none":
        trained = encoding.config.trained_length or longest
        longest = max(longest, round(trained * encoding.config.factor))
    at_least(1, max_positions=asked)
    return longest if asked is None else asked


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
    write_text(part / f"{MODELING}.py", modeling_file(names))
    path = part / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["auto_map"] = {
        "AutoConfig": f"{MODELING}.HeadscapeConfig",
        "AutoModel": f"{MODELING}.HeadscapeModel",
        "AutoModelForCausalLM": f"{MODELING}.HeadscapeForCausalLM",
    }
    write_text(path, json.dumps(config, indent=2) + "\n")


def write_both_tokenizers(model: GPT2Model, part: Path, positions: int) -> None:
    """Write transformers' tokenizer, and our description of it."""
    assert model.tokenizer is not None
    write_tokenizer(model.tokenizer, part, positions)
    write_text(part / TOKENIZER, json.dumps(model.tokenizer.describe()) + "\n")


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
