"""A diagnosis: where a model breaks past its trained length, which heads, why, and what mends it.

    1 config     declared against active settings              models/transformers/declared.py
                 the first token, which may be a sink          first_token.py
    2 break      loss by position, retrieval by depth          loss_by_position.py, retrieval.py
    3 heads      measures at L ... N, control, effects         heads.py
    4 remedies   the same windows and questions with each      remedies.py, changes.py
    5 advice     ranking                                       advice.py
                 what a remedy is called in other software     settings.py

A quick diagnosis reads one window of N tokens, once: its losses and head measures are of one pass.
Remedies of RoPE are then tried at far positions alone, in short windows (far_positions.py).

What each stage computes is kept window by window in the folder `stages` (evaluation/journal.py), so
a repeated command goes on where an earlier one ended, and ends with the same bytes.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Int64
from torch import nn

import headscape
from headscape.captures.sequences import Text
from headscape.diagnosis import far_positions, first_token
from headscape.diagnosis import heads as head_stage
from headscape.diagnosis.advice import Tried, best_of, ranked, sentence
from headscape.diagnosis.changes import (
    Gap,
    needs_known_rotation,
    needs_rotation,
    needs_rotation_alone,
)
from headscape.diagnosis.far_positions import FarPlan, FarTable
from headscape.diagnosis.loss_by_position import (
    BANDS,
    SCORED,
    THRESHOLD,
    LossPlan,
    LossTable,
    NotFiniteError,
    Windows,
    losses_at,
    numbers,
    short_context_losses,
    short_losses,
    window_losses,
    windows_of,
)
from headscape.diagnosis.pass_bar import PassBar
from headscape.diagnosis.remedies import (
    QUICK,
    SEARCHED,
    Remedy,
    longrope_candidates,
    refusals,
    remedies_for,
)
from headscape.diagnosis.report import Diagnosis
from headscape.diagnosis.retrieval import (
    COPY_DEPTH,
    KINDS,
    SHORTEST,
    Answers,
    Cell,
    by_kind,
    by_length,
    copying_heads,
    marks,
)
from headscape.diagnosis.settings import (
    check_apply,
    config_of,
    patch,
    rope_entries,
    write_config,
)
from headscape.errors import InputError, at_least
from headscape.evaluation.journal import resumed
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
CONTROLS: Final = 2
"""Gaps of the control of every window on which heads are measured."""
CHECKED: Final = 64
"""Tokens on which every change is tried before anything long runs."""


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
    far: bool = False
    """Whether remedies are tried at far positions in short windows, and questions asked up to L."""
    one_pass: bool = False
    """Whether heads are measured at L and N only, at N in the pass that scores the first window."""
    left_out: tuple[str, ...] = ()
    """What is not run, for the page."""


QUICKLY: Final = Effort(
    windows=1,
    questions=1,
    depths=(COPY_DEPTH,),
    sequences=1,
    effects=0,
    kinds=("copy",),
    asked=(("copy", COPY_DEPTH),),
    one_pass=True,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """What is diagnosed."""

    base: GPT2Model | PublishedModel
    plan: LossPlan
    searched: Int64[np.ndarray, " t_plus_1"]
    """The window on which settings are searched; it is not scored if the text has another."""
    texts: Sequence[Int64[np.ndarray, " n"]]
    """The tokens of every text, for questions and short windows."""
    effort: Effort
    folder: Path | None
    """Where stages are kept; None keeps none."""
    turns: bool
    """Whether the model's rotations can be repeated from its settings, at other positions too."""
    moves: bool
    """Whether rotations are all that knows a position, so that tokens can be moved."""

    def kept(
        self,
        stage: str,
        about: Mapping[str, Any],
        batches: Sequence[Any],
        compute: Callable[[Any], Any],
        work: Callable[[Any], float],
        title: str | None = None,
    ) -> list[Any]:
        """Return what `compute` returns for each batch, from the journal where it is finished.

        Args:
            stage: Name of the stage.
            about: What the numbers depend on besides the model and the scored windows.
            batches: What is computed one by one.
            compute: Takes a batch and returns what is kept.
            work: Takes a batch and returns its cost, for the progress bar.
            title: Of the bar; by default the stage's name.
        """
        header = {
            "format": 4,
            "diagnosis": stage,
            "model": self.base.fingerprint,
            "text": _digest(self.plan.windows),
            "lengths": [self.plan.trained, self.plan.length, BANDS, SCORED],
            "first": self.plan.first,
            **about,
        }
        found = []
        with PassBar(self.base, title or stage, map(work, batches)) as bar:
            for _, each in resumed(self.folder, header, batches, compute):
                found.append(each)
                bar.finished()
        return found

    @cached_property
    def pool_digest(self) -> str:
        """What the text is, for stages that draw questions from it."""
        return _digest(self.pool)

    def short_windows(self, tokens: int, count: int) -> Int64[np.ndarray, "n t_plus_1"]:
        """Return at most `count` windows of min(tokens, L) tokens, spread over the text."""
        return self._short_windows(tokens, count)[0]

    def short_search_window(self, tokens: int, count: int) -> Int64[np.ndarray, " t_plus_1"]:
        """Return a window that is none of `short_windows`, if the text has room for it."""
        return self._short_windows(tokens, count)[1]

    def _short_windows(self, tokens: int, count: int) -> Windows:
        return windows_of(self.texts, min(tokens, self.plan.trained), count, "the text")

    def begun(self, windows: Int64[np.ndarray, "n t"]) -> Int64[np.ndarray, "n t"]:
        """Return windows that begin with the token that was asked for."""
        if self.plan.first is None:
            return windows
        windows = windows.copy()
        windows[:, 0] = self.plan.first
        return windows

    @cached_property
    def pool(self) -> Int64[np.ndarray, " n"]:
        """The tokens of all texts."""
        return np.concatenate(self.texts)

    def controls(self, count: int) -> list[Gap]:
        """Return `count` gaps that make far positions of few keys; [] if tokens cannot be moved."""
        if not self.moves:
            return []
        plan = self.plan
        return head_stage.control_changes(self.base.spec, plan.trained, plan.length, count)


