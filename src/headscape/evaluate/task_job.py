"""Runs asked for right answers: against length on the task they learned, or by depth and length.

A run that cannot read a length gets a "-" there; a run that can read none of them is refused.
Progress is one line with the time left, by the work that each question is. Answers are kept in the
journal as they are given.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headscape.encodings import title
from headscape.errors import InputError
from headscape.evaluate.accuracy import Question, Sheet, mark
from headscape.evaluate.scoring import GPT2Scorer
from headscape.evaluate.seeds import Member, check_seeds
from headscape.evaluate.task_score import Score
from headscape.io.progress import SlowBar
from headscape.tasks import Task, task
from headscape.tasks.retrieval import RETRIEVAL
from headscape.train.data import TASK
from headscape.train.run import Run

Place = tuple[int, float | None]
"""A length and, in a heat map, a depth."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """How to test."""

    lengths: tuple[int, ...] = ()
    """Question lengths; if left out, two within what was trained and eight beyond it, or 256, 512
    and 1,024 in a heat map."""
    examples: int = 100
    """Questions of each length."""
    seed: int = 1_000_003
    """Of the questions; another than training's."""
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """For heat maps: where the fact stands, as a share of the text."""
    batch_tokens: int = 8192
    """Tokens that go through a model at once: a question of memory."""

    def __post_init__(self) -> None:
        for name in ("examples", "batch_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for length in self.lengths:
            if length < 1:
                raise InputError(f"a question has at least 1 symbol: give no length of {length}.")
        for depth in self.depths:
            if not 0 <= depth <= 1:
                raise InputError(f"a depth is a share of the text, 0 to 1, not {depth}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A run, and what it is asked."""

    run: Run
    scorer: GPT2Scorer
    task: Task
    sheet: Callable[[Place], Sheet]
    """The questions of a place, made when they are needed."""

    @property
    def method(self) -> str:
        """Its column."""
        return title(self.run.config.encoding)


def evaluate_tasks(
    sources: Sequence[str], config: TaskConfig, journal: Path | None = None
) -> list[Score]:
    """Accuracy against length of runs on one task; with a folder, resumable."""
    runs = [Run.open(folder) for folder in _folders(sources).values()]
    names = {run.config.corpus for run in runs}
    if len(names) != 1 or not next(iter(names)).startswith(TASK):
        raise InputError(
            f"runs on one task are wanted, and these are on {', '.join(sorted(names))}: "
            f"give runs that were trained with the same --corpus task:NAME."
        )
    chosen = task(next(iter(names)).removeprefix(TASK))
    lengths = sorted(set(config.lengths or default_lengths(chosen)))
    if lengths[0] < chosen.shortest:
        raise InputError(
            f"{chosen.name} has no question of {lengths[0]} symbols: its shortest has "
            f"{chosen.shortest}."
        )

    def sheet(place: Place) -> Sheet:
        examples = (chosen.example(config.seed, n, place[0]) for n in range(config.examples))
        return Sheet(questions=[Question.in_layout(chosen, one) for one in examples])

    candidates = [
        Candidate(run=run, scorer=GPT2Scorer(run.model), task=chosen, sheet=sheet) for run in runs
    ]
    check_seeds(
        Member(one.method, one.run.recipe, one.run.config.seed, 0, one.scorer.fingerprint)
        for one in candidates
    )
    found = _answers(candidates, [(length, None) for length in lengths], config, journal)
    return [score for scores in found for score in scores]


def evaluate_depths(
    sources: Sequence[str], name: str, config: TaskConfig, journal: Path | None = None
) -> dict[str, list[Score]]:
    """Retrieval by depth and length, by the name of each run; with a folder, resumable.

    A run on the task is asked in the task's layout; any other continues plain text.
    """
    if name not in RETRIEVAL:
        raise InputError(f"{name!r} has no depth: there are {', '.join(RETRIEVAL)}.")
    folders = _folders(sources)
    candidates = [_on_retrieval(Run.open(folder), name, config) for folder in folders.values()]
    lengths = sorted(set(config.lengths or (256, 512, 1024)))
    places: list[Place] = [
        (length, depth) for length in lengths for depth in sorted(set(config.depths))
    ]
    return dict(zip(folders, _answers(candidates, places, config, journal), strict=True))


def default_lengths(chosen: Task) -> tuple[int, ...]:
    """Half of and all that was trained, then eight from the shortest test to the longest."""
    last = chosen.train_lengths[1]
    beyond = np.linspace(*chosen.test_lengths, 8).round().astype(int).tolist()
    return (max(chosen.shortest, last // 2), last, *beyond)


def _on_retrieval(run: Run, name: str, config: TaskConfig) -> Candidate:
    chosen = RETRIEVAL[name]

    def in_layout(n: int, length: int, depth: float) -> Question:
        return Question.in_layout(chosen, chosen.example_at(config.seed, n, length, depth))

    def in_text(n: int, length: int, depth: float) -> Question:
        encode = run.tokenizer.encode
        return Question.in_text(*chosen.tokens_at(config.seed, n, length, depth, encode))

    ask = in_layout if run.config.corpus == f"{TASK}{name}" else in_text

    def sheet(place: Place) -> Sheet:
        length, depth = place
        assert depth is not None
        return Sheet(questions=[ask(n, length, depth) for n in range(config.examples)])

    return Candidate(run=run, scorer=GPT2Scorer(run.model), task=chosen, sheet=sheet)


def _answers(
    candidates: Sequence[Candidate],
    places: Sequence[Place],
    config: TaskConfig,
    journal: Path | None,
) -> list[list[Score]]:
    """Every candidate's score at every place; places begin with the shortest length."""
    for one in candidates:
        reason = one.scorer.cannot(one.sheet(places[0]).reads)
        if reason is not None:
            raise InputError(f"{one.run.folder}: {reason}")
    costs = [[int(one.scorer.cost(length)) for length, _ in places] for one in candidates]
    with SlowBar("answering", config.examples * sum(map(sum, costs))) as bar:
        return [
            [
                _score(one, place, config, journal, _times(cost, bar.advance))
                for place, cost in zip(places, row, strict=True)
            ]
            for one, row in zip(candidates, costs, strict=True)
        ]


def _times(cost: int, advance: Callable[[int], None]) -> Callable[[int], None]:
    return lambda count: advance(cost * count)


def _score(
    one: Candidate,
    place: Place,
    config: TaskConfig,
    journal: Path | None,
    advance: Callable[[int], None],
) -> Score:
    sheet = one.sheet(place)
    refused = one.scorer.cannot(sheet.reads)
    found = None
    if refused is None:
        found = mark(
            one.scorer,
            sheet,
            batch_tokens=config.batch_tokens,
            journal=journal,
            advance=advance,
        )
    else:
        advance(config.examples)
    length, depth = place
    return Score(
        method=one.method,
        encoding=one.run.config.encoding,
        recipe=one.run.recipe,
        seed=one.run.config.seed,
        task=one.task.name,
        length=length,
        depth=depth,
        examples=config.examples,
        symbols=None if found is None else found.symbols,
        exact=None if found is None else found.exact,
        questions=sheet.fingerprint,
        model=one.scorer.fingerprint,
        refused=refused,
    )


def _folders(sources: Iterable[str]) -> dict[str, Path]:
    """Every folder once, by the shortest end of its path that no other shares."""
    folders = {Path(source).resolve(): Path(source) for source in sources}
    for count in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["-".join(folder.parts[-count:]).lstrip("/") for folder in folders]
        if len(set(names)) == len(folders):
            return dict(zip(names, folders.values(), strict=True))
    raise InputError(f"the folders {', '.join(names)} cannot be told apart: rename one of them.")
