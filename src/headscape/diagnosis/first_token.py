"""Whether a sink is lost because a text does not begin with the token that the model is used to.

Many models put much of their attention on the first token, which their tokenizer always makes the
same. A text that is read without that token, or with a different one, may leave these heads without
their sink. Short windows are read twice, as they are and with the usual token in the place of the
first one. Every other token, every position and the number of keys are equal.

    more     loss of the same tokens as read, minus that with the usual first token
    lost     heads whose late queries gave the usual first token at least SINK of their weight, and
             the text's own first token less than half of that

A sink counts as lost if some head lost it and `more` breaks by the rule of loss_by_position.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float, Int64

from headscape.data.tokenize.published_tokenizer import PublishedTokenizer
from headscape.diagnosis.heads import HeadWatch, watching
from headscape.diagnosis.loss_by_position import breaks, losses_at, numbers
from headscape.measures.interval import estimate
from headscape.models.gpt2_model import GPT2Model
from headscape.models.transformers.published_model import PublishedModel

WINDOWS: Final = 6
TOKENS: Final = 256
SINK: Final = 0.2
"""Least share of a head's weight on the usual first token that counts as a sink."""


def usual_first_token(model: GPT2Model | PublishedModel) -> int | None:
    """Return the token that the model's texts begin with; None if nothing says which.

    It is what the tokenizer puts before a text, else the config's beginning-of-sequence token, and
    for a model of ours the token between documents.
    """
    tokenizer = model.tokenizer
    token: int | None = None
    if isinstance(tokenizer, PublishedTokenizer):
        token = tokenizer.first_token
    if token is None and isinstance(model, PublishedModel):
        token = getattr(model.model.config.get_text_config(decoder=False), "bos_token_id", None)
    elif token is None and tokenizer is not None:
        token = tokenizer.end_of_text
    known = isinstance(token, int) and 0 <= token < model.spec.vocabulary
    return token if known else None


def first_token_effect(
    model: GPT2Model | PublishedModel, window: Int64[np.ndarray, " t_plus_1"], token: int
) -> dict[str, Any]:
    """Return one window's losses and sinks (by layer and head), as read and with `token` first."""
    changed = window.copy()
    changed[0] = token
    length = len(window) - 1
    at = torch.arange(length // 4, length)
    found: dict[str, Any] = {}
    for name, tokens in (("own", window), ("usual", changed)):
        watch = HeadWatch(model.spec, length)
        with watching(model, watch) as watched:
            losses = losses_at(watched, torch.from_numpy(tokens)[None], at)
        found[name] = {"losses": losses, "sinks": watch.table()["sink"]}
    return found


def first_token_stage(
    effects: Sequence[Mapping[str, Any]], token: int, text: str | None
) -> dict[str, Any]:
    """Return what the windows show together, for JSON; layers and heads count from 0."""
    own, usual = (_mean_sinks(effects, name) for name in ("own", "usual"))
    more = np.array([each["own"]["losses"] for each in effects]) - np.array(
        [each["usual"]["losses"] for each in effects]
    )
    places = np.argwhere((usual >= SINK) & (own < usual / 2))
    lost = [
        {
            "layer": int(layer),
            "head": int(head),
            "own": float(own[layer, head]),
            "usual": float(usual[layer, head]),
        }
        for layer, head in places
    ]
    return {
        "token": token,
        "text": text,
        "windows": len(effects),
        "more": numbers(estimate(more.mean(axis=1))),
        "lost": lost,
        "is_lost": bool(lost) and breaks(more),
        "mean_sink": {"own": float(own.mean()), "usual": float(usual.mean())},
    }


def named(stage: Mapping[str, Any]) -> str:
    """Return the usual first token as text."""
    return str(stage["token"]) if stage["text"] is None else f"{stage['token']} ({stage['text']})"


def _mean_sinks(effects: Sequence[Mapping[str, Any]], name: str) -> Float[np.ndarray, "layers h"]:
    mean: np.ndarray = np.mean([each[name]["sinks"] for each in effects], axis=0)
    return mean
