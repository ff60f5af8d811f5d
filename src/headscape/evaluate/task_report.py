"""What an evaluation on a task leaves behind, and several of them put together.

    tasks.json, .csv                   every score                          (task_score.py)
    tasks.md, .tex                     the tables in the paper's layout     (task_table.py)
    tasks.png, .svg, .pdf              exact answers against length
    tasks-symbols.png, .svg, .pdf      right symbols against length

A heat map is one run's, and its files are called by task and run:

    passkey-RUN.json, .csv             every score
    passkey-RUN.png, .svg, .pdf        exact answers by depth and length
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from headscape.errors import InputError
from headscape.evaluate import rows, task_score
from headscape.evaluate.report import STEM as TEXTS
from headscape.evaluate.task_score import Score
from headscape.evaluate.task_table import SHARES, Share, TaskTable
from headscape.figures.depths import Depths
from headscape.figures.lengths import Lengths, Line
from headscape.figures.style import save
from headscape.io import atomic

STEM = "tasks"


def write(folder: Path, scores: Sequence[Score]) -> list[Path]:
    """Write tasks.json, .csv, .md, .tex and the plots; say where."""
    table = TaskTable.of(scores)
    stem = folder / STEM
    texts = {".md": table.markdown(), ".tex": table.latex()}
    paths = task_score.write(stem, table.scores)
    for suffix, text in texts.items():
        paths.append(stem.with_suffix(suffix))
        atomic.write_text(paths[-1], text)
    return [
        *paths,
        *save(plot(table, "exact").draw(), stem),
        *save(plot(table, "symbols").draw(), folder / f"{STEM}-symbols"),
    ]


def plot(table: TaskTable, share: Share) -> Lengths:
    """The table as lines; bands are the spread over seeds."""
    return Lengths(
        lines=[_line(table, method, share) for method in table.methods],
        label=f"{SHARES[share].capitalize()}, {table.task.name}",
        across="Question length (symbols)",
        trained=[table.task.train_lengths[1]],
        trained_word="trained up to",
        reference=("commonest answer", table.task.guess) if table.task.guess else None,
        doubling=False,
        logarithmic=False,
        limits=(-0.02, 1.05),
    )


def write_maps(folder: Path, maps: Mapping[str, Sequence[Score]]) -> list[Path]:
    """Write the numbers and the heat map of each run, by its name; say where."""
    paths = []
    for name, scores in maps.items():
        stem = folder / f"{scores[0].task}-{name}"
        paths += [*task_score.write(stem, scores), *save(heat_map(scores).draw(), stem)]
    return paths


def heat_map(scores: Sequence[Score]) -> Depths:
    """Exact answers of one run by depth and length."""
    depths = sorted({one.depth for one in scores if one.depth is not None})
    lengths = sorted({one.length for one in scores})
    values = np.full((len(depths), len(lengths)), np.nan)
    for one in scores:
        if one.exact is not None and one.depth is not None:
            values[depths.index(one.depth), lengths.index(one.length)] = one.exact
    one = scores[0]
    title = f"{one.task}, {one.method}, seed {one.seed}"
    return Depths(accuracy=values, depths=depths, lengths=lengths, heading=title)


def on_tasks(paths: Sequence[Path]) -> bool:
    """Whether evaluations are on tasks; those on texts and on tasks together are refused."""
    kinds = [_is_on_task(path) for path in paths]
    if any(kinds) and not all(kinds):
        raise InputError(
            f"{paths[kinds.index(True)]} is on a task and {paths[kinds.index(False)]} on a text, "
            f"which do not compare: compare each with its like."
        )
    return all(kinds)


def compare(paths: Sequence[Path]) -> list[Score]:
    """The scores of several evaluations (folders, or JSON files)."""
    files = [path / f"{STEM}.json" if path.is_dir() else path for path in paths]
    return [one for file in files for one in task_score.read(file)]


def _is_on_task(path: Path) -> bool:
    if not path.is_dir():
        data = rows.load(path)
        return isinstance(data, dict) and "scores" in data
    here = [name for name in (TEXTS, STEM) if (path / f"{name}.json").is_file()]
    if len(here) > 1:
        raise InputError(
            f"{path} holds an evaluation on a text and one on a task: name the file, "
            f"{path / TEXTS}.json or {path / STEM}.json."
        )
    return here == [STEM]


def _line(table: TaskTable, method: str, share: Share) -> Line:
    cells = {length: table.cell(method, length, share) for length in table.lengths}
    lengths, values, low, high = [], [], [], []
    for length, cell in cells.items():
        if cell.mean is None:
            continue
        lengths.append(length)
        values.append(cell.mean)
        low.append(max(cell.mean - (cell.spread or 0.0), 0.0))
        high.append(min(cell.mean + (cell.spread or 0.0), 1.0))
    return Line(label=method, lengths=lengths, values=values, low=low, high=high)