def diagnose(
    model: LoadedModel | nn.Module | str | Path,
    length: int,
    text: Text | Sequence[Text] | None = None,
    *,
    corpus: str | None = None,
    trained: int | None = None,
    windows: int | None = None,
    questions: int | None = None,
    effects: int | None = None,
    remedies: Sequence[str] | None = None,
    declared: Mapping[str, Any] | None = None,
    first: int | None = None,
    quick: bool = False,
    out: str | Path | None = None,
    apply: str | Path | None = None,
) -> Diagnosis:
    """Return where a model breaks up to a length, which heads change, why, and what mends it.

    Args:
        model: A model, or what `load` takes.
        length: The length that the model is to read, above the trained one.
        text: Text or token numbers, or several of them: windows are taken from all that are long
            enough. By default the validation text of a run.
        corpus: Corpus to read instead.
        trained: The trained length; by default what the model's config says.
        windows: Windows of the target length; by default 8, or as many as the text has.
        questions: Questions per kind, depth and length; by default 2, and 0 asks none.
        effects: Windows on which single heads get known positions; by default 6, and 0 skips this.
        remedies: Names of remedies to try; by default all that apply.
        declared: The config that was meant, as config.json has it; by default the model's own.
        first: Number of the token that every window begins with; by default they begin where the
            text is cut, and the result says if the model misses its usual first token.
        quick: Whether to run little: 1 window, remedies of RoPE at far positions in short windows;
            the result says what is left out.
        out: Folder to write the page to and to keep the stages in; None writes nothing.
        apply: Folder to write a copy of a published model's config to, with the best remedy that is
            a setting of transformers, if there is one.

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
    if first is not None and not 0 <= first < base.spec.vocabulary:
        raise InputError(
            f"the first token must be from 0 to {base.spec.vocabulary - 1}, got {first}."
        )
    names = QUICK if quick and remedies is None else remedies
    chosen, refused = remedies_for(base.spec, trained, length, names)
    texts, text_name = _texts(base, text, corpus)
    count = (QUICKLY if quick else Effort()).windows if windows is None else windows
    scored, searched = windows_of(texts, length, count, text_name)
    some = scored[0, :CHECKED]
    rotation = head_stage.rotation_error(base, some)
    turns = rotation is None
    moves = turns and needs_rotation_alone(base.spec) is None
    far = quick and moves
    asks = trained if far else length
    effort = _effort(
        windows,
        questions,
        effects,
        quick=quick,
        few=names is QUICK,
        far=far,
        # A run at far positions asks in texts of L tokens or fewer.
        asks=asks >= SHORTEST,
        turns=turns,
    )
    if far:
        chosen = _tried_far(chosen, refused)
    refused |= refusals(base, chosen, some)
    chosen = [each for each in chosen if each.name not in refused]
    if apply is not None:
        settable = any(each.rope is not None for each in chosen) or (
            names is not None and SEARCHED in names and not needs_rotation(base.spec, ("rope",))
        )
        check_apply(base, [each.name for each in chosen], Path(apply), trained, is_setting=settable)
    if first is not None:
        scored, searched = scored.copy(), searched.copy()
        scored[:, 0] = searched[0] = first
    case = Case(
        base=base,
        plan=LossPlan(trained=trained, length=length, windows=scored, first=first),
        searched=searched,
        texts=texts,
        effort=effort,
        folder=None if out is None else Path(out) / STAGES,
        turns=turns,
        moves=moves,
    )
    data: dict[str, Any] = {"about": _about(case, text_name, quick=quick)}
    data["config"] = _config(base, declared, length)
    data["rotation"] = None if needs_known_rotation(base.spec) else rotation
    data["first_token"] = _first_token(case)
    own, control, at_length = _own_losses(case)
    data["loss"] = {
        "bands": own.bands(),
        "holds_to": own.holds_to(),
        "threshold": THRESHOLD,
        "past": numbers(estimate(own.past())),
        "excess": numbers(estimate(own.excess().mean(axis=1))),
    }
    cells, copying = _retrieval(case)
    data["retrieval"] = [row for row, _ in cells]
    data["retrieval_by_length"] = by_length(cells, trained)
    data["heads"] = _heads(case, at_length, copying)
    unchanged, trials = _far_trials(case, own) if far else _long_trials(case, own, control)
    if names is None or SEARCHED in names:
        try:
            chosen += _search(case, refused)
        except NotFiniteError as error:
            refused[SEARCHED] = str(error).rstrip(".")
    tried = ranked(_tried(chosen, trials, refused))
    data["far"] = None
    if isinstance(unchanged, FarTable):
        data["far"] = {
            "windows": len(unchanged.far),
            "tokens": unchanged.plan.windows.shape[1] - 1,
            "gaps": [min(unchanged.plan.gaps), max(unchanged.plan.gaps)],
            "near": numbers(estimate(unchanged.near.mean(axis=1))),
            "loss": numbers(estimate(unchanged.past())),
            "more": numbers(estimate(unchanged.excess().mean(axis=1))),
        }
    data["remedies"] = [each.row(unchanged) for each in tried]
    data["unchanged_retrieval"] = _far_asked(case, None) if far else _asked_already(case, cells)
    data["refused"] = refused
    data["past_half"] = _past_half(own, tried, unchanged)
    data["advice"] = _advice(case, own, tried, unchanged)
    data["findings"] = _findings(data)
    found = Diagnosis(data)
    if out is not None:
        found.save(out)
    setting = data["advice"]["setting"]
    if apply is not None and setting is not None:
        write_config(config_of(base), Path(apply), setting["transformers"])
    return found


def _tried_far(chosen: Sequence[Remedy], refused: dict[str, str]) -> list[Remedy]:
    """Return the remedies that far positions alone can show; the others go into `refused`."""
    for each in chosen:
        if each.forgets:
            refused[each.name] = "it hides far keys, so short windows with a gap do not show it"
    return [each for each in chosen if not each.forgets]


def _effort(
    windows: int | None,
    questions: int | None,
    effects: int | None,
    *,
    quick: bool,
    few: bool,
    far: bool,
    asks: bool,
    turns: bool,
) -> Effort:
    """Return how much is run.

    Args:
        windows: As given to `diagnose`, like the next two.
        questions: See there.
        effects: See there.
        quick: Whether little is run.
        few: Whether the remedies are those of QUICK.
        far: Whether remedies are tried at far positions.
        asks: Whether a question fits into one of the lengths at which it is asked.
        turns: Whether the model has rotations that can be repeated.
    """
    at_least(0, questions=questions, effects=effects)
    usual = QUICKLY if quick else Effort()
    effort = replace(
        usual,
        windows=usual.windows if windows is None else windows,
        questions=usual.questions if questions is None else questions,
        effects=usual.effects if effects is None else effects,
        far=far,
    )
    missing = []
    if effort.questions == 0:
        missing.append("no questions of retrieval")
    elif not asks:
        missing.append(f"no questions of retrieval, which need {SHORTEST} tokens")
    elif quick:
        where = "up to the trained length" if far else "at two lengths"
        missing.append(f"retrieval of copied tokens only, at one depth, {where}")
    if effort.questions and asks and not quick:
        missing.append(
            "remedies are asked for one fact and for copied tokens only: not for one of four facts "
            "and not for a chain of variables"
        )
    if not turns:
        missing.append(
            "effects of single heads: they need a rotation that can be repeated, and a bias is not "
            "changed in one head alone"
        )
    elif effort.effects == 0:
        missing.append("no effects of single heads")
    if quick:
        missing.append("heads between the trained and the target length")
    if far:
        missing.append(
            "remedies in whole windows: they are compared at far positions in short windows, "
            "without the effect of more keys"
        )
        missing.append("the cause, unless far positions alone make up half of the excess")
    if few:
        missing.append("remedies: LongRoPE-type factors, window with sinks, chunks")
    return replace(effort, left_out=tuple(missing))


def _texts(
    base: GPT2Model | PublishedModel, text: Text | Sequence[Text] | None, corpus: str | None
) -> tuple[list[Int64[np.ndarray, " n"]], str]:
    """Return the tokens of every text, and what the page calls them."""
    several = isinstance(text, Sequence) and not isinstance(text, str) and len(text) > 0
    kinds = (str, Sequence, np.ndarray, torch.Tensor)
    if several and all(isinstance(each, kinds) for each in text):  # type: ignore[union-attr]
        streams = [open_stream(base, each, corpus) for each in text]  # type: ignore[union-attr,arg-type]
        name = "the text" if len(streams) == 1 else f"{len(streams)} texts"
        return [each.tokens for each in streams], name
    stream = open_stream(base, text, corpus)  # type: ignore[arg-type]
    return [stream.tokens], stream.name


def _opened(model: LoadedModel | nn.Module | str | Path, length: int) -> GPT2Model | PublishedModel:
    if not isinstance(model, LoadedModel):
        from headscape.models.load import load

        model = load(model)
    base = model.for_length(length)
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
        some = "1 window has" if count == 1 else f"{count} windows have"
        missing.append(f"an interval of the loss by position, which {some} not")
    if case.base.tokenizer is None and case.effort.questions and not quick:
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
        "first_token": plan.first,
        "quick": quick,
        "left_out": missing,
        "headscape": headscape.__version__,
    }


def _config(
    base: GPT2Model | PublishedModel, declared: Mapping[str, Any] | None, length: int
) -> list[dict[str, Any]]:
    if isinstance(base, PublishedModel):
        return [asdict(each) for each in settings(base, declared, reach=length)]
    rows = []
    for name in ("scaling", "factor", "base", "window", "chunk"):
        layers: dict[str, list[int]] = {}
        for number, layer in enumerate(base.spec.layers, start=1):
            if name in layer.conventions:
                value = layer.conventions[name]
                layers.setdefault("none" if value is None else str(value), []).append(number)
        for text, numbered in layers.items():
            of_some = len(numbered) < len(base.spec.layers)
            where = f", layer {', '.join(map(str, numbered))}" if of_some else ""
            # A run's config is what its encoding is built from, so it cannot differ.
            row = {"name": name + where, "declared": text, "active": text}
            rows.append({**row, "fault": None, "text": ""})
    return rows


def _first_token(case: Case) -> dict[str, Any] | None:
    """Compare the text's own first tokens with the model's usual one; None if none is known."""
    base, given = case.base, case.plan.first
    token = first_token.usual_first_token(base) if given is None else given
    if token is None:
        return None
    windows = case.short_windows(first_token.TOKENS, first_token.WINDOWS)
    effects = case.kept(
        "first token",
        {"token": token, "windows": _digest(windows)},
        range(len(windows)),
        lambda number: first_token.first_token_effect(base, windows[number], token),
        lambda _: 2 * base.cost(windows.shape[1] - 1),
    )
    text = None if base.tokenizer is None else base.tokenizer.decode(np.array([token]))
    return first_token.first_token_stage(effects, token, text)


def _digest(tokens: Int64[np.ndarray, "..."]) -> str:
    return hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()


def _own_losses(case: Case) -> tuple[LossTable, list[Any], dict[str, Any] | None]:
    """Return the unchanged model's losses, those with a short context, and head measures at N.

    The measures are of the first window, and None unless they are taken in the same pass.
    """
    base, plan = case.base, case.plan
    model = ChangedModel(base)
    count = range(len(plan.windows))

    def watched(number: int) -> Any:
        with ExitStack() as stack:
            watch = head_stage.HeadWatch(base.spec, plan.length)
            whole = model
            if case.effort.one_pass and number == 0:
                whole = stack.enter_context(head_stage.watching(base, watch))
            found = window_losses(whole, plan, number)
        heads = {"measures": watch.table(), "kernel": watch.kernel()}
        return {**found, "heads": None if whole is model else heads}

    control = case.kept(
        "short context",
        {},
        count,
        lambda number: short_context_losses(model, plan, number),
        lambda _: plan.short_contexts_cost(base),
    )
    entries = case.kept(
        "loss",
        {"one_pass": case.effort.one_pass},
        count,
        watched,
        lambda _: plan.cost(base),
        "loss by position",
    )
    return LossTable.of(plan, entries, control), control, entries[0]["heads"]


Trial = Callable[[Remedy], Tried]
"""What tries a remedy."""


def _tried(chosen: Sequence[Remedy], trials: Trial, refused: dict[str, str]) -> list[Tried]:
    """Try every remedy; one whose losses are not finite goes into `refused`."""
    found = []
    for each in chosen:
        try:
            found.append(trials(each))
        except NotFiniteError as error:
            refused[each.name] = str(error).rstrip(".")
    return found


def _long_trials(case: Case, own: LossTable, control: list[Any]) -> tuple[LossTable, Trial]:
    """Return the unchanged losses, and what tries a remedy in whole windows."""

    def tried(remedy: Remedy) -> Tried:
        model, plan = remedy.applied(case.base), case.plan
        entries = case.kept(
            "remedy",
            {"remedy": remedy.mark},
            range(len(plan.windows)),
            lambda number: window_losses(model, plan, number),
            lambda _: plan.cost(case.base),
            remedy.title,
        )
        losses = LossTable.of(plan, entries, control)
        return Tried(remedy=remedy, losses=losses, answers=_asked(case, remedy))

    return own, tried


def _far_plan(case: Case) -> FarPlan:
    return _at_gaps(case, case.begun(case.short_windows(*_far_windows(case))))


def _at_gaps(case: Case, windows: Int64[np.ndarray, "n t_plus_1"]) -> FarPlan:
    """Return what reads windows with gaps that are spread over the target length."""
    trained, length = case.plan.trained, case.plan.length
    gaps = far_positions.gaps(trained, length, windows.shape[1] - 1, len(windows))
    return FarPlan(
        trained=trained, length=length, windows=windows, gaps=gaps, short=case.plan.short
    )


def _far_windows(case: Case) -> tuple[int, int]:
    """Return the length and the number of the windows that are read with a gap."""
    tokens = min(far_positions.TOKENS, case.plan.trained)
    return tokens, far_positions.WINDOWS * far_positions.TOKENS // tokens


def _far_trials(case: Case, own: LossTable) -> tuple[FarTable, Trial]:
    """Return the unchanged losses at far positions, and what tries a remedy there."""
    base, plan = case.base, _far_plan(case)
    count = range(len(plan.windows))

    def losses(title: str, mark: str, model: Callable[[int], ChangedModel]) -> Any:
        about = {"remedy": mark, "windows": _digest(plan.windows), "gaps": list(plan.gaps)}
        found = case.kept(
            "far",
            about,
            count,
            lambda number: plan.losses(model(number), number),
            lambda _: base.cost(plan.windows.shape[1] - 1),
            title,
        )
        return np.array(found)

    near = losses("near positions", "near", lambda _: ChangedModel(base))
    far = losses("far positions", "", partial(plan.model, base, None, ""))

    def tried(remedy: Remedy) -> Tried:
        model = partial(plan.model, base, remedy.change, remedy.mark)
        there = losses(remedy.title, remedy.mark, model)
        costs = case.kept(
            "cost",
            {"remedy": remedy.mark},
            range(len(case.plan.windows)),
            lambda number: short_losses(remedy.applied(base), case.plan, number),
            lambda _: base.cost(plan.short),
            f"cost of {remedy.title}",
        )
        table = FarTable(plan=plan, far=there, near=near, short=np.array(costs))
        return Tried(remedy=remedy, losses=table, answers=_far_asked(case, remedy))

    return FarTable(plan=plan, far=far, near=near, short=own.short), tried


def _far_asked(case: Case, remedy: Remedy | None) -> Answers:
    """Return the loss and the share of right answers with a gap between passage and answer."""
    tokens = min(far_positions.TOKENS, case.plan.trained)
    count = case.effort.questions
    if tokens < SHORTEST or count == 0:
        return {}
    mark, change = ("", None) if remedy is None else (remedy.mark, remedy.change)
    moved = far_positions.far(case.base.spec, tokens, case.plan.length - tokens, change)
    model = ChangedModel(case.base, moved, name=case.base.spec.name, mark=f"far {mark}")

    def ask(kind: str) -> Any:
        return marks(model, kind, tokens, COPY_DEPTH, count, case.pool, case.plan.first)

    about = {"remedy": mark, "questions": count, "pool": case.pool_digest}
    work = count * case.base.cost(tokens)
    [answers] = case.kept("asked far", about, ["copy"], ask, lambda _: work)
    return by_kind([("copy", answers)])


def _search(case: Case, refused: dict[str, str]) -> list[Remedy]:
    """Return the LongRoPE-type remedy with the lowest loss on a window of its own.

    If none applies, the list is empty and the reason goes into `refused`.
    """
    spec, plan = case.base.spec, case.plan
    searched, scored = case.searched[None], plan.windows
    if case.effort.far:
        searched = case.begun(case.short_search_window(*_far_windows(case))[None])
        scored = _far_plan(case).windows
    is_scored = bool((scored == searched).all(axis=1).any())
    note = "; the number was searched on " + (
        "a window that is scored, as the text has no other"
        if is_scored
        else "a window that is not scored"
    )
    try:
        candidates = longrope_candidates(spec, plan.trained, plan.length, note)
        reason = next((why for each in candidates if (why := each.refuses(spec))), None)
        reasons = refusals(case.base, candidates[:1], plan.windows[0, :CHECKED])
    except InputError as error:
        candidates, reason, reasons = [], str(error).rstrip("."), {}
    reason = reason or reasons.get(SEARCHED) or needs_rotation(spec, ("rope",))
    if reason is not None or not candidates:
        refused[SEARCHED] = reason or "it has too few pairs for a search"
        return []
    at = torch.from_numpy(plan.at[plan.past])
    # One gap could come round to a known angle for one of the candidates.
    every = np.repeat(searched, far_positions.WINDOWS, axis=0)
    short = _at_gaps(case, every) if case.effort.far else None

    def loss(number: int) -> float:
        each = candidates[number]
        if short is not None:
            models = [
                short.model(case.base, each.change, each.mark, place) for place in range(len(every))
            ]
            return float(
                np.mean([short.losses(model, place) for place, model in enumerate(models)])
            )
        return float(np.mean(losses_at(each.applied(case.base), torch.from_numpy(searched), at)))

    losses = case.kept(
        "search",
        {
            "candidates": [each.mark for each in candidates],
            "gaps": [] if short is None else list(short.gaps),
            "searched": _digest(searched),
        },
        range(len(candidates)),
        loss,
        lambda _: (1 if short is None else len(every)) * case.base.cost(searched.shape[1] - 1),
        "searching factors",
    )
    return [candidates[int(np.argmin(losses))]]


def lengths_between(trained: int, length: int) -> list[int]:
    """Return L, 2L, 4L ... and the target length."""
    doublings = math.ceil(math.log2(length / trained))
    return [*(trained << step for step in range(doublings)), length]


Copying = dict[tuple[int, bool], list[list[float | None]]]
"""Retrieval by head, by length and whether it is the control's."""


