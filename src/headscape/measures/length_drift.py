"""The same measures at multiples of the trained length, from a sample of late queries."""

from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64

from headscape.call.definition import AttentionCall
from headscape.measures.head_definitions import DRIFTING
from headscape.measures.layer_statistics import Progress, layer_statistics
from headscape.models.model import Model

QUERIES: Final = 64
"""Late queries that are looked at; whole maps of long sequences would take hours."""

AtLength = dict[str, Float[np.ndarray, "layers h"]]


def measures_at(
    model: Model, windows: Int64[np.ndarray, "b t"], progress: Progress = lambda _: None
) -> AtLength:
    """Return the drifting measures at the windows' length.

    Windows run one at a time, so memory is that of one forward pass.
    """
    length = windows.shape[1]
    layers = range(len(model.spec.layers))
    sums = {name: np.zeros((len(layers), model.spec.heads)) for name in DRIFTING}
    for window in windows:

        def watch(layer: int, inputs: AttentionCall) -> None:
            found = layer_statistics(inputs, sample=QUERIES)
            slash = found.slash[0].max(axis=-1)
            for name, total in sums.items():
                total[layer] += slash if name == "slash_score" else found.measures[name][0]
            progress(length)

        model.for_length(length).observe(torch.from_numpy(window)[None], layers, watch)
    return {name: total / len(windows) for name, total in sums.items()}


def length_drift(by_multiple: dict[int, AtLength | None]) -> Float[np.ndarray, "layers h"] | None:
    """Return the largest change of share, slash or sink from the shortest to the longest length."""
    measured = {multiple: found for multiple, found in sorted(by_multiple.items()) if found}
    if len(measured) < 2:
        return None
    first, *_, last = measured.values()
    changes = [abs(last[name] - first[name]) for name in ("position_share", "slash_score",
               "sink_score")]  # fmt: skip
    largest: np.ndarray = np.max(changes, axis=0)
    return largest
