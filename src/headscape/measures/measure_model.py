"""Measure every head of a model: text, repeated tokens, a needle, long texts, changed heads.

The sequences are windows of a text, of a corpus or of the model's own validation text. They do not
overlap and are spread evenly over it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of
from itertools import groupby
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64

import headscape
from headscape.call.definition import AttentionCall
from headscape.captures.labels import shown_conventions
from headscape.captures.sequences import Text, choose_tokens
from headscape.data.dataset import open_dataset
from headscape.encodings.rope import RoPEConfig
from headscape.errors import InputError, at_least
from headscape.io.terminal import SlowBar
from headscape.measures.definitions import MEASURES, computed, estimates
from headscape.measures.effects import VARIANTS, causal_effects
from headscape.measures.interval import estimate
from headscape.measures.measures import Measures
from headscape.measures.probes import (
    can_be_asked,
    needle_scores,
    repeated_tokens,
    repetition_scores,
)
from headscape.measures.rotation import band_use, closed_form
from headscape.measures.sums import Progress, QueryRows, sums_of_call
from headscape.models.model import Model, ReadsSound, Spec

LENGTH: Final = 512
"""Default length of the sequences, if the trained length is not shorter."""
SHORTEST: Final = 16
"""Tokens a sequence needs to have measures."""
DRIFT_QUERIES: Final = 64
"""Late queries of a long sequence that are looked at; its whole maps would take hours."""
ROPE: Final = [item.name for item in fields_of(RoPEConfig)]
STRETCHING: Final = set(ROPE[ROPE.index("scaling") :])
"""RoPE's fields that say nothing where the frequencies are not stretched."""

AtLength = dict[str, Float[np.ndarray, "layers h"]]


