"""One capture: what every head did with one sequence, in one safetensors file.

Tensors, with letters h heads, t queries, s keys (s = t), r cells a side:

    factors.{i}.*                        what every map of layer i is computed from: queries, keys,
                                         the bias as data, log-sum-exp; `pack` has the names
    layer.{i}.{quantity}                 float32 [h t s]   the whole map, of a layer without factors
    layer.{i}.{quantity}.mean|min|max    float32 [h r r]   a long map, reduced while computed
    layer.{i}.{quantity}.exact           float32 [h a b]   one window of a long map, unreduced
    tokens, positions                    int64 [t]
    edges                                int64 [r+1]       cell k covers tokens edges[k]:edges[k+1]
    window                               int64 [4]         query start, stop, key start, stop

Quantities: `content` is the scaled q.k before rotation and bias, `final` the score that goes into
the softmax, `bias` = final - content the effective positional bias, `weights` the softmax. Where a
query does not see a key the value is NaN; weights are 0 there.

A layer whose encoding has factors keeps these, in float32, and its maps are computed in float64
when they are asked for: an added bias is the model's own to the bit, content, final scores and
weights are within float32 rounding of what the model computed. Other layers keep whole maps, and
`refused` says why.

The metadata has one key, `headscape`: a JSON object with `format`, `kind`, the fields of
`CaptureData` that are not arrays, `factors` (what describes each layer's) and `sha256`: that of
every tensor by name, and of all else as `description`. Layers and heads count from 0. Absent on
purpose: the model's weights and anything pickled.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from jaxtyping import Bool, Float32, Int64
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from headscape.captures.capture_checks import (
    DESCRIPTION,
    FORMAT,
    check_names,
    check_shapes,
    check_sum,
    describe,
    digest,
    digest_of,
    require,
)
from headscape.captures.choice import QUANTITIES, choose_heads, choose_layer
from headscape.captures.factors import LayerFactors, rows_at_once
from headscape.captures.layer_arrays import layer_from, write_layer
from headscape.captures.layer_notes import about_layer
from headscape.captures.pack import Pack, pack_header, without_factors
from headscape.captures.pyramid import Reducer, cell_edges
from headscape.errors import InputError
from headscape.io.atomic import replacing, utf8
from headscape.io.output_file import FileKind, check_output
from headscape.io.system_errors import reason

KEPT_BYTES: Final = 1 << 29
"""Computed maps that are kept for the next time; the last one always is."""
DRAWN_LENGTH: Final = 4096
"""Tokens up to which figures show every pair."""
DRAWN_CELLS: Final = 2048
"""Cells a side that figures of longer captures show."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureData:
    """The arrays of one sequence in one model, and everything needed to say what they are."""

    encoding: str
    """Name in the table of encodings."""
    conventions: Mapping[str, Any]
    """Every field of the encoding: slopes, scale, boundary and the like; if layers differ, encoding
    and fields by the layer's number."""
    claims: Mapping[str, bool]
    """What the encoding says of itself: context_dependent, toeplitz, shift_invariant, pointwise."""
    model: Mapping[str, Any]
    """name, shows (the quantity that shows its position), preset, layers, heads, width,
    train_length; if layers differ, `schedule`: title, shows and claims by the layer's number."""
    layers: tuple[int, ...]
    """Layers held here, counted from 0."""
    heads: tuple[int, ...]
    """Heads held here, counted from 0; the first axis of every map follows this order."""
    length: int
    """Tokens, or frames of sound, in the sequence."""
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
    maps: Mapping[str, Float32[np.ndarray, "h _ _"]] = field(default_factory=dict)
    """Stored maps, keyed as in the file: `layer.{i}.{quantity}` with an optional reduction."""
    factors: Mapping[int, LayerFactors] = field(default_factory=dict)
    """What maps are computed from, by layer."""
    shown: tuple[str, ...] = QUANTITIES
    """Quantities that are computed from factors."""
    refused: str | None = None
    """Why a layer has no factors."""
    edges: Int64[np.ndarray, " edges"] | None = None
    window: Int64[np.ndarray, "4"] | None = None
    _computed: dict[tuple[int, str], np.ndarray] = field(
        default_factory=dict, init=False, repr=False
    )

    def about(self, layer: int) -> dict[str, Any]:
        """Return the conventions, `shows` and `claims` of one layer, counted from 0.

        In a model whose layers differ, also the `title` of its encoding.
        """
        described = {"model": self.model, "conventions": self.conventions, "claims": self.claims}
        return about_layer(described, layer)

    @property
    def unit(self) -> str:
        """What `length` counts: tokens, or frames of sound."""
        return "frames" if "sound" in self.sequence else "tokens"

    @property
    def quantities(self) -> tuple[str, ...]:
        """The quantities held here, in the order of QUANTITIES."""
        held = {key.split(".")[2] for key in self.maps}
        if self.resolution is None and self.factors:
            held |= set(self.shown)
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
        """The whole map, stored or computed, where there is one; otherwise the reduction."""
        require("layer", [layer], self.layers)
        require("quantity", [quantity], self.quantities)
        whole = f"layer.{layer}.{quantity}"
        if whole in self.maps:
            return self.maps[whole]
        if self.resolution is None and layer in self.factors:
            return self._map(layer, quantity)
        held = [key.rsplit(".", 1)[1] for key in self.maps if key.startswith(f"{whole}.")]
        require("reduction", [reduction], held)
        return self.maps[f"{whole}.{reduction}"]

    def visible(
        self, layer: int, quantity: str, reduction: str = "mean"
    ) -> Float32[np.ndarray, "h _ _"]:
        """The same values with NaN at every invisible entry, of the weights too."""
        values = self.values(layer, quantity, reduction)
        if self.resolution is not None or not self._may_show_hidden(layer, quantity):
            return values
        every = slice(0, self.length)
        return np.where(self._seen(layer, every, every), values, np.float32(np.nan))

    def block(
        self, layer: int, quantity: str, heads: Sequence[int], rows: slice, cols: slice
    ) -> Float32[np.ndarray, "n r c"]:
        """Some queries and keys of some heads; NaN where invisible, of the weights too.

        Heads are the model's, counted from 0. Nothing else of a map that is not stored is computed.
        """
        require("head", heads, self.heads)
        places = [self.heads.index(head) for head in heads]
        if self._stored(layer, quantity) or layer not in self.factors:
            found = self.values(layer, quantity)[places, rows, cols]
        else:
            found = self.factors[layer].tile(quantity, places, rows, cols).astype(np.float32)
        if self._may_show_hidden(layer, quantity):
            found = np.where(self._seen(layer, rows, cols), found, np.float32(np.nan))
        return found

    def row_blocks(
        self, layer: int, quantity: str, heads: Sequence[int]
    ) -> Iterator[tuple[slice, Float32[np.ndarray, "n r c"]]]:
        """Yield all rows of some heads, a few at a time, from key 0 on, as `block` gives them.

        Keys that no query of a causal block sees are left out.
        """
        mixed = layer in self.factors and self.factors[layer].mix is not None
        # Heads that are mixed are computed together, however few are asked for.
        together = len(self.heads) if mixed else len(heads)
        for rows in rows_at_once(together, self.length):
            cols = slice(0, rows.stop if self.causal else self.length)
            yield rows, self.block(layer, quantity, heads, rows, cols)

    def drawn(
        self, layer: int, quantity: str, heads: Sequence[int]
    ) -> Float32[np.ndarray, "n _ _"]:
        """The maps of some heads as figures show them; `drawn_edges` are their cells, if any.

        Of more than DRAWN_LENGTH tokens, the mean of each cell is computed from a few rows at a
        time, so memory does not grow with the square of the length.
        """
        if self.drawn_edges is self.edges:
            return np.stack([self.head(layer, quantity, head) for head in heads])
        reducer = Reducer(
            heads=len(heads), length=self.length, resolution=DRAWN_CELLS, causal=self.causal
        )
        for rows, block in self.row_blocks(layer, quantity, heads):
            reducer.add(rows, block)
        return reducer.result()["mean"]

    @property
    def drawn_edges(self) -> Int64[np.ndarray, " edges"] | None:
        """Boundaries of the cells of `drawn`; None if its maps are whole."""
        if self.resolution is not None or self.length <= DRAWN_LENGTH:
            return self.edges
        return cell_edges(self.length, DRAWN_CELLS)

    def _may_show_hidden(self, layer: int, quantity: str) -> bool:
        """Whether invisible entries may be numbers: in weights, and in maps that were given."""
        return quantity == "weights" or self._stored(layer, quantity)

    def _stored(self, layer: int, quantity: str) -> bool:
        return f"layer.{layer}.{quantity}" in self.maps

    def _seen(self, layer: int, rows: slice, cols: slice) -> Bool[np.ndarray, "r c"]:
        """Where a query sees a key."""
        if layer in self.factors:
            return self.factors[layer].visible(rows, cols)
        queries, keys = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
        return keys <= queries if self.causal else np.ones((len(queries), len(keys)), dtype=bool)

    def head(
        self, layer: int, quantity: str, head: int, reduction: str = "mean"
    ) -> Float32[np.ndarray, "_ _"]:
        """One head's map, NaN where invisible."""
        require("head", [head], self.heads)
        values: np.ndarray = self.visible(layer, quantity, reduction)[self.heads.index(head)]
        return values

    def pack(self) -> Pack:
        """The factors of all layers, for the viewer."""
        described = {name: getattr(self, name) for name in _DESCRIBED}
        header, arrays = pack_header(described), dict[str, np.ndarray]()
        for layer in self.layers:
            if layer not in self.factors:
                raise InputError(without_factors(self.refused))
            kind, mine = write_layer(self.factors[layer])
            header["factors"].append(kind)
            arrays |= {f"layer.{layer}.{name}": value for name, value in mine.items()}
        return Pack(header, arrays)

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Write the capture to `path`, whole or not at all.

        An existing file is replaced if it is a capture; with `overwrite`, whatever it is.
        """
        path = Path(path)
        if not overwrite:
            check_output(path, CAPTURE, advice="choose a different name, or pass overwrite=True")
        arrays = {"tokens": self.tokens, "positions": self.positions, **self.maps}
        arrays |= {name: value for name in _OPTIONAL if (value := getattr(self, name)) is not None}
        described: dict[str, Any] = {"format": FORMAT, "kind": "capture", "factors": {}}
        described |= {name: getattr(self, name) for name in _DESCRIBED}
        for layer, factors in self.factors.items():
            described["factors"][str(layer)], mine = write_layer(factors)
            arrays |= {f"factors.{layer}.{name}": value for name, value in mine.items()}
        contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        sums = {name: digest(value) for name, value in contiguous.items()}
        text = json.dumps(described, sort_keys=True, allow_nan=False, ensure_ascii=False)
        described = json.loads(utf8(text).decode("utf-8", "replace"))
        described["sha256"] = {DESCRIPTION: digest_of(described), **sums}
        text = json.dumps(described, sort_keys=True, ensure_ascii=False)
        with replacing(path) as part:
            save_file(contiguous, part, metadata={"headscape": text})

    def _map(self, layer: int, quantity: str) -> Float32[np.ndarray, "h t t"]:
        """A map from its factors, kept for the next time."""
        known = self._computed
        if (layer, quantity) not in known:
            known[layer, quantity] = self.factors[layer].whole(quantity)
            while len(known) > 1 and sum(each.nbytes for each in known.values()) > KEPT_BYTES:
                del known[next(iter(known))]
        return known[layer, quantity]


Kind = TypeVar("Kind", bound=CaptureData)
_ARRAYS = ("tokens", "positions", "maps", "factors", "edges", "window", "_computed")
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
            described, sums = describe(path, file.metadata() or {}, _DESCRIBED)
            names = list(file.keys())
            check_names(path, described, names)
            kinds: dict[str, Any] = described.pop("factors")
            maps = [name for name in names if name.startswith("layer.")]
            if layers is not None:
                require("layer", layers, described["layers"])
                maps = [name for name in maps if int(name.split(".")[1]) in layers]
                described["layers"] = tuple(each for each in described["layers"] if each in layers)
            if quantities is not None:
                held = {name.split(".")[2] for name in names if name.startswith("layer.")}
                held |= set(described["shown"] if kinds else ())
                require("quantity", quantities, [name for name in QUANTITIES if name in held])
                maps = [name for name in maps if name.split(".")[2] in quantities]
                described["shown"] = tuple(quantities)
            wanted = [
                each for each in described["layers"] if str(each) in kinds and described["shown"]
            ]
            parts = {each: _named(names, f"factors.{each}.") for each in wanted}

            def read(name: str) -> np.ndarray:
                value: np.ndarray = file.get_tensor(name)
                check_sum(path, name, value, sums)
                return value

            factors = {
                each: layer_from(
                    path, each, described, kinds[str(each)],
                    {short: read(name) for short, name in parts[each].items()},
                )
                for each in wanted
            }  # fmt: skip
            arrays: dict[str, Any] = {
                name: read(name)
                for name in ("tokens", "positions", *(each for each in _OPTIONAL if each in names))
            }
            kept = {name: read(name) for name in maps}
            check_shapes(path, described, arrays | kept)
            return kind(**described, **arrays, maps=kept, factors=factors)
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}.") from error
    except (SafetensorError, TypeError) as error:
        # numpy has no bfloat16 and float8, which safetensors reports as a TypeError.
        raise InputError(
            f"{path} is not a whole safetensors file ({error}); capture it again."
        ) from error


def _named(names: Sequence[str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}


def is_capture(path: Path) -> bool:
    """Whether a file says that it is a capture, of any format."""
    try:
        with safe_open(path, framework="numpy") as file:
            described = json.loads((file.metadata() or {}).get("headscape", "{}"))
    except (SafetensorError, OSError, ValueError, RecursionError):
        return False
    return isinstance(described, dict) and described.get("kind") == "capture"


CAPTURE: Final = FileKind("a capture", is_capture)
"""What may be replaced by a capture."""