def _retrieval(case: Case) -> tuple[list[Cell], Copying]:
    """Ask the unchanged model every kind of question at every depth and length.

    Questions of the kind `copy` at COPY_DEPTH also give every head's retrieval; so do those of the
    control of stage 3.
    """
    base, plan, effort, model = case.base, case.plan, case.effort, ChangedModel(case.base)
    lengths = [n for n in _head_lengths(case) if n >= SHORTEST] if effort.questions else []
    if effort.far:
        lengths = [n for n in lengths if n <= plan.trained]
    cells = [(k, n, d, False) for k in effort.kinds for n in lengths for d in effort.depths]
    controls = case.controls(effort.questions)
    if controls and plan.trained in lengths:
        cells.append(("copy", plan.trained, COPY_DEPTH, True))

    def ask(cell: tuple[str, int, float, bool]) -> Any:
        kind, length, depth, moved = cell
        found: Any = None
        heads = None
        if (kind, depth) == ("copy", COPY_DEPTH):
            found, weight = copying_heads(
                base,
                length,
                effort.questions,
                case.pool,
                first=plan.first,
                changes=controls if moved else (),
            )
            heads = head_stage.listed(weight)
        else:
            found = marks(model, kind, length, depth, effort.questions, case.pool, plan.first)
        return {"marks": found, "heads": heads}

    about = {
        "questions": effort.questions,
        "cells": [list(cell) for cell in cells],
        "gaps": [each.by for each in controls],
        "pool": case.pool_digest,
    }
    answers = case.kept(
        "retrieval", about, cells, ask, lambda cell: effort.questions * base.cost(cell[1])
    )
    rows: list[Cell] = []
    copying: Copying = {}
    for (kind, length, depth, moved), answer in zip(cells, answers, strict=True):
        if answer["heads"] is not None:
            copying[length, moved] = answer["heads"]
        found = answer["marks"]
        if moved or found is None:
            continue
        row = {
            "kind": kind,
            "length": length,
            "depth": depth,
            "loss": float(np.mean([each[0] for each in found])),
            "right": float(np.mean([each[1] for each in found])),
            "questions": len(found),
        }
        rows.append((row, found))
    return rows, copying


