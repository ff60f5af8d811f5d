"""How often a model gives the right answer, against length and, for retrieval, depth.

The whole example is read in one pass and the likeliest token is taken at every place of the answer.
`tokens` is the share of right places, the closing END among them; `exact` the share of answers that
are right throughout. An answer is right throughout in one pass exactly if decoding it greedily,
token by token, would have given it, because up to the first mistake both read the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from headscape.errors import InputError
from headscape.evaluate.scoring import BLOCK
from headscape.model import GPT2
from headscape.tasks.base import VOCABULARY, Task
from headscape.tasks.batches import scored, stacked
from headscape.tasks.retrieval import Encode, Retrieval


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """A model on a task at a length."""

    task: str
    length: int
    examples: int
    tokens: float
    """Share of right places."""
    exact: float
    """Share of right answers."""


def against_length(
    model: GPT2,
    task: Task,
    lengths: Sequence[int],
    *,
    examples: int = 100,
    seed: int = 1,
    batch_tokens: int = 8192,
) -> list[Accuracy]:
    """Accuracy at each length; use another seed than training did."""
    if model.config.vocabulary < VOCABULARY:
        raise InputError(
            f"tasks are spelled in {VOCABULARY} byte tokens and the model knows "
            f"{model.config.vocabulary}: train it with --tokenizer bytes."
        )
    out = []
    for length in lengths:
        asked = [task.example(seed, index, length) for index in range(examples)]
        most = max(1, batch_tokens // (length + 3))
        right = []
        for start in range(0, examples, most):
            windows = stacked(asked[start : start + most])
            right += _right(model, windows, scored(windows))
        out.append(
            Accuracy(
                task=task.name,
                length=length,
                examples=examples,
                tokens=float(np.concatenate(right).mean()),
                exact=float(np.mean([one.all() for one in right])),
            )
        )
    return out


def by_depth(
    model: GPT2,
    task: Retrieval,
    lengths: Sequence[int],
    depths: Sequence[float],
    encode: Encode,
    *,
    examples: int = 20,
    seed: int = 1,
) -> Float64[np.ndarray, "depths lengths"]:
    """The share of exact answers of a language model that just continues the text."""
    out = np.zeros((len(depths), len(lengths)))
    for row, depth in enumerate(depths):
        for column, length in enumerate(lengths):
            right = 0
            for index in range(examples):
                text, answer = task.tokens_at(seed, index, length, depth, encode)
                window = np.concatenate([text, answer])[None]
                mask = np.arange(window.shape[1] - 1)[None] >= len(text) - 1
                right += bool(_right(model, window, mask)[0].all())
            out[row, column] = right / examples
    return out


def by_depth_trained(
    model: GPT2,
    task: Retrieval,
    lengths: Sequence[int],
    depths: Sequence[float],
    *,
    examples: int = 20,
    seed: int = 1,
) -> Float64[np.ndarray, "depths lengths"]:
    """The same of a model that was trained on the task, in the task's own layout."""
    out = np.zeros((len(depths), len(lengths)))
    for row, depth in enumerate(depths):
        for column, length in enumerate(lengths):
            asked = [task.example_at(seed, index, length, depth) for index in range(examples)]
            windows = [stacked([one]) for one in asked]
            hits = [bool(_right(model, one, scored(one))[0].all()) for one in windows]
            out[row, column] = float(np.mean(hits))
    return out


@torch.inference_mode()
def _right(
    model: GPT2,
    windows: Int64[np.ndarray, "rows width"],
    mask: Bool[np.ndarray, "rows predictions"],
) -> list[Bool[np.ndarray, " answer"]]:
    """For each row, which places of its answer are right."""
    on = model.tokens.weight.device
    tokens, chosen = torch.from_numpy(windows).to(on), torch.from_numpy(mask).to(on)
    hidden = model.hidden(tokens[:, :-1])[chosen]
    guesses = [model.logits(block).argmax(dim=-1) for block in torch.split(hidden, BLOCK)]
    hits = (torch.cat(guesses) == tokens[:, 1:][chosen]).cpu().numpy()
    return np.split(hits, np.cumsum(mask.sum(axis=1))[:-1])
