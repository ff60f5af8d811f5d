"""One row of an evaluation: a model at a length, its numbers, and all that belongs beside them.

A row is about a text (losses, shown as one of five quantities) or about a task (two accuracies).
Losses are nats per token. With T tokens, B bytes and W words scored at a mean loss l:

    perplexity exp(l)      byte perplexity exp(l T / B)      word perplexity exp(l T / W)
    bits per byte l T / (B ln 2)

Rows are written as JSON, `{"format": 2, "measurements": [{...}, ...]}`. A file may come from
anywhere, so reading checks every field and its type. `check` says which rows may share a table.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from headscape.errors import InputError, check_types
from headscape.io.files import parse_json, reporting

Quantity = Literal[
    "perplexity", "byte-perplexity", "word-perplexity", "bits-per-byte", "loss",
    "exact", "symbols",
]  # fmt: skip


SHARES: Final[dict[str, str]] = {"exact": "exact answers", "symbols": "right symbols"}
"""What the accuracies of a task are shares of."""


@dataclass(frozen=True, kw_only=True)
class RowKind:
    """How rows of one kind are written and shown."""

    group: str
    """The name of the list of rows in a JSON file."""
    version: int
    """Version of that file's format."""
    stem: str
    """Name of a table's files."""
    quantities: tuple[Quantity, ...]
    """What a row can be shown as; the first is the default."""
    fields: tuple[str, ...]
    """The fields in a JSON file, in their order."""


