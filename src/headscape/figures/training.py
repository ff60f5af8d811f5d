"""The change over training: the same sequence through a run's checkpoints, oldest first.

A strip has one row per head and one column per checkpoint. The animation is a GIF of the grid, one
frame per checkpoint, the last one held. Each head keeps one colour range over all checkpoints, so
that a change of colour is a change of value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from PIL import Image

from headscape.arrays.capture_file import Capture
from headscape.errors import InputError
from headscape.figures.grid import Grid
from headscape.figures.style import context
from headscape.io.atomic import write_bytes

_FRAME_DPI: Final = 80
_FRAME_MS, _LAST_MS = 500, 2000


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """The maps of one layer at several steps."""

    steps: tuple[int, ...]
    titles: tuple[str, ...]
    """One per head."""
    maps: Float[np.ndarray, "steps h t s"]
    edges: Int64[np.ndarray, " edges"] | None = None
    """Cell boundaries of reduced maps."""
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""
    colormap: str | None = None
    """A matplotlib colour map in place of the chosen one."""

    @classmethod
    def of(
        cls,
        captures: Sequence[Capture],
        layer: int,
        quantity: str,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Training":
        """The captures of one run, sorted by step; `heads` count from 0, by default all."""
        if len(captures) < 2:
            raise InputError(
                f"the change over training needs at least two checkpoints, not {len(captures)}."
            )
        if len({(capture.length, capture.resolution) for capture in captures}) != 1:
            raise InputError("the change over training needs captures of one sequence, one length.")
        captures = sorted(captures, key=_step)
        if len({capture.encoding for capture in captures}) > 1:
            raise InputError("captures of different encodings are not of one run: compare them.")
        if len({_step(capture) for capture in captures}) < len(captures):
            raise InputError("two captures are of the same step: give one of each checkpoint.")
        heads = captures[0].heads if heads is None else heads
        maps = [[each.head(layer, quantity, head) for head in heads] for each in captures]
        return cls(
            steps=tuple(_step(each) for each in captures),
            titles=tuple(f"Head {head + 1}" for head in heads),
            maps=np.array(maps),
            edges=captures[0].edges,
            weights=quantity == "weights",
            **options,
        )

    def draw(self) -> Figure:
        """The strip: heads down, steps across."""
        steps, heads = self.maps.shape[:2]
        return Grid(
            maps=self.maps.swapaxes(0, 1).reshape(heads * steps, *self.maps.shape[2:]),
            titles=tuple(f"{name}, step {step:,}" for name in self.titles for step in self.steps),
            columns=steps,
            limits=tuple(limit for limit in self._limits() for _ in range(steps)),
            edges=self.edges,
            weights=self.weights,
            colormap=self.colormap,
        ).draw()

    def animate(self, path: Path) -> None:
        """Write the GIF, whole or not at all."""
        grid = Grid(
            maps=self.maps[0],
            titles=self.titles,
            limits=tuple(self._limits()),
            edges=self.edges,
            weights=self.weights,
            colormap=self.colormap,
        )
        frames = []
        for step, maps in zip(self.steps, self.maps, strict=True):
            figure = replace(grid, maps=maps, heading=f"Step {step:,}").draw()
            picture = BytesIO()
            with context():
                figure.savefig(picture, format="png", dpi=_FRAME_DPI)
            frames.append(Image.open(picture).convert("RGB").quantize(255))
        held = [_FRAME_MS] * (len(frames) - 1) + [_LAST_MS]
        buffer = BytesIO()
        first, *rest = frames
        first.save(buffer, format="GIF", save_all=True, append_images=rest, duration=held, loop=0)
        write_bytes(path, buffer.getvalue())

    def _limits(self) -> list[tuple[float, float]]:
        low, high = np.nanmin(self.maps, axis=(0, 2, 3)), np.nanmax(self.maps, axis=(0, 2, 3))
        return list(zip(low.tolist(), high.tolist(), strict=True))


def _step(capture: Capture) -> int:
    step = capture.provenance.get("step")
    if not isinstance(step, int):
        raise InputError("a capture of the change over training must say its `step`.")
    return step
