"""Measure every head of a model: text, repeated tokens, a needle, long texts, changed heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64

import headscape
from headscape.call.definition import AttentionCall
from headscape.captures.sequences import Text
from headscape.errors import InputError, at_least
from headscape.io.progress import SlowBar
from headscape.measures.causal_effect import VARIANTS, causal_effects
from headscape.measures.head_definitions import MEASURES
from headscape.measures.head_measures import HeadMeasures
from headscape.measures.interval import estimate, largest
from headscape.measures.layer_statistics import LayerStatistics, Progress, layer_statistics
from headscape.measures.length_drift import length_drift, measures_at
from headscape.measures.needle_probe import can_be_asked, needle_scores
from headscape.measures.recognised import recognised
from headscape.measures.repeated_tokens import repeated_tokens, repetition_scores
from headscape.measures.row_blocks import SHORTEST, Rows
from headscape.measures.windows_of_text import Stream, open_stream
from headscape.models.model import Model

LENGTH: Final = 512
"""Default length of the sequences, if the trained length is not shorter."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run."""

    length: int
    sequences: int
    drift: tuple[int, ...]
    effects: int

    def work(self, model: Model) -> int:
        """Return the number of queries and changed runs that the progress counts."""
        layers = len(model.spec.layers)
        asked = can_be_asked(model, self.length)
        text = self.length * (2 + (self.sequences if asked else 0))
        long = sum(multiple * (model.spec.train_length or 0) for multiple in self.drift)
        changed = len(VARIANTS) * model.spec.heads if self.effects else 0
        return layers * (text + long + changed * self.length)


def measure_heads(
    model: Model,
    text: Text | None = None,
    *,
    corpus: str | None = None,
    sequences: int = 8,
    length: int | None = None,
    drift: Sequence[int] = (),
    effects: int = 0,
) -> HeadMeasures:
    """Return every measure of every head, with 95% intervals over sequences.

    The sequences are windows of `text` (or of token numbers), of a `corpus`, or of the validation
    text the model was trained with. `length` defaults to the trained length, at most 512. `drift`
    lists multiples of the trained length to measure again at, such as (1, 2, 4). `effects` is the
    number of sequences on which each head is changed in turn; this takes 2 runs per head.

    Example:
        >>> import headscape as hs
        >>> from headscape.measures.measure_heads import measure_heads
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> found = measure_heads(model, list(range(200)), length=64, sequences=2)
        >>> found.row(0, 0)["half_life"] < found.row(0, 11)["half_life"]
        True
    """
    plan = _plan(model, sequences, length, tuple(sorted(set(drift))), effects)
    stream = open_stream(model, text, corpus)
    windows = stream.windows(sequences, plan.length)
    long = _long_windows(model, stream, plan)
    # Probes and effects read a few tokens less than the windows; a model that is stretched to what
    # it reads must stay the same model for all of them.
    fitted = model.for_length(plan.length)
    with SlowBar("measuring", plan.work(model)) as bar:
        layers = _statistics(fitted, windows, bar.advance)
        values = _estimates(layers, Rows(plan.length, model.spec.causal))
        values |= _probes(fitted, windows, plan, bar.advance)
        at_lengths = {
            multiple: None if each is None else measures_at(model, each, bar.advance)
            for multiple, each in long.items()
        }
        if plan.effects:
            values |= _effects(fitted, windows[: plan.effects], layers, bar.advance)
    drifted = length_drift(at_lengths)
    if drifted is not None:
        values["length_drift"] = np.stack([drifted, *[np.full_like(drifted, np.nan)] * 2])
    spec = fitted.spec
    about = {
        "model": spec.name,
        "recognised": recognised(spec),
        "layers": len(spec.layers),
        "heads": spec.heads,
        "causal": spec.causal,
        "train_length": spec.train_length,
        "text": stream.name,
        "sequences": sequences,
        "length": plan.length,
        "effects": plan.effects,
        "fingerprint": fitted.fingerprint,
        "provenance": {"headscape": headscape.__version__, **spec.provenance},
    }
    return HeadMeasures(
        about=about,
        values={name: values[name] for name in MEASURES if name in values},
        kernel=np.stack([_over(layer.kernel) for layer in layers]),
        closed_form=_stacked([layer.closed_form for layer in layers]),
        bands=_stacked([layer.bands for layer in layers]),
        maps=np.stack([layer.map for layer in layers]),
        drift=at_lengths,
    )


