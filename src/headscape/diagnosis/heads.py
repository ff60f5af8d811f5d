"""Which heads change past the trained length, and which part of it is position.

Measures of every head, from late queries, at L, 2L ... N tokens. A longer text changes two things:
there are more keys, and there are distances that training never had. The control has one of them:
the first L tokens with the second half later, so the number of keys, and the tokens, are those of
L and the distances are those of a longer text. It is the mean over several gaps, spread from about
L to N - L, since a rotation comes round again and one distance alone may look like a known one.

    position   control - L
    keys       N - control

Uniform attention over twice the keys gains ln 2 nats of entropy without any change of a head.

Retrieval is the weight that a query gives to the very token that it should copy, in a question of
the kind `copy` whose passage stands in the first half of the text (retrieval.py).

The kernel of a head is the share of late queries' weight, and their mean score, at distances 0, 1,
2 to 3, 4 to 7 ...: at L, N and in the control, where pairs across a gap have its distances.

The ten heads that change most get positions they know, one at a time: distances from L on become
L - 1 in that head alone. What that does to the loss past L is the head's effect.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from headscape.call.definition import AttentionCall, Selection, mapped, scores
from headscape.diagnosis.changes import (
    Clipped,
    Gap,
    Rotations,
    needs_known_rotation,
    stretchable,
)
from headscape.diagnosis.far_positions import gaps
from headscape.diagnosis.remedies import turns_by_layer
from headscape.errors import InputError
from headscape.kernels.attend import run
from headscape.measures.definitions import computed, estimates
from headscape.measures.measure_model import DRIFT_QUERIES
from headscape.measures.sums import QueryRows, sums_of_call
from headscape.models.changed import Change, ChangedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.model import Edit, Spec, Watch
from headscape.models.transformers.attention_watch import AttentionWatch
from headscape.models.transformers.observed_call import ObservedCall
from headscape.models.transformers.published_model import PublishedModel

NAMES: Final = {"sink": "sink_score", "slash": "slash_score", "entropy": "entropy",
                "reach": "reach_50_no_sink"}  # fmt: skip
"""Measures of measures/definitions.py, by their short name."""
MEASURES: Final = ("previous", *NAMES)
LISTED: Final = (*MEASURES, "retrieval")
"""Measures of the page; retrieval is read off questions, the others off windows of text."""
COMPARED: Final = ("previous", "sink", "slash")
"""Shares of weight, whose largest change ranks the heads."""
MOST_CHANGED: Final = 10

HeadTable = dict[str, list[list[float | None]]]
"""Measures by layer and head."""
Kernel = dict[str, list[Any]]
"""The share of weight and the mean score [layer][head][bin], by bins of distances."""


@contextmanager
def watching(
    base: GPT2Model | PublishedModel, watch: Watch, change: Change | None = None
) -> Iterator[ChangedModel]:
    """Yield the model whose passes also call `watch` with every layer's call, after `change`."""

    def seen(layer: int, call: AttentionCall) -> AttentionCall:
        changed = call if change is None else change(layer, call)
        watch(layer, changed)
        return changed

    if isinstance(base, GPT2Model) or change is not None:
        yield ChangedModel(base, seen, name=base.spec.name, mark="watched")
        return

    def on_call(number: int, observed: ObservedCall) -> None:
        # A watch goes on counting in a second pass.
        layer = number % len(base.spec.layers)
        watch(layer, base.call_of(observed, layer))

    # The model's own attention runs; only what goes into it is read.
    with AttentionWatch(base.body, on_call, modules=base.attention):
        yield ChangedModel(base)


class HeadWatch:
    """Measures of every head, from a sample of late queries of a pass over `length` tokens."""

    def __init__(
        self, spec: Spec, length: int, gap: Gap | None = None, reach: int | None = None
    ) -> None:
        """`gap` says that tokens stand elsewhere; the kernel's bins go up to `reach` tokens."""
        self.length, self._gap = length, gap
        maps = (len(spec.layers), spec.heads)
        self._values = {name: np.full(maps, np.nan) for name in MEASURES}
        self._rows = QueryRows(length, spec.causal)
        self._sampled = QueryRows(length, spec.causal, DRIFT_QUERIES)
        self.edges = kernel_edges(reach or length + (0 if gap is None else gap.by))
        """The first distance of every bin."""
        shape = (*maps, len(self.edges))
        self._kernel = {name: np.full(shape, np.nan) for name in ("weight", "score")}

    def __call__(self, layer: int, call: AttentionCall) -> None:
        """Measure one layer; NaN stays where no pass had `length` tokens."""
        if call.q.shape[2] != self.length:
            return
        sums = sums_of_call(call, sample=DRIFT_QUERIES)
        values = estimates([computed(sums)], self._rows)
        assert sums.weights is not None
        self._values["previous"][layer] = sums.weights.at_distance(1)[0].cpu().numpy()
        for name, measure in NAMES.items():
            self._values[name][layer] = values[measure][0, 0]
        self._add_kernel(layer, call)

    def _add_kernel(self, layer: int, call: AttentionCall) -> None:
        """Add the weights and scores of the sampled queries, by bins of distances."""
        q_at, k_at = (at[0] for at in (call.positions.q, call.positions.k))
        if self._gap is not None:
            q_at, k_at = (at + self._gap.by * (at >= self._gap.after) for at in (q_at, k_at))
        edges = torch.tensor(self.edges, device=call.q.device)
        maps = (call.q.shape[1], len(edges))
        weight, score, pairs = edges.new_zeros((3, *maps), dtype=torch.float64)
        queries = 0
        for _, rows in self._sampled.blocks(call.q.shape[1]):
            part = scores(call, rows)
            distance = (q_at[rows, None] - k_at).abs()
            where = torch.searchsorted(edges, distance, right=True) - 1
            where = where.flatten().expand(maps[0], -1)
            seen = part.visible.expand_as(part.final)[0].flatten(1).double()
            weight.scatter_add_(1, where, part.weights[0].flatten(1).double())
            score.scatter_add_(1, where, part.final[0].flatten(1).double() * seen)
            pairs.scatter_add_(1, where, seen)
            queries += rows.stop - rows.start
        self._kernel["weight"][layer] = (weight / queries).cpu().numpy()
        self._kernel["score"][layer] = (score / pairs).cpu().numpy()

    def kernel(self) -> Kernel:
        """Return the kernel of the pass, with five digits; None in bins without a pair."""
        return {
            name: [[_digits(row) for row in layer] for layer in values]
            for name, values in self._kernel.items()
        }

    def table(self) -> HeadTable:
        """Return the measures of the pass."""
        return {name: listed(values) for name, values in self._values.items()}


