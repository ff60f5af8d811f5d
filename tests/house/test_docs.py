"""The pages of docs/: their Python runs.

The blocks of a page run one after another in one process, in a folder that has what the pages name:
runs/cable with checkpoints at steps 4 and 8. A block below `<!-- not run: REASON -->` is left out;
tests/pretrained/test_pages.py runs those below `<!-- real weights -->`.
"""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headscape.training import train

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MARK = r"<!-- (?P<reason>not run: .+?|real weights) -->\n"
BLOCK = re.compile(rf"(?:{MARK})?```python\n(?P<code>.*?)```", re.DOTALL)
INDENTED = re.compile(r"(?:^|(?<=\n\n))(?: {4,}.*\n|\n(?= {4}))+")
"""A block of Markdown that is code by its indentation."""
OTHERS = {"figures.md", "viewer.md"}
"""Pages whose indented Python is a list of calls, with names that the page does not define."""


def blocks(page: Path) -> list[str]:
    """The code of a page that runs."""
    found = BLOCK.finditer(page.read_text())
    return [block["code"] for block in found if not block["reason"]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    text = folder / "text.txt"
    text.write_text("".join(f"line {n} of {n % 7} things and {n % 11} more\n" for n in range(4000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCAPE_CACHE", str(folder / "cache"))
        train(
            "nano", encoding="cable", corpus=str(text), tokenizer="bytes", context_length=64,
            batch_size=2, steps=8, checkpoint_every=4, keep_every=4, quiet=True,
            out=folder / "runs/cable",
        )  # fmt: skip
    return folder


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem
)
def test_the_python_of_a_page_runs(
    page: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCAPE_CACHE", str(place / "cache"))
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks(page))],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_that_is_not_run_is_still_python(page: Path) -> None:
    for block in BLOCK.finditer(page.read_text()):
        code = block["code"]
        ast.parse(f"{{{code}}}" if code.startswith(" ") else code)  # or an entry of a table


def is_python(block: str) -> bool:
    """Whether a block is Python that imports or calls the package."""
    code = textwrap.dedent(block)
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return bool(re.search(r"^import |^from \w+.* import |\bhs\.\w+\(", code, re.MULTILINE))


def test_indented_python_is_noticed() -> None:
    text = "Text:\n\n    import headscape as hs\n\n    hs.load(1)\n\n- item\n  more\n"
    assert [is_python(block) for block in INDENTED.findall(text)] == [True]
    assert not is_python("    headscape view RUN\n")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in OTHERS], ids=lambda page: page.stem
)
def test_python_is_fenced_so_that_it_runs(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert [block for block in INDENTED.findall(text) if is_python(block)] == []
