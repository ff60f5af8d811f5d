"""The remedies that a diagnosis tries.

A remedy is a change of every attention call (changes.py) with its settings fixed for one target
length N and one trained length L, f = N / L:

    linear      frequencies divided by f                                        arXiv:2306.15595
    ntk         base times f^(R/(R-2))
    dynamic     the same with f the length in use over L; up to L nothing changes
    yarn        slow pairs divided by f, scores sharpened                       arXiv:2309.00071
    longrope    pairs from a searched one on divided by f                       arXiv:2402.13753
    prope       pairs that turn less than once in L are not turned              arXiv:2410.06205
    log         scores times max(1, ln(i + 1) / ln L)                           arXiv:2202.12172
    nope        every fourth layer with a rotation is not turned; of fewer than four the last
    sinks       the first 4 keys and the last L - 4                             arXiv:2309.17453
    clip        distances from L/2 on become L/2 (ReRoPE)
    group       distances from L/2 on count in groups that end at L (SelfExtend)  arXiv:2401.01325
    chunk       keys of the query's own block of L
    stretch     a bias B(d) becomes B(d / f)
    clip-bias   a bias B(d) becomes B(min(d, L - 1))

Layers whose window or chunks keep every distance below L have nothing to stretch: linear, ntk,
dynamic, yarn, longrope and prope leave them as they are.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Int64

from headscape.call.definition import AttentionCall
from headscape.diagnosis.changes import (
    BiasClipped,
    BiasStretched,
    Chunks,
    Clipped,
    Frequencies,
    Grouped,
    LogTemperature,
    NoRotation,
    Rotations,
    SinkWindow,
    needs_known_rotation,
    rotation_of,
    stretchable,
)
from headscape.errors import InputError, at_least
from headscape.models.changed import Change, ChangedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.loaded import LoadedModel
from headscape.models.model import Spec
from headscape.models.transformers.published_model import PublishedModel

SINKS: Final = 4
STILL: Final = 1e12
"""A pair whose frequency is divided by this does not turn within any context."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One remedy with its settings."""

    name: str
    title: str
    text: str
    """What it does, with its numbers."""
    change: Change
    rope: dict[str, Any] | None = None
    """The changed fields of RoPE, if that is all it changes."""
    forgets: bool = False
    """Whether a query does not see most keys of a long text, so that it cannot retrieve them."""

    @property
    def mark(self) -> str:
        """The name, text and RoPE fields as one text, for fingerprints and for kept stages."""
        return f"{self.name}: {self.text} {json.dumps(self.rope, sort_keys=True)}"

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply to a model; None if it does."""
        reason: str | None = self.change.refuses(spec)  # type: ignore[attr-defined]
        return reason

    def applied(self, model: GPT2Model | PublishedModel) -> ChangedModel:
        """Return the model with this remedy."""
        name = f"{model.spec.name}, {self.title}"
        return ChangedModel(model, self.change, name=name, mark=self.mark)


def _linear(spec: Spec, trained: int, length: int) -> Remedy:
    fields: dict[str, Any] = {"scaling": "linear", "factor": length / trained}
    return _rope(spec, trained, "linear", "linear interpolation", **fields)


def _ntk(spec: Spec, trained: int, length: int) -> Remedy:
    return _rope(spec, trained, "ntk", "NTK", scaling="ntk", factor=length / trained)


def _dynamic(spec: Spec, trained: int, length: int) -> Remedy:  # noqa: ARG001
    fields: dict[str, Any] = {"scaling": "dynamic", "factor": 1.0, "trained_length": trained}
    text = f"RoPE with NTK's factor at every length: the length in use over {trained}"
    return _rope(spec, trained, "dynamic", "dynamic NTK", text, **fields)


def _yarn(spec: Spec, trained: int, length: int) -> Remedy:
    factor = length / trained
    fields: dict[str, Any] = {"scaling": "yarn", "factor": factor, "trained_length": trained}
    return _rope(spec, trained, "yarn", "YaRN", **fields)


def _log(spec: Spec, trained: int, length: int) -> Remedy:  # noqa: ARG001
    return Remedy(
        name="log",
        title="log-length temperature",
        text=f"scores of query i times max(1, ln(i + 1) / ln {trained})",
        change=LogTemperature(trained),
    )


def _prope(spec: Spec, trained: int, length: int) -> Remedy:  # noqa: ARG001
    turns = _turns_of_all(spec, trained)
    slow = sum(turn < 1 for turn in turns)
    divisors = tuple(STILL if turn < 1 else 1.0 for turn in turns)
    return _rope(
        spec,
        trained,
        "prope",
        "p-RoPE, slow pairs cut",
        f"{slow} of {len(turns)} pairs, those that turn less than once in {trained} tokens, do "
        f"not turn",
        scaling="longrope",
        short_factor=divisors,
        long_factor=divisors,
        attention_factor=1.0,
        trained_length=max(2, trained),
    )


def longrope(spec: Spec, trained: int, length: int, first: int, note: str = "") -> Remedy:
    """Return the remedy that divides the frequencies of pairs from `first` on by f.

    Args:
        spec: The model's.
        trained: L.
        length: N.
        first: The first pair, counted from 0.
        note: How it was chosen, for the remedy's text.
    """
    pairs = len(_turns_of_all(spec, trained))
    factor = length / trained
    return _rope(
        spec,
        trained,
        "longrope",
        "LongRoPE-type factors",
        f"pairs from number {first + 1} of {pairs} on divided by {factor:g} beyond {trained} "
        f"tokens{note}",
        scaling="longrope",
        factor=factor,
        short_factor=(1.0,) * pairs,
        long_factor=tuple(factor if pair >= first else 1.0 for pair in range(pairs)),
        trained_length=max(2, trained),
    )


def longrope_candidates(
    spec: Spec, trained: int, length: int, note: str = "", count: int = 5
) -> list[Remedy]:
    """Return the candidates of the search: first pairs evenly from the fastest to the slowest."""
    pairs = len(_turns_of_all(spec, trained))
    firsts = sorted({round(pairs * (step + 1) / (count + 1)) for step in range(count)})
    return [longrope(spec, trained, length, first, note) for first in firsts if first < pairs]


def _nope(spec: Spec, trained: int, length: int) -> Remedy:  # noqa: ARG001
    turning = [number for number, layer in enumerate(spec.layers) if rotation_of(layer)]
    layers = tuple(turning[3::4] or turning[-1:])
    numbered = ", ".join(str(layer + 1) for layer in layers)
    return Remedy(
        name="nope",
        title="NoPE layers",
        text=f"no rotation in {'layer' if len(layers) == 1 else 'layers'} {numbered}",
        change=NoRotation(layers),
    )


def _sinks(spec: Spec, trained: int, length: int) -> Remedy:  # noqa: ARG001
    sinks = min(SINKS, max(1, trained // 8))
    turned = any(rotation_of(layer) for layer in spec.layers)
    biased = any(layer.encoding not in {"rope", "xpos", "nope"} for layer in spec.layers)
    positions = ["rotations by positions as in a cache"] if turned else []
    positions += ["biases by distances of the whole text"] if biased else []
    text = f"the first {sinks} keys and the last {trained - sinks}"
    return Remedy(
        name="sinks",
        title="window with sinks",
        text=", ".join([text, *positions]),
        change=SinkWindow(Rotations(spec), trained - sinks, sinks),
        forgets=True,
    )


def _clip(spec: Spec, trained: int, length: int) -> Remedy:  # noqa: ARG001
    near = max(1, trained // 2)
    return Remedy(
        name="clip",
        title="clipped positions",
        text=f"distances from {near} on become {near}",
        change=Clipped(Rotations(spec), near),
    )


def _group(spec: Spec, trained: int, length: int) -> Remedy:
    near = max(1, trained // 2)
    size = max(2, math.ceil((length - near) / max(1, trained - 1 - near)))
    return Remedy(
        name="group",
        title="grouped positions",
        text=f"distances from {near} on count in groups of {size}",
        change=Grouped(Rotations(spec), near, size),
    )


def _chunk(spec: Spec, trained: int, length: int) -> Remedy:  # noqa: ARG001
    return Remedy(
        name="chunk",
        title="chunked attention",
        text=f"keys of the query's own block of {trained}",
        change=Chunks(trained),
        forgets=True,
    )


def _stretch(spec: Spec, trained: int, length: int) -> Remedy:  # noqa: ARG001
    factor = length / trained
    return Remedy(
        name="stretch",
        title="stretched bias",
        text=f"B(d) becomes B(d / {factor:g})",
        change=BiasStretched(factor),
    )


def _clip_bias(spec: Spec, trained: int, length: int) -> Remedy:  # noqa: ARG001
    return Remedy(
        name="clip-bias",
        title="clipped bias",
        text=f"B(d) becomes B(min(d, {trained - 1}))",
        change=BiasClipped(trained - 1),
    )


SEARCHED: Final = "longrope"
"""The remedy whose settings are searched on a window of its own."""
REMEDIES: Final[dict[str, Callable[[Spec, int, int], Remedy]]] = {
    "linear": _linear,
    "ntk": _ntk,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "prope": _prope,
    "log": _log,
    "nope": _nope,
    "sinks": _sinks,
    "clip": _clip,
    "group": _group,
    "chunk": _chunk,
    "stretch": _stretch,
    "clip-bias": _clip_bias,
}
"""Every remedy without a search, by name; each takes a spec, the trained and the target length."""
QUICK: Final = tuple(name for name in REMEDIES if name not in {"sinks", "chunk"})
"""What a quick diagnosis tries: what can be tried at far positions alone, and for a bias the two
that apply to it."""


def remedies_for(
    spec: Spec, trained: int, length: int, names: Sequence[str] | None = None
) -> tuple[list[Remedy], dict[str, str]]:
    """Return the remedies that apply, and why the others do not.

    Args:
        spec: The model's.
        trained: L, the length that the model was trained at.
        length: N, the length that it is to read.
        names: Some of REMEDIES; None is all.
    """
    for name in names or ():
        if name not in REMEDIES and name != SEARCHED:
            known = ", ".join([*REMEDIES, SEARCHED])
            raise InputError(f"unknown remedy {name!r}: choose from {known}.")
    chosen: list[Remedy] = []
    refused: dict[str, str] = {}
    for name, make in REMEDIES.items():
        if names is not None and name not in names:
            continue
        try:
            remedy = make(spec, trained, length)
            reason = remedy.refuses(spec)
        except InputError as error:
            refused[name] = str(error).rstrip(".")
            continue
        if reason is None:
            chosen.append(remedy)
        else:
            refused[name] = reason
    return chosen, refused


def remedied(
    model: LoadedModel,
    name: str,
    length: int,
    *,
    trained: int | None = None,
    first: int | None = None,
) -> ChangedModel:
    """Return a model with a remedy: it can be scored, captured and measured, not continued.

    Args:
        model: One of our models or a published one.
        name: A name of REMEDIES, or longrope.
        length: The length that it is to read.
        trained: The length it was trained at; by default what its config says.
        first: The first pair that longrope divides, counted from 0, as a diagnosis found it.
    """
    base = model.for_length(length)
    if not isinstance(base, GPT2Model | PublishedModel):
        raise InputError(f"{model.spec.name} is not a model whose attention can be changed.")
    known = base.spec.train_length if trained is None else trained
    if known is None:
        raise InputError(f"the trained length of {base.spec.name} is not known: give `trained`.")
    at_least(2, trained=known)
    if name == SEARCHED:
        if first is None:
            raise InputError(
                f"{name} has settings that are searched: give `first`, as a diagnosis found it."
            )
        return longrope(base.spec, known, length, first).applied(base)
    chosen, refused = remedies_for(base.spec, known, length, [name])
    if not chosen:
        raise InputError(f"{name} does not apply to {base.spec.name}: {refused[name]}.")
    return chosen[0].applied(base)


def refusals(
    model: GPT2Model | PublishedModel, remedies: Sequence[Remedy], tokens: Int64[np.ndarray, " n"]
) -> dict[str, str]:
    """Return why remedies cannot be applied to a model's calls, by name, before any long pass.

    Args:
        model: The model.
        remedies: What is tried on the calls of every layer.
        tokens: A short text.
    """
    found: dict[str, str] = {}

    def watch(layer: int, call: AttentionCall) -> None:
        for remedy in remedies:
            if remedy.name in found:
                continue
            try:
                remedy.change(layer, call)
            except InputError as error:
                found[remedy.name] = str(error).rstrip(".")

    model.observe(torch.from_numpy(tokens)[None], range(len(model.spec.layers)), watch)
    return found


def turns_by_layer(spec: Spec, length: int) -> dict[int, list[float]]:
    """Return how often each pair of every RoPE layer, counted from 0, turns in `length` tokens.

    {} without RoPE, or if its frequencies are learned.
    """
    if needs_known_rotation(spec):
        return {}
    rotations, found = Rotations(spec), {}
    for layer in stretchable(spec, None):
        encoding: Any = rotations.layer(layer)
        turns = length * encoding.frequencies(length) / (2 * math.pi)
        found[layer] = [float(turn) for turn in turns]
    return found


def pair_turns(spec: Spec, length: int) -> list[float]:
    """Return how often each pair turns in `length` tokens, in the first layer that sees so many.

    [] without such a layer, or if its frequencies are learned.
    """
    every, reaching = turns_by_layer(spec, length), stretchable(spec, length)
    return next((every[layer] for layer in reaching if layer in every), [])


def _turns_of_all(spec: Spec, trained: int) -> list[float]:
    """Return `pair_turns`, after checking that they are those of every layer that is changed."""
    every, turns = turns_by_layer(spec, trained), pair_turns(spec, trained)
    if any(every.get(layer, turns) != turns for layer in stretchable(spec, trained)):
        raise InputError("it sets one divisor per pair, and layers have different frequencies")
    return turns


def _rope(
    spec: Spec, trained: int, name: str, title: str, text: str | None = None, **fields: Any
) -> Remedy:
    shown = ", ".join(f"{key} {value:g}" for key, value in fields.items() if _is_number(value))
    kept = len(stretchable(spec, None)) - len(stretchable(spec, trained))
    rest = f"; {kept} layers with a window or chunks within {trained} tokens keep theirs"
    return Remedy(
        name=name,
        title=title,
        text=(text or f"RoPE with {shown}") + (rest if kept else ""),
        change=Frequencies.of(spec, trained, **fields),
        rope=fields,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
