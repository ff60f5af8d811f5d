"""One capture: what every head did with one sequence, in one safetensors file.

Tensors, with letters h heads, t queries, s keys (s = t), r cells a side:

    layer.{i}.{quantity}                 float32 [h t s]   the whole map
    layer.{i}.{quantity}.mean|min|max    float32 [h r r]   a long map, reduced while computed
    layer.{i}.{quantity}.exact           float32 [h a b]   one window of a long map, unreduced
    tokens, positions                    int64 [t]
    edges                                int64 [r+1]       cell k covers tokens edges[k]:edges[k+1]
    window                               int64 [4]         query start, stop, key start, stop

Quantities: `content` is the scaled q.k before rotation and bias, `final` the score that goes into
the softmax, `bias` = final - content the effective positional bias, `weights` the softmax. Where a
causal capture has key > query the value is NaN; weights are 0 there.

The metadata has one key, `headscape`: a JSON object with `format`, `kind`, the fields of
`CaptureData` that are not arrays, and `sha256`: that of every tensor by name, and of all else as
`description`. Layers and heads count from 0. Absent on purpose: the model's weights and anything
pickled.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from jaxtyping import Float32, Int64
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from headscape.arrays.choice import QUANTITIES, choose_heads, choose_layer
from headscape.errors import InputError
from headscape.io.atomic import replacing, utf8

FORMAT: Final = 3
DESCRIPTION: Final = "description"
"""Name of the checksum of everything that is not a tensor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureData:
    """The arrays of one sequence in one model, and everything needed to say what they are."""

    encoding: str
    """Name in the table of encodings."""
    conventions: Mapping[str, Any]
    """Every field of the encoding: slopes, scale, boundary and the like; where the layers held here
    differ, a mapping of encoding and fields by the layer's number."""
    claims: Mapping[str, bool]
    """What the encoding says of itself: context_dependent, toeplitz, shift_invariant, pointwise."""
    model: Mapping[str, Any]
    """name, shows (the quantity that shows its position), preset, layers, heads, width,
    train_length."""
    layers: tuple[int, ...]
    """Layers held here, counted from 0."""
    heads: tuple[int, ...]
    """Heads held here, counted from 0; the first axis of every map follows this order."""
    length: int
    """Tokens in the sequence."""
    resolution: int | None = None
    """Cells a side of the reduced maps; None when the maps are whole."""
    causal: bool = True
    """Whether keys after the query are invisible."""
    sequence: Mapping[str, Any] = field(default_factory=dict)
    """corpus, document, offset, seed, and the tokens' strings as `pieces`."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """version, run, step, checkpoint hash and what else says where this came from."""
    trained: bool
    """Whether the model had been trained."""
    tokens: Int64[np.ndarray, " t"]
    positions: Int64[np.ndarray, " t"]
    maps: Mapping[str, Float32[np.ndarray, "h _ _"]]
    """Keyed as in the file: `layer.{i}.{quantity}` with an optional reduction."""
    edges: Int64[np.ndarray, " edges"] | None = None
    window: Int64[np.ndarray, "4"] | None = None

    @property
    def quantities(self) -> tuple[str, ...]:
        """The quantities held here, in the order of QUANTITIES."""
        held = {key.split(".")[2] for key in self.maps}
        return tuple(name for name in QUANTITIES if name in held)

    def content(self, layer: int = -1, head: int | None = None) -> Float32[np.ndarray, "..."]:
        """Scaled q.k before rotation and bias; see `array`."""
        return self.array("content", layer, head)

    def bias(self, layer: int = -1, head: int | None = None) -> Float32[np.ndarray, "..."]:
        """The effective positional bias, final - content; see `array`."""
        return self.array("bias", layer, head)

    def final(self, layer: int = -1, head: int | None = None) -> Float32[np.ndarray, "..."]:
        """Scores as the softmax takes them; see `array`."""
        return self.array("final", layer, head)

    def weights(self, layer: int = -1, head: int | None = None) -> Float32[np.ndarray, "..."]:
        """Attention weights, 0 where a key is masked; see `array`."""
        return self.array("weights", layer, head)

    def array(
        self, quantity: str, layer: int = -1, head: int | None = None, reduction: str = "mean"
    ) -> Float32[np.ndarray, "..."]:
        """One head's map [queries, keys], or all captured heads' [heads, queries, keys].

        Layers and heads are the model's, counted from 0; negative ones count back from the last
        captured. Masked entries are NaN, and 0 in weights. Of a reduced capture, `reduction` is
        mean, min or max, and the axes are cells.
        """
        values = self.values(choose_layer(layer, self.layers), quantity, reduction)
        if head is None:
            return values
        one: Float32[np.ndarray, ...] = values[
            self.heads.index(choose_heads([head], self.heads)[0])
        ]
        return one

    def values(
        self, layer: int, quantity: str, reduction: str = "mean"
    ) -> Float32[np.ndarray, "h _ _"]:
        """The whole map where there is one, otherwise the reduction asked for."""
        _require("layer", [layer], self.layers)
        _require("quantity", [quantity], self.quantities)
        whole = f"layer.{layer}.{quantity}"
        if whole in self.maps:
            return self.maps[whole]
        held = [key.rsplit(".", 1)[1] for key in self.maps if key.startswith(f"{whole}.")]
        _require("reduction", [reduction], held)
        return self.maps[f"{whole}.{reduction}"]

    def visible(
        self, layer: int, quantity: str, reduction: str = "mean"
    ) -> Float32[np.ndarray, "h _ _"]:
        """The same values with NaN at every invisible entry, of the weights too."""
        values = self.values(layer, quantity, reduction)
        if quantity != "weights" or not self.causal or self.resolution is not None:
            return values
        return np.where(np.tri(self.length, dtype=bool), values, np.float32(np.nan))

    def head(
        self, layer: int, quantity: str, head: int, reduction: str = "mean"
    ) -> Float32[np.ndarray, "_ _"]:
        """One head's map, NaN where invisible."""
        _require("head", [head], self.heads)
        values: np.ndarray = self.visible(layer, quantity, reduction)[self.heads.index(head)]
        return values

    def save(self, path: Path) -> None:
        """Write the capture to `path`, whole or not at all."""
        arrays = {"tokens": self.tokens, "positions": self.positions, **self.maps}
        arrays |= {name: value for name in _OPTIONAL if (value := getattr(self, name)) is not None}
        described: dict[str, Any] = {"format": FORMAT, "kind": "capture"}
        described |= {name: getattr(self, name) for name in _DESCRIBED}
        contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        sums = {name: _digest(value) for name, value in contiguous.items()}
        text = json.dumps(described, sort_keys=True, allow_nan=False, ensure_ascii=False)
        described = json.loads(utf8(text).decode("utf-8", "replace"))
        described["sha256"] = {DESCRIPTION: _digest_of(described), **sums}
        text = json.dumps(described, sort_keys=True, ensure_ascii=False)
        with replacing(path) as part:
            save_file(contiguous, part, metadata={"headscape": text})


