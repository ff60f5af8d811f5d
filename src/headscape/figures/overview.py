"""A whole model at a glance: layers down, heads across, one small map each.

Every map has its own colours unless `shared_scale` is set, and its range is printed under it; with
a shared scale one colour bar at the right serves all. Panels have no ticks: the grid has them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from headscape.arrays.capture_file import Capture
from headscape.figures.panel import Box, draw_bar, draw_map
from headscape.figures.style import Scale, blank, context, one_meaning

_PANEL, _LEFT, _RIGHT, _TOP, _BOTTOM, _ACROSS, _DOWN = 0.78, 0.72, 0.8, 0.3, 0.25, 0.1, 0.22


@dataclass(frozen=True, kw_only=True, eq=False)
class Overview:
    """The maps of several layers."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    maps: tuple[Float[np.ndarray, "h _ _"], ...]
    """One [h t s] array per layer."""
    shared_scale: bool = False
    """One range and one colour bar for all panels."""
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""
    colormap: str | None = None
    """A matplotlib colour map in place of the chosen one."""

    @classmethod
    def of(cls, capture: Capture, quantity: str, **options: Any) -> "Overview":
        """All captured layers; `options` are the fields above."""
        maps = tuple(capture.visible(layer, quantity) for layer in capture.layers)
        shown = {"maps": maps, "weights": quantity == "weights", **options}
        return cls(layers=capture.layers, heads=capture.heads, **shown)

    def draw(self) -> Figure:
        """Draw the overview; axes carry ids like `layer-1-head-1`."""
        rows, columns = len(self.layers), len(self.heads)
        shared = self._shared() if self.shared_scale or self.weights else None
        scales = [Scale.of(each, self.colormap) for layer in self.maps for each in layer]
        scales = scales if self.colormap else one_meaning(scales)
        with context():
            figure = blank(
                _LEFT + columns * (_PANEL + _ACROSS) - _ACROSS + (_RIGHT if shared else 0.15),
                _TOP + rows * (_PANEL + _DOWN) - _DOWN + _BOTTOM,
            )
            for row, layer in enumerate(self.layers):
                for column, head in enumerate(self.heads):
                    values = self.maps[row][column]
                    scale = shared or scales[row * columns + column]
                    left, top = _LEFT + column * (_PANEL + _ACROSS), _TOP + row * (_PANEL + _DOWN)
                    axes = Box(left=left, top=top, width=_PANEL, height=_PANEL).axes(figure)
                    axes.set_gid(f"layer-{layer + 1}-head-{head + 1}")
                    image = draw_map(axes, values, scale)
                    axes.set_xticks([])
                    axes.set_yticks([])
                    if row == 0:
                        axes.set_title(f"Head {head + 1}", pad=4, fontsize=8)
                    if column == 0:
                        axes.set_ylabel(f"Layer {layer + 1}", rotation=0, ha="right", va="center")
                    if shared is None:
                        axes.set_xlabel(scale.label, fontsize=6, labelpad=2)
            if shared is not None:
                every = Box(
                    left=_LEFT,
                    top=_TOP,
                    width=columns * (_PANEL + _ACROSS) - _ACROSS,
                    height=rows * (_PANEL + _DOWN) - _DOWN,
                )
                bar = every.bar().axes(figure)
                bar.set_gid("colorbar")
                draw_bar(figure, image, shared, bar)
            return figure

    def _shared(self) -> Scale:
        if self.weights:
            return Scale.of_weights(self.colormap)
        low = min(float(np.nanmin(each)) for each in self.maps)
        high = max(float(np.nanmax(each)) for each in self.maps)
        return Scale.between(low, high, self.colormap)
