"""A diagnosis: where a model breaks past its trained length, which heads, why, and what mends it.

    1 config     declared against active settings              models/transformers/declared.py
    2 break      loss by position, retrieval by depth          loss_by_position.py, retrieval.py
    3 heads      measures at L ... N, control, effects         heads.py
    4 remedies   the same windows and questions with each      remedies.py, changes.py
    5 advice     ranking and patch                             advice.py

What each stage computes is kept window by window in the folder `stages` (evaluation/journal.py), so
a repeated command goes on where an earlier one ended, and ends with the same bytes.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Int64

import headscape
from headscape.captures.sequences import Text
from headscape.diagnosis import heads as head_stage
from headscape.diagnosis.advice import Tried, best_of, patch, ranked, sentence
from headscape.diagnosis.changes import needs_known_rope
from headscape.diagnosis.loss_by_position import (
    BANDS,
    SCORED,
    THRESHOLD,
    LossPlan,
    LossTable,
    numbers,
    short_context_losses,
    window_losses,
    windows_of,
)
from headscape.diagnosis.remedies import (
    QUICK,
    SEARCHED,
    Remedy,
    longrope_candidates,
    remedies_for,
)
from headscape.diagnosis.report import Diagnosis
from headscape.diagnosis.retrieval import KINDS, SHORTEST, marks
from headscape.errors import InputError, at_least
from headscape.evaluation.journal import resumed
from headscape.io.progress import SlowBar
from headscape.measures.interval import FEWEST, estimate
from headscape.measures.measure_model import open_stream
from headscape.models.changed import ChangedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.loaded import LoadedModel
from headscape.models.transformers.declared import settings
from headscape.models.transformers.published_model import PublishedModel
from headscape.models.transformers.speech_model import SpeechModel

DEPTHS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
STAGES: Final = "stages"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is run."""

    windows: int = 8
    """Windows of the target length."""
    questions: int = 2
    """Questions per kind, depth and length."""
    depths: tuple[float, ...] = DEPTHS
    sequences: int = 2
    """Windows on which heads are measured."""
    effects: int = 6
    """Windows on which single heads get known positions."""
    kinds: tuple[str, ...] = KINDS
    asked: tuple[tuple[str, float], ...] = tuple(
        (kind, depth) for kind in ("needle", "copy") for depth in (0.1, 0.5, 0.9)
    )
    """Questions that every remedy is asked: kind and depth."""
    left_out: tuple[str, ...] = ()
    """What is not run, for the page."""


