"""Checks the pages: links, pictures, the sidebar, and numbers that stand on several of them.

    python -m docs.site.check

Pages are README.md and the others beside it and docs/, with the text of its notebooks. Each
finding is a line, and any finding fails.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from docs.site.build import CONTENTS

ROOT: Final = Path(__file__).parents[2]
GENERATED: Final = {"gallery"}
"""Pages of the sidebar that the build writes."""
MOST_BYTES: Final = {".gif": 3_000_000}
"""Size of a picture by its suffix."""
OTHER_BYTES: Final = 300_000
"""Size of any other picture."""
SAME: Final[tuple[dict[str, str], ...]] = (
    {
        "README.md": r"\*\*(\w+) of its 270 heads look at the token before",
        "docs/measured/atlas.md": r"\*\*(\w+) heads look at the token before",
        "docs/tutorial.md": r"the same (\w+) heads",
    },
    {
        "README.md": r"\(R2 ([\d.]+)\)",
        "docs/measured/atlas.md": r"for layer 17, head 1 it is (\d\.\d+)",
    },
    {
        "docs/tutorial.md": r"the same five heads, ([\d.]+) to (\d\.\d+)",
        "docs/measured/atlas.md": r"\| 17 \| 1 \| ([\d.]+) \[.*?\| 20 \| 4 \| ([\d.]+) \[",
    },
    {
        "docs/measured/atlas.md": r"there it falls from ([\d.]+) to ([\d.]+) nats",
        "docs/measured/diagnose.md": r"entropy falls, from ([\d.]+) to (\d\.\d+)",
    },
    {
        "docs/measured/atlas.md": r"\| 17 \| 1 \| (\d\.\d+) \|.*? sink score of "
        r"(\d\.\d+) at 8,192",
        "docs/measured/diagnose.md": r"head 1, falls from ([\d.]+) to .*? head 9, from ([\d.]+) to",
    },
    {
        "docs/choosing.md": r"ALiBi and Kerple degrade \(([\d.]+) and ([\d.]+)\)",
        "docs/results.md": r"## Growth past the training length, beside .*?"
        r"\| ALiBi \|(?:[^|]+\|){7} ([\d.]+) \|.*?\| Kerple \|(?:[^|]+\|){7} ([\d.]+) \|",
    },
    {
        "docs/pretrained.md": r"a model of ([\d.]+ GB) in ([\d.]+ GB)",
        "docs/measured/pretrained.md": r"Llama of ([\d.]+ GB) in .*? limited to ([\d.]+ GB)",
    },
    {
        "README.md": r"(\d+ MB) of weights",
        "docs/tutorial.md": r"(\d+ MB) of 4-bit weights",
        "docs/pretrained.md": r"SmolLM2-135M-Instruct \((\d+ MB),",
        "docs/notebooks/1-find-heads.ipynb": r"smollm2` \((\d+ MB)\)",
        "CONTRIBUTING.md": r"on (\d+ MB) of fetched weights",
    },
)
"""One number, or several, as each page writes it; a group is what is compared."""
ACCIDENTAL: Final = {
    "3.11": "a version of Python",
    "5.22": "a version of transformers",
    "1.00": "a ratio or a score of one",
    "1.05": "ratios",
    "1.08": "a loss and ratios",
    "1.09": "a loss and a ratio",
    "1.19": "a ratio and gigabytes",
    "1.25": "a length and a ratio",
    "2.26": "a growth and a score",
}
"""Decimals that stand on several pages without being one number, and what they are."""
COMPARED: Final = {"1.71"}
"""Decimals that tests/house/test_numbers.py compares with their source."""
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
DECIMAL: Final = re.compile(r"(?<![\w.,/:#-])[-+−]?(\d[\d,]*\.\d+)(?![\w]|[.,]\d)")


def read() -> dict[str, str]:
    """Return every page's text by its path."""
    docs = ROOT / "docs"
    paths = sorted([*ROOT.glob("*.md"), *docs.rglob("*.md"), *docs.rglob("*.ipynb")])
    return {path.relative_to(ROOT).as_posix(): _text(path) for path in paths}


