"""The table of encodings as data and as Markdown, and whose code each is tested against.

for row in list_encodings(): print(row)

Every encoding is compared with a second implementation, written in numpy from the formulas
(tests/oracle); `TESTED` lists the other code. `tests/encodings/test_tested_against.py` checks it
against the vectors and the live comparisons in tests/.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headscape.encodings.base import Encoding, Shape
from headscape.encodings.registry import (
    ENCODINGS,
    WRAPPERS,
    load_all_installed,
    make,
    parse,
    title,
)
from headscape.errors import InputError

LETTERS = {"shift_invariant": "S", "toeplitz": "T", "pointwise": "P", "context_dependent": "C"}
"""One letter per claim; a claim that is not made is a dash."""
START, END = "<!-- encodings -->", "<!-- /encodings -->"
"""Where `write_table` puts the table."""


@dataclass(frozen=True, kw_only=True)
class EncodingRow:
    """One encoding: what it is called, where it comes from, what it claims and what it costs."""

    name: str
    """The name that `build` takes; a wrapper is listed around Kerple."""
    title: str
    paper: str
    formula: str
    claims: dict[str, bool]
    parameters: int
    """Learned numbers, per layer (for encodings at the input: per model)."""
    shows: str | None
    """The quantity its figure shows; None if there is nothing to draw."""
    file: str
    """The source file, without its folder."""
    kind: type[Encoding] = field(repr=False)
    """The class; of a wrapped encoding, the wrapper's."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Fields that a schedule sets to values other than the defaults."""

    def __repr__(self) -> str:
        options = "".join(f":{name}={value}" for name, value in self.fields.items())
        return (
            f"{self.name}{options}: {self.title}, {self.paper}; {self.formula}; "
            f"{self.letters}; {self.parameters:,} parameters"
        )

    @property
    def letters(self) -> str:
        """The claims as four letters, for example ST-- ."""
        return "".join(LETTERS[claim] if made else "-" for claim, made in self.claims.items())


def list_encodings(
    schedule: str | None = None,
    *,
    heads: int = 12,
    head_dim: int = 64,
    width: int = 768,
    train_length: int = 512,
) -> list[EncodingRow]:
    """Return a row for every encoding, with the parameter count for a model of this shape.

    With a `schedule` ("rope*3,nope", "cohere2") there is instead a row per layer of its
    pattern. The default shape is GPT-2 Small's at a context length of 512. Wrappers are listed
    around Kerple. Encodings of plugins and installed packages are included.

    Args:
        schedule: An encoding per layer, such as "rope*3,nope" or "cohere2"; by default the whole
            table.
        heads: Number of heads of the model.
        head_dim: Size of one head.
        width: Model width.
        train_length: Tokens per sequence in training.

    Example:
        >>> import headscape as hs
        >>> [row.parameters for row in hs.list_encodings() if row.name == "kerple"]
        [24]
        >>> [(row.name, row.fields) for row in hs.list_encodings("rope:window=64,nope")]
        [('rope', {'window': 64}), ('nope', {})]
    """
    shape = Shape(heads=heads, head_dim=head_dim, width=width, train_length=train_length)
    if schedule is not None:
        return [describe(entry.name, shape, entry.fields) for entry in parse(schedule)]
    load_all_installed()
    names = [*ENCODINGS, *(f"{wrapper}+kerple" for wrapper in WRAPPERS)]
    return [describe(name, shape) for name in names]


def describe(name: str, shape: Shape, options: Mapping[str, object] | None = None) -> EncodingRow:
    """Return the row of one encoding; `options` are fields of its config."""
    made = make(name, shape, options or {})
    kind, values = type(made), made.conventions()
    defaults = make(name, shape, {}).conventions() if options else values
    return EncodingRow(
        name=name,
        title=title(name),
        paper=made.paper,
        formula=made.formula,
        claims=made.claims(),
        parameters=sum(parameter.numel() for parameter in made.parameters()),
        shows=made.shows,
        file=_file(kind),
        kind=kind,
        fields={key: values[key] for key in options or {} if values[key] != defaults[key]},
    )


def _file(kind: type[Encoding]) -> str:
    """The file that defines a class; empty for one that was typed into a notebook."""
    try:
        return Path(inspect.getfile(kind)).name
    except (TypeError, OSError):
        return ""


