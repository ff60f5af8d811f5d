"""What a diagnosis found, and its files: a page, Markdown, JSON and two CSV tables.

The page is one HTML file without a script; its pictures are SVG. It opens from disk and asks the
network for nothing.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from headscape.diagnosis.advice import shown
from headscape.diagnosis.first_token import named
from headscape.diagnosis.heads import COMPARED, LISTED, summary
from headscape.diagnosis.retrieval import HOLDS, Answers
from headscape.io.files import reporting
from headscape.io.html_page import html_page
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.io.table_text import csv_text, markdown_text
from headscape.measures.record_table import html_grid, markdown_grid

FILES: Final = (
    "diagnosis.html", "diagnosis.md", "diagnosis.json", "remedies.csv", "heads.csv",
)  # fmt: skip
COLOURS: Final = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKS: Final = ("loss", "right")
DRAWN: Final = 4
"""Heads whose kernel is drawn."""
RETRIEVING: Final = 5
"""Heads of the table of retrieval."""
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child { text-align: left }
th[scope="row"] { font-weight: normal }
td span { display: block; padding: 0 .3rem }
svg { max-width: 100%; height: auto }
ul { margin: 0 }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818 }
  svg { background: #fff }
}
"""

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings and rows."""


class Diagnosis:
    """The result of `diagnose`: `data` has every number, the methods write it.

    Example:
        >>> import headscape as hs
        >>> gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257, train_length=32)
        >>> found = hs.diagnose(hs.load(gpt2), 64, list(range(250)), quick=True)
        >>> found.to_markdown().startswith("# Diagnosis of ALiBi")
        True
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    @property
    def findings(self) -> list[str]:
        """The kinds of what was found, such as positions or inactive; [] if nothing is wrong."""
        return [each["kind"] for each in self.data["findings"]]

    @property
    def sentence(self) -> str:
        """What to do."""
        return str(self.data["advice"]["sentence"])

    @property
    def setting_sentence(self) -> str | None:
        """The best remedy that other software has a setting for, where the best one has none."""
        advice, about = self.data["advice"], self.data["about"]
        setting = advice["setting"]
        if setting is None or setting["remedy"] == advice["best"]:
            return None
        rows = {each["name"]: each for each in self.data["remedies"]}
        best, row = rows[advice["best"]], rows[setting["remedy"]]
        return (
            f"Other software has no setting for {best['title']} (in Python: "
            f"{advice['patch']['headscape']}). It has one for {row['title']}: its loss is "
            f"{shown(row['gain'])} nats lower than the unchanged model's, and it costs "
            f"{shown(row['cost'], sign=True)} nats at {about['short']:,} tokens."
        )

    def __repr__(self) -> str:
        about = self.data["about"]
        found = ", ".join(self.findings) or "no finding"
        return f"<diagnosis of {about['model']} at {about['length']:,} tokens: {found}>"

    def save(self, folder: str | Path) -> Path:
        """Write every file of FILES to a folder and return the page's path."""
        folder = Path(folder)
        check_folder(folder)
        with reporting("write", folder):
            folder.mkdir(parents=True, exist_ok=True)
        texts = (
            self.to_html(), self.to_markdown(), self.to_json(), self.remedies_csv(),
            self.heads_csv(),
        )  # fmt: skip
        for name, text in zip(FILES, texts, strict=True):
            write_output(folder / name, text, KINDS[Path(name).suffix[1:]])
        return folder / FILES[0]

    def to_json(self) -> str:
        """Return every number; layers and heads count from 0."""
        return json.dumps(self.data, indent=1) + "\n"

    def to_markdown(self) -> str:
        """Return the diagnosis as Markdown; layers and heads count from 1."""
        parts = [f"# Diagnosis of {markdown_text(self.data['about']['model'])}\n"]
        for title, body in self._sections():
            parts.append(f"## {title}\n")
            parts += [markdown_text(x) if isinstance(x, str) else _markdown(x) for x in body]
        return "\n".join(part if part.endswith("\n") else f"{part}\n" for part in parts)

    def to_html(self) -> str:
        """Return the diagnosis as a page; layers and heads count from 1."""
        title = f"Diagnosis of {self.data['about']['model']}"
        parts = [f"<h1>{escape(title)}</h1>"]
        pictures = {
            "Where it breaks": self._loss_picture,
            "Which heads, and why": self._kernel_picture,
            "What mends it": self._remedy_picture,
        }
        for heading, body in self._sections():
            parts.append(f"<h2>{escape(heading)}</h2>")
            if heading in pictures:
                parts.append(pictures[heading]())
            parts += [_paragraph(each) if isinstance(each, str) else _html(each) for each in body]
        return html_page(title, "\n".join(parts), style=STYLE)

    def remedies_csv(self) -> str:
        """Return one row per remedy, best first."""
        heads = ("loss", "gain", "excess", "cost")
        kinds = [(kind, mark) for kind in self.data["unchanged_retrieval"] for mark in MARKS]
        every = [*heads, *(f"{kind}_{mark}" for kind, mark in kinds)]
        names = [f"{head}{end}" for head in every for end in ("", "_low", "_high")]
        rows = [
            [
                each["name"],
                *(value for head in heads for value in each[head]),
                *(value for kind, mark in kinds for value in each["retrieval"][kind][mark]),
                each["holds_to"],
            ]
            for each in self.data["remedies"]
        ]
        return _csv(["remedy", *names, "holds_to"], rows)

    def heads_csv(self) -> str:
        """Return one row per layer and head, counted from 1, with every length and the control."""
        heads = self.data["heads"]
        tables = {**heads["by_length"]}
        if heads["control"] is not None:
            tables["control"] = heads["control"]
        names = [f"{measure}_{where}" for where in tables for measure in LISTED]
        some = next(iter(tables.values()))[LISTED[0]]
        rows = [
            [layer + 1, head + 1, *(t[m][layer][head] for t in tables.values() for m in LISTED)]
            for layer, each in enumerate(some)
            for head in range(len(each))
        ]
        return _csv(["layer", "head", *names], rows)

    def _sections(self) -> list[tuple[str, list[str | Table]]]:
        return [
            ("What to do", self._to_do()),
            ("Is it what the config says?", [*self._config(), *self._first_token()]),
            ("Where it breaks", self._breaks()),
            ("Which heads, and why", self._heads()),
            ("What mends it", self._mends()),
            ("How this was measured", self._method()),
        ]

    def _to_do(self) -> list[str | Table]:
        data = self.data
        lines: list[str | Table] = [self.sentence]
        lines += [f"- {each['kind']}: {each['text']}" for each in data["findings"]]
        if not data["findings"]:
            lines.append("No finding.")
        best, setting = data["advice"]["patch"], data["advice"]["setting"]
        if best is None:
            return lines
        if self.setting_sentence is not None:
            lines.append(self.setting_sentence)
        shown_patch = best if setting is None else setting
        rows = [
            (name, json.dumps(value) if isinstance(value, dict) else value or "no setting")
            for name, value in shown_patch.items()
            if name not in {"note", "remedy"}
        ]
        lines.append((("software", "setting"), rows))
        if shown_patch["note"] is not None:
            lines.append(shown_patch["note"])
        return lines

    def _config(self) -> list[str | Table]:
        rows = [
            (each["name"], each["declared"], each["active"], each["fault"] or "")
            for each in self.data["config"]
        ]
        if not rows:
            return ["The config has no setting of position that could be compared."]
        return [(("setting", "declared", "active", "fault"), rows)]

    def _first_token(self) -> list[str | Table]:
        start = self.data["first_token"]
        if start is None:
            return ["Nothing says which token a text of this model begins with."]
        sink = start["mean_sink"]
        read = self.data["about"]["first_token"]
        return [
            (
                f"First token: texts of this model usually begin with {named(start)}. In "
                f"{start['windows']} short windows that begin where the text is cut, the loss "
                f"minus that with this token first is {shown(start['more'], sign=True)} nats, and "
                f"the mean weight of late queries on the first key is {sink['own']:.3f} against "
                f"{sink['usual']:.3f}."
            ),
            "Windows were read without it." if read is None else f"Windows begin with {read}.",
        ]

    def _breaks(self) -> list[str | Table]:
        about, loss = self.data["about"], self.data["loss"]
        rows = [
            (
                f"{band['from']:,} to {band['to'] - 1:,}",
                shown(band["loss"]),
                "" if band["excess"] is None else shown(band["excess"], sign=True),
            )
            for band in loss["bands"]
        ]
        held = (
            f"The loss holds up to {loss['holds_to']:,} tokens, "
            f"{loss['holds_to'] / about['trained']:.3g} times the trained length: no band before "
            f"that has a mean excess above {loss['threshold']} nats that is shown to be above 0."
        )
        tests = (
            f"Past {about['trained']:,} tokens the mean excess is "
            f"{shown(loss['excess'], sign=True)} nats. Brackets are bootstrap intervals of one "
            f"number each; what breaks is decided by Student's test, with 2.5% of false alarms in "
            f"all positions past the trained length together and 2.5% in all bands together."
        )
        lines: list[str | Table] = [held, (("position", "loss", "excess"), rows), tests]
        for kind in dict.fromkeys(each["kind"] for each in self.data["retrieval"]):
            lines += self._heat_map(kind)
        return lines

    def _heat_map(self, kind: str) -> list[str | Table]:
        cells = [each for each in self.data["retrieval"] if each["kind"] == kind]
        lengths = list(dict.fromkeys(each["length"] for each in cells))
        depths = list(dict.fromkeys(each["depth"] for each in cells))
        values = {(each["length"], each["depth"]): each for each in cells}

        def cell(length: int, depth: float) -> str:
            each = values[length, depth]
            return f"{each['right']:.0%}, {each['loss']:.2f}"

        rows = [(f"{depth:g}", *(cell(length, depth) for length in lengths)) for depth in depths]
        title = f"{kind}: share of right answers, and their loss in nats per token, by depth."
        table = (("depth", *(f"{length:,}" for length in lengths)), rows)
        every = self.data["retrieval_by_length"][kind]
        shares = ", ".join(
            f"{shown(each['right'])} at {each['length']:,}" for each in every["lengths"]
        )
        held = (
            ""
            if every["holds_to"] is None
            else f" The last length that holds is {every['holds_to']:,}: the next one's share is "
            f"below {HOLDS:g} times that at the trained length."
            if every["holds_to"] < self.data["about"]["length"]
            else " Every length holds."
        )
        return [title, table, f"{kind}: share right over all depths {shares}.{held}"]

    def _heads(self) -> list[str | Table]:
        heads = self.data["heads"]
        form = {"reach": ".0f"}
        rows = [
            (
                name,
                *(
                    "-" if part[key] is None else format(part[key], form.get(name, ".3f"))
                    for key in ("trained", "length", "position", "keys")
                ),
            )
            for name, part in heads["parts"].items()
        ]
        lines: list[str | Table] = [
            summary(heads),
            (("mean over heads", f"{heads['trained']:,}", f"{heads['length']:,}", "position",
              "keys"), rows),
        ]  # fmt: skip
        kinds: dict[tuple[int, ...], list[int]] = {}
        for each in heads["untrained_pairs"]:
            kinds.setdefault(tuple(each["layers"]), []).append(each["pair"] + 1)
        for layers, pairs in kinds.items():
            where = "" if len(layers) == heads["layers"] else f" of {_layers(layers)}"
            lines.append(
                f"{len(pairs)} RoPE pairs{where} turn less than once in {heads['trained']:,} "
                f"tokens, from pair {pairs[0]} on: their angles past that length are new."
            )
        if heads["parts"]["retrieval"]["trained"] is not None:
            lines += self._retrieving()
        changed = [self._changed(each) for each in heads["most_changed"]]
        lines.append(
            (
                ("layer", "head", "largest change", *(f"{m}, L to N" for m in COMPARED), "effect"),
                changed,
            )
        )
        if heads["effects"]:
            lines.append(
                "The effect is the change of the loss past the trained length if this head alone "
                "gets distances that it knows."
            )
        return lines

    def _retrieving(self) -> list[str | Table]:
        """Return the heads that copy most at the trained length."""
        heads = self.data["heads"]
        tables = {f"{int(length):,}": table for length, table in heads["by_length"].items()}
        if heads["control"] is not None:
            tables["control"] = heads["control"]
        first = heads["by_length"][str(heads["trained"])]["retrieval"]
        order = sorted(
            ((layer, head) for layer, row in enumerate(first) for head in range(len(row))),
            key=lambda at: -first[at[0]][at[1]],
        )[:RETRIEVING]
        rows = [
            (
                str(layer + 1),
                str(head + 1),
                *(
                    "not asked" if value is None else f"{value:.3f}"
                    for value in (table["retrieval"][layer][head] for table in tables.values())
                ),
            )
            for layer, head in order
        ]
        title = (
            "Retrieval is the weight that a query gives to the very token that it should copy. The "
            f"{len(rows)} heads with most of it at {heads['trained']:,} tokens:"
        )
        return [title, (("layer", "head", *tables), rows)]

    def _changed(self, each: Mapping[str, Any]) -> Sequence[str]:
        heads, layer, head = self.data["heads"], each["layer"], each["head"]
        tables = list(heads["by_length"].values())
        effect = heads["effects"].get(f"{layer}.{head}")
        moves = [
            f"{tables[0][name][layer][head]:.2f} to {tables[-1][name][layer][head]:.2f}"
            for name in COMPARED
        ]
        last = "not run" if effect is None else shown(effect, sign=True)
        return (str(layer + 1), str(head + 1), f"{each['change']:.2f}", *moves, last)

    def _mends(self) -> list[str | Table]:
        data = self.data
        own, far = data["loss"], data["far"]
        kinds = list(data["unchanged_retrieval"])

        def answers(found: Answers) -> list[str]:
            return [
                f"{found[kind]['right'][0]:.0%}, {found[kind]['loss'][0]:.2f}"
                if kind in found
                else "-"
                for kind in kinds
            ]

        loss, excess = (own["past"], own["excess"]) if far is None else (far["loss"], far["more"])
        rows = [
            ("unchanged", shown(loss), "", shown(excess, sign=True), "",
             f"{own['holds_to']:,}", *answers(data["unchanged_retrieval"]))
        ]  # fmt: skip
        rows += [
            (
                each["title"],
                shown(each["loss"]),
                shown(each["gain"], sign=True),
                shown(each["excess"], sign=True),
                shown(each["cost"], sign=True),
                "-" if each["holds_to"] is None else f"{each['holds_to']:,}",
                *answers(each["retrieval"]),
            )
            for each in data["remedies"]
        ]
        where = "past L" if far is None else "at far positions"
        titles = ("remedy", f"loss {where}", "gain", "excess",
                  f"cost at {data['about']['short']:,}", "holds to", *kinds)  # fmt: skip
        lines: list[str | Table] = [(titles, rows)]
        if far is not None:
            lines.append(
                f"Compared at far positions alone: {_counted(far['windows'])} of {far['tokens']:,} "
                f"tokens whose second half stands {far['gaps'][0]:,} to {far['gaps'][1]:,} "
                f"positions later, a different gap in every window and the same ones for every "
                f"remedy, since a rotation comes round again and a single distance may favour a "
                f"remedy by chance. Intervals are over windows that differ in text and in gap. "
                f"The loss is that of the last quarter, and the excess is that minus "
                f"the loss of the unchanged model without the gap, {shown(far['near'])}. More "
                f"keys, the other thing that a long text changes, are not in this table."
            )
        lines += [f"- {each['title']}: {each['text']}." for each in data["remedies"]]
        lines += [f"- not tried, {name}: {why}." for name, why in data["refused"].items()]
        return lines

    def _method(self) -> list[str | Table]:
        about = self.data["about"]
        lines: list[str | Table] = [
            (
                f"{_counted(about['windows'])} of {about['length']:,} tokens of {about['text']}, "
                f"{about['scored_per_window']:,} scored tokens each; every remedy scores the same "
                f"tokens. The excess is the loss minus the loss of the same token with half to all "
                f"of the trained length of {about['trained']:,} tokens before it. Brackets are 95% "
                f"intervals over windows, from 6 windows on."
            ),
            (
                f"Model {about['model']} ({about['encoding']}), fingerprint "
                f"{about['fingerprint'][:16]}, headscape {about['headscape']}."
            ),
        ]
        return lines + [f"- left out: {each}." for each in about["left_out"]]

    def _loss_picture(self) -> str:
        bands = self.data["loss"]["bands"]
        return _picture([("unchanged", bands)], self.data["about"]["trained"], "excess")

    def _kernel_picture(self) -> str:
        """Return the kernels of the most changed heads as SVG, one small panel each."""
        heads = self.data["heads"]
        kernel, edges = heads["kernel"], heads["kernel"]["from"]
        titles = {
            "trained": f"{heads['trained']:,} tokens",
            "control": "as many keys, far",
            "length": f"{heads['length']:,} tokens",
        }
        curves = [name for name in titles if name in kernel]
        width, height, below = 205, 150, 42
        parts = []
        for number, each in enumerate(heads["most_changed"][:DRAWN]):
            layer, head = each["layer"], each["head"]
            shares = {name: kernel[name]["weight"][layer][head] for name in curves}
            top = max(max(row) for row in shares.values()) or 1.0
            left = number * width + 30
            step = (width - 45) / max(1, len(edges) - 1)
            parts.append(
                f'<text x="{left}" y="12">layer {layer + 1}, head {head + 1}</text>'
                f'<text x="{left - 4}" y="28" text-anchor="end">{top:.2f}</text>'
                f'<line x1="{left}" x2="{left + step * (len(edges) - 1):.1f}" '
                f'y1="{height - below}" y2="{height - below}" stroke="#888"/>'
            )
            parts += [
                f'<text x="{left + step * at:.1f}" y="{height - below + 13}" '
                f'text-anchor="middle">{edges[at]:,}</text>'
                for at in sorted({0, len(edges) // 2, len(edges) - 1})
            ]
            for colour, name in zip(COLOURS, curves, strict=False):
                points = " ".join(
                    f"{left + step * at:.1f},{height - below - share / top * 80:.1f}"
                    for at, share in enumerate(shares[name])
                )
                parts.append(
                    f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" '
                    f'points="{points}"/>'
                )
        parts += [
            f'<text x="{30 + 190 * number}" y="{height - 6}" fill="{colour}">{titles[name]}</text>'
            for number, (colour, name) in enumerate(zip(COLOURS, curves, strict=False))
        ]
        whole = max(width * min(DRAWN, len(heads["most_changed"])), 30 + 190 * len(curves))
        return (
            f'<svg role="img" aria-label="Weight by distance" viewBox="0 0 {whole} {height}" '
            f'width="{whole}" height="{height}" xmlns="http://www.w3.org/2000/svg" '
            f'font-family="sans-serif" font-size="11">{"".join(parts)}</svg>'
            f"<p>The share of late queries' weight by distance, in bins that double, of the heads "
            f"that change most.</p>"
        )

    def _remedy_picture(self) -> str:
        if self.data["far"] is not None:
            return ""
        best = [(each["title"], each["bands"]) for each in self.data["remedies"][:6]]
        curves = [("unchanged", self.data["loss"]["bands"]), *best]
        return _picture(curves, self.data["about"]["trained"])


def _counted(windows: int) -> str:
    return "1 window" if windows == 1 else f"{windows} windows"


def _layers(layers: Sequence[int]) -> str:
    """Return layers, counted from 0, as text that counts from 1."""
    numbers = ", ".join(str(layer + 1) for layer in layers)
    return f"layer {numbers}" if len(layers) == 1 else f"layers {numbers}"


def check_folder(folder: Path, reads: Iterable[Path | str] = ()) -> None:
    """Refuse a folder where a diagnosis would replace a file of a different kind."""
    for name in FILES:
        check_output(folder / name, KINDS[Path(name).suffix[1:]], reads=reads)


def _markdown(table: Table) -> str:
    heads, rows = table
    cells = [[markdown_text(cell) for cell in row] for row in rows]
    return markdown_grid(heads, cells, [number == 0 for number in range(len(heads))])


def _html(table: Table) -> str:
    heads, rows = table
    return html_grid(heads, [[_cell(cell) for cell in row] for row in rows])


def _cell(text: str) -> str:
    """Return a cell's HTML; a share of right answers colours it."""
    share, comma, rest = text.partition("%, ")
    if comma and share.isdecimal() and rest.replace(".", "", 1).isdecimal():
        return (
            f'<span style="background:rgba(0,114,178,{int(share) / 100:.2f});'
            f'color:{"#fff" if int(share) > 50 else "inherit"}">{escape(text)}</span>'
        )
    return escape(text)


def _paragraph(text: str) -> str:
    """Return a paragraph, or an item of a list where the text begins with a dash."""
    item = text.removeprefix("- ")
    return f"<p>{escape(text)}</p>" if item == text else f"<ul><li>{escape(item)}</li></ul>"


def _picture(
    curves: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], trained: int, of: str = "loss"
) -> str:
    """Return losses by position as SVG, with a line at the trained length.

    Args:
        curves: The bands of positions, by title.
        trained: The trained length.
        of: The entry of a band that is drawn; an excess is drawn with its interval and with 0.
    """
    width, height, left, below = 640, 260, 48, 34
    is_excess = of == "excess"
    drawn = [each for _, bands in curves for band in bands if (each := band[of]) is not None]
    values = [x for each in drawn for x in (each if is_excess else each[:1]) if x is not None]
    values += [0.0] if is_excess else []
    low, high = float(min(values)), float(max(values))
    high += 0.05 * (high - low or 1.0)
    last = curves[0][1][-1]["to"]

    def x(position: float) -> float:
        return left + position / float(last) * (width - left - 150)

    def y(loss: float) -> float:
        return 10 + (high - loss) / (high - low or 1.0) * (height - below - 10)

    parts = [
        (
            f'<svg role="img" aria-label="{of.capitalize()} by position" '
            f'viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg" '
            f'font-family="sans-serif" font-size="11">'
        )
    ]
    for step in range(5):
        loss = low + (high - low) * step / 4
        parts.append(
            f'<line x1="{left}" x2="{x(last):.1f}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" '
            f'stroke="#ddd"/><text x="{left - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">'
            f"{loss:.2f}</text>"
        )
        place = last * step / 4
        parts.append(
            f'<text x="{x(place):.1f}" y="{height - 16}" text-anchor="middle">{place:,.0f}</text>'
        )
    parts.append(
        f'<line x1="{x(trained):.1f}" x2="{x(trained):.1f}" y1="10" y2="{height - below}" '
        f'stroke="#888" stroke-dasharray="4"/><text x="{x(last / 2):.1f}" y="{height - 2}" '
        f'text-anchor="middle">{of} in nats by position; dashed: the trained length</text>'
    )
    if is_excess:
        parts.append(
            f'<line x1="{left}" x2="{x(last):.1f}" y1="{y(0):.1f}" y2="{y(0):.1f}" stroke="#888"/>'
        )
    for number, (title, bands) in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        at = [((band["from"] + band["to"]) / 2, band[of]) for band in bands if band[of]]
        points = " ".join(f"{x(place):.1f},{y(value[0]):.1f}" for place, value in at)
        sure = [(place, value) for place, value in at if value[1] is not None]
        if is_excess and sure:
            edge = [(place, value[1]) for place, value in sure]
            edge += [(place, value[2]) for place, value in reversed(sure)]
            corners = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in edge)
            parts.append(f'<polygon fill="{colour}" fill-opacity="0.15" points="{corners}"/>')
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'
            f'<text x="{x(last) + 8:.1f}" y="{20 + 15 * number}" fill="{colour}">{escape(title)}'
            f"</text>"
        )
    return "".join([*parts, "</svg>"])


def _csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return csv_text(names, [dict(zip(names, row, strict=True)) for row in rows])