def _text(path: Path) -> str:
    """Return a page, or what a notebook says between its code."""
    text = path.read_text()
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def broken_links(pages: Mapping[str, str]) -> Iterator[str]:
    """Name every link whose file or section does not exist."""
    sections = {name: anchors(text) for name, text in pages.items()}
    for name, text in pages.items():
        for target in LINK.findall(_without_code(text)):
            if "://" in target or target.startswith("mailto:"):
                continue
            file, _, section = target.partition("#")
            path = ((ROOT / name).parent / file).resolve() if file else ROOT / name
            if not path.exists():
                yield f"{name}: there is no {file}"
            elif section:
                known = sections.get(path.relative_to(ROOT).as_posix(), set())
                if section not in known:
                    yield f"{name}: {target} has no such section"


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", _without_blocks(text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.append(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
    return set(found)


def pictures(pages: Mapping[str, str]) -> Iterator[str]:
    """Name every picture of docs/images that no page shows or that is too large."""
    text = "".join(pages.values())
    for picture in sorted((ROOT / "docs/images").iterdir()):
        if f"images/{picture.name}" not in text:
            yield f"{picture.name} is on no page"
        if picture.stat().st_size > MOST_BYTES.get(picture.suffix, OTHER_BYTES):
            yield f"{picture.name} has {picture.stat().st_size:,} bytes"


def missing_pages(contents: Mapping[str, list[str]]) -> Iterator[str]:
    """Name every page of the sidebar that does not exist."""
    for kind, names in contents.items():
        for name in names:
            if name not in GENERATED and not (ROOT / f"docs/{name}.md").is_file():
                yield f"{kind}: there is no docs/{name}.md"


def different_numbers(pages: Mapping[str, str]) -> Iterator[str]:
    """Name every number that several pages have and that is not the same on all of them."""
    for patterns in SAME:
        found = {name: _numbers(pages[name], pattern) for name, pattern in patterns.items()}
        if len(set(found.values())) > 1 or not all(found.values()):
            said = "; ".join(f"{name} has {' and '.join(x) or 'none'}" for name, x in found.items())
            yield f"different numbers: {said}"


def repeated_numbers(pages: Mapping[str, str]) -> Iterator[str]:
    """Name every decimal of three or more digits in the sentences of two pages, if not compared.

    Tables are left out: their ratios meet by accident. So are whole numbers, most of which are
    lengths and counts of tokens.
    """
    on = defaultdict(set)
    for name, text in pages.items():
        if name != "CHANGELOG.md":
            for number in DECIMAL.findall(_sentences(text)):
                if len(re.sub(r"\D", "", number).lstrip("0")) >= 3:
                    on[number].add(name)
    compared = COMPARED | set(ACCIDENTAL)
    for patterns in SAME:
        for name, pattern in patterns.items():
            compared |= {number.split()[0] for number in _numbers(pages[name], pattern)}
    for number, names in sorted(on.items()):
        if len(names) > 1 and number not in compared:
            yield f"{number} is on {', '.join(sorted(names))}: add it to SAME or ACCIDENTAL"


def _numbers(text: str, pattern: str) -> tuple[str, ...]:
    """Return the groups of a pattern in a page, in lower case and sorted."""
    found = re.search(pattern, " ".join(text.split()))
    return tuple(sorted(group.lower() for group in found.groups())) if found else ()


def _without_blocks(text: str) -> str:
    return re.sub(r"^(```+).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)


def _without_code(text: str) -> str:
    indented = re.sub(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+", "", _without_blocks(text))
    return re.sub(r"`[^`]*`", "", indented)


def _sentences(text: str) -> str:
    text = re.sub(r"^\|.*$", "", _without_code(text), flags=re.MULTILINE)
    return re.sub(r"https?://\S+", "", LINK.sub("]", text))


def problems() -> list[str]:
    """Return every finding as a line."""
    pages = read()
    return [
        *broken_links(pages),
        *pictures(pages),
        *missing_pages(CONTENTS),
        *different_numbers(pages),
        *repeated_numbers(pages),
    ]


if __name__ == "__main__":
    found = problems()
    print("\n".join(found) or "links, pictures, sidebar and repeated numbers are right")
    sys.exit(bool(found))
