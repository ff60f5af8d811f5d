"""Numbers per layer and head, of one capture or of a model: rows, tables, JSON, the viewer.

Layers and heads count from 0. Text for readers counts from what it is told: the command line and
pages from 1.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jaxtyping import Float

from headscape.captures.capture_file import Capture
from headscape.captures.choice import choose_layer, choose_quantity
from headscape.captures.labels import method
from headscape.errors import InputError
from headscape.io.files import parse_json, reporting
from headscape.io.output_file import KINDS as KINDS_OF_FILES
from headscape.io.output_file import write_output
from headscape.io.table_text import markdown_text
from headscape.io.terminal import printable
from headscape.measures import record_table
from headscape.measures.context import ContextDependence
from headscape.measures.definitions import (
    KINDS,
    MEASURES,
    Measure,
    computed,
    estimates,
    kinds_of,
)
from headscape.measures.record_table import Column

if TYPE_CHECKING:
    from headscape.measures.sums import MapBlock

Row = dict[str, Any]
OF_SCORES: Final = ("decay", "half_life")
"""Measures of scores that weights do not have."""
CURVES: Final = ("kernel", "closed_form", "bands", "maps")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Measures:
    """Numbers per layer and head of a capture or of a model.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> row = model.capture([5, 6, 7, 8]).measures().rows()[0]
        >>> row["layer"], row["head"], row["position_share"]
        (1, 0, 1.0)
    """

    quantity: str = "final"
    """What the measures of scores are of: the final scores, or `bias` or `content` of a capture."""
    about: dict[str, Any]
    """The model, what was recognised in it, and what it was measured on."""
    layers: tuple[int, ...]
    """Layers measured, counted from 0."""
    heads: tuple[int, ...]
    """Heads measured, counted from 0."""
    values: dict[str, Float[np.ndarray, "e layers h"]]
    """Mean, low and high by measure, or the value of one sequence alone; NaN is not measured."""
    context: Mapping[int, ContextDependence] = field(default_factory=dict)
    """Context-dependence by layer, where several sequences of a capture were measured."""
    kernel: Float[np.ndarray, "layers h n"] | None = None
    """Model: mean final score at distances 1 - T to T - 1; NaN where no key is visible."""
    closed_form: Float[np.ndarray, "layers h n"] | None = None
    """The kernel of mean queries and keys, for encodings that rotate."""
    bands: Float[np.ndarray, "layers h m"] | None = None
    """RoPE: the use of each pair of dims, fastest first, as shares."""
    maps: Float[np.ndarray, "layers h c c"] | None = None
    """Mean weight by cells of queries and keys."""
    drift: dict[int, dict[str, Float[np.ndarray, "layers h"]] | None] = field(default_factory=dict)
    """Measures at multiples of the trained length; None where the model cannot read it."""

    @classmethod
    def of(
        cls,
        capture: Capture,
        quantity: str | None = None,
        layers: Sequence[int] | None = None,
        *,
        context: ContextDependence | Mapping[int, ContextDependence] | None = None,
    ) -> "Measures":
        """Return the measures of a capture.

        Args:
            capture: Maps of one sequence, not reduced to cells.
            quantity: content, bias or final; default what the encoding is shown as.
            layers: Counted from 0, -1 is the last; default all captured ones.
            context: Context-dependence over several sequences, of the only layer or by layer.
        """
        if capture.resolution is not None:
            raise InputError(
                f"a capture reduced to {capture.resolution} cells cannot be measured exactly: "
                "capture a shorter sequence at full resolution."
            )
        quantity = choose_quantity(quantity, capture)
        asked = capture.layers if layers is None else layers
        chosen = tuple(choose_layer(layer, capture.layers) for layer in asked)
        if isinstance(context, ContextDependence):
            if len(chosen) != 1:
                raise InputError(
                    f"context-dependence of one layer is given for {len(chosen)} layers; give a "
                    "mapping from layer to context-dependence."
                )
            context = {chosen[0]: context}
        context = {layer: each for layer, each in (context or {}).items() if layer in chosen}
        values = _values_of(capture, chosen, quantity)
        if context:
            values = {"context_dependence": _shares(context, chosen, len(capture.heads)), **values}
        about = {"model": method(capture), "sequences": 1, "length": capture.length}
        return cls(
            quantity=quantity,
            about=about,
            layers=chosen,
            heads=tuple(capture.heads),
            values=values,
            context=context,
        )

    def row(self, layer: int, head: int) -> Row:
        """Return one head: measures by name, with `_low` and `_high`; None is not measured.

        Args:
            layer: Counted from 0.
            head: Counted from 0.
        """
        for name, number, known in (("layer", layer, self.layers), ("head", head, self.heads)):
            if number not in known:
                raise InputError(f"{name} {number} was not measured: there are {list(known)}.")
        at = self.layers.index(layer), self.heads.index(head)
        row: Row = {"layer": layer, "head": head}
        for name, parts in self.values.items():
            for suffix, values in zip(("", "_low", "_high"), parts, strict=False):
                row[name + suffix] = _number(values[at], MEASURES.get(name))
        for multiple, at_length in self.drift.items():
            for name in _drifting(self.drift):
                value = None if at_length is None else _number(at_length[name][at])
                row[f"{name}_{multiple}x"] = value
        row["kinds"] = kinds_of(row)
        return row

    def rows(self, first: int = 0, kind: str | None = None) -> list[Row]:
        """Return every head, layer by layer.

        Args:
            first: What layers and heads count from.
            kind: Only heads of this kind, such as "previous token" or "sink", or the beginning.
        """
        numbers = ["layer", "head"]
        numbers += [name for name in self.values if definition(name).numbers_heads]
        rows = [self.row(layer, head) for layer in self.layers for head in self.heads]
        wanted = None if kind is None else kind_named(kind)
        return [
            row | {name: None if row[name] is None else row[name] + first for name in numbers}
            for row in rows
            if wanted is None or wanted in row["kinds"]
        ]

    def _some_rows(self, first: int, kind: str | None) -> list[Row]:
        """Return the rows of a table; raise InputError if no head is of a kind."""
        rows = self.rows(first, kind)
        if not rows and kind is not None:
            raise no_heads(kind, [self])
        return rows

    @property
    def importance(self) -> str:
        """The measure that ranks heads by how much position matters: the causal effect if known."""
        return "effect_removed" if "effect_removed" in self.values else "position_share"

    def top(
        self,
        count: int = 10,
        measure: str | None = None,
        *,
        least: bool = False,
        kind: str | None = None,
    ) -> list[Row]:
        """Return the heads with the largest measure; effects are ranked by their size.

        Args:
            count: Number of heads.
            measure: Its name; default the importance.
            least: Whether to return the heads with the least measure instead.
            kind: Only heads of this kind, such as "previous token" or "sink".
        """
        if not isinstance(count, int):
            raise InputError(
                f"count must be a number of heads, got {count!r}: top(5, 'sink_score')."
            )
        name = measure or self.importance
        if name not in self.values:
            known = ", ".join(self.values)
            raise InputError(f"{name!r} was not measured: choose from {known}.")
        rows = [row for row in self.rows(kind=kind) if row[name] is not None]
        ranked = abs if name.startswith("effect_") else float
        return sorted(rows, key=lambda row: ranked(row[name]), reverse=not least)[:count]

    def columns(self) -> list[Column]:
        """Return the columns of tables for reading: the main measures that were measured."""
        columns = [
            Column(name="layer", label="layer", text="Layer of the model.", heads_rows=True),
            Column(name="head", label="head", text="Head within the layer.", heads_rows=True),
        ]
        for name, parts in self.values.items():
            one = definition(name)
            several = one.numbers_heads and len(self.heads) > 1
            if not one.main or not (several or np.isfinite(parts[0]).any()):
                continue
            empty = "none" if one.numbers_heads else ""
            # The number of a head is printed as it is.
            form = "" if one.numbers_heads else one.form
            columns.append(
                Column(name=name, label=one.label, text=one.text, form=form, empty=empty)
            )
            # A capture has one interval; a model's, one for each measure, are in CSV and JSON.
            for end in ("low", "high") if name == "context_dependence" else ():
                text = f"{end.capitalize()} end of the 95% bootstrap interval of {one.label}."
                columns.append(
                    Column(name=f"{name}_{end}", label=f"95% {end}", text=text, form=one.form)
                )
        text = "Names that its measures earn a head."
        return [*columns, Column(name="kinds", label="kinds", text=text, left=True)]

    def to_csv(self, first: int = 0, kind: str | None = None) -> str:
        """Return every column as CSV.

        Args:
            first: What layers and heads count from.
            kind: Only heads of this kind, as in `rows`.
        """
        return record_table.to_csv(self._some_rows(first, kind))

    def to_markdown(self, first: int = 0, kind: str | None = None) -> str:
        """Return a Markdown table for reading.

        Args:
            first: What layers and heads count from.
            kind: Only heads of this kind, as in `rows`.
        """
        return record_table.to_markdown(self.columns(), self._some_rows(first, kind))

    def to_html(self, first: int = 0) -> str:
        """Return an HTML table for reading; layers and heads count from `first`."""
        return record_table.to_html(self.columns(), self.rows(first))

    def to_frame(self, kind: str | None = None) -> Any:
        """Return every column as a pandas DataFrame; layers and heads count from 0.

        Args:
            kind: Only heads of this kind, as in `rows`.
        """
        return record_table.to_frame(self._some_rows(0, kind))

    def for_viewer(self) -> list[dict[str, Any]]:
        """Return the measures as the viewer's header has them: name, label, text and values.

        `values[layer][head]` follows the order of `layers` and `heads`; None is not measured.
        """
        described = {name: definition(name).measured_on(self.quantity) for name in self.values}
        return [
            {
                "name": name,
                "label": described[name].label,
                "text": described[name].text,
                "form": described[name].form,
                "values": listed(parts[0]),
            }
            for name, parts in self.values.items()
            if np.isfinite(parts[0]).any()
        ]

    def to_json(self) -> str:
        """Return JSON text that `from_json` reads; layers and heads count from 0."""
        whole = {
            "quantity": self.quantity,
            "about": self.about,
            "layers": self.layers,
            "heads": self.heads,
            "definitions": {
                name: {key: getattr(definition(name), key) for key in DESCRIBED}
                for name in self.values
            },
            "values": {name: listed(parts) for name, parts in self.values.items()},
            "kinds": [row["kinds"] for row in self.rows()],
            "context": {str(layer): asdict(each) for layer, each in self.context.items()},
            "drift": {
                str(multiple): None if each is None else {k: listed(v) for k, v in each.items()}
                for multiple, each in self.drift.items()
            },
            **{name: listed(getattr(self, name), digits=6) for name in CURVES},
        }
        return json.dumps(whole, allow_nan=False, ensure_ascii=False) + "\n"

    def save(self, path: Path | str) -> Path:
        """Write every number to a JSON file that `load` reads, and return its path.

        A file that is not a JSON file of headscape is not replaced.
        """
        write_output(Path(path), self.to_json(), KINDS_OF_FILES["json"])
        return Path(path)

    @classmethod
    def load(cls, path: Path | str) -> "Measures":
        """Return the measures in a file that `save` wrote, or in an atlas's heads.json."""
        path = Path(path)
        with reporting("read", path):
            data = path.read_bytes()
        read = parse_json(data, path)
        refusal = InputError(f"{path} does not contain measures: give a file of `Measures.save`.")
        if not isinstance(read, dict) or not {"about", "quantity"} & read.keys():
            raise refusal
        try:
            return cls._from(read)
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise refusal from error

    @classmethod
    def from_json(cls, text: str) -> "Measures":
        """Return the measures that `to_json` wrote; those of a model also from earlier versions."""
        return cls._from(json.loads(text))

    @classmethod
    def _from(cls, read: Mapping[str, Any]) -> "Measures":
        if "about" not in read:
            raise InputError(
                "these measures were written by an earlier version, with shift_invariance in place "
                "of position_share: measure the capture again."
            )
        about = read["about"]
        return cls(
            quantity=read.get("quantity", "final"),
            about=about,
            layers=tuple(read["layers"] if "layers" in read else range(about["layers"])),
            heads=tuple(read["heads"] if "heads" in read else range(about["heads"])),
            values={name: _array(value) for name, value in read["values"].items()},
            context={int(layer): _context(each) for layer, each in read.get("context", {}).items()},
            drift={
                int(multiple): None if each is None else {k: _array(v) for k, v in each.items()}
                for multiple, each in read["drift"].items()
            },
            **{name: None if read[name] is None else _array(read[name]) for name in CURVES},
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Measures) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        name = printable(self.about["model"])
        what = name if self.quantity == "final" else f"the {self.quantity} of {name}"
        return f"<measures of {what}: {len(self.layers)} layers x {len(self.heads)} heads>"

    def __str__(self) -> str:
        """Return what was measured and the heads of every kind, counted from 0."""
        lines = [repr(self)]
        for kind in KINDS:
            heads = [f"{row['layer']}.{row['head']}" for row in self.rows(kind=kind)]
            more = f" and {len(heads) - PRINTED} more" if len(heads) > PRINTED else ""
            lines += [f"{kind}: {', '.join(heads[:PRINTED])}{more}"] if heads else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.to_html()


