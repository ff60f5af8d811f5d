"""`headscape evaluate` and `headscape compare`: what happens past the training length."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from headscape.evaluate.task_job import TaskConfig

MANY = ("--lengths", "--extend", "--depths")
TEXTS_ONLY = ("protocol", "same_tokens", "quantity", "extend", "corpus", "limit")
"""Options that say nothing about a task."""


class Spread(TyperCommand):
    """Lets an option take several values in a row: --lengths 512 1024 for --lengths twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before every further value of it."""
        out: list[str] = []
        option = None
        for arg in args:
            if arg.startswith("-"):
                option = arg if arg in MANY else None
            elif option is not None and out[-1] != option:
                out.append(option)
            out.append(arg)
        return super().parse_args(ctx, out)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("evaluate", cls=Spread)(evaluate)
    app.command("compare")(compare)


def evaluate(
    context: typer.Context,
    sources: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run folders, or hf:FOLDER.")
    ],
    lengths: Annotated[
        list[int] | None, typer.Option(help="Test lengths, several in a row.")
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="nonoverlap, last-256, sliding-256 (any number), per-position.")
    ] = "nonoverlap",
    same_tokens: Annotated[
        bool, typer.Option("--same-tokens", help="Score the same tokens at every length.")
    ] = False,
    quantity: Annotated[
        str,
        typer.Option(help="perplexity, byte-perplexity, word-perplexity, bits-per-byte, loss."),
    ] = "perplexity",
    extend: Annotated[
        list[str] | None,
        typer.Option(
            help="Stretch RoPE runs: linear, ntk, dynamic, yarn; yarn:8 by 8 at every length."
        ),
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Another text than the runs' own.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only so many tokens of it.")] = None,
    task: Annotated[
        str | None, typer.Option(help="passkey or needle: a heat map by depth and length.")
    ] = None,
    depths: Annotated[
        list[float] | None, typer.Option(help="Depths of the heat map, 0 to 1.")
    ] = None,
    examples: Annotated[int, typer.Option(help="Questions per length, for tasks.")] = 100,
    batch_tokens: Annotated[int, typer.Option(help="Tokens through the model at once.")] = 8192,
    out: Annotated[Path, typer.Option(help="Where the files go.")] = Path("evaluation"),
) -> None:
    """Measure runs at several lengths and write table, plot and data; resumes by itself."""
    from headscape.evaluate import report
    from headscape.evaluate.extension import parse
    from headscape.evaluate.job import EvaluateConfig
    from headscape.evaluate.job import evaluate as measure
    from headscape.evaluate.measurement import quantity as known
    from headscape.evaluate.subjects import open_subjects
    from headscape.evaluate.table import Table
    from headscape.evaluate.task_job import TaskConfig
    from headscape.text.dataset import default_cache

    if _on_task(context, sources, task):
        asked = TaskConfig(
            lengths=tuple(lengths or ()),
            examples=examples,
            depths=tuple(depths or TaskConfig.depths),
            batch_tokens=batch_tokens,
        )
        paths = _ask(sources, task, asked, out)
    else:
        config = EvaluateConfig(
            **({"lengths": tuple(lengths)} if lengths else {}),
            protocol=protocol,
            same_tokens=same_tokens,
            limit=limit,
            batch_tokens=batch_tokens,
            quantity=known(quantity),
        )
        stretched = [parse(name) for name in extend or []]
        turned = [source for source in sources if _turns(source)] or sources
        subjects = [
            subject
            for source in sources
            for subject in open_subjects(
                source,
                cache=default_cache(),
                corpus=corpus,
                extensions=stretched if source in turned else [],
            )
        ]
        rows = measure(subjects, config, out / "journal")
        paths = report.write(out, rows, config.quantity)
        typer.echo(Table.of(rows, config.quantity).markdown())
    for path in paths:
        typer.echo(path)


def _on_task(context: typer.Context, sources: list[str], task: str | None) -> bool:
    """Whether right answers are asked for; an option that would change nothing is refused."""
    from headscape.errors import InputError
    from headscape.evaluate.subjects import HUGGING_FACE
    from headscape.train.objective import objective_of
    from headscape.train.run import read_config

    hugging = [source for source in sources if source.startswith(HUGGING_FACE)]
    corpora = [read_config(Path(one)).corpus for one in sources if one not in hugging]
    on_task = task is not None or any(objective_of(corpus).task is not None for corpus in corpora)
    if _given(context, "depths") and task is None:
        raise InputError("--depths belongs to a heat map: name its --task, passkey or needle.")
    if not on_task and _given(context, "examples"):
        raise InputError(
            "--examples belongs to tasks, and a text is scored as it is: leave it out, "
            "or name a --task."
        )
    if on_task and hugging:
        raise InputError(f"{hugging[0]}: tasks are for runs of our own, leave it out.")
    for name in TEXTS_ONLY if on_task else ():
        if _given(context, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} is for texts, and a task has right answers instead: leave it out."
            )
    return on_task


def _turns(source: str) -> bool:
    """Whether a run can be stretched, so that others can stand beside it unstretched."""
    from headscape.evaluate.extension import stretches
    from headscape.evaluate.subjects import HUGGING_FACE
    from headscape.train.run import read_config

    ours = not source.startswith(HUGGING_FACE)
    return ours and stretches(read_config(Path(source)).encoding)


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _ask(sources: list[str], task: str | None, config: "TaskConfig", out: Path) -> list[Path]:
    """Ask runs on a task against length, or any runs for a heat map; the files written."""
    from headscape.evaluate import task_report
    from headscape.evaluate.task_job import evaluate_depths, evaluate_tasks
    from headscape.evaluate.task_table import TaskTable

    if task is not None:
        return task_report.write_maps(out, evaluate_depths(sources, task, config, out / "journal"))
    scores = evaluate_tasks(sources, config, out / "journal")
    paths = task_report.write(out, scores)
    typer.echo(TaskTable.of(scores).markdown())
    return paths


def compare(
    context: typer.Context,
    evaluations: Annotated[
        list[Path], typer.Argument(help="Folders or JSON files that evaluate wrote.")
    ],
    quantity: Annotated[str, typer.Option(help="As for evaluate.")] = "perplexity",
    out: Annotated[Path, typer.Option(help="Where the files go.")] = Path("comparison"),
) -> None:
    """Merge evaluations: methods across, mean and spread over seeds."""
    from headscape.errors import InputError
    from headscape.evaluate import report, task_report
    from headscape.evaluate.measurement import quantity as known
    from headscape.evaluate.table import Table
    from headscape.evaluate.task_table import TaskTable

    if task_report.on_tasks(evaluations):
        if _given(context, "quantity"):
            raise InputError("--quantity is for texts, and a task has accuracies: leave it out.")
        scores = task_report.compare(evaluations)
        paths = task_report.write(out, scores)
        typer.echo(TaskTable.of(scores).markdown())
    else:
        rows = report.compare(evaluations)
        paths = report.write(out, rows, known(quantity))
        typer.echo(Table.of(rows, known(quantity)).markdown())
    for path in paths:
        typer.echo(path)
