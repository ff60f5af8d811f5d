"""A whole evaluation: several models, several lengths, one table.

A model that cannot read a length gets a "-" there; a model that can read none of them is refused,
and so are models that cannot share a table, before anything is computed. Progress is one line with
the time left, estimated from the work of each window.
"""

from collections.abc import Sequence
from pathlib import Path

from headscape.errors import InputError
from headscape.evaluation.answers import AnswerJob
from headscape.evaluation.held_out import held_out
from headscape.evaluation.options import EXAMPLES, TEXT_LENGTHS, Options, as_models, several
from headscape.evaluation.perplexity import TextJob
from headscape.evaluation.questions import by_depth, by_length
from headscape.evaluation.table import Table
from headscape.evaluation.table.table_row import Row
from headscape.io.progress import SlowBar
from headscape.models.model import Model

Job = TextJob | AnswerJob


def evaluate(
    models: Model | Sequence[Model],
    *,
    lengths: int | Sequence[int] | None = None,
    protocol: str | None = None,
    same_tokens: bool = False,
    quantity: str | None = None,
    corpus: str | Path | None = None,
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

    lengths        test lengths, in tokens of a text or symbols of a question; default 512 to
                   16,384, for a task two within and eight beyond the training lengths, for a heat
                   map 256 to 1,024
    protocol       nonoverlap (the default), last-K, sliding-K or per-position
    same_tokens    whether every length scores the tokens that the longest length scores
    quantity       perplexity (the default), byte-perplexity, word-perplexity, bits-per-byte or loss
    corpus         the text; default the corpus each model was trained on
    limit          use only this many tokens from the start of the text
    task           passkey or needle: make a heat map
    depths         where the fact is, as a share of the text; default 0, 0.25, 0.5, 0.75 and 1
    examples       questions of each length and depth; default 100
    batch_tokens   tokens that go through a model at once; more tokens take more memory
    out            folder to save the table to; finished batches are kept in its folder `journal`,
                   so that the same call resumes an interrupted evaluation
    journal        a different folder for finished batches

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
    found: list[Job]
    if options.task is not None:
        count = options.examples or EXAMPLES
        found = [*by_depth(models, options.task, options.lengths, options.depths, count)]
    elif options.on_task(models):
        found = [*by_length(models, options.lengths, options.examples or EXAMPLES)]
    else:
        lengths = sorted(set(options.lengths or TEXT_LENGTHS))
        longest = lengths[-1] if options.same_tokens else None
        texts = held_out(models, options.corpus, options.limit)
        found = [
            TextJob.of(model.for_length(length), text, options.windows, length, longest)
            for model, text in zip(models, texts, strict=True)
            for length in lengths
        ]
    return list({job.row.key: job for job in found}.values())


def _check_readable(jobs: Sequence[Job]) -> None:
    """Refuse a model that can read none of the lengths."""
    reasons: dict[tuple[str, int | None], list[str | None]] = {}
    for job in jobs:
        reasons.setdefault((job.row.method, job.row.seed), []).append(job.row.refused)
    for (method, _), found in reasons.items():
        if all(found):
            raise InputError(f"{method}: {found[0]}")


def _run(jobs: Sequence[Job], batch_tokens: int, journal: Path | None) -> list[Row]:
    """The rows of all jobs, in order."""
    open_jobs = [job for job in jobs if job.row.refused is None]
    with SlowBar("evaluating", sum(job.cost for job in open_jobs)) as bar:
        return [
            job.row
            if job.row.refused is not None
            else job.run(batch_tokens=batch_tokens, journal=journal, advance=bar.advance)
            for job in jobs
        ]
