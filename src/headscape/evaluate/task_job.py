"""Runs that were trained on a task (corpus `task:NAME`): accuracy against length, plot and files.

    tasks.json, .csv    every accuracy
    tasks.md            lengths down, methods across: exact answers, and right symbols in brackets
    tasks.png, ...      exact answers against length, the longest trained question marked

Retrieval also has a heat map by depth and length, for runs on the task and for any language model.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from headscape import atomic
from headscape.errors import InputError
from headscape.evaluate.accuracy import Accuracy, against_length, by_depth, by_depth_trained
from headscape.figures.depths import Depths
from headscape.figures.lengths import Lengths, Line
from headscape.figures.names import title
from headscape.figures.style import save
from headscape.tasks import Task, task
from headscape.tasks.retrieval import RETRIEVAL
from headscape.train.data import TASK
from headscape.train.run import Run


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """How to test."""

    lengths: tuple[int, ...] = ()
    """Question lengths; two within what was trained and eight beyond it if left out."""
    examples: int = 100
    """Questions of each length."""
    seed: int = 1_000_003
    """Of the questions; another than training's."""
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """For heat maps: where the fact stands, as a share of the text."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise InputError(f"examples must be at least 1, not {self.examples}.")
        for depth in self.depths:
            if not 0 <= depth <= 1:
                raise InputError(f"a depth is a share of the text, 0 to 1, not {depth}.")


def evaluate_tasks(
    sources: Sequence[str], config: TaskConfig
) -> tuple[Task, dict[str, list[Accuracy]]]:
    """The accuracies of runs on one task, by heading."""
    runs = [Run.open(source) for source in sources]
    names = {run.config.corpus for run in runs}
    if len(names) != 1 or not next(iter(names)).startswith(TASK):
        raise InputError(
            f"runs on one task are wanted, and these are on {', '.join(sorted(names))}: "
            f"give runs that were trained with the same --corpus task:NAME."
        )
    chosen = task(next(iter(names)).removeprefix(TASK))
    lengths = config.lengths or default_lengths(chosen)
    out: dict[str, list[Accuracy]] = {}
    for run in runs:
        heading = title(run.config.encoding)
        while heading in out:
            heading += f" (seed {run.config.seed})"
        out[heading] = against_length(
            run.model, chosen, lengths, examples=config.examples, seed=config.seed
        )
    return chosen, out


def heat_map(source: str, name: str, lengths: Sequence[int], config: TaskConfig) -> Depths:
    """Retrieval by depth and length: in the task's layout by a run on it, else as plain text."""
    if name not in RETRIEVAL:
        raise InputError(f"{name!r} has no depth: there are {', '.join(RETRIEVAL)}.")
    run, chosen = Run.open(source), RETRIEVAL[name]
    options = {"examples": config.examples, "seed": config.seed}
    if run.config.corpus == f"{TASK}{name}":
        values = by_depth_trained(run.model, chosen, lengths, config.depths, **options)
    else:
        encode = run.tokenizer.encode
        values = by_depth(run.model, chosen, lengths, config.depths, encode, **options)
    heading = f"{name}, {title(run.config.encoding)}"
    return Depths(accuracy=values, depths=config.depths, lengths=lengths, title=heading)


def default_lengths(chosen: Task) -> tuple[int, ...]:
    """Half of and all that was trained, then eight steps to the longest test."""
    last, end = chosen.train_lengths[1], chosen.test_lengths[1]
    beyond = np.linspace(last, end, 9)[1:].round().astype(int).tolist()
    return (max(1, last // 2), last, *beyond)


def plot(chosen: Task, results: Mapping[str, Sequence[Accuracy]]) -> Figure:
    """Exact answers against length."""
    lines = [
        Line(
            label=heading,
            lengths=[one.length for one in found],
            values=[one.exact for one in found],
        )
        for heading, found in results.items()
    ]
    return Lengths(
        lines=lines,
        label=f"Exact answers, {chosen.name}",
        across="Question length (symbols)",
        trained=[chosen.train_lengths[1]],
        logarithmic=False,
        limits=(-0.02, 1.05),
    ).draw()


def write(folder: Path, chosen: Task, results: Mapping[str, Sequence[Accuracy]]) -> list[Path]:
    """Write tasks.json, .csv, .md and the plot; say where."""
    stem = folder / "tasks"
    rows = [{"method": name} | asdict(one) for name, found in results.items() for one in found]
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    texts = {
        ".json": json.dumps(rows, indent=1) + "\n",
        ".csv": table.getvalue(),
        ".md": markdown(chosen, results),
    }
    for suffix, text in texts.items():
        atomic.write_text(stem.with_suffix(suffix), text)
    return [*(stem.with_suffix(suffix) for suffix in texts), *save(plot(chosen, results), stem)]


def markdown(chosen: Task, results: Mapping[str, Sequence[Accuracy]]) -> str:
    """A table of lengths by methods."""
    lines = ["| length | " + " | ".join(results) + " |", "|---:|" + "---:|" * len(results)]
    for row in zip(*results.values(), strict=True):
        cells = " | ".join(f"{one.exact:.2f} ({one.tokens:.2f})" for one in row)
        lines.append(f"| {row[0].length} | {cells} |")
    low, high = chosen.train_lengths
    count = next(iter(results.values()))[0].examples
    note = (
        f"{chosen.name}: share of exact answers (of right symbols) over {count} questions; "
        f"trained on lengths {low} to {high}"
    )
    guess = f"; guessing gets {chosen.guess:.0%} right" if chosen.guess else ""
    return "\n".join([*lines, "", f"{note}{guess}.", ""])