PRINTED: Final = 8
"""Heads of a kind that `print` names, as layer.head."""
DESCRIBED: Final = ("label", "text", "reference", "form")
"""What JSON says of a measure."""


def definition(name: str) -> Measure:
    """Return the definition of a measure; a plain one where this session does not define it."""
    return MEASURES.get(name) or Measure(name=name, label=name.replace("_", " "), text="")


def kind_named(name: str) -> str:
    """Return a kind of head by its name or the beginning of it."""
    start = name.strip().lower().replace("_", " ").replace("-", " ")
    matching = [kind for kind in KINDS if start and kind.startswith(start)]
    if start in KINDS:
        return start
    if len(matching) != 1:
        raise InputError(f"{name!r} is not a kind of head: choose from {', '.join(KINDS)}.")
    return matching[0]


def no_heads(kind: str, measured: Iterable[Measures]) -> InputError:
    """Return the refusal of a table without rows."""
    known = {name for each in measured for row in each.rows() for name in row["kinds"]}
    others = ", ".join(name for name in KINDS if name in known) or "none"
    return InputError(f"no head is of kind {kind_named(kind)!r}; the kinds found: {others}.")


def written(files: Mapping[str, Measures], form: str, kind: str | None = None) -> str:
    """Return measures as the command line writes them.

    Layers and heads count from 1 in csv and md, from 0 in json. Names stand in a first column of
    csv and above each table of md, if there are several.

    Args:
        files: Measures by name.
        form: csv, json or md.
        kind: Only heads of this kind, in csv and md.
    """
    alone = len(files) == 1
    if kind is not None:
        if form == "json":
            raise InputError("JSON has every head: a kind of head can be chosen for csv and md.")
        every = files
        files = {name: each for name, each in every.items() if each.rows(kind=kind)}
        if not files:
            raise no_heads(kind, every.values())
    if form == "csv":
        if alone:
            return next(iter(files.values())).to_csv(1, kind)
        rows = [
            {"capture": name, **row} for name, each in files.items() for row in each.rows(1, kind)
        ]
        names = list(dict.fromkeys(key for row in rows for key in row if key != "kinds"))
        return record_table.to_csv([dict.fromkeys([*names, "kinds"]) | row for row in rows])
    if form == "md":
        heads = {name: "" if alone else f"## {markdown_text(name)}\n\n" for name in files}
        return "\n".join(heads[name] + each.to_markdown(1, kind) for name, each in files.items())
    if form == "json":
        if alone:
            return next(iter(files.values())).to_json()
        whole = {name: json.loads(each.to_json()) for name, each in files.items()}
        return json.dumps(whole, allow_nan=False, ensure_ascii=False) + "\n"
    raise InputError(f"measures cannot be written as {form!r}; choose csv, json or md.")


