"""`view`: show captures, runs and models in the browser, in a notebook or in one file."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headscape.arrays.pack import Pack
from headscape.arrays.pack_bytes import Precision
from headscape.errors import InputError
from headscape.page.build import link, write_page
from headscape.page.open_source import open_source
from headscape.page.viewer_answers import Answers

HALF_FROM: Final = 1 << 20
"""Numbers in q and k from which a page keeps them in float16 by default."""


def view(
    *sources: object,
    html: str | Path | None = None,
    port: int | None = None,
    open_browser: bool = True,
    precision: Precision | None = None,
) -> Any:
    """Show captures, training runs or models.

    With `html`, write one self-contained file and return its path. In a notebook, return a widget.
    Otherwise serve on this computer, open the browser, and return when Ctrl-C ends it. A page keeps
    queries and keys in float16 where they are many; `precision` decides otherwise.

    Example:
        >>> import headscape as hs, numpy as np
        >>> from headscape.capture.pack_of import pack_of
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> hs.view(pack_of(model, np.array([5, 6, 7, 8])), html="heads.html").name
        'heads.html'
    """
    if not sources:
        raise InputError("view needs at least one capture, run or model.")
    opened = [open_source(source) for source in sources]
    packs = [pack for pack, _ in opened]
    if html is not None:
        chosen = precision or default_precision(packs)
        write_page(Path(html), packs, precision=chosen)
        return Path(html)
    answers = Answers.of(packs, [run for _, run in opened])
    if in_notebook():
        from headscape.page.widget import make_widget

        return make_widget(answers)
    from headscape.page.serve import serve

    serve(answers, port=port, open_browser=open_browser)
    return None


def default_precision(packs: list[Pack]) -> Precision:
    """float32 for a few heads of a short text, float16 for anything larger."""
    numbers = sum(
        value.size
        for pack in packs
        for name, value in pack.arrays.items()
        if name.endswith((".q", ".k")) and ".turn." not in name
    )
    return "float16" if numbers >= HALF_FROM else "float32"


def write_figures_page(
    path: Path, packs: Mapping[str, Pack], *, quantity: str = "bias"
) -> dict[str, str]:
    """Write one viewer page for several figures; return the link into it for each figure's name.

    Each link opens the figure's own capture at its last layer.
    """
    every = list(packs.values())
    write_page(path, every, precision=default_precision(every), title="Figures")
    return {
        name: link(
            Path(path).name,
            {"capture": f"p{number}", "layer": pack.header["layers"][-1], "quantity": quantity},
        )
        for number, (name, pack) in enumerate(packs.items())
    }


def in_notebook() -> bool:
    """Whether this Python runs a notebook's cells."""
    shell = sys.modules.get("IPython")
    current = None if shell is None else shell.get_ipython()
    return current is not None and hasattr(current, "kernel")
