"""A whole evaluation: several models, several lengths, one table.

A model that cannot read a length gets a "-" there; a model that can read none of them is refused,
and so are models that cannot share a table, before anything is computed. Progress is one line with
the time left, estimated from the work of each window.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from headscape.errors import InputError, at_least
from headscape.evaluation.answers import AnswerJob, by_depth, by_length
from headscape.evaluation.perplexity import TextJob, held_out
from headscape.evaluation.protocols import Protocol, parse
from headscape.evaluation.row import TASK, TEXT, EvaluationRow, known_quantity
from headscape.evaluation.table import Table
from headscape.io.terminal import SlowBar
from headscape.models.model import Model, Spec

Job = TextJob | AnswerJob
TEXT_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
TEXT_ONLY = ("protocol", "same_tokens", "corpus", "text", "limit")
EXAMPLES = 100


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `evaluate`; None and () mean the default."""

    lengths: tuple[int, ...] = ()
    protocol: str | None = None
    same_tokens: bool = False
    quantity: str | None = None
    corpus: str | None = None
    text: str | None = None
    limit: int | None = None
    task: str | None = None
    depths: tuple[float, ...] = ()
    examples: int | None = None
    batch_tokens: int = 8192

    def __post_init__(self) -> None:
        for length in self.lengths:
            at_least(1, **{"a length": length})
        at_least(1, limit=self.limit, examples=self.examples, batch_tokens=self.batch_tokens)
        for depth in self.depths:
            if not _is(depth, Real) or not 0 <= depth <= 1:
                raise InputError(f"a depth must be between 0 and 1, got {depth!r}.")
        if self.depths and self.task is None:
            raise InputError("depths need a heat map: name its task, passkey or needle.")
        if self.corpus is not None and self.text is not None:
            raise InputError(f"give a text or corpus {self.corpus}, not both.")
        for name in ("protocol", "quantity", "corpus", "text", "task"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InputError(f"{name} must be a string, got {value!r}.")
        # Files and journals take plain numbers only, not numpy's, and tell 0 from 0.0.
        object.__setattr__(self, "lengths", tuple(map(int, self.lengths)))
        object.__setattr__(self, "depths", tuple(map(float, self.depths)))
        object.__setattr__(self, "batch_tokens", int(self.batch_tokens))

    def check_for(self, models: Sequence[Model]) -> None:
        """Refuse options that do not apply to what these models are evaluated on."""
        on_task = self.on_task(models)
        known_quantity(self.quantity, TASK if on_task else TEXT)
        if not on_task and self.examples is not None:
            raise InputError("examples applies to tasks only: leave it out, or name a task.")
        for name in TEXT_ONLY if on_task else ():
            if getattr(self, name):
                raise InputError(f"{name} applies to text, and this is a task: leave it out.")
        _ = self.windows

    def on_task(self, models: Sequence[Model]) -> bool:
        """Whether the models answer questions instead of reading a text."""
        return self.task is not None or any(model.spec.task for model in models)

    @property
    def windows(self) -> Protocol:
        """How a text is cut into windows."""
        return parse(self.protocol or "nonoverlap")


def evaluate(
    models: Model | Sequence[Model],
    *,
    lengths: int | Sequence[int] | None = None,
    protocol: str | None = None,
    same_tokens: bool = False,
    quantity: str | None = None,
    corpus: str | Path | None = None,
    text: str | None = None,
    limit: int | None = None,
    task: str | None = None,
    depths: float | Sequence[float] | None = None,
    examples: int | None = None,
    batch_tokens: int = 8192,
    out: Path | str | None = None,
    journal: Path | str | None = None,
) -> Table:
    """Measure models at several lengths and return the table.

    Models of text are scored on held-out text: their losses, shown as perplexity. Models trained
    on a task are asked questions of that task. With `task` passkey or needle any model is asked to
    find a fact, at every length and depth: a heat map.

    Args:
        models: A model or several, as `load` returns them.
        lengths: Test lengths, in tokens of a text or symbols of a question; default 512 to 16,384,
            for a task two within and eight beyond the training lengths, for a heat map 256 to
            1,024.
        protocol: nonoverlap (the default), last-K, sliding-K or per-position.
        same_tokens: Whether every length scores the tokens that the longest length scores.
        quantity: perplexity (the default), byte-perplexity, word-perplexity, bits-per-byte or loss.
        corpus: Its held-out part is scored; default the corpus each model was trained on.
        text: A text of your own, which is scored whole.
        limit: Use only this many tokens from the start of the text.
        task: passkey or needle: make a heat map.
        depths: Where the fact is, as a share of the text; default 0, 0.25, 0.5, 0.75 and 1.
        examples: Questions of each length and depth; default 100.
        batch_tokens: Tokens that go through a model at once; more tokens take more memory.
        out: Folder to save the table to; finished batches are kept in its folder `journal`, so that
            the same call resumes an interrupted evaluation.
        journal: A different folder for finished batches.

    Example:
        >>> import headscape as hs
        >>> gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257)
        >>> model = hs.load(gpt2, tokenizer="bytes")
        >>> hs.evaluate(model, task="needle", lengths=64, depths=[0, 1], examples=1)
        Table(exact of ALiBi at length 64)
    """
    chosen = as_models(models)
    options = Options(
        lengths=several(lengths, "lengths"),
        protocol=protocol,
        same_tokens=same_tokens,
        quantity=quantity,
        corpus=str(corpus) if isinstance(corpus, Path) else corpus,
        text=text,
        limit=limit,
        task=task,
        depths=several(depths, "depths"),
        examples=examples,
        batch_tokens=batch_tokens,
    )
    options.check_for(chosen)
    jobs = _jobs(chosen, options)
    _check_readable(jobs)
    # Rows without numbers already say whether they compare.
    Table.of([job.row for job in jobs], quantity)
    if journal is None and out is not None:
        journal = Path(out) / "journal"
    rows = _run(jobs, options.batch_tokens, None if journal is None else Path(journal))
    table = Table.of(rows, quantity)
    if out is not None:
        table.save(out)
    return table


def _jobs(models: Sequence[Model], options: Options) -> list[Job]:
    """Return everything to compute, each job once."""
    jobs: list[Job]
    if options.task is not None:
        count = options.examples or EXAMPLES
        jobs = [*by_depth(models, options.task, options.lengths, options.depths, count)]
    elif options.on_task(models):
        jobs = [*by_length(models, options.lengths, options.examples or EXAMPLES)]
    else:
        lengths = sorted(set(options.lengths or TEXT_LENGTHS))
        longest = lengths[-1] if options.same_tokens else None
        texts = held_out(models, options.corpus, options.limit, options.text)
        jobs = [
            TextJob.of(model.for_length(length), text, options.windows, length, longest)
            for model, text in zip(models, texts, strict=True)
            for length in lengths
        ]
    return list({job.row.key: job for job in jobs}.values())


def _check_readable(jobs: Sequence[Job]) -> None:
    """Refuse a model that can read none of the lengths."""
    reasons: dict[tuple[str, int | None], list[str | None]] = {}
    for job in jobs:
        reasons.setdefault((job.row.method, job.row.seed), []).append(job.row.refused)
    for (method, _), refused in reasons.items():
        if all(refused):
            raise InputError(f"{method}: {refused[0]}")


def _run(jobs: Sequence[Job], batch_tokens: int, journal: Path | None) -> list[EvaluationRow]:
    """The rows of all jobs, in order."""
    open_jobs = [job for job in jobs if job.row.refused is None]
    with SlowBar("evaluating", sum(job.cost for job in open_jobs)) as bar:
        return [
            job.row
            if job.row.refused is not None
            else job.run(batch_tokens=batch_tokens, journal=journal, advance=bar.advance)
            for job in jobs
        ]


def several(values: Any, name: str) -> tuple[Any, ...]:
    """Return a tuple of one value or of several; () for None."""
    if values is None:
        return ()
    if _is(values, Real):
        return (values,)
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a number or a list of numbers, got {values!r}.")
    numbers = tuple(values)
    if not numbers:
        raise InputError(f"{name} must contain at least one number, got none.")
    return numbers


def as_models(models: Any) -> list[Model]:
    """Return a list of one model or of several; anything else is refused."""
    listed = list(models) if isinstance(models, list | tuple) else [models]
    if not listed:
        raise InputError("evaluate needs at least one model, got none.")
    for one in listed:
        if not isinstance(getattr(one, "spec", None), Spec):
            raise InputError(
                f"evaluate takes models, got {one!r}: open a run with headscape.load first."
            )
    return listed


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
