"""Which heads change past the trained length, and which part of it is position.

Measures of every head, from late queries, at L, 2L ... N tokens. A longer text changes two things:
there are more keys, and there are distances that training never had. The control has one of them:
the first L tokens with the second half `N - L` positions later, so the number of keys, and the
tokens, are those of L and the distances are those of N.

    position   control - L
    keys       N - control

Uniform attention over twice the keys gains ln 2 nats of entropy without any change of a head.

The ten heads that change most get positions they know, one at a time: distances from L on become
L - 1 in that head alone. What that does to the loss past L is the head's effect.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from headscape.call.definition import AttentionCall
from headscape.call.parts import Selection, mapped
from headscape.diagnosis.changes import Clipped, Gap, Rotations, needs_known_rope
from headscape.diagnosis.remedies import pair_turns
from headscape.kernels.attend import run
from headscape.measures.definitions import computed, estimates
from headscape.measures.measure_model import DRIFT_QUERIES
from headscape.measures.sums import QueryRows, sums_of_call
from headscape.models.changed import ChangedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.model import Edit, Spec
from headscape.models.transformers.published_model import PublishedModel

MEASURES: Final = ("previous", "sink", "slash", "entropy", "reach")
NAMES: Final = {"sink": "sink_score", "slash": "slash_score", "entropy": "entropy",
                "reach": "reach_50_no_sink"}  # fmt: skip
COMPARED: Final = ("previous", "sink", "slash")
"""Shares of weight, whose largest change ranks the heads."""
MOST_CHANGED: Final = 10

HeadTable = dict[str, list[list[float | None]]]
"""Measures by layer and head."""


def head_measures(model: ChangedModel, tokens: Int64[np.ndarray, " t"]) -> HeadTable:
    """Return every measure of every head on one sequence, from a sample of late queries."""
    layers, heads = len(model.spec.layers), model.spec.heads
    table = {name: np.zeros((layers, heads)) for name in MEASURES}
    rows = QueryRows(len(tokens), model.spec.causal)

    def watch(layer: int, call: AttentionCall) -> None:
        sums = sums_of_call(call, sample=DRIFT_QUERIES)
        values = estimates([computed(sums)], rows)
        assert sums.weights is not None
        table["previous"][layer] = sums.weights.at_distance(1)[0].cpu().numpy()
        for name, measure in NAMES.items():
            table[name][layer] = values[measure][0, 0]

    model.observe(torch.from_numpy(tokens)[None], range(layers), watch)
    return {name: listed(values) for name, values in table.items()}


def listed(values: Float[np.ndarray, "layers h"]) -> list[list[float | None]]:
    """Return a table for JSON, None for what is not a number."""
    return [[None if np.isnan(x) else float(x) for x in row] for row in values]


def control_model(
    base: GPT2Model | PublishedModel, trained: int, length: int
) -> ChangedModel | None:
    """Return the model with far positions and few keys; None if its positions cannot be moved."""
    if needs_known_rope(base.spec):
        return None
    change = Gap(Rotations(base.spec), trained // 2, length - trained)
    return ChangedModel(base, change, name=base.spec.name, mark=f"gap {trained} {length}")


def most_changed(at_trained: HeadTable, at_length: HeadTable) -> list[tuple[int, int, float]]:
    """Return layer, head and change of the heads that change most, both counted from 0."""
    changes = np.max(
        [abs(_array(at_length[name]) - _array(at_trained[name])) for name in COMPARED], axis=0
    )
    order = np.argsort(-np.nan_to_num(changes), axis=None, kind="stable")[:MOST_CHANGED]
    places = [np.unravel_index(at, changes.shape) for at in order]
    return [(int(layer), int(head), float(changes[layer, head])) for layer, head in places]


def _array(table: Sequence[Sequence[float | None]]) -> Float[np.ndarray, "layers h"]:
    return np.array(table, dtype=np.float64)


def parts(
    at_trained: HeadTable, control: HeadTable | None, at_length: HeadTable
) -> dict[str, dict[str, float | None]]:
    """Return the mean of each measure, and how much of its change is position and keys."""
    found: dict[str, dict[str, float | None]] = {}
    for name in MEASURES:
        before, after = (np.nanmean(_array(table[name])) for table in (at_trained, at_length))
        middle = None if control is None else float(np.nanmean(_array(control[name])))
        found[name] = {
            "trained": float(before),
            "control": middle,
            "length": float(after),
            "position": None if middle is None else middle - float(before),
            "keys": None if middle is None else float(after) - middle,
        }
    return found


def untrained_pairs(spec: Spec, trained: int, length: int) -> list[dict[str, float]]:
    """Return RoPE's pairs that turn less than once in L tokens: their angles past L are new."""
    turns = pair_turns(spec, trained)
    return [
        {
            "pair": number,
            "wavelength": trained / turn if turn else math.inf,
            "trained_angle": 2 * math.pi * turn,
            "angle": 2 * math.pi * turn * length / trained,
        }
        for number, turn in enumerate(turns)
        if turn < 1
    ]


def head_effects(
    base: GPT2Model | PublishedModel,
    windows: Int64[np.ndarray, "n t_plus_1"],
    trained: int,
    heads: Sequence[tuple[int, int]],
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Return the change of each window's mean loss past L, by `layer.head` counted from 0."""
    rotations = Rotations(base.spec)
    tokens = torch.from_numpy(windows)
    own = torch.cat([base.losses(each[None], trained) for each in tokens]).mean(dim=1)
    changes: dict[str, list[float]] = {f"{layer}.{head}": [] for layer, head in heads}
    for number, window in enumerate(tokens):
        for layer in dict.fromkeys(layer for layer, _ in heads):
            some = [head for at, head in heads if at == layer]
            edits = [_known_positions(rotations, layer, head, trained - 1) for head in some]
            losses = base.edited_losses(window[None], trained, layer, edits)
            for head, loss in zip(some, losses, strict=True):
                changes[f"{layer}.{head}"].append(float(loss.mean() - own[number]))
                progress(1)
    return changes


def _known_positions(rotations: Rotations, layer: int, head: int, near: int) -> Edit:
    """Return the edit that clips one head's distances."""

    def edit(call: AttentionCall, own: Tensor) -> Tensor:
        changed = Clipped(rotations, near, heads=(head,))(layer, call)
        output = own.clone()
        output[:, head] = run(one_head(changed, head))[:, 0].to(own.dtype)
        return output

    return edit


def one_head(call: AttentionCall, head: int) -> AttentionCall:
    """Return the call of one head."""
    (h, t), (hk, s) = call.q.shape[1:3], call.k.shape[1:3]
    chosen = Selection((head,), slice(0, t), slice(0, s), (h, hk, t, s))
    part: AttentionCall = mapped(replace(call, turns=None, unrotated=None), chosen.leaf)
    return part


def summary(stage: dict[str, Any]) -> str:
    """Return what the heads show, in a sentence."""
    entropy = stage["parts"]["entropy"]
    change = entropy["length"] - entropy["trained"]
    whole = f"The mean entropy of a head changes by {change:+.2f} nats"
    if entropy["position"] is None:
        return f"{whole}; positions of this encoding cannot be moved, so there is no control."
    return (
        f"{whole}: {entropy['position']:+.2f} with as many keys as before at far positions, "
        f"{entropy['keys']:+.2f} more with all keys (uniform attention would gain "
        f"{math.log(stage['length'] / stage['trained']):.2f} from the number of keys alone)."
    )
