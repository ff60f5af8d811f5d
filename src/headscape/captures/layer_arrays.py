"""A layer's factors as named arrays and a short description, and back; names are in `pack`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from headscape.captures.bias_factors import (
    BiasFactor,
    DenseFactor,
    PerceptronFactor,
    SlopeFactor,
    ToeplitzFactor,
)
from headscape.captures.factors import LayerFactors, Turn
from headscape.captures.mix_factors import CopeFactor, DapeFactor, DapeV2Factor, MixFactor
from headscape.errors import InputError

_PERCEPTRON: Final = ("near", "far", "in_weight", "in_bias", "out_weight", "out_bias")
LARGEST: Final = 1e9
"""Numbers of a layer's description stay below this."""
_PER_HEAD: Final = ("temperature", "sink", "lse")
_MIX: Final = ("inner.weight", "inner.bias", "outer.weight", "outer.bias")


def _bias_fits(bias: BiasFactor | None, heads: int, length: int) -> bool:
    """Whether a bias has the heads and tokens it should."""
    match bias:
        case ToeplitzFactor():
            return bias.table.ndim == 2 and bias.table.shape[0] == heads and bias.table.size > 0
        case SlopeFactor():
            every = (bias.row, bias.col, bias.row if bias.weight is None else bias.weight)
            return all(each.shape == (heads, length) for each in every)
        case PerceptronFactor():
            hidden = bias.in_weight.shape
            return (
                bias.far.shape == (length,)
                and bias.near.ndim == len(hidden) == 1
                and bias.near.size > 0
                and bias.in_bias.shape == hidden
                and bias.out_weight.shape == (heads, *hidden)
                and bias.out_bias.shape == (heads,)
            )
        case DenseFactor():
            return bias.map.shape == (heads, length, length)
    return True


def _mix_fits(layer: LayerFactors) -> bool:
    """Whether the weights of mixing have the heads and dims they should."""
    mix, heads = layer.mix, layer.heads
    match mix:
        case CopeFactor():
            return mix.table.ndim == 2 and mix.table.shape[0] == layer.q.shape[2]
        case DapeFactor() | DapeV2Factor():
            inner, outer = mix.inner_weight.shape, mix.outer_weight.shape
            channels = heads if layer.bias is None else 2 * heads
            return (
                len(inner) == len(outer) == (2 if isinstance(mix, DapeFactor) else 3)
                and inner[1] == channels
                and outer[:2] == (heads, inner[0])
                and inner[2:] == outer[2:]
                and all(width % 2 for width in inner[2:])
                and mix.inner_bias.shape == inner[:1]
                and mix.outer_bias.shape == (heads,)
            )
    return True


def _number(value: object) -> bool:
    return type(value) in (int, float) and abs(float(value)) < LARGEST  # type: ignore[arg-type]


def _whole(value: object) -> bool:
    return type(value) is int and abs(value) < LARGEST


def _flag(value: object) -> bool:
    return type(value) is bool


_DESCRIBED: Final[Mapping[str, Mapping[str, Callable[[Any], bool]]]] = {
    "layer": {
        "scale": _number,
        "group": _whole,
        "window": lambda value: value is None or (_whole(value) and value > 0),
        "softcap": lambda value: value is None or (_number(value) and value > 0),
        "bias": lambda value: value is None or _part_fits("bias", value),
        "mix": lambda value: value is None or _part_fits("mix", value),
        "pairing": lambda value: value in (None, "halves", "interleaved"),
    },
    "bias toeplitz": {"zero": _whole},
    "bias slope": {"weighted": _flag},
    "bias perceptron": {"zero": _whole, "leak": _number},
    "bias dense": {},
    "mix dape": {"added": _flag},
    "mix dapev2": {
        "kernel": _whole,
        "boundary": lambda value: value in ("masked", "released"),
    },
    "mix cope": {"divide": lambda value: value in ("scores", "sum")},
}
"""What describes a layer, its bias and what mixes its scores: the type of every field."""


def _kind_fits(kind: object) -> bool:
    """Whether the description of a layer has the fields it should, each of its type."""
    return isinstance(kind, Mapping) and _fields_fit("layer", {"pairing": None, **kind})


def _part_fits(part: str, kind: object) -> bool:
    if not isinstance(kind, Mapping) or not isinstance(kind.get("kind"), str):
        return False
    fields = {name: value for name, value in kind.items() if name != "kind"}
    # An unknown kind is refused with advice when it is read.
    name = f"{part} {kind['kind']}"
    return name not in _DESCRIBED or _fields_fit(name, fields)


def _fields_fit(name: str, fields: Mapping[str, Any]) -> bool:
    checks = _DESCRIBED[name]
    return checks.keys() == fields.keys() and all(checks[key](fields[key]) for key in checks)


