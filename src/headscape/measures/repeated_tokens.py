"""Induction and duplicate-token scores on a block of random tokens that stands twice."""

import numpy as np
import torch
from jaxtyping import Float, Int64

from headscape.call.definition import AttentionCall, scores
from headscape.measures.layer_statistics import Progress
from headscape.models.model import Model


def repeated_tokens(
    pool: Int64[np.ndarray, " n"], block: int, sequences: int, seed: int = 0
) -> Int64[np.ndarray, "b t"]:
    """Return sequences of 2 x block tokens: random tokens of `pool`, each block twice.

    Tokens are different from each other where the pool has enough.
    """
    random, kinds = np.random.default_rng(seed), np.unique(pool)
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