def _asked(case: Case, remedy: Remedy) -> Answers:
    """Return the loss and the share of right answers by kind, at the target length."""
    if case.plan.length < SHORTEST or case.effort.questions == 0:
        return {}
    model, plan = remedy.applied(case.base), case.plan
    cells, count = list(case.effort.asked), case.effort.questions
    about = {
        "remedy": remedy.mark,
        "questions": count,
        "cells": [list(cell) for cell in cells],
        "pool": case.pool_digest,
    }
    answers = case.kept(
        "asked",
        about,
        cells,
        lambda cell: marks(model, cell[0], plan.length, cell[1], count, case.pool, plan.first),
        lambda _: count * case.base.cost(plan.length),
        f"retrieval, {remedy.title}",
    )
    return by_kind([(kind, found or []) for (kind, _), found in zip(cells, answers, strict=True)])


def _asked_already(case: Case, cells: Sequence[Cell]) -> Answers:
    """Return the unchanged model's answers to the questions that every remedy is asked."""
    asked = [
        (row["kind"], found)
        for row, found in cells
        if row["length"] == case.plan.length and (row["kind"], row["depth"]) in case.effort.asked
    ]
    return by_kind(asked)


def _head_lengths(case: Case) -> list[int]:
    lengths = lengths_between(case.plan.trained, case.plan.length)
    return [lengths[0], lengths[-1]] if case.effort.one_pass else lengths


