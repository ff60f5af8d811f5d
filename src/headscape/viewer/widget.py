"""The viewer in a notebook, through anywidget: Jupyter, VS Code, Colab, marimo.

`selection` and `hover` are traits: read them, set them, observe them. Factors are sent by message
when the viewer asks, never as synced state, so a saved notebook stays small; it keeps a still
picture of the selected heads instead, in the colours of the figures.
"""

import base64
import io
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

from headscape.call.quantities import QUANTITIES
from headscape.errors import InputError
from headscape.viewer.page import MODULE, static_text
from headscape.viewer.tiles import MapRequest
from headscape.viewer.viewer_answers import Answers

if TYPE_CHECKING:
    from anywidget import AnyWidget

PICTURE_HEADS: Final = 12
"""Heads in the still picture."""
SIDE: Final = 128
"""Pixels a side of a head, at most; cells are whole powers of two of tokens."""
GAP: Final = 4
HIDDEN: Final = (232, 232, 232)
"""Colour of pairs that no query sees."""


def make_widget(answers: Answers) -> "AnyWidget":
    """A widget that shows what `answers` serves."""
    widget: AnyWidget = _widget_type()(answers)
    return widget


@cache
def _widget_type() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise InputError(
            f"the notebook viewer needs {error.name}: pip install 'headscape[notebook]'."
        ) from error

    class Viewer(anywidget.AnyWidget):
        """Attention maps of some captures."""

        _esm = static_text(MODULE)
        packs: Any = traitlets.List().tag(sync=True)
        can_run = traitlets.Bool(False).tag(sync=True)  # noqa: FBT003
        state = traitlets.Dict().tag(sync=True)
        selection = traitlets.Dict().tag(sync=True)
        hover = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)

        def __init__(self, answers: Answers) -> None:
            self._answers = answers
            super().__init__(
                packs=answers.packs(), can_run=answers.can_run, selection=_first(answers)
            )
            self.on_msg(self._answer)

        @traitlets.validate("selection")
        def _check(self, proposal: Any) -> dict[str, Any]:
            return _checked(self._answers, proposal["value"])

        def _answer(self, _: Any, message: object, buffers: object) -> None:  # noqa: ARG002
            content, sent = self._answers.answer(message)
            if content["type"] == "run":
                self.packs = self._answers.packs()
            self.send(content, sent)

        def _repr_mimebundle_(self, **options: Any) -> Any:
            shown = super()._repr_mimebundle_(**options)
            if shown is None:
                return None
            bundle, metadata = shown if isinstance(shown, tuple) else (shown, {})
            png = base64.b64encode(_still(self._answers, self.selection)).decode()
            return {**bundle, "image/png": png}, metadata

    return Viewer


def _first(answers: Answers) -> dict[str, Any]:
    one = next(iter(answers.served.values()))
    header = one.tiles.pack.header
    return {
        "capture": one.id,
        "layer": header["layers"][0],
        "head": header["heads"][0],
        "query": None,
        "key": None,
        "quantity": "weights",
    }


def _checked(answers: Answers, value: dict[str, Any]) -> dict[str, Any]:
    """The selection with what it leaves out filled in; a mistake raises an InputError."""
    full = {**_first(answers), **value}
    odd = [name for name in full if name not in _first(answers)]
    if odd:
        raise InputError(f"a selection has no {odd[0]!r}: it has {', '.join(_first(answers))}.")
    if full["capture"] not in answers.served:
        raise InputError(f"unknown capture {full['capture']!r}: {', '.join(answers.served)}.")
    pack = answers.served[full["capture"]].tiles.pack
    pack.layer(full["layer"])
    pack.head_index(full["head"])
    if full["quantity"] not in QUANTITIES:
        raise InputError(f"unknown quantity {full['quantity']!r}.")
    for name in ("query", "key"):
        token = full[name]
        if token is not None and not 0 <= token < pack.length:
            raise InputError(f"{name} {token} is outside the sequence of length {pack.length}.")
    return full


def _still(answers: Answers, selection: dict[str, Any]) -> bytes:
    """Return a PNG with one panel per head, four in a row; the selected head is among them."""
    from headscape.plots.colour import Scale, limits, scales

    tiles = answers.served[selection["capture"]].tiles
    heads = list(tiles.pack.header["heads"])[:PICTURE_HEADS]
    if selection["head"] not in heads:
        heads = [selection["head"], *heads[:-1]]
    quantity, layer = selection["quantity"], selection["layer"]
    level = max(0, (-(-tiles.pack.length // SIDE) - 1).bit_length())
    cells = -(-tiles.pack.length // (1 << level))
    maps = [MapRequest(layer=layer, head=head, quantity=quantity) for head in heads]
    panels = [tiles.tile(each, level, 0, 0).values for each in maps]
    if quantity == "weights":
        colours = [Scale.of_weights()] * len(panels)
    else:
        # The range of the pairs, as in figures and in the viewer, not of the cells.
        colours = scales([(limits(each["min"])[0], limits(each["max"])[1]) for each in panels])
    across = min(4, len(panels))
    down = -(-len(panels) // across)
    sheet = np.full((down * (cells + GAP) - GAP, across * (cells + GAP) - GAP, 3), 255, np.uint8)
    for number, (values, scale) in enumerate(zip(panels, colours, strict=True)):
        shown = values["max" if quantity == "weights" else "mean"]
        y, x = (cells + GAP) * (number // across), (cells + GAP) * (number % across)
        painted = scale.colormap(scale.norm(np.ma.masked_invalid(shown)), bytes=True)[..., :3]
        seen = np.isfinite(shown)[..., None]
        sheet[y : y + cells, x : x + cells] = np.where(seen, painted, HIDDEN)
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, format="PNG")
    return file.getvalue()