Kind = TypeVar("Kind", bound=CaptureData)
_ARRAYS = ("tokens", "positions", "maps", "edges", "window")
_OPTIONAL = ("edges", "window")
_DESCRIBED = tuple(each.name for each in fields(CaptureData) if each.name not in _ARRAYS)


def load(
    path: Path,
    layers: Sequence[int] | None = None,
    quantities: Sequence[str] | None = None,
    kind: type[Kind] = CaptureData,  # type: ignore[assignment]
) -> Kind:
    """Read a capture, or only the layers and quantities asked for, leaving the rest on disk."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: capture a run first, headscape capture {path}.")
    if not path.is_file():
        raise InputError(f"there is no file {path}: `headscape capture` writes captures.")
    try:
        with safe_open(path, framework="numpy") as file:
            described, sums = _describe(path, file.metadata() or {})
            names = list(file.keys())
            maps = [name for name in names if name.startswith("layer.")]
            if layers is not None:
                _require("layer", layers, described["layers"])
                maps = [name for name in maps if int(name.split(".")[1]) in layers]
                described["layers"] = tuple(each for each in described["layers"] if each in layers)
            if quantities is not None:
                held = {name.split(".")[2] for name in names if name.startswith("layer.")}
                _require("quantity", quantities, [name for name in QUANTITIES if name in held])
                maps = [name for name in maps if name.split(".")[2] in quantities]
            wanted = [*maps, "tokens", "positions", *(name for name in _OPTIONAL if name in names)]
            arrays: dict[str, Any] = {name: file.get_tensor(name) for name in wanted}
            for name, value in arrays.items():
                if _digest(value) != sums.get(name):
                    raise InputError(f"{path} is damaged: {name} does not match its checksum.")
            kept = {name: arrays.pop(name) for name in maps}
            _check_shapes(path, described, kept)
            return kind(**described, **arrays, maps=kept)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}); capture it again."
        ) from error


def is_capture(path: Path) -> bool:
    """Whether a file says that it is a capture, of any format."""
    try:
        with safe_open(path, framework="numpy") as file:
            described = json.loads((file.metadata() or {}).get("headscape", "{}"))
    except (SafetensorError, OSError, ValueError, RecursionError):
        return False
    return isinstance(described, dict) and described.get("kind") == "capture"


def _digest(value: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()


def _digest_of(described: Mapping[str, Any]) -> str:
    facts = {name: value for name, value in described.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _check_shapes(path: Path, described: Mapping[str, Any], maps: Mapping[str, np.ndarray]) -> None:
    """Refuse maps whose shape is not what the description says."""
    cells = described["resolution"] or described["length"]
    for name, value in maps.items():
        size = value.shape[1:] if name.endswith(".exact") else (cells, cells)
        if value.shape != (len(described["heads"]), *size):
            raise InputError(
                f"{path} is damaged: {name} has shape {value.shape}, not "
                f"{(len(described['heads']), *size)}."
            )


def _describe(path: Path, metadata: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The described fields, and the checksum of every tensor."""
    try:
        described = json.loads(metadata["headscape"])
        kind, version = described["kind"], described["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is a safetensors file but not a headscape capture.") from error
    if kind != "capture":
        raise InputError(f"{path} is a headscape {kind}, not a capture.")
    if not isinstance(version, int) or version != FORMAT:
        raise InputError(
            f"{path} has capture format {version!r} and this version reads {FORMAT}: capture it "
            f"again, or upgrade headscape."
        )
    sums = described.get("sha256")
    missing = [name for name in _DESCRIBED if name not in described]
    if missing or not isinstance(sums, dict):
        raise InputError(f"{path} is damaged: it has no {(*missing, 'sha256')[0]}.")
    if sums.get(DESCRIPTION) != _digest_of(described):
        raise InputError(f"{path} is damaged: its description does not match its checksum.")
    kept = {name: described[name] for name in _DESCRIBED}
    for name in ("layers", "heads"):
        if not _whole_numbers(kept[name]):
            raise InputError(f"{path} is damaged: its {name} are not a list of whole numbers.")
        kept[name] = tuple(kept[name])
    if not _whole_numbers([kept["length"], kept["resolution"] or 1]):
        raise InputError(f"{path} is damaged: its length is not a whole number.")
    return kept, sums


def _whole_numbers(found: object) -> bool:
    return isinstance(found, list) and all(type(item) is int and item >= 0 for item in found)


def _require(what: str, asked: Iterable[object], held: Iterable[object]) -> None:
    held = list(held)
    for each in asked:
        if each not in held:
            names = ", ".join(str(name) for name in held) or "none"
            raise InputError(f"{what} {each} is not in this capture, which contains {names}.")
