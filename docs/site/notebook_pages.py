"""Turns each notebook, with what it shows, into a page.

The outputs are those that are stored in the notebook (notebook_outputs.py), so the site needs
neither Jupyter nor the weights that some notebooks read.
"""

import base64
import json
from pathlib import Path
from typing import Any


def write(folder: Path, notebooks: Path) -> list[str]:
    """Write the page of every notebook; return the names of the pages."""
    folder.mkdir(exist_ok=True)
    names = []
    for path in sorted(notebooks.glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        parts = [part for n, cell in enumerate(cells) for part in shown(cell, folder, path.stem, n)]
        note = f"*The notebook is `docs/notebooks/{path.name}`.*"
        (folder / f"{path.stem}.md").write_text("\n\n".join([*parts, note]) + "\n")
        names.append(path.stem)
    return names


def shown(cell: dict[str, Any], folder: Path, page: str, number: int) -> list[str]:
    """Return a cell and its outputs as Markdown; pictures are written to `folder`."""
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return [source]
    parts = [f"```python\n{source}\n```"]
    for place, output in enumerate(cell["outputs"]):
        data = output.get("data", {"text/plain": output.get("text", "")})
        data = {kind: "".join(value) for kind, value in data.items()}
        if "image/png" in data:
            name = f"{page}-{number}-{place}.png"
            (folder / name).write_bytes(base64.b64decode(data["image/png"]))
            parts.append(f"![]({name})")
        elif "text/html" in data:
            # The theme's own table, which scrolls where a page is narrow.
            table = data["text/html"].replace("<table>", '<table class="docutils">')
            table = f'<div class="table-wrapper docutils container">{table}</div>'
            parts.append(f"``````{{raw}} html\n{table}\n``````")
        else:
            parts.append(f"``````text\n{data['text/plain'].rstrip()}\n``````")
    return parts
