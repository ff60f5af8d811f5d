"""The change over training: the same sequence through a run's checkpoints, oldest first.

The figure has one row per head and one column per checkpoint. The animation is a GIF of the grid,
one frame per checkpoint. Each head keeps one range over all checkpoints, so that a change of colour
is a change of value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, ClassVar, Final

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from PIL import Image

from headscape.captures.capture_file import Capture
from headscape.captures.choice import choose_heads, choose_layer, choose_quantity
from headscape.captures.labels import (
    default_name,
    encoding_name,
    head_titles,
    layer_words,
    quantity_words,
)
from headscape.errors import InputError
from headscape.plots.colour import limits
from headscape.plots.compare import check_comparable, same_input
from headscape.plots.grid import Grid
from headscape.plots.style import FORMATS, encode
from headscape.plots.view import View

_FRAME_DPI: Final = 80
_FRAME_MS, _LAST_MS = 500, 2000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Training(View):
    """The maps of one layer at several steps."""

    formats: ClassVar[tuple[str, ...]] = (*FORMATS, "gif")

    steps: tuple[int, ...]
    titles: tuple[str, ...]
    """One per head."""
    maps: Float[np.ndarray, "steps h t s"]
    edges: Int64[np.ndarray, " edges"] | None = None
    """Cell boundaries of reduced maps."""
    unit: str = "tokens"
    """What positions count: tokens, or frames of sound."""
    width: float | None = None
    """Width of the figure in inches; by default panels of 2.3 inches."""
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""
    limits: tuple[float, float] | None = None
    """Lowest and highest value with a colour of its own, for all panels."""
    cmap: str | None = None
    """A matplotlib colour map in place of the chosen one."""
    label: str | None = None
    """The quantity, as colour bars name it."""

    @classmethod
    def of(
        cls,
        captures: Sequence[Capture],
        quantity: str | None = None,
        layer: int = -1,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Training":
        """Return one layer over the captures of one run, which are sorted by step.

        `layer` and `heads` count from 0, -1 is the last; by default all heads. `options` are the
        fields above, and `heading`.
        """
        captures = _ordered(captures)
        first, last = captures[0], captures[-1]
        layer = choose_layer(layer, first.layers)
        heads = choose_heads(heads, first.heads)
        quantity = choose_quantity(quantity, *captures, layers=[layer] * len(captures))
        shown: dict[str, Any] = {
            "heading": f"{encoding_name(first)}, steps {_step(first):,} to {_step(last):,}, "
            f"{layer_words(first, layer)}: {quantity_words(quantity)}",
            "label": quantity_words(quantity).capitalize(),
            "stem": default_name("training", captures, quantity=quantity, layer=layer, heads=heads),
            **options,
        }
        maps = [each.drawn(quantity, layer, heads) for each in captures]
        return cls(
            steps=tuple(_step(each) for each in captures),
            titles=head_titles(heads),
            maps=np.array(maps),
            edges=first.drawn_edges,
            unit=first.unit,
            weights=quantity == "weights",
            **shown,
        )

    def draw(self) -> Figure:
        """Return the drawn figure, heads down and steps across, with the ids of the grid."""
        steps, heads = self.maps.shape[:2]
        titles = [f"{name}, step {step:,}" for name in self.titles for step in self.steps]
        ranges = [limit for limit in self._ranges() for _ in range(steps)]
        maps = self.maps.swapaxes(0, 1).reshape(heads * steps, *self.maps.shape[2:])
        return self._grid(maps, titles, ranges, columns=steps, width=self.width).draw()

    def encode(self, name: str) -> bytes:
        """Return the figure as the bytes of a file; as `gif` it is the animation."""
        if name != "gif":
            return super().encode(name)
        grid = self._grid(self.maps[0], self.titles, self._ranges())
        frames = []
        for step, maps in zip(self.steps, self.maps, strict=True):
            heading = f"{self.heading}; step {step:,}" if self.heading else f"Step {step:,}"
            picture = encode(replace(grid, maps=maps, heading=heading).draw(), "png", _FRAME_DPI)
            frames.append(Image.open(BytesIO(picture)).convert("RGB").quantize(255))
        times = [_FRAME_MS] * (len(frames) - 1) + [_LAST_MS]
        buffer = BytesIO()
        first, *rest = frames
        first.save(buffer, format="GIF", save_all=True, append_images=rest, duration=times, loop=0)
        return buffer.getvalue()

    def _grid(
        self,
        maps: np.ndarray,
        titles: Sequence[str],
        ranges: Sequence[tuple[float, float]],
        **options: Any,
    ) -> Grid:
        return Grid(
            maps=maps,
            titles=tuple(titles),
            ranges=tuple(ranges),
            edges=self.edges,
            unit=self.unit,
            weights=self.weights,
            limits=self.limits,
            cmap=self.cmap,
            label=self.label,
            heading=self.heading,
            **options,
        )

    def _ranges(self) -> list[tuple[float, float]]:
        return [limits(self.maps[:, head]) for head in range(self.maps.shape[1])]


def _ordered(captures: Sequence[Capture]) -> list[Capture]:
    """Return the captures of one run by step; refuse captures that are not of one run."""
    if len(captures) < 2:
        raise InputError(
            f"the change over training needs at least 2 checkpoints, got {len(captures)}."
        )
    check_comparable(captures)
    encodings = list(dict.fromkeys(capture.encoding for capture in captures))
    if len(encodings) > 1:
        raise InputError(
            f"captures of different encodings ({', '.join(encodings)}) are not of one run; "
            "compare them side by side instead."
        )
    if not all(same_input(each, captures[0]) for each in captures):
        raise InputError(
            "the captures are of different inputs; capture every checkpoint with the same sequence."
        )
    captures = sorted(captures, key=_step)
    steps = [_step(capture) for capture in captures]
    for step in steps:
        if steps.count(step) > 1:
            raise InputError(f"two captures are of step {step}; give one of each checkpoint.")
    return captures


def _step(capture: Capture) -> int:
    step = capture.provenance.get("step")
    if not isinstance(step, int):
        raise InputError(
            f"this capture of {capture.encoding} does not say its training step; capture a "
            "checkpoint of a run."
        )
    return step
