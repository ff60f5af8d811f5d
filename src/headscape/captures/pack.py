"""A pack: a capture as the viewer opens it, and the bytes that a page computes its maps from.

Header: format, title, encoding, conventions, claims, causal, length, layers and heads (numbers from
0), train_length, pieces (the tokens' strings), unit (token, or frame of sound), notes (what the
title of each layer says, such as a window), fixed_position (by layer, why its positional part
cannot be scaled, or null), model, provenance, quantities (what can be shown: weights alone where
nothing else was given), and `factors`, one entry per layer in the order of `layers`:

    {"scale", "group", "pairing", "bias", "mix", "window", "softcap"}
    bias  null | {"kind": "toeplitz", "zero"} | {"kind": "slope", "weighted"} |
          {"kind": "perceptron", "zero", "leak"} | {"kind": "dense"}
    mix   null | {"kind": "dape", "added"} | {"kind": "dapev2", "kernel", "boundary"} |
          {"kind": "cope", "divide"}

Arrays of layer L, with h heads, kv key heads, t tokens, e dims, p turned pairs, n distances:

    layer.L.q [h t e], layer.L.k [kv t e]         float32, before rotation
    layer.L.turn.q, layer.L.turn.k [2 t p]        float32, cos and sin
    layer.L.bias.table [h n] | .weight .row .col float64 [h t] | .near [n] .far [t] .in_weight [m]
        .in_bias [m] .out_weight [h m] .out_bias [h] | .map [h t t]
    layer.L.mix.inner.weight .inner.bias .outer.weight .outer.bias | .table [e n]
    layer.L.temperature [h t], .sink [h]          float32, where the layer has them
    layer.L.lse [h t]                             float64

As bytes, which a page contains and a host sends to the browser, it is a safetensors file. The
header is JSON in the file's metadata; its field `same` names arrays that have the bytes of another
array (CABLE's sums of queries and of keys).

q and k may be written in float16. The log-sum-exp is then computed anew from what is written, so
that every row of weights still sums to 1; it, running sums and their weights are rounded to
multiples of 2^-24, far below what float16 costs, which leaves zeros for deflate.

What the page cannot compute, `page_refuses` says; a server computes every layer by the definition.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from safetensors.numpy import save

from headscape.call.quantities import QUANTITIES
from headscape.captures.choice import about_layer, layer_note, require
from headscape.captures.saved_call import SavedCall
from headscape.errors import InputError

FORMAT: Final = 1
HALF_LIMIT: Final = 65504.0
"""Greatest number that float16 holds."""
ROUND: Final = float(1 << 24)
PAGE_LENGTH: Final = 65_536
"""Tokens up to which a log-sum-exp, whose cost grows with their square, is computed for a page."""
WRITTEN_LENGTH: Final = 4096
"""Tokens up to which a bias that the page has no formula for is written out."""
Precision = Literal["float16", "float32"]
_BIASES: Final = {"Toeplitz": "toeplitz", "Slope": "slope", "Perceptron": "perceptron"}
_MIXING: Final = {
    "in_weight": "inner.weight", "in_bias": "inner.bias", "out_weight": "outer.weight",
    "out_bias": "outer.bias", "table": "table",
}  # fmt: skip


def page_refuses(layer: SavedCall) -> str | None:
    """Return why a page cannot compute a layer, or None if it can."""
    described, visible = layer.described, layer.described["visible"]
    mixing, bias = described["mixing"], described["bias"]
    reasons = {
        "its weights are not a softmax": described["weighting"] is not None
        and described["weighting"]["kind"] != "Given",
        "its keys change on the way to a query": described["transition"] is not None,
        "its rotation is not by position alone": "unrotated.0" in layer.arrays,
        "tokens are in groups (padding or several documents)": "visible.q_group" in layer.arrays,
        "positions are not consecutive": described["positions"] is not None,
        "its keys are chosen by the model": "visible.recorded" in layer.arrays,
        "keys are seen in chunks": visible["chunk"] is not None,
        "its window has two sides": visible["window"] is not None and not visible["causal"],
        "its scores are multiplied by a table": mixing is not None and mixing["kind"] == "Product",
        "its scores are mixed within a window": None not in (mixing, visible["window"]),
        "a temperature or a softcap acts on mixed scores": mixing is not None and layer.transformed,
        "its bias is added to counted positions": mixing is not None
        and mixing["kind"] == "CountedTable"
        and bias is not None,
        f"its bias is written out up to {WRITTEN_LENGTH:,} tokens": bias is not None
        and bias["kind"] not in _BIASES
        and layer.length > WRITTEN_LENGTH,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def fixed_position(layer: SavedCall) -> str | None:
    """Return why the positional part of a layer cannot be scaled, or None if it can."""
    described = layer.described
    if described["weighting"] is not None and described["weighting"]["kind"] == "Given":
        return "only its weights are known, not its scores"
    if described["weighting"] is not None:
        return "its weights are not a softmax of scores, and position is in the weights"
    parts = ("bias", "mixing", "turn", "transition")
    changed = any(described[name] is not None for name in parts)
    if not changed and not layer.transformed and "unrotated.0" not in layer.arrays:
        return "position has no part in its scores"
    return None


@dataclass(frozen=True, eq=False)
class Pack:
    """Header and layers of one capture."""

    header: Mapping[str, Any]
    layers: Mapping[int, SavedCall]
    path: Path | None = None
    """Where it was read from."""

    @property
    def title(self) -> str:
        """What a page calls it."""
        return str(self.header.get("title") or self.header["encoding"])

    @property
    def described(self) -> dict[str, Any]:
        """The header with `source`, the name of the file it was read from, where there is one."""
        source = {} if self.path is None else {"source": self.path.name}
        return {**source, **self.header}

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return int(self.header["length"])

    @property
    def numbers(self) -> int:
        """Numbers in the queries and keys of all layers."""
        return sum(each.arrays[name].size for each in self.layers.values() for name in ("q", "k"))

    @property
    def page_bytes(self) -> int | None:
        """Bytes of its arrays in a page; None if a page cannot compute a layer."""
        total = 0
        for layer in self.layers.values():
            if page_refuses(layer) is not None:
                return None
            total += sum(value.nbytes for value in layer.arrays.values())
            bias = layer.described["bias"]
            if bias is not None and bias["kind"] not in (*_BIASES, "Matrix"):
                total += 4 * layer.heads * layer.length**2
        return total

    def layer(self, layer: int) -> SavedCall:
        """A layer, counted from 0."""
        require("layer", [layer], self.layers)
        return self.layers[layer]

    def head_index(self, head: int) -> int:
        """Where a head, counted from 0, is stored."""
        require("head", [head], self.header["heads"])
        return list(self.header["heads"]).index(head)


def make_pack(layers: Mapping[int, SavedCall], path: Path | None = None, /, **header: Any) -> Pack:
    """A pack of layers by number, from 0; `header` gives encoding, heads and what else is known."""
    first = next(iter(layers.values()))
    known = {"layers": list(layers), "length": first.length, "causal": first.causal}
    known["quantities"] = [
        name for name in QUANTITIES if all(name in each.quantities for each in layers.values())
    ]
    by_layer = {
        "factors": [_kind(layer) for layer in layers.values()],
        "fixed_position": [fixed_position(layer) for layer in layers.values()],
    }
    return Pack({"format": FORMAT, **known, **header, **by_layer}, layers, path)


def pack_header(described: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a pack from a capture's description, without `factors`."""
    model, sequence = dict(described["model"]), dict(described["sequence"])
    step = described["provenance"].get("step")
    name = str(model.get("name") or described["encoding"])
    same = ("encoding", "conventions", "claims", "causal", "length", "provenance")
    return {
        "title": name if step is None else f"{name}, step {step}",
        **{field: described[field] for field in same},
        "layers": list(described["layers"]),
        "heads": list(described["heads"]),
        "train_length": model.get("train_length"),
        "pieces": sequence.pop("pieces", []),
        "model": {field: model.get(field) for field in ("preset", "layers", "heads", "width")},
        "sequence": sequence,
        "unit": "frame" if "sound" in sequence else "token",
        "notes": [layer_note(about_layer(described, each)) for each in described["layers"]],
        "step": step,
    }


