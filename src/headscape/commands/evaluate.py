"""`headscape evaluate` and `headscape compare`: what happens past the training length."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

MANY = ("--lengths", "--extend", "--depths")


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
        typer.Option(help="Stretch RoPE: linear, ntk, dynamic, yarn; yarn:8 by 8 at every length."),
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
    from headscape.errors import InputError
    from headscape.evaluate import report, task_job
    from headscape.evaluate.extension import parse
    from headscape.evaluate.job import EvaluateConfig
    from headscape.evaluate.job import evaluate as measure
    from headscape.evaluate.measurement import quantity as known
    from headscape.evaluate.subjects import open_subjects
    from headscape.evaluate.table import Table
    from headscape.evaluate.task_job import TaskConfig
    from headscape.figures.style import save
    from headscape.train.data import TASK, default_cache
    from headscape.train.run import read_config

    ours = [source for source in sources if not source.startswith("hf:")]
    on_task = bool(ours) and read_config(Path(ours[0])).corpus.startswith(TASK)
    if task is None and depths:
        raise InputError("--depths belongs to a heat map: name its --task, passkey or needle.")
    if task is not None or on_task:
        texts = {"--corpus": corpus, "--limit": limit, "--extend": extend}
        texts |= {"--same-tokens": same_tokens, "--protocol": protocol != "nonoverlap"}
        for name, given in texts.items():
            if given:
                raise InputError(f"{name} is for texts, and a task has right answers instead.")
    tasks = TaskConfig(
        examples=examples,
        lengths=tuple(lengths or ()),
        depths=tuple(depths) if depths else TaskConfig.depths,
    )
    if task is not None:
        for source in sources:
            figure = task_job.heat_map(source, task, lengths or [256, 512, 1024], tasks).draw()
            for path in save(figure, out / f"{task}-{Path(source).name}"):
                typer.echo(path)
        return
    if on_task:
        chosen, results = task_job.evaluate_tasks(sources, tasks)
        paths = task_job.write(out, chosen, results)
        typer.echo(task_job.markdown(chosen, results))
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
        subjects = [
            subject
            for source in sources
            for subject in open_subjects(
                source, cache=default_cache(), corpus=corpus, extensions=stretched
            )
        ]
        rows = measure(subjects, config, out / "journal")
        paths = report.write(out, rows, config.quantity)
        typer.echo(Table.of(rows, config.quantity).markdown())
    for path in paths:
        typer.echo(path)


def compare(
    evaluations: Annotated[
        list[Path], typer.Argument(help="Folders or JSON files that evaluate wrote.")
    ],
    quantity: Annotated[str, typer.Option(help="As for evaluate.")] = "perplexity",
    out: Annotated[Path, typer.Option(help="Where the files go.")] = Path("comparison"),
) -> None:
    """Merge evaluations: methods across, mean and spread over seeds."""
    from headscape.evaluate import report
    from headscape.evaluate.measurement import quantity as known
    from headscape.evaluate.table import Table

    rows = report.compare(evaluations)
    paths = report.write(out, rows, known(quantity))
    typer.echo(Table.of(rows, known(quantity)).markdown())
    for path in paths:
        typer.echo(path)
