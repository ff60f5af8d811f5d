"""The documentation site: built without a warning, complete, and read without a network."""

import re
import subprocess
import sys
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import pytest

import headscape
from docs.site import api_page, encoding_pages
from docs.site.pictures import shown
from headscape.encodings import ENCODINGS, WRAPPERS, build
from headscape.encodings.base import SHARED

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("site")
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements through which a page fetches something while it is read."""


class Fetched(HTMLParser):
    """Collects every address that a page fetches without being asked."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if address := given.get(LOADS.get(tag, "")):
            self.addresses.append(address)
        self.addresses += re.findall(r"url\(['\"]?([^)'\"]+)", given.get("style") or "")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site with smaller maps."""
    out = tmp_path_factory.mktemp("site") / "html"
    done = python("-m", "docs.site.build", str(out), "--draft")
    assert done.returncode == 0, done.stderr
    return out


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own: Sphinx's own warnings would be errors in this one."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def external(address: str) -> bool:
    return "//" in address.partition("?")[0] and not address.startswith("data:")


def test_a_page_that_fetches_is_noticed() -> None:
    page = '<script src="https://cdn.example/x.js"></script><p style="background:url(//a.b/c)">'
    assert [external(address) for address in Fetched(page).addresses] == [True, True]


def test_no_page_fetches_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(ENCODINGS)
    for page in pages:
        fetched = Fetched(page.read_text()).addresses
        assert fetched, page.name
        assert not [address for address in fetched if external(address)], page.name
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        found = re.findall(r"(?:url\(|@import )\s*['\"]?([^)'\";]+)", sheet.read_text())
        assert not [address for address in found if external(address)], sheet.name


@pytest.mark.parametrize("name", [*ENCODINGS, *WRAPPERS])
def test_every_field_is_explained_its_own_first(name: str) -> None:
    kind = (ENCODINGS | WRAPPERS)[name]
    lines = encoding_pages.conventions(kind).splitlines()[2:]
    assert [line for line in lines if line.endswith(": ")] == []
    shared = [line.split("`")[1] in SHARED for line in lines]
    assert shared == sorted(shared)


def test_stick_breaking_shows_its_weights() -> None:
    made = build("stick-breaking", heads=2, head_dim=4, width=8, train_length=16)
    found = shown(made)
    assert not found.flat
    assert "attention weights" in found.note
    assert found.weights


@pytest.mark.parametrize("name", [*ENCODINGS, *WRAPPERS])
def test_every_encoding_has_a_whole_page(site: Path, name: str) -> None:
    page = (site / f"encodings/{name}.html").read_text()
    for section in ("Pictures", "Conventions", "Claims", "Cost", "Length extrapolation"):
        assert f"<h2>{section}<" in page, section
    assert "Tested against" in page
    kind = (ENCODINGS | WRAPPERS)[name]
    assert kind.paper.partition(",")[0].replace("&", "&amp;") in page
    for field in fields(kind.config_type):
        assert f'<span class="pre">{field.name}</span>' in page, field.name


def test_the_api_page_has_every_public_name(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name in set(headscape.__all__) - {"__version__"}:
        assert f'id="headscape.{name}"' in page, name


def test_an_example_at_the_end_of_a_docstring_is_a_block_of_code() -> None:
    text = """Return two.

    Example:
        >>> 1 + 1
        2"""
    block = "Example:\n\n```pycon\n>>> 1 + 1\n2\n```\n"
    assert api_page.markdown(text) == f"Return two.\n\n{block}"


def test_arguments_are_a_list() -> None:
    text = """Return two.

    Args:
        one: The first,
            on two lines.
        **rest: More.

    Example:
        >>> 1 + 1
        2"""
    found = api_page.markdown(text)
    assert (
        "Return two.\n\n- `one`: The first,\n        on two lines.\n- `**rest`: More.\n\n" in found
    )


def test_the_search_scorer_is_loaded_and_has_sphinxs_own_numbers(site: Path) -> None:
    ours = (site / "_static/language_data.js").read_text()
    theirs = (site / "_static/searchtools.js").read_text().partition("class ")[0]
    assert (ROOT / "docs/site/search_scorer.js").read_text().strip() in ours
    for name in ("objNameMatch", "objPartialMatch", "title", "partialTitle", "term", "partialTerm"):
        [number] = re.findall(rf"\b{name}: \d+", theirs)
        assert number in ours, name


def test_the_extrapolation_table_is_read_from_the_results() -> None:
    text = "| length | A | B+C |\n|---:|---:|---:|\n| 512 | 1.0 | 2.0 ± 0.1 |\n| 1024 | - | 3.0 |\n"
    found = encoding_pages.extrapolation(text)
    assert found == {"A": {"512": "1.0", "1024": "-"}, "B+C": {"512": "2.0 ± 0.1", "1024": "3.0"}}


def test_a_warning_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("# Title\n\n[nowhere](missing.md)\n")
    code = "import sys; from docs.site.build import render; from pathlib import Path;"
    code += "sys.exit(render(Path(sys.argv[1]), Path(sys.argv[1], 'html')))"
    done = python("-c", code, str(tmp_path))
    assert done.returncode == 1
    assert "missing.md" in done.stderr


def test_a_page_of_the_sidebar_that_does_not_exist_stays_in_the_index(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from docs.site import build;"
    code += "build.CONTENTS['How to'].append('nowhere'); source = Path(sys.argv[1]);"
    code += "build.stage(source, draft=True); print((source / 'index.md').read_text())"
    done = python("-c", code, str(tmp_path / "source"))
    assert done.returncode == 0, done.stderr
    assert "\nnowhere\n" in done.stdout
