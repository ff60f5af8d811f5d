"""Small random models by architecture, their inputs, and how much rounding may change a result."""

from typing import Any

import torch
from torch import Tensor

from pretrained.families import FAMILIES, VOCABULARY

ARCHITECTURES = (
    "llama", "llama3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "smollm3", "phi",
    "gpt-neox", "cohere", "glm", "gpt-oss", "modernbert", "esm", "gpt2", "opt", "bert", "roberta",
    "bart", "t5", "umt5", "mt5", "helium", "llama4", "distilbert", "marian", "bloom",
)  # fmt: skip
EAGER = {"gemma2", "gpt-oss", "bloom"}
"""Architectures that sdpa does not serve (softcap, sinks, ALiBi): they are compared with eager."""
NO_PADDING = {"gemma2"}
"""Eager attention with a softcap returns NaN for rows of padding, which spreads."""
NO_FLOAT64 = {"bloom"}
"""The same with left padding in float64: a mask of the smallest number plus ALiBi overflows."""
ENCODER_DECODER = {"bart", "t5", "umt5", "mt5", "marian"}
DECODERS = (
    "llama", "mistral", "gemma2", "gemma3", "gpt2", "gpt-neox", "gpt-oss", "llama4", "opt", "bloom",
)  # fmt: skip
SLACK = 4
"""Our rounding may be this many times theirs: tiles are summed in a different order."""


def build(name: str, dtype: torch.dtype = torch.float32) -> Any:
    model = FAMILIES[name].build().to(dtype)
    if name == "gpt-oss":
        model.set_experts_implementation("eager")  # the grouped one has no float64
    return model


def theirs(name: str) -> str:
    return "eager" if name in EAGER else "sdpa"


def inputs(name: str, *, padding: str | None = None, length: int = 23) -> dict[str, Tensor]:
    """Two sequences, the first of them padded on a side."""
    tokens = torch.randint(3, VOCABULARY, (2, length))
    given = {"input_ids": tokens}
    if padding is not None:
        mask = torch.ones_like(tokens)
        mask[0, slice(0, 5) if padding == "left" else slice(-5, None)] = 0
        given["attention_mask"] = mask
    if name in ENCODER_DECODER:
        given["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 17))
    return given


def output(model: Any, given: dict[str, Tensor]) -> Tensor:
    """What the model computes for the tokens that are not padding."""
    found = model(**given)
    out: Tensor = found.logits if hasattr(found, "logits") else found.last_hidden_state
    mask = given.get("attention_mask")
    if mask is None or "decoder_input_ids" in given:
        return out
    return out[mask.bool()]


def within_budget(ours: Tensor, other: Tensor, exact: Tensor) -> bool:
    """Whether ours is as close to the float64 result as theirs, a small factor aside."""
    floor = torch.finfo(torch.float32).eps * float(exact.abs().amax())
    budget = SLACK * max(float((other - exact).abs().amax()), floor)
    return float((ours - exact).abs().amax()) <= budget
