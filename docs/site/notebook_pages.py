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
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 300
"""Seconds that a notebook may take."""


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
    """Run a notebook in `folder`, in a process of its own; return its cells with their outputs."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "cells.json"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        subprocess.run(
            [sys.executable, "-m", "docs.site.notebook_pages", path.absolute(), result],
            cwd=folder,
            env=environment,
            check=True,
            timeout=LIMIT,
        )
        found = json.loads(result.read_text())
    return [Cell(cell["kind"], cell["source"], Output(**cell["output"])) for cell in found]


def main() -> None:
    """Run the notebook named first, here; write its cells to the file named second."""
    path, result = map(Path, sys.argv[1:])
    namespace: dict[str, object] = {"__name__": "__main__"}
    cells = read(path)
    for number, cell in enumerate(cells, start=1):
        if cell.kind == "code":
            cell.output = execute(cell.source, f"{path.name}, cell {number}", namespace)
    result.write_text(json.dumps([asdict(cell) for cell in cells]))


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


if __name__ == "__main__":
    main()