def values_of_maps(
    layers: "Sequence[Iterable[MapBlock]]", *, length: int, causal: bool, **options: Any
) -> dict[str, Float[np.ndarray, "1 layers h"]]:
    """Return every measure that the maps of one sequence have; heads are places in the layer.

    Args:
        layers: The blocks of each layer.
        length: Number of tokens.
        causal: Whether queries see earlier keys only.
        options: The other arguments of `sums_of_maps`.
    """
    from headscape.measures.sums import QueryRows, sums_of_maps

    by_layer = [
        computed(sums_of_maps(blocks, length=length, causal=causal, **options)) for blocks in layers
    ]
    estimated = estimates(by_layer, QueryRows(length, causal))
    return {name: parts[:1] for name, parts in estimated.items()}


def _values_of(
    capture: Capture, layers: tuple[int, ...], quantity: str
) -> dict[str, Float[np.ndarray, "1 layers h"]]:
    """Return every measure that one sequence has."""
    weighed = "weights" in capture.quantities
    blocks = [_blocks(capture, layer, quantity, weighed=weighed) for layer in layers]
    values = values_of_maps(
        blocks,
        heads=len(capture.heads),
        length=capture.length,
        causal=capture.causal,
        weighed=weighed,
    )
    if quantity == "weights":
        # The decay is of scores, whose exponentials are the weights.
        values = {name: each for name, each in values.items() if name not in OF_SCORES}
    numbers = np.array([*capture.heads, np.nan])
    for name, places in values.items():
        if MEASURES[name].numbers_heads:
            values[name] = numbers[np.nan_to_num(places, nan=-1).astype(int)]
    return values


