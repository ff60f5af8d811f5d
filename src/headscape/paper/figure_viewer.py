"""The viewer beside the figures: one page with every figure's capture, linked from each figure."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from headscape.captures.browser import Pack
from headscape.captures.capture_file import open_pack
from headscape.errors import InputError
from headscape.plots.gallery import Entry
from headscape.viewer.page import write_figures_page

PAGE: Final = "viewer.html"


def link_viewer(folder: Path, entries: list[Entry]) -> list[Entry]:
    """Write the viewer's page and return the entries with their links into it.

    A figure that a page cannot compute has no link.
    """
    shown: dict[str, tuple[Pack, str]] = {}
    for entry in entries:
        try:
            pack = open_pack(folder / "data" / f"{entry.name}.safetensors")
        except InputError:
            continue
        if pack.page_bytes is None:
            continue
        quantity = "bias" if entry.measures is None else entry.measures.quantity
        shown[entry.name] = pack, quantity
    links = write_figures_page(folder / PAGE, shown) if shown else {}
    return [replace(entry, viewer=links.get(entry.name)) for entry in entries]
