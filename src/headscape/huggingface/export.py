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
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from headscape.errors import InputError
from headscape.evaluate.table import Table
from headscape.gpt2 import GPT2
from headscape.gpt2.exported_weights import ENTRY, TOKENIZER, Exported
from headscape.gpt2.safetensors_stream import write_stream
from headscape.gpt2.stock_layouts import to_layout
from headscape.gpt2.weights import WEIGHTS, sha256
from headscape.huggingface.model_card import PICTURE, Card
from headscape.huggingface.stock_architecture import CLASSES, choose, sinusoidal_table
from headscape.io import atomic
from headscape.io.progress import SlowBar
from headscape.loaded import LoadedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.load import load
from headscape.models.stretched import StretchedModel
from headscape.train.loop import metrics
from headscape.train.run import CONFIG, read_config

ABOUT = ("name", "preset", "trained", "task", "seed", "recipe", "provenance")
"""Fields of a model's spec that its config does not say."""
MODELING = "modeling_headscape"
CHECK_TOKENS = 24
TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit; RoPE's angles are float32 there."""
PICTURE_TOKENS = 128


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

    model          a run's folder, a loaded model or a GPT2
    to             hf, for Hugging Face transformers
    architecture   auto takes GPT2LMHeadModel or GPTNeoXForCausalLM where that is the same function,
                   and otherwise headscape: our own class, which `import headscape.huggingface`
                   registers
    with_code      also write that class and its encodings as one file, for trust_remote_code
    max_positions  what config.json says as max_position_embeddings; default the trained length
    evaluation     a folder of `evaluate` for the model card; default one beside the run
    step           which checkpoint of a run

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
    atomic.empty_target(out)
    _need_transformers()
    opened = _ours(load(model, step=step) if isinstance(model, str | Path) else load(model))
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
    table = _evaluation(opened, evaluation)
    size = sum(value.numel() * value.element_size() for value in gpt2.tensors().values())
    with atomic.new_folder(out) as part, SlowBar("exporting", 2 * size) as bar:
        _write_model(opened, part, chosen, settings, positions, bar)
        if with_code:
            _write_code(part, gpt2)
        if opened.tokenizer is not None:
            _write_tokenizer(opened, part, positions)
        shown = _write_picture(opened, part)
        card = Card(
            model=opened,
            architecture=chosen,
            with_code=with_code,
            max_positions=positions,
            parameters=sum(value.numel() for value in gpt2.tensors().values()),
            training=_training(opened),
            losses=_losses(opened),
            evaluation=table,
            picture=shown,
        )
        atomic.write_text(part / "README.md", card.text())
        check(part, gpt2)
        bar.advance(size)
    return out


def _write_model(
    model: GPT2Model, part: Path, chosen: str, settings: dict[str, Any], positions: int, bar: Any
) -> None:
    """Write weights, config.json and generation_config.json."""
    import transformers

    gpt2 = model.gpt2
    tensors = gpt2.tensors()
    kinds, encodings, layers = encoding_numbers(gpt2)
    if chosen == "gpt2" and gpt2.config.schedule()[0].name != "learned":
        tensors["position.table.weight"] = sinusoidal_table(gpt2, settings["n_positions"])
    write_stream(part / WEIGHTS, to_layout(chosen, gpt2.config, layers, tensors), bar.advance)
    spec = model.spec
    entry = Exported(
        layout=chosen,
        model=gpt2.config,
        layers=tuple(layers),
        about={name: _plain(getattr(spec, name)) for name in ABOUT},
        sha256=sha256(part / WEIGHTS),
    )
    end = None if model.tokenizer is None else model.tokenizer.end_of_text
    shared = {
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


def _write_code(part: Path, gpt2: GPT2) -> None:
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


def _write_tokenizer(model: GPT2Model, part: Path, positions: int) -> None:
    from headscape.huggingface.exported_tokenizer import write_tokenizer

    assert model.tokenizer is not None
    write_tokenizer(model.tokenizer, part, positions)
    atomic.write_text(part / TOKENIZER, json.dumps(model.tokenizer.describe()) + "\n")


def _write_picture(model: GPT2Model, part: Path) -> str:
    """Draw the heads of the last layer; return what the picture shows."""
    length = min(PICTURE_TOKENS, model.gpt2.config.train_length)
    try:
        dataset = model.dataset
    except InputError:
        dataset = None
    what = "text of the validation split"
    if dataset is not None and len(dataset.validation) > length:
        captured = model.capture(length=length)
    else:
        what = "random tokens"
        random = np.random.default_rng(0).integers(model.spec.vocabulary, size=length)
        captured = model.capture(random)
    captured.grid().save(part / PICTURE)
    quantity = {"bias": "positional bias", "final": "scores before the softmax"}
    shown = quantity[model.spec.shows]
    return f"Every head of the last layer: {shown} on {length} tokens ({what})."


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
    if isinstance(model, StretchedModel):
        if model.extension.factor is None and model.extension.kind != "dynamic":
            raise InputError(
                f"{model.spec.name} stretches by what each length asks for, and an export has one "
                f"factor: write {model.extension.kind}:4, for example."
            )
        stretched = model.at(model.base.gpt2.config.train_length)
        assert isinstance(stretched, GPT2Model)
        return stretched
    if not isinstance(model, GPT2Model):
        raise InputError(
            f"{model.spec.name} is not one of our own models: it is a transformers model already."
        )
    return model


def _positions(gpt2: GPT2, asked: int | None) -> int:
    rows = gpt2.encoding().conventions().get("length") if gpt2.position.at_input else None
    learned = gpt2.config.schedule()[0].name == "learned"
    table = (rows or gpt2.config.train_length) if learned else None
    if asked is None:
        return int(str(table or gpt2.config.train_length))
    if asked < 1:
        raise InputError(f"max_positions must be at least 1, got {asked}.")
    if table is not None and asked != table:
        raise InputError(f"max_positions is {asked}, but the learned table has {table} rows.")
    return asked


def _evaluation(model: GPT2Model, given: Path | str | None) -> Table | None:
    """Return the rows of this model in an evaluation, given or beside its run."""
    if given is not None:
        return _rows(model, Path(given), asked=True)
    if model.folder is None:
        return None
    for place in (model.folder / "evaluation", model.folder.parent / "evaluation"):
        if (place / "evaluation.json").is_file():
            try:
                return _rows(model, place, asked=False)
            except InputError as error:
                warnings.warn(f"the model card has no table: {error}", stacklevel=3)
    return None


def _rows(model: GPT2Model, folder: Path, *, asked: bool) -> Table | None:
    rows = [row for row in Table.read(folder).rows if row.model == model.fingerprint]
    if not rows and asked:
        raise InputError(f"{folder} has no rows of this checkpoint: evaluate it first.")
    return Table.of(rows) if rows else None


def _training(model: GPT2Model) -> Any:
    folder = model.folder
    return read_config(folder) if folder is not None and (folder / CONFIG).is_file() else None


def _losses(model: GPT2Model) -> dict[str, float]:
    """Return step, tokens and losses of the exported checkpoint."""
    if model.folder is None:
        return {}
    step = model.spec.provenance.get("step")
    lines = [line for line in metrics.read(model.folder) if line["step"] == step]
    names = ("tokens", "loss", "validation_loss")
    return {name: line[name] for line in lines[-1:] for name in names if name in line}


def _plain(value: Any) -> Any:
    """Return a value as JSON reads it back."""
    return json.loads(json.dumps(value))


def _need_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise InputError(
            "export needs transformers: pip install 'headscape[transformers]'."
        ) from error
