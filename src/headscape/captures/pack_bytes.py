"""A pack as safetensors bytes: what a page contains and a host sends to the browser.

The header is JSON in the file's metadata. Its field `same` names arrays that have the bytes of
another array (CABLE's sums of queries and of keys).

A capture without log-sum-exp gets one here. q and k may be written in float16. The log-sum-exp is
then computed anew from what is written, so that every row of weights still sums to 1; it, running
sums and their weights are rounded to multiples of 2^-24, far below what float16 costs, which leaves
zeros for deflate.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from safetensors.numpy import save

from headscape.captures.pack import Pack
from headscape.captures.row_pass import log_sum_exp
from headscape.errors import InputError

HALF_LIMIT: Final = 65504.0
"""Greatest number that float16 holds."""

ROUND: Final = float(1 << 24)
LONGEST: Final = 65_536
"""Tokens up to which a log-sum-exp, whose cost grows with their square, is computed here."""

Precision = Literal["float16", "float32"]


def pack_bytes(pack: Pack, precision: Precision = "float32") -> bytes:
    """The bytes of a pack."""
    header: dict[str, Any] = {**pack.described, "precision": precision}
    if pack.length > LONGEST:
        raise InputError(
            f"{pack.length} tokens are too many for one file: the limit is {LONGEST}; serve the "
            f"capture instead, `headscape view CAPTURE`."
        )
    arrays = _halved(pack) if precision == "float16" else _with_lse(pack)
    twins = {
        name: name.removesuffix(".col") + ".row" for name in arrays if name.endswith(".bias.col")
    }
    same = {a: b for a, b in twins.items() if np.array_equal(arrays[a], arrays[b])}
    written = {name: value for name, value in arrays.items() if name not in same}
    return safetensors_bytes({**header, "same": same}, written)


def safetensors_bytes(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Safetensors bytes with a header as their one metadata text, `headscape`.

    One text, because safetensors writes several in no fixed order and equal pages should be equal.
    """
    # Escaped to ASCII: a token's text may contain half of a surrogate pair, which UTF-8 cannot.
    text = json.dumps(header, allow_nan=False)
    contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    return save(contiguous, {"headscape": text})


def _with_lse(pack: Pack) -> dict[str, np.ndarray]:
    """The arrays, and the log-sum-exp of layers that have none."""
    arrays = dict(pack.arrays)
    for number in pack.header["layers"]:
        layer = pack.layer(number)
        if layer.lse is None:
            arrays[f"layer.{number}.lse"] = log_sum_exp(layer)
    return arrays


def _halved(pack: Pack) -> dict[str, np.ndarray]:
    """The arrays with q and k in float16 and the log-sum-exp that follows from these."""
    arrays = dict(pack.arrays)
    for number in pack.header["layers"]:
        layer, prefix = pack.layer(number), f"layer.{number}."
        for name in ("q", "k"):
            value = np.asarray(arrays[prefix + name])  # a long one is still in its file
            if np.abs(value).max(initial=0.0) > HALF_LIMIT:
                raise InputError(
                    f"{name} of layer {number} exceeds float16's {HALF_LIMIT:g}: "
                    f"write the page in float32."
                )
            arrays[prefix + name] = value.astype(np.float16)
        stored = replace(layer, q=arrays[prefix + "q"], k=arrays[prefix + "k"])
        arrays[prefix + "lse"] = log_sum_exp(stored, dtype=np.float32)
        for name in ("lse", "bias.row", "bias.col", "bias.weight"):
            if prefix + name in arrays:
                arrays[prefix + name] = np.round(arrays[prefix + name] * ROUND) / ROUND
    return arrays