TEXT = RowKind(
    group="measurements",
    version=2,
    stem="evaluation",
    quantities=("perplexity", "byte-perplexity", "word-perplexity", "bits-per-byte", "loss"),
    fields=(
        "method", "length", "protocol", "corpus", "text", "model", "recipe", "longest",
        "train_length", "seed", "windows", "tokens", "bytes", "words", "loss", "low", "high",
        "by_position", "refused",
    ),
)  # fmt: skip
TASK = RowKind(
    group="scores",
    version=1,
    stem="tasks",
    quantities=("exact", "symbols"),
    fields=(
        "method", "encoding", "recipe", "seed", "task", "length", "depth", "examples", "symbols",
        "exact", "questions", "model", "refused",
    ),
)  # fmt: skip
_TEXT_COLUMNS = (
    "method", "seed", "train_length", "length", "protocol", "longest", "corpus", "windows",
    "tokens", "bytes", "words", "loss",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """A model at a length."""

    method: str
    """The column it belongs to: the model's name."""
    length: int
    """Tokens of a window or of a text to continue; symbols of a question."""
    model: str
    """Fingerprint of the model."""
    recipe: str | None = None
    """SHA-256 of everything the model was trained with except the seed; None if unknown."""
    seed: int | None = None
    """The training seed; None if unknown."""
    refused: str | None = None
    """Why the model cannot read this length; None if it can."""

    protocol: str = ""
    corpus: str = ""
    """The text, as the user named it."""
    text: str = ""
    """SHA-256 of the tokens."""
    longest: int | None = None
    """The length whose tokens were scored; None where every length scored all it could."""
    train_length: int | None = None
    """Context length in training; None if unknown."""
    windows: int = 0
    tokens: int = 0
    """Tokens scored."""
    bytes: int | None = None
    """Bytes scored; None where the tokenizer does not say."""
    words: int | None = None
    loss: float | None = None
    """Nats per token; None where the model was refused."""
    low: float | None = None
    """Lower end of the loss's 95% interval; None with fewer than six windows."""
    high: float | None = None
    by_position: tuple[float, ...] | None = None
    """Mean loss at each position of the window, by the protocol per-position."""

    task: str | None = None
    """The task; None for a text."""
    encoding: str = ""
    depth: float | None = None
    """Where the fact is, as a share of the text; None outside heat maps."""
    examples: int = 0
    symbols: float | None = None
    """Share of right symbols, averaged over answers; None where the model was refused."""
    exact: float | None = None
    """Share of answers that are right throughout."""
    questions: str = ""
    """SHA-256 of the questions."""
    label: str = field(default="", compare=False)
    """The model's name in the file names of its heat map; files do not contain it."""

    @property
    def kind(self) -> RowKind:
        """About a text or about a task."""
        return TEXT if self.task is None else TASK

    @property
    def key(self) -> tuple[object, ...]:
        """Rows with equal keys are the same measurement; the name of a corpus is not part of it."""
        text = (self.protocol, self.longest, self.text)
        return (self.method, self.length, self.model, *text, self.task, self.depth, self.questions)

    def value(self, quantity: Quantity) -> float | None:
        """A quantity; None where the model was refused."""
        if quantity in TASK.quantities:
            return self.exact if quantity == "exact" else self.symbols
        return self._of(self.loss, quantity)

    def interval(self, quantity: Quantity) -> tuple[float, float] | None:
        """The 95% interval of a quantity made from the loss."""
        low, high = self._of(self.low, quantity), self._of(self.high, quantity)
        return None if low is None or high is None else (low, high)

    def record(self, quantity: Quantity) -> dict[str, Any]:
        """The columns of a CSV file or data frame."""
        if self.kind is TASK:
            return {name: getattr(self, name) for name in TASK.fields}
        low, high = self.interval(quantity) or (None, None)
        shown = {quantity: self.value(quantity), "low": low, "high": high, "refused": self.refused}
        return {name: getattr(self, name) for name in _TEXT_COLUMNS} | shown

    def _of(self, loss: float | None, quantity: Quantity) -> float | None:
        if loss is None:
            return None
        per = {"byte": self.bytes, "bits": self.bytes, "word": self.words}
        units = self.tokens if by_token(quantity) else per[quantity[:4]]
        if not units:
            return None
        nats = loss * self.tokens / units
        if quantity == "bits-per-byte":
            return nats / math.log(2)
        if quantity == "loss":
            return nats
        # A loss above 709 nats overflows a float64; such a perplexity counts as infinite.
        return math.inf if nats >= 700 else math.exp(nats)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method at a length."""

    mean: float | None
    """None where the method cannot read the length, or was not measured."""
    spread: float | None
    """Standard deviation over seeds; None for a single seed, or where a value is not finite."""
    count: int
    """Number of seeds; 0 where nothing was measured."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Cell":
        """Return the cell of all seeds; its mean is None if one of them has no value."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(mean=None, spread=None, count=len(values))
        finite = all(map(math.isfinite, known))
        spread = statistics.stdev(known) if finite and len(known) > 1 else None
        return cls(mean=statistics.fmean(known), spread=spread, count=len(known))


def by_token(quantity: Quantity) -> bool:
    """Whether a quantity is per token, and so compares only between equal tokenizations."""
    return quantity in ("perplexity", "loss")


def known_quantity(name: str | None, kind: RowKind) -> Quantity:
    """Return the quantity with this name, or the kind's default for None."""
    for option in kind.quantities:
        if name in (None, option):
            return option
    raise InputError(f"unknown quantity {name!r}: choose one of {', '.join(kind.quantities)}.")


def to_json(rows: Sequence[EvaluationRow]) -> str:
    """Rows of one kind as JSON."""
    kind = rows[0].kind
    written = [{name: getattr(row, name) for name in kind.fields} for row in rows]
    return json.dumps({"format": kind.version, kind.group: written}, indent=1) + "\n"


def read_all(paths: Iterable[Path]) -> list[EvaluationRow]:
    """The rows of several evaluations, each named by its folder or its JSON file."""
    loaded = {file: _load(file) for file in map(_file, paths)}
    kinds = {file: _kind(file, data) for file, data in loaded.items()}
    by_kind = {kind.group: file for file, kind in kinds.items()}
    if len(by_kind) > 1:
        raise InputError(
            f"{by_kind[TASK.group]} is about a task and {by_kind[TEXT.group]} about a text, which "
            f"cannot be compared: merge the two kinds separately."
        )
    return [row for file, data in loaded.items() for row in _rows(file, data, kinds[file])]


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    candidates = [path / f"{kind.stem}.json" for kind in (TEXT, TASK)]
    found = [file for file in candidates if file.is_file()]
    if len(found) > 1:
        raise InputError(f"{path} contains two evaluations: choose {found[0]} or {found[1]}.")
    if not found:
        names = " or ".join(file.name for file in candidates)
        raise InputError(f"{path} contains no {names}: give a folder or file from evaluate.")
    return found[0]


def _load(path: Path) -> Any:
    with reporting("read", path):
        data = path.read_bytes()
    return parse_json(data, path)


def _kind(path: Path, data: Any) -> RowKind:
    for kind in (TEXT, TASK):
        if isinstance(data, dict) and kind.group in data:
            return kind
    raise InputError(
        f"{path} contains no {TEXT.group} or {TASK.group}: give a file that evaluate wrote."
    )


def _rows(path: Path, data: Mapping[str, Any], kind: RowKind) -> list[EvaluationRow]:
    if data.get("format") != kind.version:
        raise InputError(
            f"{path} has format {data.get('format')!r}; this version reads {kind.version}."
        )
    rows = data[kind.group]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is damaged: {kind.group} is not a list of objects.")
    return [_row(row, path, kind) for row in rows]


def _row(row: Mapping[str, Any], path: Path, kind: RowKind) -> EvaluationRow:
    if set(row) != set(kind.fields):
        odd = min(set(row) ^ set(kind.fields))
        raise InputError(f"{path} is damaged or from a different version: see its field {odd!r}.")
    lists = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    for name, values in lists.items():
        if not all(isinstance(value, float) for value in values):
            raise InputError(f"{path} is damaged: {name} contains a non-numeric value.")
    if kind is TASK and not isinstance(row["task"], str):
        raise InputError(f"{path} is damaged: task={row['task']!r} is not of type str.")
    one = EvaluationRow(**{**row, **lists}, label=path.stem.removeprefix(f"{row.get('task')}-"))
    try:
        check_types(one)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return one


ALIKE = 1.1
"""Largest ratio of scored bytes between two tokenizers that are compared by the byte."""


def check(rows: Sequence[EvaluationRow], quantity: Quantity) -> None:
    """Refuse rows that cannot be compared, and columns that would average different models."""
    if len({row.kind.group for row in rows}) > 1:
        raise InputError("rows on a text and rows on a task cannot be compared: use two tables.")
    if rows[0].task is None:
        _check_texts(rows, quantity)
    else:
        _check_tasks(rows)
    if rows[0].depth is None:
        _check_seeds(rows)


def _check_texts(rows: Sequence[EvaluationRow], quantity: Quantity) -> None:
    _check_alike(rows, "protocol")
    if len({row.longest for row in rows}) > 1:
        raise InputError(
            "every length scored the same tokens as the longest length, which differs between "
            "these evaluations, so they cannot be compared: evaluate them with the same longest "
            "length."
        )
    if len({row.text for row in rows}) > 1:
        # One text may have two names, and two texts one name.
        _check_alike(rows, "corpus")
        _check_tokens(rows, quantity)
    if not by_token(quantity):
        _check_bytes(rows, quantity)


def _check_tasks(rows: Sequence[EvaluationRow]) -> None:
    _check_alike(rows, "task")
    asked: dict[int, EvaluationRow] = {}
    maps: dict[tuple[object, ...], EvaluationRow] = {}
    for row in rows:
        if (row.depth is None) != (rows[0].depth is None):
            raise InputError(
                "these evaluations are heat maps and accuracies by length, which cannot be "
                "compared: merge the two kinds separately."
            )
        if row.depth is None and asked.setdefault(row.length, row).questions != row.questions:
            raise InputError(
                f"{asked[row.length].method} and {row.method} were asked different questions at "
                f"length {row.length}: evaluate them with the same number of "
                f"examples."
            )
        if (
            row.depth is not None
            and maps.setdefault((row.label, row.length, row.depth), row) != row
        ):
            raise InputError(
                f"two different heat maps are both called {row.label}: rename one of their files."
            )


def _check_alike(rows: Sequence[EvaluationRow], name: str) -> None:
    first = rows[0]
    for row in rows:
        if getattr(row, name) != getattr(first, name):
            raise InputError(
                f"{first.method} was evaluated with {name} {getattr(first, name)} and "
                f"{row.method} with {getattr(row, name)}, which cannot be compared: use one {name}."
            )


def _check_tokens(rows: Sequence[EvaluationRow], quantity: Quantity) -> None:
    seen: dict[object, EvaluationRow] = {}
    for row in rows:
        here = (row.method, row.model, row.length)
        twin = seen.setdefault(None if by_token(quantity) else here, row)
        if twin.text == row.text:
            continue
        if (twin.method, twin.model, twin.length) == here:
            raise InputError(
                f"{row.method} was scored on two texts at length {row.length}: leave out one of "
                f"these evaluations."
            )
        raise InputError(
            f"{twin.method} and {row.method} were scored on different tokens (different limit or "
            f"tokenizer), which cannot be compared: use the same limit, or with different "
            f"tokenizers no limit and the quantity bits-per-byte."
        )


def _check_bytes(rows: Sequence[EvaluationRow], quantity: Quantity) -> None:
    by_length: dict[int, EvaluationRow] = {}
    for row in rows:
        if row.refused is not None:
            continue
        if row.bytes is None:
            raise InputError(
                f"the tokenizer of {row.method} does not say which bytes its tokens are, so "
                f"{quantity} is unknown: use perplexity or loss."
            )
        twin = by_length.setdefault(row.length, row)
        assert twin.bytes is not None
        if not 1 / ALIKE < row.bytes / max(twin.bytes, 1) < ALIKE:
            raise InputError(
                f"at length {row.length} {twin.method} was scored on {twin.bytes:,} bytes and "
                f"{row.method} on {row.bytes:,}, which cannot be compared: evaluate them without "
                f"a limit, or on more text."
            )


def _check_seeds(rows: Sequence[EvaluationRow]) -> None:
    """Refuse models of one column that differ in more than the training seed."""
    recipes: dict[str, str | None] = {}
    seen: dict[tuple[str, int | None, int], str] = {}
    for row in rows:
        if recipes.setdefault(row.method, row.recipe) != row.recipe:
            raise InputError(
                f"two models are both called {row.method} and their configs differ in more than "
                f"the seed, so they cannot be averaged: evaluate them into separate tables."
            )
        # A model that is stretched to fit has a different fingerprint at every length.
        if seen.setdefault((row.method, row.seed, row.length), row.model) != row.model:
            name = row.method if row.seed is None else f"{row.method} with seed {row.seed}"
            raise InputError(
                f"two different models are both called {name}: evaluate them into separate tables."
            )
