"""Named training configurations.

`paper-*` are the runs of "Context-aware Biases for Length Extrapolation" (CABLE, EMNLP 2025):
524,288 tokens per step, 19,000 steps of FineWeb-Edu, learning rate 6e-4 to 6e-5 by a cosine after
750 warmup steps, AdamW 0.9/0.95 with weight decay 0.1, gradient clipping at 1.0, bf16. For
WikiText-103 the paper uses 9,000 steps (Tiny), 5,000 (Small) and 3,000 (Medium): set `corpus` and
`steps`.

The other presets are for smaller machines. `nano` trains on the standard library's source in about
a minute on two CPU cores: many small steps, two layers, Muon and a curriculum of lengths gave the
lowest loss in that time.
"""

from collections.abc import Mapping
from typing import Any

from headscape.errors import unknown
from headscape.gpt2.model_config import PRESETS as SIZES
from headscape.io.typecheck import check_values
from headscape.training.config.config_checks import check_names
from headscape.training.config.train_config import NAMES, TrainConfig
from headscape.training.objective import objective_of

PAPER: dict[str, Any] = {
    "corpus": "fineweb-edu",
    "tokenizer": "gpt2",
    "context_length": 1024,
    "curriculum": (),
    "batch_size": 32,
    "tokens_per_step": 524_288,
    "steps": 19_000,
    "lr": 6e-4,
    "final_lr": 6e-5,
    "warmup_steps": 750,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "grad_clip": 1.0,
    "precision": "bf16",
    "checkpoint_every": 500,
    "keep_every": 5_000,
    "validate_every": 250,
    "validation_windows": 1024,
}
"""Settings that all of the paper's runs share."""

AT_HAND: dict[str, Any] = {
    "corpus": "stdlib",
    "tokenizer": "gpt2",
    "context_length": 512,
    "curriculum": (),
    "batch_size": 4,
    "tokens_per_step": 16_384,
    "steps": 2_000,
    "lr": 1e-3,
    "final_lr": 1e-4,
    "warmup_steps": 100,
    "checkpoint_every": 100,
    "validate_every": 100,
}
"""Settings for one GPU, or a CPU and more time; about 33 million tokens."""

PRESETS: dict[str, dict[str, Any]] = {
    "nano": {
        **SIZES["nano"],
        "tokenizer": "bpe:1024",
        "context_length": 512,
        "curriculum": (128, 256, 512),
        "batch_size": 2,
        "tokens_per_step": 1_024,
        "steps": 500,
        "optimizer": "muon",
        "lr": 1e-2,
        "final_lr": 1e-3,
        "beta2": 0.99,
        "muon_lr": 4e-3,
        "warmup_steps": 25,
        "validate_every": 250,
    },
    "mini": {
        **AT_HAND,
        **SIZES["mini"],
        "tokenizer": "bpe:4096",
        "batch_size": 8,
        "tokens_per_step": 4_096,
        "lr": 2e-3,
        "final_lr": 2e-4,
    },
    "tiny": {**AT_HAND, **SIZES["tiny"], "batch_size": 8},
    "small": {**AT_HAND, **SIZES["small"], "lr": 6e-4, "final_lr": 6e-5},
    "medium": {**AT_HAND, **SIZES["medium"], "batch_size": 2, "lr": 3e-4, "final_lr": 3e-5},
    "large": {**AT_HAND, **SIZES["large"], "batch_size": 1, "lr": 2.5e-4, "final_lr": 2.5e-5},
    "xl": {**AT_HAND, **SIZES["xl"], "batch_size": 1, "lr": 2e-4, "final_lr": 2e-5},
    "paper-tiny-1024": {**PAPER, **SIZES["tiny"], "batch_size": 64},
    "paper-small-512": {**PAPER, **SIZES["small"], "context_length": 512, "batch_size": 64},
    "paper-small-1024": {**PAPER, **SIZES["small"]},
    "paper-medium-1024": {**PAPER, **SIZES["medium"], "batch_size": 16},
}


def preset(name: str, **settings: Any) -> TrainConfig:
    """Return a preset with some fields changed; a setting of None is ignored.

    Changing a field also changes the fields derived from it, unless you set those too: `minutes`
    replaces `steps`, fewer steps shorten the warmup to a tenth, a different context length or a
    task turns the curriculum off, a batch larger than a step enlarges the step, and `final_lr`
    and `muon_lr` scale with `lr`.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    base = PRESETS[name]
    given = checked_settings(settings)
    values = {"preset": name, **base, **given}
    length = values["context_length"]
    if "minutes" in given and "steps" not in given:
        values["steps"] = None
    if "steps" in given and "warmup_steps" not in given:
        values["warmup_steps"] = max(0, min(base["warmup_steps"], given["steps"] // 10))
    whole = objective_of(values.get("corpus", TrainConfig.corpus)).needs_full_windows
    if (whole or length != base["context_length"]) and "curriculum" not in given:
        values["curriculum"] = ()
    resized = {"context_length", "batch_size"} & set(given)
    if length > 0 and "tokens_per_step" not in given and resized:
        whole_windows = values["tokens_per_step"] // length * length
        values["tokens_per_step"] = max(values["batch_size"] * length, whole_windows)
    if "lr" in given and "final_lr" not in given:
        values["final_lr"] = given["lr"] * base["final_lr"] / base["lr"]
    if "lr" in given and "muon_lr" not in given and "muon_lr" in base:
        values["muon_lr"] = given["lr"] * base["muon_lr"] / base["lr"]
    return TrainConfig(**values)


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not None; refuse unknown names and wrong types."""
    check_names(settings, NAMES)
    given = {name: value for name, value in settings.items() if value is not None}
    if isinstance(given.get("curriculum"), list):
        given["curriculum"] = tuple(given["curriculum"])
    return check_values(TrainConfig, given)
