"""The model card of an exported model: README.md in its folder."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headscape.encodings import kinds
from headscape.errors import InputError
from headscape.evaluation.table import Table
from headscape.huggingface.export.stock_architecture import CLASSES
from headscape.io.table_text import markdown_text
from headscape.models.gpt2_model import GPT2Model
from headscape.models.loaded import LoadedModel
from headscape.models.model import LayerSpec
from headscape.training import metrics
from headscape.training.config import TrainConfig
from headscape.training.run import CONFIG, read_config

PICTURE = "heads.png"
LOAD = """```python
{imports}from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER"{trust})
{tokenizer}```"""
GENERATE = """tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trust})
tokens = tokenizer("The", return_tensors="pt")
print(tokenizer.decode(model.generate(**tokens, max_new_tokens=50)[0]))
"""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a card is made from."""

    model: LoadedModel
    architecture: str
    with_code: bool
    max_positions: int
    parameters: int
    training: TrainConfig | None
    """The configuration of the run, where there is one."""
    losses: dict[str, float]
    """Step, tokens and losses of the checkpoint, by their names in metrics.jsonl."""
    evaluation: Table | None
    picture: str | None
    """What the picture shows; None without one."""

    def text(self) -> str:
        """Return the card as Markdown."""
        parts = [
            self._front(),
            f"# {self.model.spec.name}",
            self._what(),
            "## Use",
            self._use(),
            "## Position",
            *self._position(),
        ]
        if self.picture is not None:
            parts.append(f"![{self.picture}]({PICTURE})\n\n{self.picture}")
        parts += ["## Training", self._training()]
        if self.evaluation is not None:
            parts += ["## Longer contexts", self.evaluation.to_markdown().strip()]
        return "\n\n".join(parts) + "\n"

    def _front(self) -> str:
        tags = ["headscape", *dict.fromkeys(layer.encoding for layer in self.model.spec.layers)]
        lines = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags:"]
        return "\n".join([*lines, *(f"- {json.dumps(tag)}" for tag in tags), "---"])

    def _what(self) -> str:
        spec = self.model.spec
        return (
            f"A GPT-2 with {len(spec.layers)} layers of {spec.heads} heads, width {spec.width}, "
            f"{self.parameters:,} parameters and a vocabulary of {spec.vocabulary:,}, exported as "
            f"`{CLASSES[self.architecture]}`."
        )

    def _use(self) -> str:
        ours = self.architecture == "headscape"
        coded = ours and self.with_code
        installed = ours and not coded
        tokenizer = self.model.tokenizer
        trust = ", trust_remote_code=True" if coded else ""
        registers = "import headscape.huggingface  # registers the model's class\n"
        code = LOAD.format(
            imports=registers if installed else "",
            trust=trust,
            tokenizer="" if tokenizer is None else GENERATE.format(trust=trust),
        )
        notes = [f"`max_position_embeddings` is {self.max_positions}."]
        if tokenizer is None:
            notes.append("The model has no tokenizer: give it token numbers.")
        if installed:
            notes.insert(0, "It needs `pip install headscape[transformers]`.")
        if ours:
            notes.append(
                "Use `attn_implementation` sdpa or eager: flash attention, vLLM and SGLang ignore "
                "biases and masks, so the model refuses to run there."
            )
        return "\n\n".join([code, " ".join(notes)])

    def _position(self) -> list[str]:
        layers = self.model.spec.layers
        return [
            _described([n for n, other in enumerate(layers, 1) if other == layer], layer, layers)
            for layer in _distinct(layers)
        ]

    def _training(self) -> str:
        spec, config = self.model.spec, self.training
        facts: dict[str, object] = {"trained context length": spec.train_length, "seed": spec.seed}
        if not spec.trained:
            return "The weights are as initialised: this model is not trained."
        if config is not None:
            names = (
                "corpus", "tokenizer", "tokens_per_step", "optimizer", "lr", "final_lr",
                "schedule", "warmup_steps", "weight_decay", "precision",
            )  # fmt: skip
            facts |= {name.replace("_", " "): getattr(config, name) for name in names}
        facts |= {name.replace("_", " "): value for name, value in self.losses.items()}
        facts |= {name.replace("_", " "): value for name, value in spec.provenance.items()}
        rows = [f"| {name} | {_shown(v)} |" for name, v in facts.items() if v is not None]
        return "\n".join(["| | |", "|---|---|", *rows])


def _distinct(layers: Sequence[LayerSpec]) -> list[LayerSpec]:
    found: list[LayerSpec] = []
    for layer in layers:
        if layer not in found:
            found.append(layer)
    return found


def _described(numbers: Sequence[int], layer: LayerSpec, layers: Sequence[LayerSpec]) -> str:
    some = f"Layer {numbers[0]}" if len(numbers) == 1 else f"Layers {_span(numbers)}"
    where = "Every layer" if len(numbers) == len(layers) else some
    lines = [f"{where}: `{layer.encoding}`."]
    lines += [
        f"{kind.title}: {kind.paper}; `{kind.formula}`."
        for kind in kinds(layer.encoding).all
        if kind.paper
    ]
    rows = [f"| {name} | {_shown(value)} |" for name, value in layer.conventions.items()]
    table = "\n".join(["| convention | value |", "|---|---|", *rows])
    return "\n\n".join([" ".join(lines), table])


def _span(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return markdown_text(str(value))


PICTURE_TOKENS = 128


def write_picture(model: GPT2Model, part: Path) -> str:
    """Draw the heads of the last layer; return what the picture shows."""
    length = min(PICTURE_TOKENS, model.gpt2.config.train_length)
    try:
        dataset = model.dataset
    except InputError as error:
        warnings.warn(f"the card's picture shows random tokens: {error}", stacklevel=3)
        dataset = None
    if dataset is not None and len(dataset.validation) > length:
        what = "text of the validation split"
        captured = model.capture(length=length)
    else:
        what = "random tokens"
        if dataset is not None:
            what += f"; the validation split has {len(dataset.validation)}"
        random = np.random.default_rng(0).integers(model.spec.vocabulary, size=length)
        captured = model.capture(random)
    captured.grid().save(part / PICTURE)
    quantity = {
        "bias": "positional bias",
        "final": "scores before the softmax",
        "weights": "attention weights",
    }
    shown = quantity[model.spec.shows]
    return f"Every head of the last layer: {shown} on {length} tokens ({what})."


def evaluation(model: GPT2Model, given: Path | str | None) -> Table | None:
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


def training(model: GPT2Model) -> TrainConfig | None:
    """Return the configuration of the model's run, where there is one."""
    folder = model.folder
    return read_config(folder) if folder is not None and (folder / CONFIG).is_file() else None


def losses(model: GPT2Model) -> dict[str, float]:
    """Return step, tokens and losses of the exported checkpoint."""
    if model.folder is None:
        return {}
    step = model.spec.provenance.get("step")
    lines = [line for line in metrics.read(model.folder) if line["step"] == step]
    names = ("tokens", "loss", "validation_loss")
    return {name: line[name] for line in lines[-1:] for name in names if name in line}
