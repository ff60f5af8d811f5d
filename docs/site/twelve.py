"""The picture of docs/position.md: what twelve encodings do in one head that reads one sentence.

python -m docs.site.twelve docs/images/twelve-encodings.png
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import headscape as hs
from docs.site.pictures import save, shown
from headscape.encodings import build
from headscape.plots.colour import Scale, limits, number, scales

NAMES = (
    "nope", "sinusoidal", "rope", "alibi", "t5", "kerple",
    "fire", "cable", "fox", "transformer-xl", "stick-breaking", "dapev2+kerple",
)  # fmt: skip
SENTENCE = (
    "The cat that the dog had chased up the old tree sat there until the rain began, because it "
    "knew that the dog, unlike the other dogs of the street, did not like to be wet."
)
HEAD = 3


def panel(name: str) -> tuple[str, str, np.ndarray]:
    """Return an encoding's title, what its panel shows, and the values."""
    torch.manual_seed(0)
    gpt2 = hs.GPT2.from_preset("nano", encoding=name)
    cap = hs.load(gpt2, tokenizer="gpt2").capture(SENTENCE)
    encoding = build(name, heads=12, head_dim=16, width=192, train_length=cap.length)
    title = encoding.title + ("+Kerple" if "+" in name else "")
    if encoding.at_input or (encoding.rotates and not encoding.mixes):
        maps = shown(encoding).maps
        of = "position vectors, products" if encoding.at_input else "score of a fixed pair"
        return title, of, maps[min(HEAD, len(maps) - 1), : cap.length, : cap.length]
    if encoding.weighs:
        return title, "weight", np.where(np.tri(cap.length), cap.weights(head=HEAD), np.nan)
    return title, "bias", cap.bias(head=HEAD)


def draw() -> Figure:
    """Return twelve maps; below each, what it shows and from where to where its colours run."""
    panels = [panel(name) for name in NAMES]
    colours = scales([limits(values) for *_, values in panels])
    # Type can be read where a phone shows the picture 360 pixels wide.
    figure = Figure(figsize=(5.4, 8.4), layout="constrained")
    places = figure.subplots(4, 3).flat
    for axes, (title, of, values), own in zip(places, panels, colours, strict=True):
        scale = Scale.of_weights() if of == "weight" else own
        masked = np.ma.masked_invalid(values)
        axes.imshow(masked, cmap=scale.colormap, norm=scale.norm, interpolation="nearest")
        axes.set_title(title, fontsize=12)
        few = number(scale.low), number(scale.high)
        spread = f"{few[0]} to {few[1]}" if scale.low < scale.high else f"{few[0]} everywhere"
        axes.set_xlabel(f"{of}\n{spread}", fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


if __name__ == "__main__":
    save(draw(), Path(sys.argv[1]))
