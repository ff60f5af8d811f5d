"""The picture of docs/position.md: what twelve encodings do in one head.

python -m docs.site.twelve docs/images/twelve-encodings.png
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from docs.site.pictures import save, shown
from headscape.encodings import build

NAMES = (
    "nope", "sinusoidal", "rope", "alibi", "t5", "kerple",
    "fire", "cable", "fox", "transformer-xl", "stick-breaking", "dapev2+kerple",
)  # fmt: skip
HEAD, TOKENS = 3, 48


def draw() -> Figure:
    """Return twelve maps, each with its own colour range, with what is drawn below the title."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    for axes, name in zip(figure.subplots(2, 6).flat, NAMES, strict=True):
        encoding = build(name, heads=12, head_dim=16, width=192, train_length=TOKENS)
        found = shown(encoding)
        head = min(HEAD, len(found.maps) - 1)
        values = found.maps[head, :TOKENS, :TOKENS]
        axes.imshow(values, cmap="viridis", interpolation="nearest")
        axes.set_title(encoding.title + ("+Kerple" if "+" in name else ""), fontsize=9)
        low, high = np.nanmin(values), np.nanmax(values)
        axes.set_xlabel(
            f"{low + 0.0:.2g} to {high + 0.0:.2g}" if high > low else "0 everywhere", fontsize=7
        )
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


if __name__ == "__main__":
    save(draw(), Path(sys.argv[1]))
