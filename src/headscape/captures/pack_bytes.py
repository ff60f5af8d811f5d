"""A pack as one run of bytes: what a page contains and a host sends to the browser.

    8 bytes    HSPACK01
    4 bytes    uint32, little endian: length n of the header
    n bytes    the header as JSON with `arrays`, [{name, dtype, shape, offset, bytes}]
    arrays     little endian, each at a multiple of 16

A capture without log-sum-exp gets one here. q and k may be written in float16. The log-sum-exp is
then computed anew from what is written, so that every row of weights still sums to 1; it, running
sums and their weights are rounded to multiples of 2^-24, far below what float16 costs, which leaves
zeros for deflate. Equal arrays of a layer (CABLE's sums of queries and of keys) share their bytes.
"""

import json
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from headscape.captures.pack import Pack
from headscape.captures.row_pass import log_sum_exp
from headscape.errors import InputError

MAGIC: Final = b"HSPACK01"
ALIGN: Final = 16
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
    # Sums of queries come before those of keys, which may be the same bytes.
    ordered = sorted(arrays.items(), key=lambda item: (item[0].endswith(".bias.col"), item[0]))
    little = {name: np.ascontiguousarray(value) for name, value in ordered}
    little = {
        name: value.astype(value.dtype.newbyteorder("<"), copy=False)
        for name, value in little.items()
    }
    # Offsets depend on the header's length and the header on the offsets, so reserve their digits.
    size = 4096 + 400 * len(little) + len(json.dumps(header))
    start = -(-(len(MAGIC) + 4 + size) // ALIGN) * ALIGN
    size = start - len(MAGIC) - 4
    directory, offset = [], start
    written: dict[str, np.ndarray] = {}
    places: dict[str, int] = {}
    for name, value in little.items():
        twin = name.removesuffix(".col") + ".row"
        if name.endswith(".bias.col") and np.array_equal(value, little[twin]) and twin in places:
            places[name] = places[twin]
        else:
            places[name], written[name] = offset, value
            offset += -(-value.nbytes // ALIGN) * ALIGN
        entry = {"name": name, "dtype": value.dtype.name, "shape": list(value.shape)}
        directory.append({**entry, "offset": places[name], "bytes": value.nbytes})
    # Escaped to ASCII: a token's text may contain half of a surrogate pair, which UTF-8 cannot.
    text = json.dumps({**header, "arrays": directory}, allow_nan=False).encode()
    parts = [MAGIC, size.to_bytes(4, "little"), text.ljust(size)]
    for value in written.values():
        parts += [value.tobytes(), bytes(-value.nbytes % ALIGN)]
    return b"".join(parts)


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
