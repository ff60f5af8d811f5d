"""Named training set-ups.

`paper-*` are the runs of "Context-aware Biases for Length Extrapolation" (CABLE, EMNLP 2025):
524,288 tokens a step, 19,000 steps of FineWeb-Edu, rate 6e-4 to 6e-5 by a cosine after 750 steps of
warm-up, AdamW 0.9/0.95 with decay 0.1, clip 1.0, bf16. On WikiText-103 the paper takes 9,000 steps
(Tiny), 5,000 (Small) and 3,000 (Medium): say `corpus` and `steps`.

The sizes are for machines at hand. `nano` learns the standard library's source in about two minutes
on two CPU cores: many small steps, two layers and a curriculum of lengths got most out of them.
"""

from difflib import get_close_matches
from typing import Any

from headscape.errors import InputError
from headscape.gpt2.model_config import PRESETS as SIZES
from headscape.train.config.train_config import TrainConfig
from headscape.train.data import TASK

PAPER: dict[str, Any] = {
    "corpus": "fineweb-edu",
    "tokenizer": "gpt2",
    "length": 1024,
    "curriculum": (),
    "batch": 32,
    "tokens_per_step": 524_288,
    "steps": 19_000,
    "rate": 6e-4,
    "final_rate": 6e-5,
    "warmup": 750,
    "decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "clip": 1.0,
    "precision": "bf16",
    "checkpoint_every": 500,
    "keep_every": 5_000,
    "validate_every": 250,
    "validation_windows": 1024,
}
"""What all of the paper's runs share."""

AT_HAND: dict[str, Any] = {
    "corpus": "stdlib",
    "tokenizer": "gpt2",
    "length": 512,
    "curriculum": (),
    "batch": 4,
    "tokens_per_step": 16_384,
    "steps": 2_000,
    "rate": 1e-3,
    "final_rate": 1e-4,
    "warmup": 100,
    "checkpoint_every": 100,
    "validate_every": 100,
}
"""One GPU or patience; about 33 million tokens."""

PRESETS: dict[str, dict[str, Any]] = {
    "nano": {
        **SIZES["nano"],
        "tokenizer": "bpe:1024",
        "length": 512,
        "curriculum": (128, 256, 512),
        "batch": 2,
        "tokens_per_step": 1_024,
        "steps": 1_200,
        "rate": 5e-3,
        "final_rate": 5e-4,
        "warmup": 60,
    },
    "mini": {
        **AT_HAND,
        **SIZES["mini"],
        "tokenizer": "bpe:4096",
        "batch": 8,
        "tokens_per_step": 4_096,
        "rate": 2e-3,
        "final_rate": 2e-4,
    },
    "tiny": {**AT_HAND, **SIZES["tiny"], "batch": 8},
    "small": {**AT_HAND, **SIZES["small"], "rate": 6e-4, "final_rate": 6e-5},
    "medium": {**AT_HAND, **SIZES["medium"], "batch": 2, "rate": 3e-4, "final_rate": 3e-5},
    "large": {**AT_HAND, **SIZES["large"], "batch": 1, "rate": 2.5e-4, "final_rate": 2.5e-5},
    "xl": {**AT_HAND, **SIZES["xl"], "batch": 1, "rate": 2e-4, "final_rate": 2e-5},
    "paper-tiny-1024": {**PAPER, **SIZES["tiny"], "batch": 64},
    "paper-small-512": {**PAPER, **SIZES["small"], "length": 512, "batch": 64},
    "paper-small-1024": {**PAPER, **SIZES["small"]},
    "paper-medium-1024": {**PAPER, **SIZES["medium"], "batch": 16},
}


def preset(name: str, **changes: Any) -> TrainConfig:
    """A preset with some fields changed; a change to None is no change.

    What hangs on a changed field follows it unless it is given too: `minutes` takes the place of
    `steps`, fewer steps shorten the warm-up to a tenth, another length or a task ends the
    curriculum, a batch that is larger than a step enlarges the step, and a lower rate lowers the
    final one.
    """
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"unknown preset {name!r}: {hint}there are {', '.join(PRESETS)}.")
    base = PRESETS[name]
    given = {key: value for key, value in changes.items() if value is not None}
    values = {"preset": name, **base, **given}
    if "minutes" in given and "steps" not in given:
        values["steps"] = None
    if "steps" in given and "warmup" not in given:
        values["warmup"] = max(0, min(base["warmup"], given["steps"] // 10))
    # A window holds one whole example of a task, so there is no learning from shorter ones.
    on_task = str(values.get("corpus", "")).startswith(TASK)
    if (on_task or values["length"] != base["length"]) and "curriculum" not in given:
        values["curriculum"] = ()
    if values["length"] > 0 and "tokens_per_step" not in given and {"length", "batch"} & set(given):
        least = values["batch"] * values["length"]
        whole = values["tokens_per_step"] // values["length"] * values["length"]
        values["tokens_per_step"] = max(least, whole)
    if "rate" in given and "final_rate" not in given:
        values["final_rate"] = given["rate"] * base["final_rate"] / base["rate"]
    return TrainConfig(**values)