def _blocks(
    capture: Capture, layer: int, quantity: str, *, weighed: bool
) -> Iterator[tuple[slice, np.ndarray, np.ndarray | None]]:
    """Yield queries with their scores and weights."""
    scores = capture.row_blocks(quantity, layer, capture.heads)
    if not weighed:
        return ((rows, block, None) for rows, block in scores)
    weights = capture.row_blocks("weights", layer, capture.heads)
    return (
        (rows, block, _weighed(block, each))
        for (rows, block), (_, each) in zip(scores, weights, strict=True)
    )


def _weighed(
    scores: Float[np.ndarray, "h r c"], weights: Float[np.ndarray, "h r c"]
) -> Float[np.ndarray, "h r c"]:
    """Return the weights; refuse one that is not finite where its score is."""
    if (np.isfinite(scores) & ~np.isfinite(weights)).any():
        raise InputError(
            "an attention weight of a visible key is not finite, so its head cannot be measured."
        )
    return weights


def _shares(
    context: Mapping[int, ContextDependence], layers: tuple[int, ...], heads: int
) -> Float[np.ndarray, "3 layers h"]:
    """Return context-dependence and its interval; NaN in layers without it."""
    shares = np.full((3, len(layers), heads), np.nan)
    for at, layer in enumerate(layers):
        if layer in context:
            shares[0, at] = context[layer].heads
            shares[1:, at] = np.transpose(context[layer].head_intervals)
    return shares


def _context(read: Mapping[str, Any]) -> ContextDependence:
    tuples = {key: tuple(value) for key, value in read.items() if isinstance(value, list)}
    intervals = tuple((low, high) for low, high in read["head_intervals"])
    return ContextDependence(**{**read, **tuples, "head_intervals": intervals})


def _drifting(drift: Mapping[int, Mapping[str, Any] | None]) -> list[str]:
    """Return the measures that are given at multiples of the trained length."""
    measured = [each for each in drift.values() if each is not None]
    return list(measured[0]) if measured else [x.name for x in MEASURES.values() if x.drifts]


def _number(value: float, one: Measure | None = None) -> float | int | None:
    if not np.isfinite(value):
        return None
    return int(value) if one is not None and one.numbers_heads else float(value)


def listed(value: np.ndarray | None, digits: int | None = None) -> Any:
    """Return nested lists of numbers, None for NaN."""
    if value is None:
        return None
    if value.ndim:
        return [listed(part, digits) for part in value]
    number = float(value) if digits is None else float(f"{value:.{digits}g}")
    return number if np.isfinite(value) else None


def _array(value: Any) -> np.ndarray:
    return np.array(value, dtype=np.float64)
