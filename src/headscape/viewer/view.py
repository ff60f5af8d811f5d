"""`view`: show captures, training runs and models; what can be shown, and how it is opened."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headscape.captures.browser import Pack, Precision
from headscape.captures.capture_file import CaptureData, open_pack
from headscape.captures.record import capture
from headscape.captures.sequences import Tokens, choose_tokens
from headscape.errors import InputError
from headscape.io.output_file import KINDS, check_output
from headscape.models.model import Model, Watch
from headscape.viewer.viewer_answers import Run
from headscape.viewer.viewing import show

MOST_TOKENS: Final = 4096
"""Tokens of a typed text: the model reads it while somebody waits."""


def view(
    *sources: object,
    text: str | None = None,
    html: str | Path | None = None,
    port: int | None = None,
    open_browser: bool = True,
    precision: Precision | None = None,
) -> Any:
    """Show captures, training runs or models.

    Models read `text`; without one, runs read a part of their validation text.

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
    if text is not None and all(_is_capture(source) for source in sources):
        raise InputError("text is given, but every source is a capture: leave text out.")
    if html is not None:
        check_output(html, KINDS["html"])
    opened = [open_source(source, text) for source in sources]
    packs, runs = [pack for pack, _ in opened], [run for _, run in opened]
    return show(packs, runs, html=html, port=port, open_browser=open_browser, precision=precision)


def open_source(source: object, text: str | None = None) -> tuple[Pack, Run | None]:
    """A pack to show, and what runs its model on a new text, where there is one."""
    if isinstance(source, Pack):
        return source, None
    if isinstance(source, CaptureData):
        return source.pack(), None
    if isinstance(source, str | Path) and Path(source).is_file():
        return open_pack(Path(source)), None
    if isinstance(source, Model):
        return _captured(source, text)
    if isinstance(source, str | Path):
        from headscape.models.load import load

        return _captured(load(source), text)
    raise InputError(f"cannot view a {type(source).__name__}: give a capture, a run or a model.")


def _is_capture(source: object) -> bool:
    """Whether a source has been captured already."""
    is_file = isinstance(source, str | Path) and Path(source).is_file()
    return is_file or isinstance(source, Pack | CaptureData)


def _captured(model: Model, text: str | None) -> tuple[Pack, Run | None]:
    """A model's capture of a text, or of its validation text, and what captures any other text."""
    first = _pack(model, choose_tokens(model, text))
    return first, None if model.tokenizer is None else TypedText(model)


class TypedText:
    """Captures what somebody types; `cancel` ends it at the next layer."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._cancelled = threading.Event()

    def __call__(self, text: str) -> Pack:
        """The text's capture."""
        self._cancelled.clear()
        tokens = choose_tokens(self._model, text, name="typed text")
        if len(tokens.tokens) > MOST_TOKENS:
            raise InputError(
                f"a typed text may have at most {MOST_TOKENS:,} tokens, got "
                f"{len(tokens.tokens):,}: capture a longer one with `headscape capture --text` and "
                f"view the file."
            )
        return _pack(_Cancellable(self._model, self._cancelled), tokens)

    def cancel(self) -> None:
        """End the capture that runs, if one does."""
        self._cancelled.set()


class _Cancellable:
    """A model whose pass ends with an InputError at the next layer after an event is set."""

    def __init__(self, model: Model, cancelled: threading.Event) -> None:
        self._model, self._cancelled = model, cancelled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def for_length(self, length: int) -> "_Cancellable":
        """The model that reads a length, as cancellable as this one."""
        return _Cancellable(self._model.for_length(length), self._cancelled)

    def observe(self, tokens: Any, layers: Sequence[int], watch: Watch) -> None:
        def checked(layer: int, inputs: Any) -> None:
            if self._cancelled.is_set():
                raise InputError("the text was not read to its end: the viewer was stopped.")
            watch(layer, inputs)

        self._model.observe(tokens, layers, checked)


def _pack(model: Any, tokens: Tokens) -> Pack:
    return capture(model, tokens, layers="all", quantities=("weights",)).pack()