@dataclass(frozen=True, kw_only=True)
class TokenStream:
    """A long row of tokens and what it is called."""

    tokens: Int64[np.ndarray, " n"]
    name: str

    def windows(self, count: int, length: int) -> Int64[np.ndarray, "count length"]:
        """Return windows of `length` tokens."""
        room = len(self.tokens) // length
        if room < count:
            raise InputError(
                f"{self.name} has {len(self.tokens):,} tokens, fewer than {count} sequences of "
                f"{length:,} need: give a longer text, or fewer or shorter sequences."
            )
        starts = [number * room // count * length for number in range(count)]
        return np.stack([self.tokens[start : start + length] for start in starts])


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


@dataclass(frozen=True, kw_only=True)
class LayerStatistics:
    """What one layer does with every sequence of a batch."""

    measures: dict[str, Float[np.ndarray, "b h ..."]]
    """What `definitions.computed` returns."""
    kernel: Float[np.ndarray, "b h n"]
    """Mean final score at distances 1 - T to T - 1; NaN where none is visible."""
    bias_kernel: Float[np.ndarray, "b h n"]
    """Mean positional part at the same distances."""
    closed_form: Float[np.ndarray, "b h n"] | None
    bands: Float[np.ndarray, "b h m"] | None
    map: Float[np.ndarray, "h c c"]
    """Mean weight by cells of queries and keys."""


def measure_model(
    model: Model,
    text: Text | None = None,
    *,
    corpus: str | None = None,
    sequences: int = 8,
    length: int | None = None,
    drift: Sequence[int] = (),
    effects: int = 0,
) -> Measures:
    """Return every measure of every head, with 95% intervals over sequences.

    model      the model
    text       a text or token numbers; default the validation text the model was trained with
    corpus     the name of a corpus to read instead
    sequences  number of windows of the text
    length     tokens of a window; default the trained length, at most 512
    drift      multiples of the trained length to measure again at, such as (1, 2, 4)
    effects    number of sequences on which each head is changed in turn; takes 2 runs per head

    Example:
        >>> import headscape as hs
        >>> from headscape.measures.measure_model import measure_model
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> measures = measure_model(model, list(range(200)), length=64, sequences=2)
        >>> measures.row(0, 0)["half_life"] < measures.row(0, 11)["half_life"]
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
        rows = QueryRows(plan.length, model.spec.causal)
        values = estimates([layer.measures for layer in layers], rows)
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
    return Measures(
        about=about,
        layers=tuple(range(len(spec.layers))),
        heads=tuple(range(spec.heads)),
        values={name: values[name] for name in MEASURES if name in values},
        kernel=np.stack([layer.kernel.mean(axis=0) for layer in layers]),
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


def layer_statistics(
    call: AttentionCall, *, context: int | None = None, progress: Progress = lambda _: None
) -> LayerStatistics:
    """Return what one layer does with a batch of sequences of equal length.

    call      the layer's attention inputs
    context   the trained length, which decides what a low band is
    progress  called with the number of queries just done
    """
    sums = sums_of_call(call, context=context, progress=progress)
    assert sums.maps is not None
    fit, bands = closed_form(call), band_use(call)
    return LayerStatistics(
        measures=computed(sums),
        kernel=sums.scores.kernel().cpu().numpy(),
        bias_kernel=sums.scores.bias_kernel().cpu().numpy(),
        closed_form=None if fit is None else fit.detach().cpu().numpy(),
        bands=None if bands is None else bands.detach().cpu().numpy(),
        map=sums.maps,
    )


def _statistics(
    model: Model, windows: Int64[np.ndarray, "b t"], progress: Progress
) -> list[LayerStatistics]:
    layers: list[LayerStatistics] = []

    def watch(_: int, call: AttentionCall) -> None:
        context = model.spec.train_length
        layers.append(layer_statistics(call, context=context, progress=progress))

    model.observe(torch.from_numpy(windows), range(len(model.spec.layers)), watch)
    return layers


def _probes(
    model: Model, windows: Int64[np.ndarray, "b t"], plan: Plan, progress: Progress
) -> dict[str, np.ndarray]:
    tokens = repeated_tokens(windows.ravel(), plan.length // 2, plan.sequences)
    scores = repetition_scores(model, tokens, progress)
    needle = needle_scores(model, plan.length, plan.sequences, progress=progress)
    if needle is not None:
        scores["retrieval"] = needle
    return {name: estimate(each.swapaxes(0, 1)) for name, each in scores.items()}


def _effects(
    model: Model,
    windows: Int64[np.ndarray, "b t"],
    layers: list[LayerStatistics],
    progress: Progress,
) -> dict[str, np.ndarray]:
    length = windows.shape[1]
    # The last token of a window is only a target, so distances end one earlier.
    kernels = [layer.bias_kernel.mean(axis=0)[:, 1:-1] for layer in layers]
    changes = causal_effects(model, windows, kernels, lambda runs: progress(runs * length))
    return {f"effect_{name}": estimate(each.swapaxes(0, 1)) for name, each in changes.items()}


def _stacked(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return the mean over sequences of every layer, NaN where a layer has none."""
    some = next((part for part in parts if part is not None), None)
    if some is None:
        return None
    empty = np.full(some.shape[1:], np.nan)
    return np.stack([empty if part is None else part.mean(axis=0) for part in parts])


def _long_windows(
    model: Model, stream: TokenStream, plan: Plan
) -> dict[int, Int64[np.ndarray, "1 t"] | None]:
    """Return one window at each multiple of the trained length; None where it cannot be read."""
    trained = model.spec.train_length or 0
    lengths = {multiple: multiple * trained for multiple in plan.drift}
    return {
        multiple: stream.windows(1, length) if model.length_error(length) is None else None
        for multiple, length in lengths.items()
    }


def measures_at(
    model: Model, windows: Int64[np.ndarray, "b t"], progress: Progress = lambda _: None
) -> AtLength:
    """Return the measures that drift, at the windows' length, from a sample of late queries.

    Windows run one at a time, so memory is that of one forward pass.
    """
    length = windows.shape[1]
    names = [each.name for each in MEASURES.values() if each.drifts]
    sums = {name: np.zeros((len(model.spec.layers), model.spec.heads)) for name in names}
    rows = QueryRows(length, model.spec.causal)
    for window in windows:

        def watch(layer: int, call: AttentionCall) -> None:
            values = estimates([computed(sums_of_call(call, sample=DRIFT_QUERIES))], rows)
            for name, total in sums.items():
                total[layer] += values[name][0, 0]
            progress(length)

        layers = range(len(model.spec.layers))
        model.for_length(length).observe(torch.from_numpy(window)[None], layers, watch)
    return {name: total / len(windows) for name, total in sums.items()}


def length_drift(by_multiple: dict[int, AtLength | None]) -> Float[np.ndarray, "layers h"] | None:
    """Return the largest change of share, slash or sink from the shortest to the longest length."""
    measured = [each for _, each in sorted(by_multiple.items()) if each]
    if len(measured) < 2:
        return None
    names = ("position_share", "slash_score", "sink_score")
    changes = [abs(measured[-1][name] - measured[0][name]) for name in names]
    largest: np.ndarray = np.max(changes, axis=0)
    return largest


def open_stream(model: Model, text: Text | None, corpus: str | None) -> TokenStream:
    """Return the tokens of a text or a corpus; without either, the model's validation text."""
    if isinstance(model, ReadsSound):
        raise InputError(
            f"{model.spec.name} reads sound, and heads are measured on tokens: capture it instead."
        )
    if text is not None:
        if corpus is not None:
            raise InputError(f"give a text or corpus {corpus}, not both.")
        return TokenStream(tokens=choose_tokens(model, text).tokens, name="the text")
    dataset = model.dataset
    if corpus is not None:
        if model.tokenizer is None:
            raise InputError(f"{model.spec.name} has no tokenizer, so it cannot read {corpus}.")
        dataset = open_dataset(corpus, model.tokenizer)
    if dataset is None:
        raise InputError(
            f"{model.spec.name} has no text of its own: give a text or a corpus, such as stdlib."
        )
    tokens = np.asarray(dataset.validation, dtype=np.int64)
    return TokenStream(
        tokens=tokens, name=f"the validation text of {dataset.corpus}{dataset.share}"
    )


def recognised(spec: Spec) -> list[str]:
    """Return the model's sizes, what acts at the input, and each layer's encoding and fields.

    Layers count from 1.
    """
    context = "unknown" if spec.train_length is None else f"{spec.train_length:,}"
    reads = "causal" if spec.causal else "bidirectional"
    sizes = f"{len(spec.layers)} layers x {spec.heads} heads of {spec.head_dim}"
    lines = [f"{spec.name}: {sizes}, context {context}, {reads}"]
    if "input" in spec.provenance:
        lines.append(f"at the input: {spec.provenance['input']}")
    if "other_layers" in spec.provenance:
        lines.append(str(spec.provenance["other_layers"]))
    numbered = enumerate(spec.layers, start=1)
    for layer, same in groupby(numbered, key=lambda pair: pair[1]):
        numbers = [number for number, _ in same]
        span = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        shown = shown_conventions(layer.conventions)
        unused = STRETCHING if shown.get("scaling") == "none" else set()
        # A switch that is off says nothing of the model.
        used = {k: v for k, v in shown.items() if k not in unused and v is not False}
        fields = ", ".join(f"{key}={value!r}" for key, value in used.items())
        name = "position not recognised" if layer.encoding == "unknown" else layer.encoding
        lines.append(f"layer {span}: {name}  {fields}")
    return lines