QUICKLY: Final = Effort(
    windows=2,
    questions=1,
    depths=(0.5,),
    sequences=1,
    effects=0,
    kinds=("needle", "copy"),
    asked=(("copy", 0.5),),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """What is diagnosed."""

    base: GPT2Model | PublishedModel
    plan: LossPlan
    searched: Int64[np.ndarray, " t_plus_1"]
    """The window on which settings are searched; it is not scored if the text has another."""
    pool: Int64[np.ndarray, " n"]
    """Tokens of the text, for questions."""
    effort: Effort
    folder: Path | None
    """Where stages are kept; None keeps none."""

    def kept(
        self,
        stage: str,
        about: Mapping[str, Any],
        batches: Iterable[Any],
        compute: Callable[[Any], Any],
    ) -> list[Any]:
        """Return what `compute` returns for each batch, from the journal where it is finished."""
        header = {
            "format": 1,
            "diagnosis": stage,
            "model": self.base.fingerprint,
            "text": hashlib.sha256(self.plan.windows.astype("<i8").tobytes()).hexdigest(),
            "lengths": [self.plan.trained, self.plan.length, BANDS, SCORED],
            **about,
        }
        return [found for _, found in resumed(self.folder, header, batches, compute)]


def diagnose(
    model: LoadedModel | str | Path,
    length: int,
    text: Text | None = None,
    *,
    corpus: str | None = None,
    trained: int | None = None,
    windows: int | None = None,
    questions: int | None = None,
    effects: int | None = None,
    remedies: Sequence[str] | None = None,
    declared: Mapping[str, Any] | None = None,
    quick: bool = False,
    out: str | Path | None = None,
) -> Diagnosis:
    """Return where a model breaks up to a length, which heads change, why, and what mends it.

    Args:
        model: A model, or what `load` takes.
        length: The length that the model is to read, above the trained one.
        text: Text or token numbers; by default the validation text of a run.
        corpus: Corpus to read instead.
        trained: The trained length; by default what the model's config says.
        windows: Windows of the target length; by default 8, or as many as the text has.
        questions: Questions per kind, depth and length; by default 2, and 0 asks none.
        effects: Windows on which single heads get known positions; by default 6, and 0 skips this.
        remedies: Names of remedies to try; by default all that apply.
        declared: The config that was meant, as config.json has it; by default the model's own.
        quick: Whether to run little: 2 windows, few remedies; the result says what is left out.
        out: Folder to write the page to and to keep the stages in; None writes nothing.

    Example:
        >>> import headscape as hs
        >>> gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257, train_length=32)
        >>> found = hs.diagnose(hs.load(gpt2), 64, list(range(250)), quick=True)
        >>> found.data["about"]["trained"], found.data["about"]["length"]
        (32, 64)
    """
    base = _opened(model, length)
    trained = base.spec.train_length if trained is None else trained
    _check(base, trained, length, windows)
    assert trained is not None
    names = QUICK if quick and remedies is None else remedies
    effort = _effort(windows, questions, effects, quick=quick, few=names is QUICK)
    stream = open_stream(base, text, corpus)
    scored, searched = windows_of(stream.tokens, length, effort.windows, stream.name)
    folder = None if out is None else Path(out) / STAGES
    case = Case(
        base=base,
        plan=LossPlan(trained=trained, length=length, windows=scored),
        searched=searched,
        pool=stream.tokens,
        effort=effort,
        folder=folder,
    )
    chosen, refused = remedies_for(base.spec, trained, length, names)
    data: dict[str, Any] = {"about": _about(case, stream.name, quick=quick)}
    data["config"] = _config(base, declared, length)
    own, control = _own_losses(case)
    data["loss"] = {
        "bands": own.bands(),
        "holds_to": own.holds_to(),
        "threshold": THRESHOLD,
        "past": numbers(estimate(own.past())),
        "excess": numbers(estimate(own.excess().mean(axis=1))),
    }
    data["retrieval"] = _retrieval(case)
    data["heads"] = _heads(case)
    if names is None or SEARCHED in names:
        chosen += _search(case, refused)
    tried = [Tried(remedy=each, losses=_losses(case, each, control)) for each in chosen]
    asked = {each.name: _asked(case, each) for each in chosen}
    data["remedies"] = [
        {**each.row(own), "retrieval": asked[each.remedy.name]} for each in ranked(tried)
    ]
    data["unchanged_retrieval"] = _asked(case, None)
    data["refused"] = refused
    data["advice"] = _advice(case, own, tried)
    data["findings"] = _findings(data)
    found = Diagnosis(data)
    if out is not None:
        found.save(out)
    return found


def _effort(
    windows: int | None, questions: int | None, effects: int | None, *, quick: bool, few: bool
) -> Effort:
    """Return how much is run; `few` says that the remedies are those of QUICK."""
    at_least(0, questions=questions, effects=effects)
    usual = QUICKLY if quick else Effort()
    effort = replace(
        usual,
        windows=usual.windows if windows is None else windows,
        questions=usual.questions if questions is None else questions,
        effects=usual.effects if effects is None else effects,
    )
    missing = []
    if effort.questions == 0:
        missing.append("no questions of retrieval")
    elif quick:
        missing.append("retrieval of needle and copy only, at one depth")
    if effort.effects == 0:
        missing.append("no effects of single heads")
    if few:
        missing.append(
            "remedies linear, NTK, YaRN and clipped positions only; for a bias stretching and "
            "clipping"
        )
    return replace(effort, left_out=tuple(missing))


def _opened(model: LoadedModel | str | Path, length: int) -> GPT2Model | PublishedModel:
    if isinstance(model, str | Path):
        from headscape.models.load import load

        model = load(model)
    base = model.for_length(length) if isinstance(model, LoadedModel) else model
    if isinstance(base, SpeechModel) or not isinstance(base, GPT2Model | PublishedModel):
        raise InputError(
            f"a diagnosis takes a model of text in memory or its folder, got "
            f"{type(model).__name__}."
        )
    return base


def _check(
    base: GPT2Model | PublishedModel, trained: int | None, length: int, windows: int | None
) -> None:
    at_least(1, length=length, windows=windows)
    spec = base.spec
    if not spec.causal:
        raise InputError(f"{spec.name} does not predict the next token, so it has no loss.")
    if spec.task is not None:
        raise InputError(
            f"{spec.name} was trained on the task {spec.task}: evaluate it at several lengths "
            f"instead."
        )
    if trained is None:
        raise InputError(f"the trained length of {spec.name} is not known: give `trained`.")
    at_least(16, **{"the trained length": trained})
    if length <= trained:
        raise InputError(
            f"the length must be above the trained length of {trained:,} tokens, got {length:,}: "
            f"up to there nothing is new to the model."
        )
    reason = base.length_error(length)
    if reason is not None:
        raise InputError(reason)


def _about(case: Case, text: str, *, quick: bool) -> dict[str, Any]:
    spec, plan = case.base.spec, case.plan
    missing = list(case.effort.left_out)
    count = len(plan.windows)
    if count < FEWEST:
        missing.append(f"{count} windows of {plan.length:,} tokens have no interval")
    if case.base.tokenizer is None and case.effort.questions:
        missing.append("the model has no tokenizer: of the questions only copying is asked")
    return {
        "model": spec.name,
        "encoding": spec.encoding,
        "fingerprint": case.base.fingerprint,
        "trained": plan.trained,
        "length": plan.length,
        "short": plan.short,
        "text": text,
        "windows": count,
        "scored_per_window": len(plan.at),
        "quick": quick,
        "left_out": missing,
        "headscape": headscape.__version__,
    }


def _config(
    base: GPT2Model | PublishedModel, declared: Mapping[str, Any] | None, length: int
) -> list[dict[str, Any]]:
    if isinstance(base, PublishedModel):
        return [asdict(each) for each in settings(base, declared, reach=length)]
    layer = base.spec.layers[0].conventions
    names = [name for name in ("scaling", "factor", "base", "window", "chunk") if name in layer]
    # A run's config is what its encoding is built from, so it cannot differ.
    texts = {name: "none" if layer[name] is None else str(layer[name]) for name in names}
    return [
        {"name": name, "declared": text, "active": text, "fault": None, "text": ""}
        for name, text in texts.items()
    ]


def _own_losses(case: Case) -> tuple[LossTable, list[Any]]:
    model, plan = ChangedModel(case.base), case.plan
    count = range(len(plan.windows))
    work = plan.cost(model)
    with SlowBar("loss by position", work * len(count)) as bar:
        control = case.kept(
            "short context", {}, count, lambda n: short_context_losses(model, plan, n)
        )
        entries = case.kept("loss", {}, count, _counted(bar, work, window_losses, model, plan))
    return LossTable.of(plan, entries, control), control


def _losses(case: Case, remedy: Remedy, control: list[Any]) -> LossTable:
    model, plan = remedy.applied(case.base), case.plan
    work = round(model.cost(plan.length))
    with SlowBar(remedy.title, work * len(plan.windows)) as bar:
        entries = case.kept(
            "remedy",
            {"remedy": remedy.mark},
            range(len(plan.windows)),
            _counted(bar, work, window_losses, model, plan),
        )
    return LossTable.of(plan, entries, control)


def _counted(bar: SlowBar, work: int, compute: Callable[..., Any], *given: Any) -> Any:
    def one(number: int) -> Any:
        found = compute(*given, number)
        bar.advance(work)
        return found

    return one


def _search(case: Case, refused: dict[str, str]) -> list[Remedy]:
    """Return the LongRoPE-type remedy with the lowest loss on a window of its own.

    If none applies, the list is empty and the reason goes into `refused`.
    """
    spec, plan = case.base.spec, case.plan
    candidates = longrope_candidates(spec, plan.trained, plan.length)
    reasons = [needs_known_rope(spec), *(each.refuses(spec) for each in candidates)]
    reason = next((each for each in reasons if each is not None), None)
    if reason is not None or not candidates:
        refused[SEARCHED] = reason or "it has too few pairs for a search"
        return []
    at = torch.from_numpy(plan.at[plan.past])
    window = torch.from_numpy(case.searched)[None]

    def loss(number: int) -> float:
        return float(candidates[number].applied(case.base).losses_at(window, at).mean())

    with SlowBar("searching factors", len(candidates)) as bar:

        def counted(number: int) -> float:
            found = loss(number)
            bar.advance(1)
            return found

        about = {"candidates": [each.mark for each in candidates]}
        losses = case.kept("search", about, range(len(candidates)), counted)
    return [candidates[int(np.argmin(losses))]]


def lengths_between(trained: int, length: int) -> list[int]:
    """Return L, 2L, 4L ... and the target length."""
    doublings = math.ceil(math.log2(length / trained))
    return [*(trained << step for step in range(doublings)), length]


def _retrieval(case: Case) -> list[dict[str, Any]]:
    """Ask the unchanged model every kind of question at every depth and length."""
    plan, effort, model = case.plan, case.effort, ChangedModel(case.base)
    lengths = [n for n in lengths_between(plan.trained, plan.length) if n >= SHORTEST]
    lengths = lengths if effort.questions else []
    cells = [(k, n, d) for k in effort.kinds for n in lengths for d in effort.depths]
    work = sum(round(model.cost(length)) for _, length, _ in cells)
    with SlowBar("retrieval", work) as bar:

        def ask(cell: tuple[str, int, float]) -> Any:
            kind, length, depth = cell
            found = marks(model, kind, length, depth, effort.questions, case.pool)
            bar.advance(round(model.cost(length)))
            return found

        about = {"questions": effort.questions, "cells": [list(cell) for cell in cells]}
        answers = case.kept("retrieval", about, cells, ask)
    return [
        {
            "kind": kind,
            "length": length,
            "depth": depth,
            "loss": float(np.mean([each[0] for each in found])),
            "right": float(np.mean([each[1] for each in found])),
            "questions": len(found),
        }
        for (kind, length, depth), found in zip(cells, answers, strict=True)
        if found is not None
    ]


def _asked(case: Case, remedy: Remedy | None) -> dict[str, list[float]]:
    """Return the loss and the share of right answers by kind, at the target length."""
    if case.plan.length < SHORTEST or case.effort.questions == 0:
        return {}
    model = ChangedModel(case.base) if remedy is None else remedy.applied(case.base)
    cells = list(case.effort.asked)
    title = "retrieval" if remedy is None else f"retrieval, {remedy.title}"
    with SlowBar(title, len(cells)) as bar:

        def ask(cell: tuple[str, float]) -> Any:
            found = marks(
                model, cell[0], case.plan.length, cell[1], case.effort.questions, case.pool
            )
            bar.advance(1)
            return found

        about = {
            "remedy": "" if remedy is None else remedy.mark,
            "questions": case.effort.questions,
            "cells": [list(cell) for cell in cells],
        }
        answers = case.kept("asked", about, cells, ask)
    by_kind: dict[str, list[list[float]]] = {}
    for (kind, _), found in zip(cells, answers, strict=True):
        by_kind.setdefault(kind, []).extend(found or [])
    return {kind: np.mean(each, axis=0).tolist() for kind, each in by_kind.items() if each}


def _heads(case: Case) -> dict[str, Any]:
    base, plan, effort = case.base, case.plan, case.effort
    lengths = lengths_between(plan.trained, plan.length)
    if effort.sequences == 1:
        lengths = [lengths[0], lengths[-1]]
    control = head_stage.control_model(base, plan.trained, plan.length)
    runs: list[tuple[int, bool, int]] = [
        (length, False, number)
        for length in lengths
        for number in range(min(effort.sequences, len(plan.windows)))
    ]
    if control is not None:
        runs += [(plan.trained, True, number) for length, _, number in runs if length == lengths[0]]
    with SlowBar("heads", sum(length for length, _, _ in runs)) as bar:

        def measured(one: tuple[int, bool, int]) -> Any:
            length, moved, number = one
            model = control if moved and control is not None else ChangedModel(base)
            found = head_stage.head_measures(model, plan.windows[number, :length])
            bar.advance(length)
            return found

        tables = case.kept("heads", {"runs": [list(one) for one in runs]}, runs, measured)
    means = {
        (length, moved): _mean_table(
            [table for one, table in zip(runs, tables, strict=True) if one[:2] == (length, moved)]
        )
        for length, moved, _ in runs
    }
    first, last = means[lengths[0], False], means[lengths[-1], False]
    middle = means.get((plan.trained, True))
    changed = head_stage.most_changed(first, last)
    return {
        "trained": plan.trained,
        "length": plan.length,
        "by_length": {str(length): means[length, False] for length in lengths},
        "control": middle,
        "parts": head_stage.parts(first, middle, last),
        "untrained_pairs": head_stage.untrained_pairs(base.spec, plan.trained, plan.length),
        "most_changed": [
            {"layer": layer, "head": head, "change": change} for layer, head, change in changed
        ],
        "effects": _effects(case, [(layer, head) for layer, head, _ in changed]),
    }


def _effects(case: Case, heads: list[tuple[int, int]]) -> dict[str, list[float | None]]:
    """Return each head's effect on the loss past L, by `layer.head` counted from 0."""
    count = min(case.effort.effects, len(case.plan.windows))
    if count == 0 or head_stage.control_model(case.base, 16, 32) is None:
        return {}
    with SlowBar("effects of heads", count * len(heads)) as bar:

        def changed(number: int) -> Any:
            window = case.plan.windows[number : number + 1]
            return head_stage.head_effects(case.base, window, case.plan.trained, heads, bar.advance)

        about = {"heads": [list(head) for head in heads]}
        by_window = case.kept("effects", about, range(count), changed)
    names = [f"{layer}.{head}" for layer, head in heads]
    return {
        name: numbers(estimate(np.array([found[name][0] for found in by_window]))) for name in names
    }


def _mean_table(tables: Sequence[head_stage.HeadTable]) -> head_stage.HeadTable:
    return {
        name: head_stage.listed(
            np.mean([np.array(table[name], dtype=np.float64) for table in tables], axis=0)
        )
        for name in head_stage.MEASURES
    }


def _advice(case: Case, own: LossTable, tried: Sequence[Tried]) -> dict[str, Any]:
    best = best_of(own, tried)
    return {
        "sentence": sentence(own, tried),
        "best": None if best is None else best.remedy.name,
        "patch": None
        if best is None
        else patch(best.remedy, case.base.spec, case.plan.trained, case.plan.length),
    }


def _findings(data: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what is wrong, each with its stage, its kind and a sentence."""
    found = [
        {"stage": "config", "kind": each["fault"], "text": each["text"]}
        for each in data["config"]
        if each["fault"]
    ]
    about, loss = data["about"], data["loss"]
    if loss["holds_to"] >= about["length"]:
        return found
    found.append(
        {
            "stage": "break",
            "kind": "breaks",
            "text": f"The loss holds up to {loss['holds_to']:,} tokens; past the trained length of "
            f"{about['trained']:,} it is {loss['excess'][0]:.2f} nats above the same tokens with a "
            f"short context.",
        }
    )
    known = (each for each in data["remedies"] if each["name"] in {"clip", "clip-bias"})
    clipped = next(known, None)
    if clipped is None or loss["excess"][0] <= 0:
        return found
    share = 1 - clipped["excess"][0] / loss["excess"][0]
    kind = "positions" if share >= 0.5 else "keys"
    cause = (
        "positions that training never had are the cause"
        if kind == "positions"
        else "known positions do not mend it, so the number of keys or the text is the cause"
    )
    found.append(
        {
            "stage": "heads",
            "kind": kind,
            "text": f"With all keys in view at known positions ({clipped['text']}), "
            f"{max(0.0, share):.0%} of the excess is gone: {cause}.",
        }
    )
    return found
