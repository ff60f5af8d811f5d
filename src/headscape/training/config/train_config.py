"""The configuration of a training run.

One flat record. Written out in full it is the run's config.toml, and the same record on the same
machine with the same number of threads gives the same weights. The output folder and whether to
resume are arguments of `train`, because they do not change what is learned.

A step uses `tokens_per_step` tokens over all processes. A process splits its share into
micro-batches of at most `batch_size` windows of `context_length` tokens (more windows while a
curriculum keeps them short). So `batch_size` sets the memory a process needs, never the result.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Literal

from headscape.gpt2.model_config import GPT2_VOCABULARY, ModelConfig, Scale
from headscape.kernels.attend import Path as AttentionPath
from headscape.training.config import config_checks

Schedule = Literal["cosine", "linear", "constant"]
Precision = Literal["auto", "fp32", "bf16"]
Strategy = Literal["none", "ddp", "fsdp"]
OptimizerName = Literal["adamw", "muon"]


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainConfig:
    """A model, its text and how it is trained."""

    preset: str = "nano"
    """The preset it was made from; informational."""

    layers: int = 2
    """Number of transformer blocks."""
    heads: int = 12
    """Attention heads per layer."""
    width: int = 192
    """Model width (d_model)."""
    encoding: str = "rope"
    """A name such as cable or dapev2+kerple, or a schedule of layers such as rope*3,nope."""
    encoding_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of the encoding that differ from its defaults."""
    share_encoding: bool = False
    """Use one encoding for all layers instead of one per layer."""
    scale: Scale = "head_dim"
    """Factor on q.k: 1/sqrt(head_dim), 1/sqrt(width), or one."""
    qk_norm: Literal["none", "before", "after"] = "none"
    """Norm of queries and keys, before or after their rotation."""
    qk_norm_kind: Literal["rms", "layer", "l2"] = "rms"
    """Which norm: RMS norm, LayerNorm without bias, or L2 norm (division by the length)."""
    qk_norm_over: Literal["head", "all"] = "head"
    """What that norm's mean is over: the dims of each head, or of all heads."""
    qk_norm_weight: bool = True
    """Whether that norm has a learned weight per dim."""
    qk_norm_layers: Literal["all", "rotating"] = "all"
    """Which layers have that norm: all, or those whose encoding rotates."""
    qk_norm_per_head: bool = False
    """Whether every head has its own weights in that norm."""
    qk_norm_scale: float | None = None
    """Factor on q.k with that norm, in place of `scale`."""

    corpus: str = "stdlib"
    """A file, a folder, stdlib, wikitext-103, fineweb-edu, hf:DATASET[:CONFIG] or task:NAME."""
    tokenizer: str = "bpe:1024"
    """bytes, bpe:N (trained on the corpus) or gpt2."""

    context_length: int = 512
    """Tokens in a training window."""
    curriculum: tuple[int, ...] = ()
    """Window lengths in stages of equally many steps, the last equal to `context_length`."""
    batch_size: int = 2
    """Windows of `context_length` tokens per micro-batch of one process."""
    tokens_per_step: int = 1024
    """Tokens per update over all processes; a multiple of every window length."""
    steps: int | None = 1200
    """Number of updates; None if `minutes` is set."""
    minutes: float | None = None
    """Training time instead of `steps`; such a run is not exactly repeatable."""

    optimizer: OptimizerName = "adamw"
    """adamw, or muon for the matrices inside the blocks and AdamW for the rest."""
    lr: float = 5e-3
    """Peak learning rate of AdamW."""
    muon_lr: float = 4e-3
    """Peak learning rate of Muon; it follows the same schedule."""
    final_lr: float = 5e-4
    """Learning rate at the end of the schedule."""
    schedule: Schedule = "cosine"
    """How the learning rate goes from `lr` to `final_lr`."""
    warmup_steps: int = 60
    """Updates with a linearly rising learning rate, at the start."""
    weight_decay: float = 0.1
    """Weight decay of AdamW's tensors with two or more dimensions."""
    beta1: float = 0.9
    """AdamW's decay rate of the mean of gradients."""
    beta2: float = 0.95
    """AdamW's decay rate of the mean of squared gradients."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    grad_clip: float = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""
    seed: int = 0
    """Random seed of initial weights and data order."""

    checkpoint_every: int = 200
    """Steps between checkpoints; the last step always writes one."""
    keep_last: int = 2
    """Number of newest checkpoints to keep."""
    keep_every: int = 0
    """Also keep checkpoints at multiples of this many steps; 0 for none."""
    validate_every: int = 200
    """Steps between validation losses; the last step always has one. 0 for the last step only."""
    validation_windows: int = 64
    """Windows of `context_length` tokens in a validation loss."""

    precision: Precision = "auto"
    """auto is bf16 autocast on a GPU and fp32 on a CPU, where bf16 is slower."""
    compile: bool = False
    """Apply torch.compile to the model."""
    path: AttentionPath = "auto"
    """Attention implementation; see `headscape doctor`."""
    distributed: Strategy = "ddp"
    """How several processes share the work; ignored with one process."""
    tensorboard: bool = False
    """Also write TensorBoard events to the run's folder."""

    def __post_init__(self) -> None:
        config_checks.check(self)

    def __repr__(self) -> str:
        given = [
            f"{item.name}={getattr(self, item.name)!r}"
            for item in fields(self)
            if getattr(self, item.name) != _default(item.name)
        ]
        return f"TrainConfig({', '.join(given)})"

    def model(self, vocabulary: int) -> ModelConfig:
        """Return the model's config; GPT-2's vocabulary is padded to a multiple of 128."""
        padded = GPT2_VOCABULARY if self.tokenizer == "gpt2" else vocabulary
        return ModelConfig(
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            vocabulary=padded,
            train_length=self.context_length,
            encoding=self.encoding,
            encoding_fields=self.encoding_fields,
            share_encoding=self.share_encoding,
            scale=self.scale,
            qk_norm=self.qk_norm,
            qk_norm_over=self.qk_norm_over,
            qk_norm_weight=self.qk_norm_weight,
            qk_norm_layers=self.qk_norm_layers,
            qk_norm_kind=self.qk_norm_kind,
            qk_norm_per_head=self.qk_norm_per_head,
            qk_norm_scale=self.qk_norm_scale,
        )

    def length_at(self, progress: float) -> int:
        """Return the window length when the fraction `progress` (0 to 1) of the run is done."""
        stages = self.curriculum or (self.context_length,)
        return stages[min(int(progress * len(stages)), len(stages) - 1)]


NAMES = tuple(item.name for item in fields(TrainConfig))


def _default(name: str) -> object:
    item = TrainConfig.__dataclass_fields__[name]
    return item.default if item.default is not MISSING else {}
