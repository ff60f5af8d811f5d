"""Packs in the browser, in a notebook or in one file."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headscape.captures.browser import Pack, Precision
from headscape.viewer.build import link, write_page
from headscape.viewer.viewer_answers import Answers, Run

HALF_FROM: Final = 1 << 20
"""Numbers in q and k from which a page keeps them in float16 by default."""


def show(
    packs: Sequence[Pack],
    runs: Sequence[Run | None] | None = None,
    *,
    html: str | Path | None = None,
    port: int | None = None,
    open_browser: bool = True,
    precision: Precision | None = None,
) -> Any:
    """Write a page of some packs, or make a widget in a notebook, or serve until Ctrl-C.

    `runs` says for each pack what runs its model on a new text, where there is one.
    """
    if html is not None:
        write_page(Path(html), packs, precision=precision or default_precision(packs))
        return Path(html)
    answers = Answers.of(packs, runs)
    if in_notebook():
        from headscape.viewer.widget import make_widget

        return make_widget(answers)
    from headscape.viewer.serve import serve

    serve(answers, port=port, open_browser=open_browser)
    return None


def default_precision(packs: Sequence[Pack]) -> Precision:
    """float32 for a few heads of a short text, float16 for anything larger."""
    numbers = sum(pack.numbers for pack in packs)
    return "float16" if numbers >= HALF_FROM else "float32"


def write_figures_page(path: Path, figures: Mapping[str, tuple[Pack, str]]) -> dict[str, str]:
    """Write one viewer page for several figures; return the link into it for each figure's name.

    A figure is a pack and the quantity it shows. Its link opens its own capture at its last layer.
    """
    every = [pack for pack, _ in figures.values()]
    write_page(path, every, precision=default_precision(every), title="Figures")
    return {
        name: link(
            Path(path).name,
            {"capture": f"p{number}", "layer": pack.header["layers"][-1], "quantity": quantity},
        )
        for number, (name, (pack, quantity)) in enumerate(figures.items())
    }


def in_notebook() -> bool:
    """Whether this Python runs a notebook's cells."""
    shell = sys.modules.get("IPython")
    current = None if shell is None else shell.get_ipython()
    return current is not None and hasattr(current, "kernel")
