"""Everything a training run is a function of.

One flat record: written out in full it is the run's config.toml, and the same record, machine and
number of threads give the same weights. Checked in one place, below. Where files go and whether to
resume are the caller's, because they change nothing that is learned.

A step takes `tokens_per_step` tokens over all processes. A process goes through its part in
passes of at most `batch` windows of `length` tokens (more windows while a curriculum keeps them
short), so `batch` is a question of memory and never of the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headscape.attention.attend import Path as AttentionPath
from headscape.errors import InputError
from headscape.gpt2.model_config import GPT2_VOCABULARY, ModelConfig, Scale
from headscape.io.typecheck import check_types

Schedule = Literal["cosine", "linear", "constant"]
Precision = Literal["auto", "fp32", "bf16"]
Strategy = Literal["none", "ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A model, its text, and how the one learns the other."""

    preset: str = "nano"
    """The preset it began as; for the record only."""

    layers: int = 2
    """Blocks."""
    heads: int = 12
    """Attention heads in each."""
    width: int = 192
    """Model width."""
    encoding: str = "rope"
    """A name that `headscape.encodings.build` takes, such as cable or dapev2+kerple."""
    encoding_fields: Mapping[str, object] = field(default_factory=dict)
    """That encoding's conventions, where they differ from its defaults."""
    share_encoding: bool = False
    """One encoding for all layers instead of one for each."""
    scale: Scale = "head_dim"
    """What q.k is multiplied by: 1/sqrt(head_dim), 1/sqrt(width), or one."""

    corpus: str = "stdlib"
    """A file, a folder, stdlib, wikitext-103, fineweb-edu, hf:<dataset>[:config] or task:NAME."""
    tokenizer: str = "bpe:1024"
    """bytes, bpe:N (trained on the corpus) or gpt2."""

    length: int = 512
    """Tokens in a training window; the model's training length."""
    curriculum: tuple[int, ...] = ()
    """Window lengths in stages of equally many steps, ending at `length`; repeat one to stay."""
    batch: int = 2
    """Windows of `length` tokens that one process takes through the model at once."""
    tokens_per_step: int = 1024
    """Tokens between two updates, over all processes; a multiple of every window length."""
    steps: int | None = 1200
    """Updates; None where `minutes` says when to stop."""
    minutes: float | None = None
    """Time to train for instead of `steps`; such a run does not repeat exactly."""

    rate: float = 5e-3
    """Highest learning rate."""
    final_rate: float = 5e-4
    """Learning rate at the end."""
    schedule: Schedule = "cosine"
    """The way from the one to the other."""
    warmup: int = 60
    """Steps over which the rate rises in a line from 0."""
    decay: float = 0.1
    """Weight decay of tensors with two or more axes."""
    beta1: float = 0.9
    """AdamW's memory of the gradient."""
    beta2: float = 0.95
    """AdamW's memory of its square."""
    epsilon: float = 1e-8
    """AdamW's guard against division by zero."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 leaves it alone."""
    seed: int = 0
    """Of the first weights and of the order of the text."""

    checkpoint_every: int = 200
    """Steps between checkpoints; there is always one at the end."""
    keep: int = 2
    """How many of the newest checkpoints stay."""
    keep_every: int = 0
    """Checkpoints at multiples of this stay as well; 0 for none."""
    validate_every: int = 200
    """Steps between validation losses; there is always one at the end. 0 for the end alone."""
    validation_windows: int = 64
    """Windows of `length` tokens that a validation loss is a mean over."""

    precision: Precision = "auto"
    """auto is bf16 autocast on a GPU and fp32 elsewhere, where bf16 is slower."""
    compile: bool = False
    """Whether torch.compile is put around the model."""
    path: AttentionPath = "auto"
    """How attention is computed."""
    distributed: Strategy = "ddp"
    """How several processes share the work; with one process all three are the same."""
    tensorboard: bool = False
    """Also write TensorBoard events to the run's folder."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_ranges(self)
        _check_together(self)

    def model(self, vocabulary: int) -> ModelConfig:
        """The model's part; GPT-2's vocabulary is padded to a multiple of 128."""
        padded = GPT2_VOCABULARY if self.tokenizer == "gpt2" else vocabulary
        return ModelConfig(
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            vocabulary=padded,
            train_length=self.length,
            encoding=self.encoding,
            encoding_fields=self.encoding_fields,
            share_encoding=self.share_encoding,
            scale=self.scale,
        )

    def length_at(self, progress: float) -> int:
        """The window length once `progress` (0 to 1) of the run is behind."""
        stages = self.curriculum or (self.length,)
        return stages[min(int(progress * len(stages)), len(stages) - 1)]


def _check_types(config: TrainConfig) -> None:
    check_types(config, skip=("curriculum", "encoding_fields"))
    lengths = config.curriculum
    if not isinstance(lengths, tuple) or not all(type(item) is int for item in lengths):
        raise InputError(f"curriculum={lengths!r} is not a list of window lengths.")
    if not isinstance(config.encoding_fields, Mapping):
        raise InputError(f"encoding_fields={config.encoding_fields!r} is not a table of fields.")


def _check_ranges(config: TrainConfig) -> None:
    above = {"length": 1, "batch": 1, "tokens_per_step": 1, "checkpoint_every": 1, "keep": 1}
    above |= {"validation_windows": 1, "keep_every": 0, "validate_every": 0, "warmup": 0, "seed": 0}
    for name, low in above.items():
        if getattr(config, name) < low:
            raise InputError(f"{name} must be at least {low}, not {getattr(config, name)}.")
    for name in ("rate", "epsilon", "steps", "minutes"):
        value = getattr(config, name)
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} must be above 0, not {value}.")
    for name in ("final_rate", "decay", "clip"):
        if not 0 <= getattr(config, name) < float("inf"):
            raise InputError(f"{name} must be at least 0, not {getattr(config, name)}.")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(config, name) < 1:
            raise InputError(f"{name} must be in [0, 1), not {getattr(config, name)}.")


def _check_together(config: TrainConfig) -> None:
    if (config.steps is None) == (config.minutes is None):
        raise InputError(f"steps={config.steps} and minutes={config.minutes}: give one, not both.")
    if config.steps is not None and config.warmup >= config.steps:
        raise InputError(
            f"a warm-up of {config.warmup} steps leaves nothing of {config.steps} steps: "
            f"lower warmup or raise steps."
        )
    if config.final_rate > config.rate:
        raise InputError(f"final_rate={config.final_rate} is above rate={config.rate}.")
    if config.curriculum and config.curriculum[-1] != config.length:
        raise InputError(
            f"the curriculum ends at {config.curriculum[-1]} and length is {config.length}: "
            f"its last stage must be the length."
        )
    for length in (*config.curriculum, config.length):
        if not 1 <= length <= config.length:
            raise InputError(f"the curriculum's {length} is not between 1 and {config.length}.")
        if config.tokens_per_step % length:
            raise InputError(
                f"tokens_per_step={config.tokens_per_step} is not a multiple of the window "
                f"length {length}."
            )
    # Built once for its complaints: unknown names and fields, heads that do not divide the width.
    config.model(1).build_encoding()