def write_layer(layer: LayerFactors) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What describes a layer, and its arrays by name."""
    arrays: dict[str, np.ndarray] = {"q": layer.q, "k": layer.k}
    kind: dict[str, Any] = {"scale": layer.scale, "group": layer.heads // len(layer.k)}
    if layer.turn is not None:
        kind["pairing"] = layer.turn.pairing
        arrays |= {"turn.q": layer.turn.q, "turn.k": layer.turn.k}
    for name in _PER_HEAD:
        value = getattr(layer, name)
        if value is not None:
            arrays[name] = value
    kind |= {"window": layer.window, "softcap": layer.softcap}
    kind["bias"] = _write_bias(layer.bias, arrays)
    kind["mix"] = _write_mix(layer.mix, arrays)
    return kind, arrays


def _write_bias(bias: BiasFactor | None, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    match bias:
        case ToeplitzFactor():
            arrays["bias.table"] = bias.table
            return {"kind": bias.kind, "zero": bias.zero}
        case SlopeFactor():
            arrays |= {"bias.row": bias.row, "bias.col": bias.col}
            if bias.weight is not None:
                arrays["bias.weight"] = bias.weight
            return {"kind": bias.kind, "weighted": bias.weight is not None}
        case PerceptronFactor():
            arrays |= {f"bias.{name}": getattr(bias, name) for name in _PERCEPTRON}
            return {"kind": bias.kind, "zero": bias.zero, "leak": bias.leak}
        case DenseFactor():
            arrays["bias.map"] = bias.map
            return {"kind": bias.kind}
    return None


def _write_mix(mix: MixFactor | None, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    if isinstance(mix, DapeFactor | DapeV2Factor):
        arrays |= {f"mix.{name}": getattr(mix, name.replace(".", "_")) for name in _MIX}
    match mix:
        case DapeFactor():
            return {"kind": mix.kind, "added": mix.added}
        case DapeV2Factor():
            return {"kind": mix.kind, "kernel": mix.kernel, "boundary": mix.boundary}
        case CopeFactor():
            arrays["mix.table"] = mix.table
            return {"kind": mix.kind, "divide": mix.divide}
    return None


def layer_from(
    path: Path,
    number: int,
    described: Mapping[str, Any],
    kind: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> LayerFactors:
    """A layer of a file; refuse arrays that are missing or whose shapes disagree."""
    if not _kind_fits(kind):
        raise InputError(f"{path} is damaged: the description of layer {number} is wrong.")
    for name, value in arrays.items():
        if value.dtype not in (np.float32, np.float64):
            raise InputError(f"{path} is damaged: {name} of layer {number} is {value.dtype}.")
    try:
        layer = read_layer(kind, arrays, causal=bool(described["causal"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{path} is damaged: layer {number} cannot be read ({type(error).__name__}: {error})."
        ) from error
    heads, length = len(described["heads"]), described["length"]
    right = layer.q.ndim == 3 and layer.q.shape[:2] == (heads, length)
    right = (
        right
        and layer.k.ndim == 3
        and layer.k.shape[1:] == layer.q.shape[1:]
        and layer.k.shape[0] > 0
        and heads % layer.k.shape[0] == 0
        and kind["group"] == heads // layer.k.shape[0]
        and (layer.turn is None or layer.turn.q.ndim == 3)
        and layer.q.shape[2] > 0
        and (layer.lse is None or layer.lse.shape == (heads, length))
        and (layer.temperature is None or layer.temperature.shape == (heads, length))
        and (layer.sink is None or layer.sink.shape == (heads,))
        and (layer.window is None or layer.window > 0)
        and (layer.softcap is None or 0 < layer.softcap < LARGEST)
        and abs(layer.scale) < LARGEST
        and abs(getattr(layer.bias, "zero", 0)) < LARGEST
        and (layer.turn is None or layer.turn.q.shape == layer.turn.k.shape)
        and (layer.turn is None or layer.turn.q.shape[:2] == (2, length))
        and (layer.turn is None or 2 * layer.turn.q.shape[2] <= layer.q.shape[2])
    )
    if not (right and _bias_fits(layer.bias, heads, length) and _mix_fits(layer)):
        raise InputError(f"{path} is damaged: arrays of layer {number} do not fit its description.")
    return layer


def read_layer(
    kind: Mapping[str, Any], arrays: Mapping[str, np.ndarray], *, causal: bool
) -> LayerFactors:
    """A layer from its description and its arrays."""
    turn = None
    if "turn.q" in arrays:
        turn = Turn(arrays["turn.q"], arrays["turn.k"], kind["pairing"])
    return LayerFactors(
        q=arrays["q"],
        k=arrays["k"],
        scale=float(kind["scale"]),
        causal=causal,
        turn=turn,
        bias=None if kind["bias"] is None else _read_bias(kind["bias"], arrays),
        mix=None if kind["mix"] is None else _read_mix(kind["mix"], arrays),
        window=None if kind.get("window") is None else int(kind["window"]),
        softcap=None if kind.get("softcap") is None else float(kind["softcap"]),
        temperature=arrays.get("temperature"),
        sink=arrays.get("sink"),
        lse=arrays.get("lse"),
    )


def _read_bias(kind: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> BiasFactor:
    match kind["kind"]:
        case "toeplitz":
            return ToeplitzFactor(arrays["bias.table"], int(kind["zero"]))
        case "slope":
            return SlopeFactor(arrays.get("bias.weight"), arrays["bias.row"], arrays["bias.col"])
        case "perceptron":
            parts: dict[str, Any] = {name: arrays[f"bias.{name}"] for name in _PERCEPTRON}
            return PerceptronFactor(**parts, zero=int(kind["zero"]), leak=float(kind["leak"]))
        case "dense":
            return DenseFactor(arrays["bias.map"])
    raise InputError(f"unknown kind of bias {ascii(kind['kind'])[:40]}: upgrade headscape.")


def _read_mix(kind: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> MixFactor:
    match kind["kind"]:
        case "dape":
            return DapeFactor(**_weights(arrays), added=bool(kind["added"]))
        case "dapev2":
            return DapeV2Factor(**_weights(arrays), boundary=kind["boundary"])
        case "cope":
            return CopeFactor(arrays["mix.table"], kind["divide"])
    raise InputError(f"unknown kind of mixing {ascii(kind['kind'])[:40]}: upgrade headscape.")


def _weights(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name.replace(".", "_"): arrays[f"mix.{name}"] for name in _MIX}