def _heads(case: Case, at_length: dict[str, Any] | None, copying: Copying) -> dict[str, Any]:
    """Return the measures of every head; `at_length` are those at N, where they are known."""
    base, plan, effort = case.base, case.plan, case.effort
    lengths = _head_lengths(case)
    numbers_of = range(min(effort.sequences, len(plan.windows)))
    controls = case.controls(CONTROLS * len(numbers_of))
    runs: list[tuple[int, int, int]] = [
        (length, 0, number)
        for length in (lengths if at_length is None else lengths[:-1])
        for number in numbers_of
    ]
    runs += [(plan.trained, gap.by, n % len(numbers_of)) for n, gap in enumerate(controls)]
    gaps = {gap.by: gap for gap in controls}

    def measured(one: tuple[int, int, int]) -> Any:
        length, by, number = one
        gap = gaps.get(by)
        mark = f"gap {plan.trained} {by}"
        model = ChangedModel(base, gap, name=base.spec.name, mark=mark)
        reach = length if gap is None else plan.length
        return head_stage.measured(model, plan.windows[number, :length], gap, reach)

    tables = case.kept(
        "heads",
        {"runs": [list(one) for one in runs]},
        runs,
        measured,
        lambda one: base.cost(one[0]),
    )
    by_run: dict[tuple[int, bool], list[Any]] = {}
    for (length, by, _), table in zip(runs, tables, strict=True):
        by_run.setdefault((length, by > 0), []).append(table)
    if at_length is not None:
        by_run[plan.length, False] = [at_length]
    found = {key: _mean_table([each["measures"] for each in some]) for key, some in by_run.items()}
    unknown: list[list[float | None]] = [[None] * base.spec.heads for _ in base.spec.layers]
    means = {key: {**each, "retrieval": copying.get(key, unknown)} for key, each in found.items()}
    first, last = means[lengths[0], False], means[lengths[-1], False]
    middle = means.get((plan.trained, True))
    changed = head_stage.most_changed(first, last)
    return {
        "trained": plan.trained,
        "length": plan.length,
        "layers": len(base.spec.layers),
        "by_length": {str(length): means[length, False] for length in lengths},
        "control": middle,
        "parts": head_stage.parts(first, middle, last),
        "kernel": {
            "from": head_stage.kernel_edges(plan.length),
            **{
                name: head_stage.mean_kernel([each["kernel"] for each in by_run[key]])
                for name, key in (
                    ("trained", (plan.trained, False)),
                    ("control", (plan.trained, True)),
                    ("length", (plan.length, False)),
                )
                if key in by_run
            },
        },
        "untrained_pairs": head_stage.untrained_pairs(base.spec, plan.trained, plan.length),
        "most_changed": [
            {"layer": layer, "head": head, "change": change} for layer, head, change in changed
        ],
        "effects": _effects(case, [(layer, head) for layer, head, _ in changed]),
    }


