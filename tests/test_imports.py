"""Imports go one way; the rule is the table below, read off the source with ast.

Imports inside functions and under TYPE_CHECKING count like any other, except for the convenience
methods of OPENS.
"""

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import headscape

ROOT = Path(headscape.__file__).parent
EVERYWHERE = {"errors", "io"}

# What each folder may import of the package when it is imported, itself, errors and io aside.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "io": set(),
    "call": set(),
    "encodings": {"call"},
    "kernels": {"call", "encodings"},
    "gpt2": {"call", "encodings", "kernels"},
    "properties": {"call", "encodings", "gpt2", "kernels"},
    "data": set(),
    "training": {"call", "data", "encodings", "gpt2", "kernels"},
    "models": {"call", "data", "encodings", "gpt2", "kernels", "training"},
    "captures": {"call", "encodings", "kernels", "models"},
    "cards": {"call", "encodings", "models"},
    "measures": {"call", "captures", "data", "encodings", "kernels", "models"},
    "plots": {"captures", "measures", "models"},
    "evaluation": {"data", "measures", "models", "plots"},
    "viewer": {"call", "captures", "measures", "models"},
    "diagnosis": {
        "call", "captures", "data", "encodings", "evaluation", "kernels", "measures", "models",
    },
    "huggingface": {
        "call", "data", "encodings", "evaluation", "gpt2", "kernels", "models", "training",
    },
    "paper": {
        "captures", "data", "encodings", "gpt2", "measures", "models", "plots", "training",
        "viewer",
    },
}  # fmt: skip

# What a function imports when it is called: `model.capture()`, `capture.view()`, `load` of a folder
# whose encoding `set_encoding` put in, and the widget's still picture in the figures' colours.
OPENS: dict[str, set[str]] = {
    "models": {"captures", "huggingface", "measures"},
    "captures": {"measures", "plots", "viewer"},
    "viewer": {"plots"},
}
# The command line reaches everything, and nothing reaches it.
TOP = {"cli"}

FORBIDDEN: dict[str, set[str]] = {
    "plots": {"torch", "transformers"},
    "viewer": {"torch", "matplotlib", "transformers"},
    "data": {"torch", "matplotlib", "transformers"},
    "call": {"matplotlib", "numpy", "transformers"},
    "encodings": {"matplotlib", "transformers"},
    "kernels": {"matplotlib", "transformers"},
    "gpt2": {"matplotlib", "transformers"},
    "errors": {"torch", "numpy"},
    "io": {"torch", "matplotlib"},
}

# Within a folder: what a file may import of it. An encoding never imports another one, and one
# fused path never imports another.
SHARED = {
    "encodings": {"base", "context", "combined", "measured_kernel", "token_sums"},
    "kernels": {"assemble"},
}
GATHERS = {
    "encodings": {"__init__", "registry", "catalogue"},
    "kernels": {"attend", "__init__"},
}
PARTS = {
    "torch_blocks": {"torch_regular"},
    "bam": {"alibi"},
    "grape": {"alibi"},
    "wavlm": {"t5"},
}
"""The first file may import the second."""

FILES = sorted(ROOT.rglob("*.py"))


def imported(path: Path, *, deferred: bool = True) -> set[str]:
    """Dotted names of all modules that a file imports; only when it is imported, if asked for."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    later = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.If)]
    waiting = {below for node in later for below in ast.walk(node)}
    for node in ast.walk(tree):
        if not deferred and node in waiting:
            continue
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def unit(path: Path) -> str:
    """The folder or top-level file that a source file belongs to."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def ours(path: Path, *, deferred: bool = True) -> set[str]:
    """Folders and files of the package that a file imports."""
    parts = (name.split(".") for name in imported(path, deferred=deferred))
    names = {name[1] for name in parts if name[0] == "headscape" and len(name) > 1}
    known = {unit(other) for other in FILES}
    return names & known


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    here = unit(path)
    if here in TOP or here == "__init__":
        return
    assert here in ALLOWED, f"{here} has no row in the table"
    at_once = ALLOWED[here] | EVERYWHERE | {here}
    surplus = ours(path, deferred=False) - at_once
    surplus |= ours(path) - at_once - OPENS.get(here, set())
    assert not surplus, f"{path.relative_to(ROOT)} imports {sorted(surplus)}"


def test_the_table_has_no_unused_edge() -> None:
    for folder, allowed in ALLOWED.items():
        used = set().union(*(ours(path) for path in FILES if unit(path) == folder))
        assert allowed <= used, f"{folder} does not import {sorted(allowed - used)}"


def test_the_design_page_shows_this_table() -> None:
    page = (ROOT.parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
    shown = page.split("<!-- imports -->")[1].split("<!-- /imports -->")[0]
    found = {}
    for line in shown.splitlines():
        if "<-" in line:
            folder, _, rest = line.strip().partition("<-")
            found[folder.strip()] = set(rest.replace(",", " ").split())
    assert found == {name: names for name, names in ALLOWED.items() if names}


def test_the_table_is_of_this_tree() -> None:
    assert set(ALLOWED) | TOP | {"__init__"} == {unit(path) for path in FILES}


def test_the_table_has_no_circle() -> None:
    order = list(TopologicalSorter(ALLOWED).static_order())
    assert set(order) >= set(ALLOWED)


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_what_a_folder_does_without(folder: str) -> None:
    inside = [path for path in FILES if unit(path) == folder]
    assert inside
    for path in inside:
        packages = {name.split(".")[0] for name in imported(path)}
        assert not packages & FORBIDDEN[folder], path


@pytest.mark.parametrize("folder", SHARED)
def test_neighbours_do_not_import_one_another(folder: str) -> None:
    assert SHARED[folder] | GATHERS[folder] <= {path.stem for path in (ROOT / folder).glob("*.py")}
    for path in (ROOT / folder).glob("*.py"):
        if path.stem in GATHERS[folder]:
            continue
        names = {
            name.split(".")[2] for name in imported(path) if name.startswith(f"headscape.{folder}.")
        }
        modules = {other.stem for other in (ROOT / folder).glob("*.py")}
        assert names & modules <= SHARED[folder] | PARTS.get(path.stem, set()), path


def test_an_import_names_no_drawer() -> None:
    drawers = {"utils", "common", "helpers", "util", "misc"}
    assert not [path for path in FILES if path.stem in drawers]


def test_no_two_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for path in FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == set()


@pytest.mark.parametrize("folder", ["data"])
def test_importing_it_loads_no_torch(folder: str) -> None:
    modules = [
        ".".join(("headscape", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in FILES
        if unit(path) == folder
    ]
    code = f"import {', '.join(modules)}, sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
