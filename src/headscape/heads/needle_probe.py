"""Retrieval score: how much a head looks at a fact while the model writes the answer."""

from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64

from headscape.attention.reference import AttentionInputs, scores
from headscape.heads.layer_statistics import Progress
from headscape.protocol import Model
from headscape.tasks.retrieval import RETRIEVAL

DEPTHS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)


def needle_scores(
    model: Model, length: int, questions: int, seed: int = 0, progress: Progress = lambda _: None
) -> Float[np.ndarray, "layers b h"] | None:
    """Return the weight on the answer in the fact, for each question; None if none can be asked.

    A question can be asked of a causal model with a tokenizer that writes the answer in the fact as
    it writes it alone.
    """
    if model.tokenizer is None or not model.spec.causal:
        return None
    found = []
    for index in range(questions):
        text, answer = RETRIEVAL["needle"].tokens_at(
            seed, index, length, DEPTHS[index % len(DEPTHS)], model.tokenizer.encode
        )
        at = _place(text, answer)
        if at is not None:
            found.append(_weights(model, text, answer, at))
        progress(length * len(model.spec.layers))
    return np.stack(found, axis=1) if found else None


def _place(text: Int64[np.ndarray, " t"], answer: Int64[np.ndarray, " a"]) -> int | None:
    """Return where the answer stands in a text."""
    windows = np.lib.stride_tricks.sliding_window_view(text, len(answer))
    places = np.nonzero((windows == answer).all(axis=1))[0]
    return int(places[-1]) if len(places) else None


def _weights(
    model: Model, text: Int64[np.ndarray, " t"], answer: Int64[np.ndarray, " a"], at: int
) -> Float[np.ndarray, "layers h"]:
    tokens = torch.from_numpy(np.concatenate([text, answer[:-1]]))[None]
    asks = slice(len(text) - 1, len(text) - 1 + len(answer))
    found: list[np.ndarray] = []

    def watch(_: int, inputs: AttentionInputs) -> None:
        weights = scores(inputs, asks).weights[0].double()
        copied = weights[:, :, at : at + len(answer)].diagonal(0, 1, 2)
        found.append(copied.mean(dim=-1).cpu().numpy())

    model.observe(tokens, range(len(model.spec.layers)), watch)
    return np.stack(found)
