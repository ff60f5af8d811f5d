"""Runs the notebooks and turns each, with what it shows, into a page.

A notebook is run as Jupyter would: its cells in order, in one namespace, in a process and a folder
of its own. A cell shows what it prints and the value of its last expression, as PNG, HTML or text.
The files in docs/notebooks have no outputs: a page's outputs are of the build's own run.
"""

import ast
import base64
import contextlib
import io
import json
import multiprocessing
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Output:
    """What a cell shows."""

    text: str = ""
    html: str = ""
    png: str = ""
    """Base64."""


@dataclass
class Cell:
    """One cell and, after a run, its output."""

    kind: str
    source: str
    output: Output = field(default_factory=Output)


def read(path: Path) -> list[Cell]:
    """Return the cells of an .ipynb file."""
    cells = json.loads(path.read_text())["cells"]
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def run(path: Path, folder: Path) -> list[Cell]:
    """Run a notebook in `folder`, in a fresh process; return its cells with their outputs."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (path, folder))


def _run(path: Path, folder: Path) -> list[Cell]:
    os.chdir(folder)
    namespace: dict[str, object] = {"__name__": "__main__"}
    cells = read(path)
    for number, cell in enumerate(cells, start=1):
        if cell.kind == "code":
            cell.output = execute(cell.source, f"{path.name}, cell {number}", namespace)
    return cells


def execute(source: str, name: str, namespace: dict[str, object]) -> Output:
    """Run one cell; return what it printed and shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    output = Output(text=printed.getvalue())
    if value is None or source.rstrip().endswith(";"):
        return output
    if hasattr(value, "_repr_png_") and (png := value._repr_png_()):
        output.png = base64.b64encode(png).decode()
    elif hasattr(value, "_repr_html_") and (html := value._repr_html_()):
        output.html = html
    else:
        output.text += repr(value)
    return output


def write(folder: Path, notebooks: Path) -> list[str]:
    """Run every notebook and write its page; return the names of the pages."""
    names = []
    for path in sorted(notebooks.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as scratch:
            cells = run(path.absolute(), Path(scratch))
        folder.mkdir(exist_ok=True)
        parts = [markdown(cell, folder, f"{path.stem}-{n}") for n, cell in enumerate(cells)]
        (folder / f"{path.stem}.md").write_text("\n\n".join(parts) + "\n")
        names.append(path.stem)
    return names


def markdown(cell: Cell, folder: Path, name: str) -> str:
    """Return a cell as Markdown; pictures are written to `folder`."""
    if cell.kind != "code":
        return cell.source
    parts = [f"```python\n{cell.source}\n```"]
    if cell.output.text:
        parts.append(f"```text\n{cell.output.text.rstrip()}\n```")
    if cell.output.html:
        parts.append(f"``````{{raw}} html\n{cell.output.html}\n``````")
    if cell.output.png:
        (folder / f"{name}.png").write_bytes(base64.b64decode(cell.output.png))
        parts.append(f"![]({name}.png)")
    return "\n\n".join(parts)