def _plan(
    model: Model, sequences: int, length: int | None, drift: tuple[int, ...], effects: int
) -> Plan:
    trained = model.spec.train_length
    length = min(LENGTH, trained or LENGTH) if length is None else length
    if length < SHORTEST:
        raise InputError(f"length must be at least {SHORTEST} tokens, got {length}.")
    at_least(1, sequences=sequences)
    if not 0 <= effects <= sequences:
        raise InputError(f"effects must be between 0 and {sequences} sequences, got {effects}.")
    if effects and not model.spec.causal:
        raise InputError(
            f"{model.spec.name} does not predict the next token, so it has no loss for effects to "
            f"change: leave effects out."
        )
    if drift and (drift[0] < 1 or trained is None):
        why = "its trained length is not known" if trained is None else f"got {drift[0]}"
        raise InputError(f"drift needs multiples of the trained length of at least 1: {why}.")
    reason = model.length_error(length)
    if reason is not None:
        raise InputError(reason)
    return Plan(length=length, sequences=sequences, drift=drift, effects=effects)


def _statistics(
    model: Model, windows: Int64[np.ndarray, "b t"], progress: Progress
) -> list[LayerStatistics]:
    found: list[LayerStatistics] = []

    def watch(_: int, inputs: AttentionCall) -> None:
        context = model.spec.train_length
        found.append(layer_statistics(inputs, context=context, progress=progress))

    model.observe(torch.from_numpy(windows), range(len(model.spec.layers)), watch)
    return found


def _estimates(layers: list[LayerStatistics], rows: Rows) -> dict[str, np.ndarray]:
    """Return mean, low and high [3 layers h] of what one pass over the text measures."""
    names = {name for layer in layers for name in layer.measures}
    missing = np.full_like(layers[0].measures["entropy"], np.nan)
    values = {
        name: estimate(np.stack([layer.measures.get(name, missing) for layer in layers], axis=1))
        for name in names
    }
    slash = np.stack([layer.slash for layer in layers], axis=1)
    place = slash.mean(axis=0).argmax(axis=-1)
    values["slash_score"] = estimate(np.take_along_axis(slash, place[None, ..., None], 3)[..., 0])
    values["slash_distance"] = largest(slash) + rows.slashes.start
    values["half_life"] = _half_life(values["decay"])
    return values


def _half_life(decay: Float[np.ndarray, "3 layers h"]) -> Float[np.ndarray, "3 layers h"]:
    """Return ln 2 / decay; a faster decay is a shorter half-life, so low and high change places.

    A decay whose interval contains 0 has no half-life.
    """
    falls = np.nan_to_num(np.fmin.reduce(decay, axis=0)) > 0
    mean, low, high = np.where(falls, np.log(2) / np.where(falls, decay, 1.0), np.nan)
    return np.stack([mean, high, low])


def _probes(
    model: Model, windows: Int64[np.ndarray, "b t"], plan: Plan, progress: Progress
) -> dict[str, np.ndarray]:
    tokens = repeated_tokens(windows.ravel(), plan.length // 2, plan.sequences)
    found = {
        name: estimate(scores.swapaxes(0, 1))
        for name, scores in repetition_scores(model, tokens, progress).items()
    }
    needle = needle_scores(model, plan.length, plan.sequences, progress=progress)
    if needle is not None:
        found["retrieval"] = estimate(needle.swapaxes(0, 1))
    return found


def _long_windows(
    model: Model, stream: Stream, plan: Plan
) -> dict[int, Int64[np.ndarray, "1 t"] | None]:
    """Return one window at each multiple of the trained length; None where it cannot be read."""
    trained = model.spec.train_length or 0
    lengths = {multiple: multiple * trained for multiple in plan.drift}
    return {
        multiple: stream.windows(1, length) if model.length_error(length) is None else None
        for multiple, length in lengths.items()
    }


def _effects(
    model: Model,
    windows: Int64[np.ndarray, "b t"],
    layers: list[LayerStatistics],
    progress: Progress,
) -> dict[str, np.ndarray]:
    kernels = [_over(layer.bias_kernel) for layer in layers]
    length = windows.shape[1]
    # The last token of a window is only a target, so distances end one earlier.
    kernels = [kernel[:, 1:-1] for kernel in kernels]
    found = causal_effects(model, windows, kernels, lambda runs: progress(runs * length))
    return {f"effect_{name}": estimate(each.swapaxes(0, 1)) for name, each in found.items()}


def _over(values: Float[np.ndarray, "b h n"]) -> Float[np.ndarray, "h n"]:
    """Return the mean over sequences; a distance that is hidden in one is hidden in all."""
    mean: np.ndarray = values.mean(axis=0)
    return mean


def _stacked(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return the mean over sequences of every layer, NaN where a layer has none."""
    some = next((part for part in parts if part is not None), None)
    if some is None:
        return None
    empty = np.full(some.shape[1:], np.nan)
    return np.stack([empty if part is None else _over(part) for part in parts])
