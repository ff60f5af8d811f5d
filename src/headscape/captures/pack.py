"""A pack: the factors of one capture with everything needed to say what they are.

Header: format, title, encoding, conventions, claims, causal, length, layers and heads (numbers from
0), train_length, pieces (the tokens' strings), unit (token, or frame of sound), notes (what the
title of each layer says, such as a window), model, provenance, and `factors`, one entry per layer
in the order of `layers`:

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
    layer.L.lse [h t]                             float64; absent where it was too long to compute

On disk a pack is part of a capture's file, where the arrays are called `factors.L.*`. Opening reads
the description and small arrays; of large ones a tile reads only its rows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from headscape.captures.capture_checks import check_sum, describe
from headscape.captures.factors import LayerFactors
from headscape.captures.file_array import FileArray, OpenFile
from headscape.captures.layer_arrays import layer_from, read_layer, write_layer
from headscape.captures.layer_notes import about_layer, layer_note
from headscape.errors import InputError
from headscape.io.system_errors import reason

FORMAT: Final = 1
LAZY_BYTES: Final = 1 << 20
"""Arrays of tokens above this size stay in the file."""
CHECKED_BYTES: Final = 1 << 28
"""Up to this size of a file all its factors are compared with their checksums; of longer ones,
those that do not stay in the file."""
DESCRIBED: Final = (
    "encoding", "conventions", "claims", "model", "layers", "heads", "length", "resolution",
    "causal", "sequence", "provenance", "trained", "shown", "refused",
)  # fmt: skip
"""What a pack's header is made from."""
DTYPES: Final = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1"}


@dataclass(frozen=True, eq=False)
class Pack:
    """Header and arrays of one capture."""

    header: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    path: Path | None = None
    """Where it was read from."""
    _layers: dict[int, LayerFactors] = field(default_factory=dict, init=False, repr=False)

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

    def layer(self, layer: int) -> LayerFactors:
        """The factors of a layer, counted from 0."""
        layers = list(self.header["layers"])
        if layer not in layers:
            held = ", ".join(str(each) for each in layers)
            raise InputError(f"layer {layer} is not in this capture, which contains {held}.")
        if layer not in self._layers:
            prefix = f"layer.{layer}."
            mine = {
                name.removeprefix(prefix): value
                for name, value in self.arrays.items()
                if name.startswith(prefix)
            }
            described = self.header["factors"][layers.index(layer)]
            self._layers[layer] = read_layer(described, mine, causal=bool(self.header["causal"]))
        return self._layers[layer]

    def head_index(self, head: int) -> int:
        """Where a head, counted from 0, is stored."""
        heads = list(self.header["heads"])
        if head not in heads:
            held = ", ".join(str(each) for each in heads)
            raise InputError(f"head {head} is not in this capture, which contains {held}.")
        return heads.index(head)


def make_pack(layers: Mapping[int, LayerFactors], **header: Any) -> Pack:
    """A pack of layers by number, from 0; `header` gives encoding, heads and what else is known."""
    arrays: dict[str, np.ndarray] = {}
    described = []
    for number, layer in layers.items():
        kind, mine = write_layer(layer)
        described.append(kind)
        arrays |= {f"layer.{number}.{name}": value for name, value in mine.items()}
    first = next(iter(layers.values()))
    known = {"layers": list(layers), "length": first.length, "causal": first.causal}
    return Pack({"format": FORMAT, **known, **header, "factors": described}, arrays)


def pack_header(described: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a pack from a capture's description; its `factors` are still to be filled."""
    model, sequence = dict(described["model"]), dict(described["sequence"])
    step = described["provenance"].get("step")
    name = str(model.get("name") or described["encoding"])
    same = ("encoding", "conventions", "claims", "causal", "length", "provenance")
    return {
        "format": FORMAT,
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
        "factors": [],
    }


def without_factors(refused: object) -> str:
    """Why a capture cannot be viewed, in one sentence."""
    why = f" ({refused})" if refused else ""
    return (
        f"this capture keeps maps instead of factors{why}, so the viewer cannot show it: use "
        f"`headscape draw`."
    )


def open_pack(path: Path) -> Pack:
    """Open a capture's factors; of arrays above LAZY_BYTES only what is asked for is ever read."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}: `headscape capture` writes captures.")
    try:
        # Checks that header and file size agree, so no slice can reach beyond the file.
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
        with path.open("rb") as raw:
            size = int.from_bytes(raw.read(8), "little")
            directory = json.loads(raw.read(size))
        opened = OpenFile(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}.") from error
    except (SafetensorError, ValueError) as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}); capture it again."
        ) from error
    described, sums = describe(path, metadata, DESCRIBED)
    kinds = described["factors"]
    if any(str(layer) not in kinds for layer in described["layers"]):
        raise InputError(f"{path}: {without_factors(described['refused'])}")
    checked = path.stat().st_size <= CHECKED_BYTES
    arrays: dict[str, np.ndarray] = {}
    try:
        header = pack_header(described)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged: its description cannot be read.") from error
    for layer in described["layers"]:
        prefix = f"factors.{layer}."
        mine = {}
        for name, entry in directory.items():
            if name.startswith(prefix):
                value = _array(opened, name, entry, 8 + size)
                if checked or isinstance(value, np.ndarray):
                    check_sum(path, name, np.asarray(value), sums)
                mine[name.removeprefix(prefix)] = value
        layer_from(path, layer, described, kinds[str(layer)], mine)
        header["factors"].append(kinds[str(layer)])
        arrays |= {f"layer.{layer}.{name}": value for name, value in mine.items()}
    return Pack(header, arrays, path)


def _array(file: OpenFile, name: str, entry: Mapping[str, Any], start: int) -> np.ndarray:
    if entry["dtype"] not in DTYPES:
        raise InputError(f"{file.path} is damaged: {name} has dtype {entry['dtype']}.")
    dtype = np.dtype(DTYPES[entry["dtype"]])
    lazy = FileArray(file, start + entry["data_offsets"][0], dtype, entry["shape"])
    if lazy.nbytes <= LAZY_BYTES or not name.endswith((".q", ".k", ".bias.map")):
        return np.asarray(lazy)
    return lazy  # type: ignore[return-value]
