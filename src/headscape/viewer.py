"""`view`: show captures, training runs and models; what can be shown, and how it is opened."""

from pathlib import Path
from typing import Any

from headscape.arrays.capture_file import CaptureData
from headscape.arrays.pack import Pack, open_pack
from headscape.arrays.pack_bytes import Precision
from headscape.capture.record import capture
from headscape.capture.sequences import Tokens, choose_tokens
from headscape.errors import InputError
from headscape.io.output_file import KINDS, check_output
from headscape.page.viewer_answers import Run
from headscape.page.viewing import show
from headscape.protocol import Model


def view(
    *sources: object,
    html: str | Path | None = None,
    port: int | None = None,
    open_browser: bool = True,
    precision: Precision | None = None,
) -> Any:
    """Show captures, training runs or models.

    With `html`, write one self-contained file, which replaces nothing but an earlier page, and
    return its path. In a notebook, return a widget.
    Otherwise serve on this computer, open the browser, and return when Ctrl-C ends it. A page keeps
    queries and keys in float16 where they are many; `precision` decides otherwise.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> hs.view(model.capture([5, 6, 7, 8]), html="heads.html").name
        'heads.html'
    """
    if not sources:
        raise InputError("view needs at least one capture, run or model.")
    if html is not None:
        check_output(html, KINDS["html"])
    opened = [open_source(source) for source in sources]
    packs, runs = [pack for pack, _ in opened], [run for _, run in opened]
    return show(packs, runs, html=html, port=port, open_browser=open_browser, precision=precision)


def open_source(source: object) -> tuple[Pack, Run | None]:
    """A pack to show, and what runs its model on a new text, where there is one."""
    if isinstance(source, Pack):
        return source, None
    if isinstance(source, CaptureData):
        return source.pack(), None
    if isinstance(source, str | Path) and Path(source).is_file():
        return open_pack(Path(source)), None
    if isinstance(source, Model):
        return _captured(source)
    if isinstance(source, str | Path):
        from headscape.models.load import load

        return _captured(load(source))
    raise InputError(f"cannot view a {type(source).__name__}: give a capture, a run or a model.")


def _captured(model: Model) -> tuple[Pack, Run | None]:
    """A model's capture of its validation text, and what captures any other text."""
    first = _pack(model, choose_tokens(model))
    if model.tokenizer is None:
        return first, None
    return first, lambda text: _pack(model, choose_tokens(model, text, name="typed text"))


def _pack(model: Model, tokens: Tokens) -> Pack:
    return capture(model, tokens, layers="all", quantities=("weights",)).pack()
