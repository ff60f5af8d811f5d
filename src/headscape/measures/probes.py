"""Attention on texts made for it: a block of random tokens twice, and a fact that is asked for.

Induction and duplicate token are the weights on a repeated block, retrieval is the weight on a fact
while the model writes the answer.
"""

from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64

from headscape.call.definition import AttentionCall, scores
from headscape.data.tasks.retrieval import RETRIEVAL
from headscape.measures.sums import Progress
from headscape.models.model import Model

DEPTHS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
SHORTEST_TEXT: Final = 128
"""Tokens that the fact, the question and the answer fit into, whatever the tokenizer."""
ANSWER: Final = 16
"""Tokens kept free for the answer."""


def repeated_tokens(
    pool: Int64[np.ndarray, " n"], block: int, sequences: int
) -> Int64[np.ndarray, "b t"]:
    """Return sequences of 2 x block tokens: random tokens of `pool`, each block twice.

    Tokens are different from each other where the pool has enough.
    """
    random, kinds = np.random.default_rng(0), np.unique(pool)
    few = len(kinds) < block
    drawn = np.stack([random.choice(kinds, block, replace=few) for _ in range(sequences)])
    return np.concatenate([drawn, drawn], axis=1).astype(np.int64)


def repetition_scores(
    model: Model, tokens: Int64[np.ndarray, "b t"], progress: Progress = lambda _: None
) -> dict[str, Float[np.ndarray, "layers b h"]]:
    """Return the mean weight at distance n - 1 (induction) and n (duplicate token)."""
    block = tokens.shape[1] // 2
    induction, duplicate = [], []

    def watch(_: int, inputs: AttentionCall) -> None:
        weights = scores(inputs, slice(block, 2 * block)).weights.double()
        induction.append(weights.diagonal(1, 2, 3)[..., :block].mean(dim=-1).cpu().numpy())
        duplicate.append(weights.diagonal(0, 2, 3).mean(dim=-1).cpu().numpy())
        progress(2 * block)

    model.observe(torch.from_numpy(tokens), range(len(model.spec.layers)), watch)
    return {"induction": np.stack(induction), "duplicate_token": np.stack(duplicate)}


def can_be_asked(model: Model, length: int) -> bool:
    """Return whether a model can be asked for a fact: it is causal and reads text."""
    return model.tokenizer is not None and model.spec.causal and length >= SHORTEST_TEXT


def needle_scores(
    model: Model, length: int, questions: int, progress: Progress = lambda _: None
) -> Float[np.ndarray, "layers b h"] | None:
    """Return the weight on the answer in the fact, for each question; None if none can be asked.

    Text and answer have at most `length` tokens. Questions whose answer has different tokens in the
    fact than alone are left out.
    """
    if model.tokenizer is None or not can_be_asked(model, length):
        return None
    weights = []
    for index in range(questions):
        text, answer = RETRIEVAL["needle"].tokens_at(
            0, index, length - ANSWER, DEPTHS[index % len(DEPTHS)], model.tokenizer.encode
        )
        at = _place(text, answer)
        if at is not None:
            weights.append(_weights(model, text, answer, at))
        progress(length * len(model.spec.layers))
    return np.stack(weights, axis=1) if weights else None


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
    by_layer: list[np.ndarray] = []

    def watch(_: int, inputs: AttentionCall) -> None:
        weights = scores(inputs, asks).weights[0].double()
        copied = weights[:, :, at : at + len(answer)].diagonal(0, 1, 2)
        by_layer.append(copied.mean(dim=-1).cpu().numpy())

    model.observe(tokens, range(len(model.spec.layers)), watch)
    return np.stack(by_layer)