def markdown(folder: str = "../src/headscape/encodings") -> str:
    """Return the table of the package's own encodings as Markdown, with links into `folder`."""
    lines = ["| name | title | paper | score | tested | file |", "|---|---|---|---|---|---|"]
    own = [row for row in list_encodings() if row.kind.__module__.startswith(f"{__package__}.")]
    for row in own:
        wrapped = row.name.removesuffix("+kerple")
        name, label = (
            (row.name, row.title) if wrapped == row.name else (f"{wrapped}+X", row.kind.title)
        )
        formula = row.formula.replace("|", "\\|")
        link = f"[{row.file}]({folder}/{row.file})"
        tested = TESTED.get(wrapped, Evidence()).words
        lines.append(f"| `{name}` | {label} | {row.paper} | `{formula}` | {tested} | {link} |")
    return "\n".join(lines)


def write_table(path: Path | str) -> None:
    """Write the Markdown table between the two marks in a file, such as docs/encodings.md."""
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    if text.count(START) != 1 or text.count(END) != 1:
        raise InputError(f"{path} must contain {START} and {END} once each.")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    path.write_text(f"{before}{START}\n{markdown()}\n{END}{after}", encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The code that one encoding is compared with; names are those of tests/golden/INDEX.md."""

    authors: str = ""
    """Code of the paper's authors that produced stored vectors."""
    others: tuple[str, ...] = ()
    """Other public code that produced stored vectors."""
    live: tuple[str, ...] = ()
    """Packages that run beside ours in a test."""

    @property
    def words(self) -> str:
        """The kinds of comparison, for a table: for example "authors, live"."""
        vectors = "authors" if self.authors else "others" if self.others else ""
        sources = [vectors, "live" if self.live else ""]
        return ", ".join(word for word in sources if word) or "formula"

    @property
    def sentence(self) -> str:
        """The comparisons in full."""
        parts = []
        if self.authors:
            parts.append(f"vectors that the authors' code produced ({self.authors})")
        if self.others:
            parts.append(f"vectors that other public code produced ({', '.join(self.others)})")
        if self.live:
            parts.append(f"{' and '.join(self.live)}, run in the test")
        parts.append("a second implementation from the formulas")
        alone = "" if len(parts) > 1 else " and nothing else"
        return f"Tested against {'; '.join(parts)}{alone}."


TRANSFORMERS, X_TRANSFORMERS = "transformers", "x-transformers"

TESTED: dict[str, Evidence] = {
    "nope": Evidence(others=(TRANSFORMERS,)),
    "learned": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS,)),
    "sinusoidal": Evidence(others=("CABLE", "NeoX", TRANSFORMERS, X_TRANSFORMERS)),
    "rope": Evidence(others=("NeoX", "CABLE", TRANSFORMERS), live=(TRANSFORMERS, X_TRANSFORMERS)),
    "xpos": Evidence(live=(X_TRANSFORMERS,)),
    "pope": Evidence(others=(X_TRANSFORMERS,), live=(X_TRANSFORMERS,)),
    "selective-rope": Evidence(authors="Selective RoPE"),
    "carope": Evidence(),
    "repo": Evidence(authors="RePo"),
    "grape-m": Evidence(authors="GRAPE"),
    "path": Evidence(authors="FLA"),
    "wall": Evidence(others=("Wall",)),
    "alibi": Evidence(
        authors="ALiBi",
        others=("CABLE", "DAPE", TRANSFORMERS, X_TRANSFORMERS),
        live=(TRANSFORMERS, X_TRANSFORMERS),
    ),
    "t5": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS, X_TRANSFORMERS)),
    "t5-clipped": Evidence(authors="CABLE"),
    "wavlm": Evidence(others=(TRANSFORMERS,)),
    "grid": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS,)),
    "kerple": Evidence(authors="KERPLE"),
    "kerple-power": Evidence(authors="KERPLE"),
    "kerple-weight": Evidence(authors="KERPLE"),
    "bam": Evidence(authors="BAM"),
    "sandwich": Evidence(),
    "fire": Evidence(others=("DAPE", "CABLE")),
    "cable": Evidence(others=("a third party's port",)),
    "cable-nw": Evidence(authors="CABLE"),
    "k-cable": Evidence(authors="CABLE"),
    "fox": Evidence(others=("FLA",), live=(X_TRANSFORMERS,)),
    "cope": Evidence(live=(X_TRANSFORMERS,)),
    "stick-breaking": Evidence(authors="Stick-breaking"),
    "shaw": Evidence(others=("Music Transformer", TRANSFORMERS), live=(TRANSFORMERS,)),
    "transformer-xl": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS,)),
    "deberta": Evidence(others=(TRANSFORMERS,), live=(TRANSFORMERS,)),
    "inkling": Evidence(others=(TRANSFORMERS, X_TRANSFORMERS), live=(TRANSFORMERS,)),
    "grape": Evidence(authors="GRAPE"),
    "dape": Evidence(authors="DAPE", others=("CABLE",)),
    "dapev2": Evidence(authors="DAPE"),
}
"""One row per encoding and wrapper of the package."""
