"""One number of a task's table, and everything that has to be said beside it."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

from headscape.evaluate import rows
from headscape.io import atomic

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Score:
    """A model on a task at a length and, in a heat map, a depth."""

    method: str
    """The column it belongs to."""
    encoding: str
    recipe: str
    """SHA-256 of all that the model was trained with but its seed."""
    seed: int
    """The training seed."""
    task: str
    length: int
    """Symbols of a question; tokens of a text, where one is to be continued."""
    depth: float | None
    """Where the fact stands, as a share of the text; None where nobody asked."""
    examples: int
    symbols: float | None
    """Share of right symbols, averaged over answers; None where the model cannot read so many."""
    exact: float | None
    """Share of answers that are right throughout."""
    questions: str
    """SHA-256 of what was asked."""
    model: str
    """SHA-256 of the model."""
    refused: str | None = None
    """Why there is no number."""


NAMES = tuple(field.name for field in fields(Score))


def to_csv(scores: Iterable[Score]) -> str:
    """Every score in a row of its own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(NAMES)
    writer.writerows(astuple(score) for score in scores)
    return out.getvalue()


def write(stem: Path, scores: Sequence[Score]) -> list[Path]:
    """Write `stem`.json and .csv; say where."""
    data = {"format": FORMAT, "scores": [asdict(score) for score in scores]}
    texts = {"json": json.dumps(data, indent=1) + "\n", "csv": to_csv(scores)}
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        atomic.write_text(path, text)
    return paths


def read(path: Path) -> list[Score]:
    """The scores that `write` wrote."""
    return rows.read(path, "scores", FORMAT, Score)
