"""Captures for the browser: every encoding's calls, and what the definition says of them."""

import numpy as np
import torch

from headscape.call.definition import AttentionCall, scores
from headscape.call.positions import Positions
from headscape.captures.call_blocks import save_call
from headscape.captures.pack import Pack, make_pack
from headscape.encodings import build
from headscape.kernels.assemble import prepare
from headscape.properties.cases import FIELDS
from headscape.properties.probe import draw, randomise

LENGTH, HEADS, DIM = 96, 4, 8
WORDS = ("the ", "cat", " sat", "\n", "on", " a", "\t", "mat.", "<b>", "é")


def inputs_of(name: str, *, seed: int = 0, length: int = LENGTH, **fields: object) -> AttentionCall:
    """One layer's attention inputs with random weights."""
    options = {**FIELDS.get(name.rpartition("+")[2], {}), **fields}
    encoding = build(name, heads=HEADS, head_dim=DIM, width=HEADS * DIM, train_length=64, **options)
    randomise(encoding, seed)
    q, k, v = (draw(1, HEADS, length, DIM, seed=10 * seed + n).float() for n in (1, 2, 3))
    x = draw(1, length, HEADS * DIM, seed=10 * seed + 4).float()
    with torch.no_grad():
        return prepare(encoding, q, k, v, x, Positions.span(length))


def capture(
    name: str = "cable",
    *,
    layers: int = 2,
    length: int = LENGTH,
    title: str | None = None,
    fields: dict[str, object] | None = None,
    **header: object,
) -> Pack:
    """A capture with some layers; `fields` are the encoding's."""
    more = fields or {}
    saved = {n: save_call(inputs_of(name, seed=n, length=length, **more)) for n in range(layers)}
    pieces = [WORDS[n % len(WORDS)] for n in range(length)]
    known = {
        "encoding": name,
        "heads": list(range(HEADS)),
        "title": title or name,
        "pieces": pieces,
        "train_length": 64,
    }
    return make_pack(saved, **{**known, **header})


def definition(
    name: str, layer_number: int, head: int, length: int = LENGTH, **fields: object
) -> dict[str, np.ndarray]:
    """The four maps by the dense definition, NaN where hidden."""
    with torch.no_grad():
        every = scores(inputs_of(name, seed=layer_number, length=length, **fields))
    seen = every.visible[0, 0].numpy()
    return {
        quantity: np.where(seen, getattr(every, quantity)[0, head].double().numpy(), np.nan)
        for quantity in ("content", "bias", "final", "weights")
    }
