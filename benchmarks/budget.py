"""Memory, time and cost of a run, calculated and not measured.

    python -m benchmarks.budget            the tables of docs/scaling.md

    parameters     V d + L (12 d^2 + 13 d) + 2 d                     without the encoding's few
    FLOPs / token  6 (parameters) + 6 L d T                          forward and backward, causal
    state          16 bytes per parameter: weight, gradient, two running means, float32
    activations    34 d L + 10 V bytes per token: bfloat16 with fused attention and no recomputation
                   (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1, without the scores),
                   and the logits in bfloat16, in float32 and their gradient
    time           FLOPs / (GPUs x peak x utilisation)

T is the context length. FSDP divides the state by the number of GPUs; with DDP each GPU has all of
it. The utilisation includes communication, validation and checkpoints.
"""

import sys
from dataclasses import dataclass

from headscape.gpt2.model_config import GPT2_VOCABULARY, ModelConfig
from headscape.training.config import TrainConfig, preset

COLUMNS = (
    "run", "machine", "parameters", "tokens", "FLOPs", "state, GB per GPU",
    "activations, GB per GPU (batch)", "hours", "dollars",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """GPUs, and what is assumed about them."""

    name: str
    """Shown in the table."""
    gpus: int
    """Number of GPUs."""
    peak: float
    """bfloat16 FLOP/s per GPU, from its data sheet."""
    utilisation: float = 0.4
    """Fraction of the peak that a run reaches: an assumption."""
    price: float = 2.0
    """Dollars per GPU hour: an assumption."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run needs on a machine."""

    parameters: float
    """Parameters of the model."""
    tokens: float
    """Tokens of the whole run."""
    flops: float
    """FLOPs of the whole run."""
    state_gb: float
    """Weights, gradients and optimizer state per GPU."""
    activations_gb: float
    """Activations of one micro-batch per GPU."""
    hours: float
    """Duration of the run."""
    dollars: float
    """Cost of all GPUs."""


A100 = Machine(name="1 A100 80 GB", gpus=1, peak=312e12)
EIGHT_A100 = Machine(name="8 A100 80 GB", gpus=8, peak=312e12)
EIGHT_H100 = Machine(name="8 H100 80 GB", gpus=8, peak=989e12, price=3.0)
MANY_H100 = Machine(name="512 H100 80 GB", gpus=512, peak=989e12, price=3.0)

GPT_7B_128K = TrainConfig(
    preset="7B at 128k",
    model=ModelConfig(layers=32, heads=32, width=4096, encoding="rope"),
    tokenizer="gpt2",
    corpus="fineweb-edu",
    context_length=131_072,
    curriculum=(),
    batch_size=1,
    tokens_per_step=512 * 131_072,
    steps=2_000,
    distributed="fsdp",
    precision="bf16",
)
"""134 billion tokens, 20 per parameter (Hoffmann et al. 2022, arXiv 2203.15556)."""


def parameters(config: TrainConfig) -> int:
    """Return the number of parameters without the encoding."""
    d = config.model.width
    return GPT2_VOCABULARY * d + config.model.layers * (12 * d * d + 13 * d) + 2 * d


def budget(config: TrainConfig, machine: Machine) -> Budget:
    """Return the budget of a run with a number of steps."""
    assert config.steps is not None
    n, d, depth = parameters(config), config.model.width, config.model.layers
    tokens = config.steps * config.tokens_per_step
    flops = tokens * (6 * n + 6 * depth * d * config.context_length)
    share = machine.gpus if config.distributed == "fsdp" else 1
    hours = flops / (machine.gpus * machine.peak * machine.utilisation) / 3600
    return Budget(
        parameters=n,
        tokens=tokens,
        flops=flops,
        state_gb=16 * n / share / 1e9,
        activations_gb=config.batch_size
        * config.context_length
        * (34 * d * depth + 10 * GPT2_VOCABULARY)
        / 1e9,
        hours=hours,
        dollars=hours * machine.gpus * machine.price,
    )


def table() -> str:
    """Return the table of docs/scaling.md, in Markdown."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    names = ("paper-tiny-1024", "paper-small-512", "paper-small-1024", "paper-medium-1024")
    runs = [(preset(name), machine) for name in names for machine in (A100, EIGHT_A100, EIGHT_H100)]
    for config, machine in [*runs, (GPT_7B_128K, MANY_H100)]:
        need = budget(config, machine)
        lines.append(
            f"| {config.preset} | {machine.name} | {need.parameters / 1e6:,.0f}M "
            f"| {need.tokens / 1e9:.1f}B | {need.flops:.1e} | {need.state_gb:.1f} "
            f"| {need.activations_gb:.0f} ({config.batch_size}) | {need.hours:,.1f} "
            f"| {need.dollars:,.0f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(table())