def kernel_edges(length: int) -> list[int]:
    """Return the first distances of bins that double: 0, 1, 2, 4, 8 ... below `length`."""
    return [0, *(1 << step for step in range(max(1, (length - 1).bit_length())))]


def _digits(values: Float[np.ndarray, " n"]) -> list[float | None]:
    return [None if np.isnan(x) else float(f"{x:.5g}") for x in values]


def measured(
    model: ChangedModel,
    tokens: Int64[np.ndarray, " t"],
    gap: Gap | None = None,
    reach: int | None = None,
) -> dict[str, Any]:
    """Return the measures and the kernel of every head on one sequence.

    Args:
        model: The model, changed by `gap` if there is one.
        tokens: The sequence.
        gap: Where its tokens stand; None is at their own positions.
        reach: The kernel's bins go up to this many tokens; by default to the last position.
    """
    watch = HeadWatch(model.spec, len(tokens), gap, reach)
    model.observe(torch.from_numpy(tokens)[None], range(len(model.spec.layers)), watch)
    return {"measures": watch.table(), "kernel": watch.kernel()}


def mean_kernel(kernels: Sequence[Kernel]) -> Kernel:
    """Return the mean over the sequences that have a pair in a bin; None where none has."""
    found: Kernel = {}
    for name in kernels[0]:
        values = np.array([each[name] for each in kernels], np.float64)
        count = np.isfinite(values).sum(axis=0)
        mean = np.where(count > 0, np.nansum(values, axis=0) / np.maximum(count, 1), np.nan)
        found[name] = [[_digits(head) for head in layer] for layer in mean]
    return found


def listed(values: Float[np.ndarray, "layers h"]) -> list[list[float | None]]:
    """Return a table for JSON, None for what is not a number."""
    return [[None if np.isnan(x) else float(x) for x in row] for row in values]


def control_changes(spec: Spec, trained: int, length: int, count: int) -> list[Gap]:
    """Return what makes far positions of few keys, `count` times with different gaps.

    Args:
        spec: The model's.
        trained: L, which is also the length of the text that is read.
        length: N.
        count: Number of gaps; one alone ends with N positions.
    """
    rotations = Rotations(spec)
    return [Gap(rotations, trained // 2, by) for by in gaps(trained, length, trained, count)]


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
    for name in LISTED:
        before, middle, after = (
            _mean(None if table is None else table[name])
            for table in (at_trained, control, at_length)
        )
        found[name] = {
            "trained": before,
            "control": middle,
            "length": after,
            "position": None if middle is None or before is None else middle - before,
            "keys": None if middle is None or after is None else after - middle,
        }
    return found


def _mean(values: Sequence[Sequence[float | None]] | None) -> float | None:
    """Return the mean over heads that have a value; None if none has."""
    if values is None:
        return None
    known = _array(values)
    return None if np.isnan(known).all() else float(np.nanmean(known))


def untrained_pairs(spec: Spec, trained: int, length: int) -> list[dict[str, Any]]:
    """Return RoPE's pairs that turn less than once in L tokens: their angles past L are new.

    One entry per pair and kind of layer. Pairs that never turn have no angle, and layers whose
    window or chunks keep distances below L meet no new one.
    """
    kinds: dict[tuple[float, ...], list[int]] = {}
    for layer, turns in turns_by_layer(spec, trained).items():
        if layer in stretchable(spec, trained):
            kinds.setdefault(tuple(turns), []).append(layer)
    return [
        {
            "layers": layers,
            "pair": number,
            "wavelength": trained / turn,
            "trained_angle": 2 * math.pi * turn,
            "angle": 2 * math.pi * turn * length / trained,
        }
        for turns, layers in kinds.items()
        for number, turn in enumerate(turns)
        if 0 < turn < 1
    ]


def rotation_error(base: GPT2Model | PublishedModel, tokens: Int64[np.ndarray, " n"]) -> str | None:
    """Return why a model's rotations cannot be repeated from its settings; None if they can.

    Args:
        base: The model.
        tokens: A short text, whose calls are checked in every layer.
    """
    if needs_known_rotation(base.spec):
        return needs_known_rotation(base.spec)
    rotations = Rotations(base.spec)

    def check(layer: int, call: AttentionCall) -> None:
        if rotations.layer(layer) is not None:
            rotations.check(layer, call)

    try:
        base.observe(torch.from_numpy(tokens)[None], range(len(base.spec.layers)), check)
    except InputError as error:
        return str(error).rstrip(".")
    return None


def head_effects(
    base: GPT2Model | PublishedModel,
    windows: Int64[np.ndarray, "n t_plus_1"],
    trained: int,
    heads: Sequence[tuple[int, int]],
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