def _effects(case: Case, heads: list[tuple[int, int]]) -> dict[str, list[float | None]]:
    """Return each head's effect on the loss past L, by `layer.head` counted from 0."""
    count = min(case.effort.effects, len(case.plan.windows))
    if count == 0 or not case.turns:
        return {}

    def changed(number: int) -> Any:
        window = case.plan.windows[number : number + 1]
        return head_stage.head_effects(case.base, window, case.plan.trained, heads)

    by_window = case.kept(
        "effects",
        {"heads": [list(head) for head in heads]},
        range(count),
        changed,
        lambda _: (1 + len(heads)) * case.base.cost(case.plan.length),
        "effects of heads",
    )
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


def _advice(
    case: Case, own: LossTable, tried: Sequence[Tried], unchanged: LossTable | FarTable
) -> dict[str, Any]:
    spec, plan = case.base.spec, case.plan
    best, setting = (
        best_of(own, tried, unchanged, setting=only_settings) for only_settings in (False, True)
    )

    own_rope = rope_entries(case.base)

    def patched(each: Tried | None) -> dict[str, Any] | None:
        if each is None:
            return None
        return patch(each.remedy, spec, plan.trained, plan.length, own_rope)

    settings_patch = patched(setting)
    return {
        "sentence": sentence(own, tried, unchanged),
        "best": None if best is None else best.remedy.name,
        "patch": patched(best),
        "setting": None
        if setting is None or settings_patch is None or settings_patch["transformers"] is None
        else {"remedy": setting.remedy.name, **settings_patch},
    }