def _kind(layer: SavedCall) -> dict[str, Any]:
    """What describes a layer to a page."""
    described, arrays = layer.described, layer.arrays
    bias, mixing, kind = described["bias"], described["mixing"], None
    if bias is not None:
        name = _BIASES.get(bias["kind"], "dense")
        kind = {
            "kind": name,
            **{n: bias[n] for n in ("zero", "leak") if name != "dense" and n in bias},
        }
        if name == "slope":
            kind["weighted"] = "bias.weight" in arrays
    mix: dict[str, Any] | None = None
    if mixing is not None and mixing["kind"] == "PairPerceptron":
        mix = {"kind": "dape", "added": mixing["adds_bias"]}
    elif mixing is not None and mixing["kind"] == "KeyConvolution":
        kernel = arrays["mixing.in_weight"].shape[-1]
        mix = {"kind": "dapev2", "kernel": kernel, "boundary": mixing["boundary"]}
    elif mixing is not None and mixing["kind"] == "CountedTable":
        mix = {"kind": "cope", "divide": "scores" if mixing["divisor"] == 1 else "sum"}
    shape = {"scale": float(described["scale"]), "group": layer.heads // len(arrays["k"])}
    pairing = {} if described["turn"] is None else {"pairing": described["turn"]["pairing"]}
    window = {"window": described["visible"]["window"], "softcap": described["softcap"]}
    return {**shape, **pairing, **window, "bias": kind, "mix": mix}


def page_arrays(layer: SavedCall) -> dict[str, np.ndarray]:
    """A layer's arrays under their names in a page."""
    arrays: dict[str, np.ndarray] = {}
    bias = layer.described["bias"]
    formula = bias is None or bias["kind"] in _BIASES
    for name, value in layer.arrays.items():
        group, _, rest = name.partition(".")
        if group == "mixing":
            arrays[f"mix.{_MIXING[rest]}"] = value
        elif group != "bias" or formula:
            arrays[name] = value
    if not formula:
        arrays["bias.map"] = _written(layer)
    return arrays


def _written(layer: SavedCall) -> np.ndarray:
    """The bias of all pairs, in float32."""
    call = layer.calculator.call
    from headscape.call.bias import dense

    assert call.bias is not None
    bias: np.ndarray = dense(call.bias, call.positions)[0].float().contiguous().numpy()
    return bias


def pack_bytes(pack: Pack, precision: Precision = "float32") -> bytes:
    """The bytes of a pack."""
    header: dict[str, Any] = {**pack.described, "precision": precision}
    for number, layer in pack.layers.items():
        reason = page_refuses(layer)
        if reason is not None:
            raise InputError(
                f"a page cannot compute layer {number} (counted from 0) of {pack.title}: {reason}; "
                f"a served viewer can: leave out html."
            )
    if pack.length > PAGE_LENGTH:
        raise InputError(
            f"{pack.length} tokens are too many for one file: the limit is {PAGE_LENGTH}; serve "
            f"the capture instead."
        )
    arrays: dict[str, np.ndarray] = {}
    for number, layer in pack.layers.items():
        mine = _halved(number, layer) if precision == "float16" else _with_lse(layer)
        arrays |= {f"layer.{number}.{name}": value for name, value in mine.items()}
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


def _with_lse(layer: SavedCall) -> dict[str, np.ndarray]:
    """The arrays, and the log-sum-exp of a layer that has none."""
    arrays = page_arrays(layer)
    return arrays if "lse" in arrays else {**arrays, "lse": _norms(layer)}


def _norms(layer: SavedCall, dtype: Any = np.float64) -> np.ndarray:
    """What the page subtracts from a row's scores before it takes the exponential."""
    if not layer.has_norms:
        # Given weights are the exponential alone; other layers without norms are refused.
        return np.zeros((layer.heads, layer.length))
    return layer.log_sum_exp(dtype=dtype)


def _halved(number: int, layer: SavedCall) -> dict[str, np.ndarray]:
    """The arrays with q and k in float16 and the log-sum-exp that follows from these."""
    sides = {}
    for name in ("q", "k"):
        value = np.asarray(layer.arrays[name])  # a long one is still in its file
        if np.abs(value).max(initial=0.0) > HALF_LIMIT:
            raise InputError(
                f"{name} of layer {number} (counted from 0) exceeds float16's {HALF_LIMIT:g}: "
                f"write the page in float32."
            )
        sides[name] = value.astype(np.float16)
    stored = SavedCall(layer.described, {**layer.arrays, **sides})
    arrays = page_arrays(stored)
    arrays["lse"] = _norms(stored, np.float32)
    for name in ("lse", "bias.row", "bias.col", "bias.weight"):
        if name in arrays:
            arrays[name] = np.round(arrays[name] * ROUND) / ROUND
    return arrays
