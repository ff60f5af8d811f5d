"""Runs notebooks and stores what they show.

    python -m docs.site.notebook_outputs [NOTEBOOK ...]

Each notebook runs from its first cell to its last in Jupyter's own kernel and in an empty folder;
without a name all of docs/notebooks run. Text, tables and pictures are stored; progress on stderr,
the folder's path and what a page cannot show (widgets) are not. Pictures are at most 900 pixels
wide and have 256 colours, which keeps a file small.
"""

import argparse
import base64
import io
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SHOWN = ("image/png", "text/html", "text/plain")
"""What is stored of a value, the first that a page prefers."""
WIDGET = "application/vnd.jupyter.widget-view+json"
"""What a page cannot show: a progress bar of transformers, for example."""
LIMIT = 600
"""Seconds that a cell may take."""
MOST_PIXELS = 900
"""Width of a stored picture."""
MOST_BYTES = 300_000
"""Size of a stored notebook."""


def run(path: Path, target: Path) -> None:
    """Run the notebook at `path` and write it with its outputs to `target`."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        client = NotebookClient(
            notebook,
            timeout=LIMIT,
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            coalesce_streams=True,
        )
        # Sockets in the folder, not TCP ports, which every user of the machine can open.
        client.config.KernelManager.update(transport="ipc", ip=f"{folder}/.kernel")
        client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [kept for one in cell.outputs if (kept := small(one))]
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec}
    text = nbformat.writes(notebook).replace(f"{folder}/", "") + "\n"
    if len(text.encode()) > MOST_BYTES:
        raise SystemExit(f"{path.name} with its outputs has {len(text.encode()):,} bytes.")
    target.write_text(text)


def small(output: Any) -> Any:
    """Return what is stored of an output, or None."""
    if output.output_type == "stream":
        return output if output.name == "stdout" else None
    if WIDGET in output.data:
        return None
    shown = {kind: output.data[kind] for kind in SHOWN if kind in output.data}
    if "image/png" in shown:
        shown = {"image/png": smaller(shown["image/png"])}
    if not shown:
        return None
    output.data, output.metadata = shown, {}
    return output


def smaller(png: str) -> str:
    """Return a PNG in base64 that is smaller: fewer pixels and at most 256 colours."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    image.thumbnail((MOST_PIXELS, 10 * MOST_PIXELS))
    out = io.BytesIO()
    # The default, median cut, loses rare colours, such as the diagonal of a map.
    small = image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, help="a folder other than the notebook's own")
    options = parser.parse_args()
    for path in options.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        run(path, (options.out or path.parent) / path.name)
        print(path.name, flush=True)


if __name__ == "__main__":
    main()
