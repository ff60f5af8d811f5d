"""The table of what each encoding is tested against, compared with what the tests do.

Vectors: tests/golden/INDEX.md names the code that produced a file; the golden tests name the file
and the encoding. Live peers: a test that imports transformers or x-transformers and builds an
encoding compares the two.
"""

import ast
import re
from pathlib import Path

import pytest
from published import FILES, NAMES

from headscape.encodings import ENCODINGS, WRAPPERS
from headscape.encodings.catalogue import TESTED, Evidence

HERE = Path(__file__).parent
INDEX = (HERE.parent / "golden/INDEX.md").read_text()
GOLDEN = sorted(HERE.glob("test_golden_*.py"))
PEERS = [*sorted(HERE.parent.glob("test_peers_*.py")), HERE / "test_golden_tables.py"]
PACKAGES = {"transformers": "transformers", "x_transformers": "x-transformers"}
CODE = sorted(
    {name for row in TESTED.values() for name in (row.authors, *row.others)} - {""},
    key=len,
    reverse=True,
)
UNNAMED = {"alibi_slopes_all_peers": "alibi", "t5_buckets": "t5"}
"""Files that a test compares with a function of an encoding's file, not with a built encoding."""


def strings(node: ast.AST) -> set[str]:
    """All string literals below a node."""
    return {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def functions(path: Path) -> dict[str, tuple[set[str], set[str]]]:
    """Per function: its string literals and the modules it imports, helpers' literals included."""
    found = {
        node.name: node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    result = {}
    for name, node in found.items():
        called = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        helpers = [found[other] for other in called & found.keys()]
        literals = set().union(*(strings(part) for part in (node, *helpers)))
        imports = {
            part.module.partition(".")[0]
            for part in ast.walk(node)
            if isinstance(part, ast.ImportFrom) and part.module
        }
        if "GPT2" in called:
            literals |= {"learned"}  # what a folder of GPT-2 weights has
        result[name] = literals, imports
    return result


def sources() -> dict[str, set[str]]:
    """The names of the code that produced each golden file."""
    rows = re.findall(r"^\| `?(\w+)`? \| .* \| (.*) \|$", INDEX, re.MULTILINE)
    found: dict[str, set[str]] = {}
    for file, source in rows:
        parts = [part.strip().removeprefix("later ") for part in source.split(";")]
        found[file] = {name for name in CODE for part in parts if part.startswith(name)}
    del found["file"]  # the heading
    return found


def compared() -> dict[str, set[str]]:
    """The golden files that tests compare each encoding with."""
    found: dict[str, set[str]] = {name: set() for name in TESTED}
    files = sources().keys()
    for file, (name, _) in NAMES.items():
        found[name.partition("+")[0]].add(file)
    for file, name in UNNAMED.items():
        found[name].add(file)
    for path in GOLDEN:
        for literals, _ in functions(path).values():
            for name in literals & TESTED.keys():
                found[name] |= literals & files
    (absolute,) = [
        literals for name, (literals, _) in functions(HERE / "test_golden_forward.py").items()
        if name == "absolute"
    ]  # fmt: skip
    for name in absolute & TESTED.keys():
        found[name].add("absolute_and_nope")
    return found


def beside() -> dict[str, set[str]]:
    """The packages that run beside each encoding in a test."""
    found: dict[str, set[str]] = {name: set() for name in TESTED}
    for path in PEERS:
        for literals, imports in functions(path).values():
            for name in literals & TESTED.keys():
                found[name] |= {PACKAGES[package] for package in imports & PACKAGES.keys()}
    return found


COMPARED, BESIDE, SOURCES = compared(), beside(), sources()


def test_every_encoding_has_a_row() -> None:
    assert list(TESTED) == [*ENCODINGS, *WRAPPERS]


def test_every_golden_file_has_a_source() -> None:
    second = {path.stem for path in (HERE.parent / "golden/second").glob("*.npz")}
    assert {*FILES, *second} == SOURCES.keys()
    assert not [file for file, names in SOURCES.items() if not names]


@pytest.mark.parametrize("name", TESTED)
def test_the_vectors_are_compared(name: str) -> None:
    row = TESTED[name]
    produced = set().union(*(SOURCES[file] for file in COMPARED[name]), set())
    assert {row.authors, *row.others} - {""} <= produced
    assert bool(row.authors or row.others) == bool(produced)


@pytest.mark.parametrize("name", TESTED)
def test_the_live_peers_run(name: str) -> None:
    assert set(TESTED[name].live) == BESIDE[name]


def test_words_and_sentences() -> None:
    assert Evidence().words == "formula"
    assert Evidence().sentence.endswith("from the formulas and nothing else.")
    both = Evidence(authors="ALiBi", others=("DAPE",), live=("transformers",))
    assert both.words == "authors, live"
    assert Evidence(others=("DAPE",)).words == "others"
    assert Evidence(live=("transformers",)).words == "live"
    assert "the authors' code produced (ALiBi); vectors that other public code" in both.sentence


def test_what_was_wrongly_said_to_be_the_authors() -> None:
    """CARoPE has no public code, weighted CABLE's vectors are a port's, Sandwich has none."""
    assert TESTED["carope"].words == TESTED["sandwich"].words == "formula"
    assert TESTED["cable"].words == "others"
    assert SOURCES["cable6_weighted_thirdparty_h12"] == {"a third party's port"}