def _findings(data: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what is wrong, each with its stage, its kind and a sentence."""
    found = [
        {"stage": "config", "kind": each["fault"], "text": each["text"]}
        for each in data["config"]
        if each["fault"]
    ]
    if data["rotation"] is not None:
        text = f"{data['rotation']}: no remedy that repeats a rotation was tried."
        found.append({"stage": "config", "kind": "rotation", "text": text[:1].upper() + text[1:]})
    about, loss = data["about"], data["loss"]
    start = data["first_token"]
    if start is not None and start["is_lost"] and about["first_token"] is None:
        most = max(start["lost"], key=lambda head: head["usual"] - head["own"])
        found.append(
            {
                "stage": "config",
                "kind": "sink",
                "text": f"The text is read without the first token that the model is used to, "
                f"{first_token.named(start)}: with it the loss is {start['more'][0]:.2f} nats "
                f"lower, and {len(start['lost'])} heads have a sink that they lose without it "
                f"(layer {most['layer'] + 1}, head {most['head'] + 1}: {most['usual']:.2f} of the "
                f"weight against {most['own']:.2f}). Put that token first.",
            }
        )
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
    cause = _cause(data)
    return found if cause is None else [*found, cause]


def _past_half(
    own: LossTable, tried: Sequence[Tried], unchanged: LossTable | FarTable
) -> list[float | None] | None:
    """Return by how much positions explain more than half of the excess, in nats; None if unknown.

    At far positions alone that is what they add to the loss minus half of the excess; in whole
    windows what known positions take off it minus half of it.
    """
    half = 0.5 * own.excess().mean(axis=1)
    if isinstance(unchanged, FarTable):
        return numbers(estimate(unchanged.excess().mean(axis=1) - half.mean()))
    known = (each.losses for each in tried if each.remedy.name in {"clip", "clip-bias"})
    clipped = next(known, None)
    return None if clipped is None else numbers(estimate(own.past() - clipped.past() - half))


def _cause(data: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the finding positions, keys or cause-unclear; None if nothing that tells was run."""
    excess, past_half = data["loss"]["excess"][0], data["past_half"]
    if excess <= 0 or past_half is None:
        return None
    _, low, high = past_half
    is_most, is_least = low is not None and low > 0, high is not None and high < 0
    if data["far"] is not None:
        more = data["far"]["more"][0]
        if not is_most:
            # Few keys are far in a short window: more of them may do more.
            return None
        text = (
            f"With no more keys than in {data['far']['tokens']:,} tokens, far positions raise the "
            f"loss by {more:.2f} nats: positions that training never had are the cause."
        )
        return {"stage": "heads", "kind": "positions", "text": text}
    clipped = next(each for each in data["remedies"] if each["name"] in {"clip", "clip-bias"})
    share = 1 - clipped["excess"][0] / excess
    kind = "positions" if is_most else "keys" if is_least else "cause-unclear"
    cause = {
        "positions": "positions that training never had are the cause",
        "keys": "known positions do not mend it, so the number of keys or the text is the cause",
        "cause-unclear": "these windows cannot tell whether that is more or less than half, so "
        "they cannot tell whether positions or the number of keys is the cause",
    }[kind]
    text = (
        f"With all keys in view at known positions ({clipped['text']}), {max(0.0, share):.0%} of "
        f"the excess is gone: {cause}."
    )
    return {"stage": "heads", "kind": kind, "text": text}
