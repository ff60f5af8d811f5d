"""`view`: what can be shown, and in which host: one file, a notebook or the browser."""

import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

from headscape.captures.capture_file import Capture, open_pack
from headscape.captures.pack import Pack, Precision
from headscape.captures.record import capture
from headscape.captures.sequences import Tokens, choose_tokens
from headscape.errors import InputError
from headscape.io.output_file import KINDS, check_output
from headscape.models.model import Model, Watch
from headscape.viewer.page import default_precision, with_measures, write_page
from headscape.viewer.viewer_answers import Answers, Run

if TYPE_CHECKING:
    from anywidget import AnyWidget

MOST_TOKENS: Final = 4096
"""Tokens of a typed text: the model reads it while somebody waits."""


@overload
def view(
    *sources: object,
    text: str | None = None,
    html: str | Path,
    port: int | None = None,
    open_browser: bool = True,
    precision: Precision | None = None,
    q: Any = None,
    k: Any = None,
    bias: Any = None,
    tokens: Any = None,
    causal: bool | None = None,
) -> Path: ...
@overload
def view(
    *sources: object,
    text: str | None = None,
    html: None = None,
    port: int | None = None,
    open_browser: bool = True,
    precision: Precision | None = None,
    q: Any = None,
    k: Any = None,
    bias: Any = None,
    tokens: Any = None,
    causal: bool | None = None,
) -> "AnyWidget | None": ...
def view(
    *sources: object,
    text: str | None = None,
    html: str | Path | None = None,
    port: int | None = None,
    open_browser: bool = True,
    precision: Precision | None = None,
    q: Any = None,
    k: Any = None,
    bias: Any = None,
    tokens: Any = None,
    causal: bool | None = None,
) -> "Path | AnyWidget | None":
    """Show captures, training runs, models or arrays; return what shows them.

    With `html`, write one self-contained file, which replaces nothing but an earlier page, and
    return its path. In a notebook, return a widget. Otherwise serve on this computer, open the
    browser, and return None when Ctrl-C ends it.

    Args:
        sources: Captures, their files, models, runs, or what `load` takes; or attention weights,
            as an array that `Capture.from_arrays` takes.
        text: What models read; without it, runs read a part of their validation text.
        html: File to write.
        port: Port of the server; by default a free one.
        open_browser: Whether to open a browser, or print the address.
        precision: Of queries and keys in a file: "float32", or "float16", which is half the size
            and the default where they are many.
        q: Queries, instead of a source; see `Capture.from_arrays`, as for all that follow.
        k: Keys.
        bias: What is added to the scaled q.k.
        tokens: The texts of the tokens of arrays.
        causal: Whether arrays hide later keys; by default, whether they show none.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> hs.view(model.capture([5, 6, 7, 8]), html="heads.html").name
        'heads.html'
    """
    arrays = {"tokens": tokens, "causal": causal}
    sources = tuple(
        Capture.from_arrays(source, **arrays) if is_array(source) else source for source in sources
    )
    if any(x is not None for x in (q, k, bias)):
        sources = (*sources, Capture.from_arrays(q=q, k=k, bias=bias, **arrays))
    if not sources:
        raise InputError("view needs at least one capture, run, model or array.")
    if text is not None and all(_is_capture(source) for source in sources):
        raise InputError("text is given, but every source is a capture: leave text out.")
    if html is not None:
        check_output(html, KINDS["html"])
    opened = [open_source(source, text) for source in sources]
    packs, runs = [with_measures(pack) for pack, _ in opened], [run for _, run in opened]
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


def in_notebook() -> bool:
    """Return whether this Python runs a notebook's cells."""
    shell = sys.modules.get("IPython")
    current = None if shell is None else shell.get_ipython()
    return current is not None and hasattr(current, "kernel")


def open_source(source: object, text: str | None = None) -> tuple[Pack, Run | None]:
    """Return a pack to show, and what runs its model on a new text, where there is one."""
    if isinstance(source, Pack):
        return source, None
    if isinstance(source, Capture):
        return _with_name(source.pack(), _variable(source)), None
    if isinstance(source, str | Path) and Path(source).is_file():
        return open_pack(Path(source)), None
    if isinstance(source, Model):
        return _captured(source, text)
    if isinstance(source, str | Path):
        from headscape.models.load import load

        return _captured(load(source), text, str(source))
    raise InputError(f"cannot view a {type(source).__name__}: give a capture, a run or a model.")


def is_array(source: object) -> bool:
    """Return whether a source is an array, or one array per layer."""
    first = source[0] if isinstance(source, list | tuple) and source else source
    return hasattr(first, "shape") and hasattr(first, "dtype")


def _is_capture(source: object) -> bool:
    """Return whether a source has been captured already."""
    is_file = isinstance(source, str | Path) and Path(source).is_file()
    return is_file or isinstance(source, Pack | Capture)


def _captured(model: Model, text: str | None, source: str | None = None) -> tuple[Pack, Run | None]:
    """Return a model's capture of a text, or of its validation text, and what captures others."""
    name = _variable(model)
    first = _with_origin(_pack(model, choose_tokens(model, text)), source, text, name)
    return first, None if model.tokenizer is None else TypedText(model, source, name)


def _with_origin(pack: Pack, source: str | None, text: str | None, name: str | None) -> Pack:
    """Return a pack that says what `load` takes and what the model read: Python can repeat it."""
    origin = {"model": source, "text": text}
    return _with_name(replace(pack, header={**pack.header, "origin": origin}), name)


def _with_name(pack: Pack, name: str | None) -> Pack:
    """Return a pack that names the variable of its capture or model, for lines of Python."""
    return pack if name is None else replace(pack, header={**pack.header, "variable": name})


def _variable(value: object) -> str | None:
    """Return the user's name of a capture or model: in a notebook, a script or a session."""
    names = vars(sys.modules["__main__"]).copy()
    # A notebook's `_` and `_3` are outputs, of which later cells change the first.
    mine = (name for name, at in names.items() if at is value and name[:1] != "_")
    return next((name for name in mine if name.isidentifier()), None)


class TypedText:
    """Captures what somebody types; `cancel` ends it at the next layer."""

    def __init__(self, model: Model, source: str | None = None, name: str | None = None) -> None:
        self._model, self._source, self._name = model, source, name
        self._cancelled = threading.Event()

    def __call__(self, text: str) -> Pack:
        """The text's capture."""
        self._cancelled.clear()
        tokens = choose_tokens(self._model, text, name="typed text")
        if len(tokens.tokens) > MOST_TOKENS:
            raise InputError(
                f"a typed text may have at most {MOST_TOKENS:,} tokens, got "
                f"{len(tokens.tokens):,}: capture a longer one and view its file."
            )
        pack = _pack(_Cancellable(self._model, self._cancelled), tokens)
        return _with_origin(with_measures(pack), self._source, text, self._name)

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
