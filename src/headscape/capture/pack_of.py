"""One sequence through one model, as a pack of factors."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Integer

import headscape
from headscape.arrays.factors import LayerFactors
from headscape.arrays.pack import Pack, make_pack
from headscape.attention.reference import AttentionInputs
from headscape.capture.factors_of import Progress, factors_of
from headscape.errors import InputError
from headscape.protocol import Model

LONGEST_LSE: Final = 65_536
"""Tokens up to which the log-sum-exp, whose cost grows with their square, is computed at once."""


def pack_of(
    model: Model,
    tokens: Integer[np.ndarray, " t"],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    source: Mapping[str, Any] | None = None,
    progress: Progress = lambda _: None,
) -> Pack:
    """Run tokens through a model and keep the factors of some layers and heads, all by default.

    Layers and heads count from 0. Layers that mix heads keep all of them.
    """
    spec, length = model.spec, len(tokens)
    reason = model.cannot(length)
    if reason is not None:
        raise InputError(reason)
    chosen = list(range(len(spec.layers)) if layers is None else layers)
    kept: dict[int, LayerFactors] = {}
    picked = list(range(spec.heads) if heads is None else heads)

    def watch(layer: int, inputs: AttentionInputs) -> None:
        short = length <= LONGEST_LSE
        every = picked if not inputs.encoding.mixes else list(range(spec.heads))
        if every != picked:
            picked[:] = every
        kept[layer] = factors_of(inputs, picked, lse=short, progress=progress)

    with torch.no_grad():
        model.observe(torch.as_tensor(np.asarray(tokens, dtype=np.int64))[None], chosen, watch)
    decode = None if model.tokenizer is None else model.tokenizer.decode
    step = spec.provenance.get("step")
    return make_pack(
        kept,
        title=spec.name if step is None else f"{spec.name}, step {step}",
        encoding=spec.encoding,
        conventions=spec.conventions_of(chosen),
        claims=spec.claims_of(chosen),
        heads=picked,
        train_length=spec.train_length,
        pieces=[] if decode is None else [decode(tokens[i : i + 1]) for i in range(length)],
        model={
            "preset": spec.preset,
            "layers": len(spec.layers),
            "heads": spec.heads,
            "width": spec.width,
        },
        sequence=dict(source or {}),
        provenance={"headscape": headscape.__version__, **spec.provenance},
        step=step,
    )
