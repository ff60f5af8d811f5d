"""A pack: the factors of one capture with everything needed to say what they are.

Header: format, title, encoding, conventions, claims, causal, length, layers and heads (numbers from
0), train_length, pieces (the tokens' strings), model, provenance, and `factors`, one entry per
layer in the order of `layers`:

    {"scale", "group", "pairing", "bias", "mix"}
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
    layer.L.lse [h t]                             float64; absent where it was too long to compute

On disk a pack is a safetensors file whose metadata has one key, `headscape`: the header as JSON.
Opening reads the header and small arrays; of large ones a tile reads only its rows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from headscape.arrays.factors import LayerFactors
from headscape.arrays.file_array import FileArray, OpenFile
from headscape.arrays.layer_arrays import bias_fits, read_layer, write_layer
from headscape.errors import InputError
from headscape.io.atomic import replacing

FORMAT: Final = 1
KIND: Final = "factors"
LAZY_BYTES: Final = 1 << 20
"""Arrays of tokens above this size stay in the file."""
REQUIRED: Final = ("encoding", "causal", "length", "layers", "heads", "factors")
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

    def save(self, path: Path) -> None:
        """Write the pack to `path`, whole or not at all."""
        text = json.dumps(
            {**self.header, "kind": KIND, "format": FORMAT}, allow_nan=False, ensure_ascii=False
        )
        whole = {name: np.ascontiguousarray(value) for name, value in self.arrays.items()}
        with replacing(path) as part:
            save_file(whole, part, metadata={"headscape": text})


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


def open_pack(path: Path) -> Pack:
    """Open a pack file; of arrays above LAZY_BYTES only what is asked for is ever read."""
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
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}); capture it again."
        ) from error
    header = _header(path, metadata)
    directory.pop("__metadata__", None)
    arrays = {name: _array(opened, name, entry, 8 + size) for name, entry in directory.items()}
    pack = Pack(header, arrays, path)
    for layer in header["layers"]:
        _check_layer(path, pack, layer)
    return pack


def is_pack(path: Path) -> bool:
    """Whether a file says that it is a pack."""
    try:
        with safe_open(path, framework="numpy") as file:
            _header(path, file.metadata() or {})
    except (SafetensorError, OSError, InputError):
        return False
    return True


def _array(file: OpenFile, name: str, entry: Mapping[str, Any], start: int) -> np.ndarray:
    if entry["dtype"] not in DTYPES:
        raise InputError(f"{file.path} is damaged: {name} has dtype {entry['dtype']}.")
    dtype = np.dtype(DTYPES[entry["dtype"]])
    lazy = FileArray(file, start + entry["data_offsets"][0], dtype, entry["shape"])
    if lazy.nbytes <= LAZY_BYTES or not name.endswith((".q", ".k", ".bias.map")):
        return np.asarray(lazy)
    return lazy  # type: ignore[return-value]


def _header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        header = json.loads(metadata["headscape"])
        kind, version = header["kind"], header["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is a safetensors file but not a headscape capture.") from error
    if kind != KIND:
        raise InputError(f"{path} is a headscape {kind} without factors: capture it again.")
    if not isinstance(version, int) or version > FORMAT:
        raise InputError(
            f"{path} has format {version!r} and this version reads up to {FORMAT}: upgrade "
            f"headscape."
        )
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise InputError(f"{path} is damaged: it has no {missing[0]}.")
    numbers = [*header["layers"], *header["heads"], header["length"]]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise InputError(f"{path} is damaged: layers, heads and length are not whole numbers.")
    if len(header["factors"]) != len(header["layers"]):
        raise InputError(f"{path} is damaged: it describes {len(header['factors'])} layers.")
    return dict(header)


def _check_layer(path: Path, pack: Pack, number: int) -> None:
    """Refuse arrays that are missing or whose shapes disagree."""
    try:
        layer = pack.layer(number)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: layer {number} has no {error}.") from error
    heads, length, dims = len(pack.header["heads"]), pack.length, layer.q.shape[-1]
    right = (
        layer.q.shape == (heads, length, dims)
        and layer.k.ndim == 3
        and layer.k.shape[1:] == (length, dims)
        and heads % max(1, layer.k.shape[0]) == 0
        and (layer.lse is None or layer.lse.shape == (heads, length))
        and (layer.turn is None or layer.turn.q.shape == layer.turn.k.shape)
        and (layer.turn is None or layer.turn.q.shape[:2] == (2, length))
    )
    if not right or not bias_fits(layer.bias, heads, length):
        raise InputError(f"{path} is damaged: arrays of layer {number} disagree in shape.")
