"""Views that show values as colours: their options, and the colour scale of every panel."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headscape.plots.colour import Scale, limits, scales
from headscape.plots.view import View


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Coloured(View):
    """A view of panels, each with its own colour range unless they share one."""

    width: float | None = None
    """Width of the figure in inches; by default panels have a fixed size."""
    shared_scale: bool = False
    """One range for all panels instead of one each."""
    colormap: str | None = None
    """A matplotlib colour map in place of the chosen one."""
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""

    def _scales(
        self, panels: Iterable[np.ndarray], ranges: Sequence[tuple[float, float]] | None = None
    ) -> list[Scale]:
        """Return a scale per panel; `ranges` replaces the lowest and highest values of each."""
        found = list(ranges or map(limits, panels))
        if self.weights:
            return [Scale.of_weights(self.colormap)] * len(found)
        if self.shared_scale:
            found = [(min(low for low, _ in found), max(high for _, high in found))] * len(found)
        return scales(found, self.colormap)
