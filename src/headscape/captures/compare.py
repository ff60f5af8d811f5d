"""The difference of two captures: two checkpoints, two encodings, two models."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscape.captures.capture import Capture
from headscape.captures.capture_file import CaptureData
from headscape.captures.record import capture
from headscape.captures.sequences import Text
from headscape.errors import InputError
from headscape.models.model import Model

if TYPE_CHECKING:
    from headscape.plots.difference import Difference


def compare(
    first: CaptureData | Model | Path | str,
    second: CaptureData | Model | Path | str,
    text: Text | None = None,
    *,
    layer: int = -1,
    head: int | None = None,
    quantity: str | None = None,
    **options: Any,
) -> "Difference":
    """A figure of `first` minus `second`, one panel per head or one `head`.

    Each side is a capture, a capture file, or a model that is shown `text` (or token numbers).
    Layers and heads count from 0, -1 is the last. `options`: heads, columns, width, colormap.

    Example:
        >>> import headscape as hs
        >>> one, two = (
        ...     hs.load(hs.GPT2.from_preset("nano", encoding=name, vocabulary=257))
        ...     for name in ("alibi", "kerple")
        ... )
        >>> figure = hs.compare(one, two, [5, 6, 7, 8], head=7)
        >>> figure.save("difference.png").name
        'difference.png'
    """
    from headscape.plots.difference import Difference

    one, two = (_side(source, text, layer) for source in (first, second))
    if head is not None:
        options["heads"] = [head]
    return Difference.of(one, two, layer=layer, quantity=quantity, **options)


def _side(source: object, text: Text | None, layer: int) -> CaptureData:
    if isinstance(source, CaptureData):
        return source
    if isinstance(source, str | Path):
        return Capture.load(source)
    if isinstance(source, Model):
        return capture(source, text, layers=layer)
    raise InputError(f"compare takes captures or models, got {type(source).__name__}.")
