"""An encoding's pictures, drawn while the site is built: maps of some heads, and distance curves.

Encodings are untrained, so a picture takes about a second and needs no data. What is drawn depends
on where an encoding acts, and `Shown.note` says it in a sentence:

    at the input   products of the position vectors p_i . p_j / sqrt(d)
    rotations      the score q R(i-j) k of a fixed pair, q = k = (1, ..., 1) / sqrt(e)
    weights        the attention weights of random inputs, where they are not a softmax
    otherwise      the effective bias, final score - scaled q.k, of random inputs
"""

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from headscape.call.definition import scores
from headscape.call.positions import Positions, Visible
from headscape.captures.profile import Profile
from headscape.encodings import Encoding, Side
from headscape.kernels.assemble import prepare
from headscape.plots.colour import SIGNED
from headscape.plots.grid import Grid

LENGTH = 128
MOST_BYTES = 300_000
"""Of a picture; larger ones have fewer colours."""
PANELS = 6
"""Heads in the picture of the maps of the published site, spread evenly over all heads."""


@dataclass(frozen=True)
class Shown:
    """What the pictures of one encoding show."""

    maps: np.ndarray
    """[heads, queries, keys]; NaN where a query does not see a key."""
    note: str
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""

    @property
    def flat(self) -> bool:
        """Whether there is nothing to see: the same value everywhere."""
        return bool(np.nanmax(self.maps) == np.nanmin(self.maps))


def shown(encoding: Encoding) -> Shown:
    """Return the maps of an untrained encoding."""
    generator = torch.Generator().manual_seed(0)
    shape = encoding.shape
    where = Positions.span(LENGTH)
    with torch.no_grad():
        if encoding.at_input:
            vectors = encoding.embed(torch.zeros(1, LENGTH, shape.width), where.q)[0]
            maps = (vectors @ vectors.T / shape.width**0.5)[None]
            return Shown(hidden(maps), "Products of the position vectors, p_i . p_j / sqrt(d).")
        size = (1, shape.heads, LENGTH, shape.head_dim)
        if encoding.rotates and not encoding.mixes and not encoding.streams:
            one = torch.full(size, shape.head_dim**-0.5)
            q, k = (
                encoding.rotate(one, Side(where.q, "query")),
                encoding.rotate(one, Side(where.k, "key")),
            )
            note = "The score of one fixed pair, q = k = (1, ..., 1) / sqrt(e), by position."
            return Shown(hidden((q @ k.mT)[0, :1]), note)
        q, k = (torch.randn(size, generator=generator) for _ in range(2))
        x = torch.randn(1, LENGTH, shape.width, generator=generator)
        inputs = prepare(encoding, q, k, k, x, where, visible=Visible(), scale=None)
        found = scores(inputs)
        if encoding.weighs:
            note = "The attention weights of random tokens: position acts on these, not on scores."
            return Shown(hidden(found.weights[0]), note, weights=True)
        maps = found.bias[0]
    if encoding.context_dependent or encoding.mixes:
        return Shown(hidden(maps), "The bias at initialisation, for random tokens.")
    learned = any(True for _ in encoding.parameters())
    note = "The bias at initialisation." if learned else "The bias, which has no parameters."
    return Shown(hidden(maps), note)


def hidden(maps: torch.Tensor) -> np.ndarray:
    """Return maps as an array with NaN for keys after their query."""
    later = torch.ones(maps.shape[-2:], dtype=torch.bool).triu(1)
    return maps.double().masked_fill(later, torch.nan).numpy()


def draw_maps(found: Shown, path: Path, panels: int) -> None:
    """Draw some heads, titled as the command line counts them, from 1."""
    heads = np.unique(np.linspace(0, len(found.maps) - 1, panels).astype(int))
    titles = tuple(f"Head {head + 1}" for head in heads) if len(heads) > 1 else ("All heads",)
    columns = min(3, len(heads))
    grid = Grid(maps=found.maps[heads], titles=titles, columns=columns, weights=found.weights)
    save(grid.draw(), path)


def draw_curves(found: Shown, path: Path) -> None:
    """Draw the mean over tokens at each distance, a line per head."""
    profile = Profile.of(found.maps)
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    shades = np.linspace(0.1, 0.9, len(found.maps))
    for head, (line, shade) in enumerate(zip(profile.mean, shades, strict=True)):
        colour = colormaps["viridis"](shade)
        axes.plot(profile.distance, line, color=colour, linewidth=1.2, label=f"Head {head + 1}")
    axes.set_xlabel("Distance (query \N{MINUS SIGN} key)")
    axes.set_ylabel("Mean over tokens")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    if len(found.maps) > 1:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    save(figure, path)


def save(figure: Figure, path: Path, dpi: int = 130) -> None:
    """Write a PNG for a page of about 700 pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi, facecolor="white")
    path.write_bytes(png(Image.open(file).convert("RGB")))


def png(picture: Image.Image, most: int = MOST_BYTES) -> bytes:
    """Return a picture as a PNG of at most so many bytes.

    It keeps all colours if they fit, and otherwise has 256 or fewer.
    """
    for colours in (None, 256, 160, 96):
        file = io.BytesIO()
        kept = picture if colours is None else with_palette(picture, palette(picture, colours))
        kept.save(file, format="PNG", optimize=True)
        if file.tell() <= most:
            break
    return file.getvalue()


KEPT = [
    *SIGNED(np.linspace(0, 1, 24), bytes=True)[:, :3].ravel().tolist(),
    *mpl.colormaps["viridis"](np.linspace(0, 1, 40), bytes=True)[:, :3].ravel().tolist(),
    *(0, 0, 0, 255, 255, 255),
]
"""Red, green and blue of colours that every picture keeps: both maps, black and white."""


def palette(shown: Image.Image, colours: int) -> Image.Image:
    """Return a palette for a picture, with the rare ends of colour maps, which bars show."""
    common = shown.quantize(colours - len(KEPT) // 3).getpalette()
    assert common is not None
    found = Image.new("P", (1, 1))
    found.putpalette([*KEPT, *common])
    return found


def with_palette(shown: Image.Image, chosen: Image.Image) -> Image.Image:
    """Return a picture in the nearest colours of a palette; black and white stay as they are."""
    found = shown.quantize(palette=chosen, dither=Image.Dither.NONE)
    # Pillow's nearest colour is approximate: white paper would turn grey.
    pixels, numbers = np.asarray(shown), np.array(found)
    white = len(KEPT) // 3 - 1
    for number, level in ((white - 1, 0), (white, 255)):
        numbers[(pixels == level).all(axis=-1)] = number
    exact = Image.fromarray(numbers, mode="P")
    exact.putpalette(found.getpalette() or [])
    return exact
