"""One capture: what every head did with one sequence, in one safetensors file.

Tensors, with letters h heads, t queries, s keys (s = t), r cells a side:

    call.{i}.*                           the attention call of layer i, which every map of it is
                                         computed from; `saved_call` has the names
    layer.{i}.{quantity}                 float32 [h t s]   the whole map, of a layer without a call
    layer.{i}.{quantity}.mean|min|max    float32 [h r r]   a long map, reduced while computed
    layer.{i}.{quantity}.exact           float32 [h a b]   one window of a long map, unreduced
    tokens, positions                    int64 [t]
    edges                                int64 [r+1]       cell k covers tokens edges[k]:edges[k+1]
    window                               int64 [4]         query start, stop, key start, stop

Quantities: `content` is the scaled q.k before rotation and bias, `final` the score that goes into
the softmax, `bias` = final - content the effective positional bias, `weights` the softmax. Where a
query does not see a key the value is NaN; weights are 0 there.

A layer keeps its call, and its maps are computed by the definition in float64 when they are asked
for: an added bias is the model's own to the bit, content, final scores and weights are within
float32 rounding of what the model computed. A layer that cannot be saved so keeps whole maps, and
`refused` says why.

The metadata has one key, `headscape`: a JSON object with `format`, `kind`, the fields of
`Capture` that are not arrays, `calls` (what describes each layer's) and `sha256`: that of every
tensor by name, and of all else as `description`. Layers and heads count from 0. Absent on purpose:
the model's weights and anything pickled. Format 4, which is read too, has `factors` in place of
`calls` and other names for the same arrays.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jaxtyping import Bool, Float32, Int64
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from headscape.call.quantities import QUANTITIES
from headscape.captures.choice import (
    about_layer,
    choose_heads,
    choose_layer,
    require,
)
from headscape.captures.file_array import FileArray, OpenFile
from headscape.captures.file_checks import (
    DESCRIPTION,
    FORMAT,
    check_names,
    check_shapes,
    check_sum,
    describe,
    digest,
    digest_of,
)
from headscape.captures.pack import Pack, make_pack, pack_header
from headscape.captures.pooling import CellReducer, cell_edges
from headscape.captures.saved_call import SavedCall, from_factors, read_call, rows_at_once
from headscape.errors import InputError
from headscape.io.files import reason, replacing, reporting, utf8, writable_target
from headscape.io.output_file import FileKind, check_output
from headscape.io.terminal import printable

if TYPE_CHECKING:
    from headscape.measures.measures import Measures
    from headscape.plots.curves import Curves
    from headscape.plots.grid import Grid
    from headscape.plots.overview import Overview
    from headscape.plots.row import Row

KEPT_BYTES: Final = 1 << 29
"""Computed maps that are kept for the next time; the last one always is."""
DRAWN_LENGTH: Final = 4096
"""Tokens up to which figures show every pair."""
DRAWN_CELLS: Final = 2048
"""Cells a side that figures of longer captures show."""
LAZY_BYTES: Final = 1 << 20
"""Arrays of tokens above this size stay in the file that the viewer shows."""
CHECKED_BYTES: Final = 1 << 28
"""Up to this size of a file all arrays that the viewer shows are compared with their checksums; of
longer ones, those that do not stay in the file."""
DTYPES: Final = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Capture:
    """What every captured head did with one sequence, and everything needed to say what it is.

    `content`, `bias`, `final` and `weights` give numpy arrays; `grid`, `curves`, `row` and
    `overview` give figures that show themselves in a notebook and have `.save(path)`.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> cap = model.capture([72, 105, 33])
        >>> [round(float(value), 2) for value in cap.bias(head=0)[2, :2]]
        [-1.26, -0.63]
    """

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
    """Layers captured, counted from 0."""
    heads: tuple[int, ...]
    """Heads captured, counted from 0; the first axis of every map follows this order."""
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
    calls: Mapping[int, SavedCall] = field(default_factory=dict)
    """What maps are computed from, by layer."""
    shown: tuple[str, ...] = QUANTITIES
    """Quantities that are computed from calls."""
    refused: str | None = None
    """Why a layer has no call."""
    edges: Int64[np.ndarray, " edges"] | None = None
    window: Int64[np.ndarray, "4"] | None = None
    _computed: dict[tuple[str, int, tuple[int, ...]], np.ndarray] = field(
        default_factory=dict, init=False, repr=False
    )

    @staticmethod
    def load(
        path: Path | str,
        layers: Sequence[int] | None = None,
        quantities: Sequence[str] | None = None,
    ) -> "Capture":
        """Read a capture file, or only some layers and quantities of it.

        Args:
            path: A file that `save` or `headscape capture` wrote.
            layers: Which layers to read, counted from 0; by default all.
            quantities: Which of content, bias, final and weights to offer; by default all that were
                captured.

        Example:
            >>> import headscape as hs
            >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
            >>> path = model.capture([72, 105, 33]).save("hi.safetensors")
            >>> hs.Capture.load(path, quantities=["bias"])
            <capture of ALiBi, untrained: 3 tokens, layer 1 (from 0), 12 heads; bias>
        """
        return load(Path(path), layers, quantities)

    @staticmethod
    def from_arrays(
        weights: Any = None,
        *,
        q: Any = None,
        k: Any = None,
        bias: Any = None,
        scale: float | None = None,
        tokens: Any = None,
        causal: bool | None = None,
        normalized: bool = True,
        name: str = "own arrays",
    ) -> "Capture":
        """Make a capture of arrays from any tool: attention weights, or q and k and a bias.

        Arrays are numpy's, torch's or anything numpy reads, of shape [heads, queries, keys],
        [layers, heads, queries, keys] or [queries, keys]; or one array per layer, as in
        transformers' `attentions`. They are copied. Of weights alone, only weights can be shown.

        Args:
            weights: Attention weights, after the softmax.
            q: Queries, [heads, queries, dims] or with layers, as attention multiplies them.
            k: Keys; their heads may be fewer, if they divide those of q.
            bias: What is added to the scaled q.k. Without q and k, these are the scores.
            scale: The factor of q.k; by default 1 / sqrt(dims).
            tokens: The tokens' texts, or their numbers. A leading "Ġ" or "▁" becomes a space, and
                "##" joins a token to the one before; words without any white space, such as
                text.split(), get a space between them.
            causal: Whether later keys are hidden; by default, whether every later key has weight
                0 or NaN, or a bias of -inf or NaN. q and k alone are causal.
            normalized: Whether every row of weights must sum to 1, within 1%.
            name: What titles call it.

        Example:
            >>> import numpy as np
            >>> import headscape as hs
            >>> weights = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
            >>> hs.Capture.from_arrays(weights, tokens="the cat sat down".split())
            <capture of own arrays: 4 tokens, layer 0 (from 0), 1 head; weights>
        """
        from headscape.captures.own_arrays import from_arrays

        return from_arrays(
            weights, q=q, k=k, bias=bias, scale=scale, tokens=tokens, causal=causal,
            normalized=normalized, name=name,
        )  # fmt: skip

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
        """The quantities captured, in the order of QUANTITIES."""
        names = {key.split(".")[2] for key in self.maps}
        if self.resolution is None and self.calls:
            names |= set(self.shown)
        return tuple(name for name in QUANTITIES if name in names)

    def content(self, layer: int = -1, head: int | None = None) -> Float32[np.ndarray, "..."]:
        """Scaled q.k before rotation and bias; see `map`.

        Args:
            layer: Counted from 0; -1 is the last captured layer.
            head: Counted from 0; by default all captured heads.
        """
        return self.map("content", layer, head)

    def bias(self, layer: int = -1, head: int | None = None) -> Float32[np.ndarray, "..."]:
        """The effective positional bias, final - content; see `map`.

        Args:
            layer: Counted from 0; -1 is the last captured layer.
            head: Counted from 0; by default all captured heads.
        """
        return self.map("bias", layer, head)

    def final(self, layer: int = -1, head: int | None = None) -> Float32[np.ndarray, "..."]:
        """Scores as the softmax takes them; see `map`.

        Args:
            layer: Counted from 0; -1 is the last captured layer.
            head: Counted from 0; by default all captured heads.
        """
        return self.map("final", layer, head)

    def weights(self, layer: int = -1, head: int | None = None) -> Float32[np.ndarray, "..."]:
        """Attention weights, 0 where a key is masked; see `map`.

        Args:
            layer: Counted from 0; -1 is the last captured layer.
            head: Counted from 0; by default all captured heads.
        """
        return self.map("weights", layer, head)

    def map(
        self,
        quantity: str,
        layer: int = -1,
        head: int | None = None,
        reduction: str = "mean",
        *,
        position: float = 1.0,
    ) -> Float32[np.ndarray, "..."]:
        """One head's map [queries, keys], or all captured heads' [heads, queries, keys].

        Masked entries are NaN, and 0 in weights. The axes of a reduced capture are cells.

        Args:
            quantity: content, bias, final or weights.
            layer: Counted from 0; negative ones count back from the last captured.
            head: Counted from 0; by default all captured heads. Only the head asked for is
                computed.
            reduction: Of a reduced capture: mean, min or max of each cell.
            position: Factor of the positional part, from 0 (off) to 2: score = content + position
                (final - content), and weights are their softmax.
        """
        heads = self.heads if head is None else choose_heads([head], self.heads)
        number = choose_layer(layer, self.layers)
        if position == 1:
            values = self.maps_of(quantity, number, heads, reduction)
        else:
            from headscape.captures.scaled_position import ScaledPosition

            if number not in self.calls:
                raise InputError(_without_calls(self.refused))
            require("quantity", [quantity], self.quantities)
            places = [self.heads.index(each) for each in heads]
            values = ScaledPosition.of(self.calls[number], position).whole(quantity, places)
        return values if head is None else values[0]

    def maps_of(
        self, quantity: str, layer: int, heads: Sequence[int], reduction: str = "mean"
    ) -> Float32[np.ndarray, "n _ _"]:
        """The whole maps, stored or computed, where there are some; otherwise the reduction.

        Args:
            quantity: content, bias, final or weights.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0.
            reduction: Of a reduced capture: mean, min or max of each cell.
        """
        require("layer", [layer], self.layers)
        require("quantity", [quantity], self.quantities)
        require("head", heads, self.heads)
        places, whole = [self.heads.index(head) for head in heads], f"layer.{layer}.{quantity}"
        if whole in self.maps:
            return _picked(self.maps[whole], places)
        if self.resolution is None and layer in self.calls:
            return self._map(quantity, layer, tuple(places))
        reductions = [key.rsplit(".", 1)[1] for key in self.maps if key.startswith(f"{whole}.")]
        require("reduction", [reduction], reductions)
        return _picked(self.maps[f"{whole}.{reduction}"], places)

    def visible(
        self, quantity: str, layer: int, heads: Sequence[int], reduction: str = "mean"
    ) -> Float32[np.ndarray, "n _ _"]:
        """The same values with NaN at every invisible entry, of the weights too.

        Args:
            quantity: content, bias, final or weights.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0.
            reduction: Of a reduced capture: mean, min or max of each cell.
        """
        values = self.maps_of(quantity, layer, heads, reduction)
        if self.resolution is not None or not self._may_show_hidden(quantity, layer):
            return values
        every = slice(0, self.length)
        return np.where(self._seen(layer, every, every), values, np.float32(np.nan))

    def block(
        self, quantity: str, layer: int, heads: Sequence[int], rows: slice, cols: slice
    ) -> Float32[np.ndarray, "n r c"]:
        """Some queries and keys of some heads; NaN where invisible, of the weights too.

        Nothing else of a map that is not stored is computed.

        Args:
            quantity: content, bias, final or weights.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0.
            rows: Which queries.
            cols: Which keys.
        """
        require("head", heads, self.heads)
        places = [self.heads.index(head) for head in heads]
        if self._stored(quantity, layer) or layer not in self.calls:
            values = self.maps_of(quantity, layer, heads)[:, rows, cols]
        else:
            values = self.calls[layer].tile(quantity, places, rows, cols).astype(np.float32)
        if self._may_show_hidden(quantity, layer):
            values = np.where(self._seen(layer, rows, cols), values, np.float32(np.nan))
        return values

    def row_blocks(
        self, quantity: str, layer: int, heads: Sequence[int]
    ) -> Iterator[tuple[slice, Float32[np.ndarray, "n r c"]]]:
        """Yield all rows of some heads, a few at a time, from key 0 on, as `block` gives them.

        Keys that no query of a causal block sees are left out.

        Args:
            quantity: content, bias, final or weights.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0.
        """
        mixed = layer in self.calls and self.calls[layer].mixes_heads
        # Heads that are mixed are computed together, however few are asked for.
        together = len(self.heads) if mixed else len(heads)
        for rows in rows_at_once(together, self.length):
            cols = slice(0, rows.stop if self.causal else self.length)
            yield rows, self.block(quantity, layer, heads, rows, cols)

    def drawn(
        self, quantity: str, layer: int, heads: Sequence[int]
    ) -> Float32[np.ndarray, "n _ _"]:
        """The maps of some heads as figures show them; `drawn_edges` are their cells, if any.

        Of more than DRAWN_LENGTH tokens, the mean of each cell is computed from a few rows at a
        time, so memory does not grow with the square of the length.

        Args:
            quantity: content, bias, final or weights.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0.
        """
        if self.drawn_edges is self.edges:
            return self.visible(quantity, layer, heads)
        edges = cell_edges(self.length, DRAWN_CELLS)
        cells = CellReducer(edges, edges, heads=len(heads), dtype=np.float32)
        for rows, block in self.row_blocks(quantity, layer, heads):
            cells.add(rows, block)
        return cells.result()["mean"].astype(np.float32)

    @property
    def drawn_edges(self) -> Int64[np.ndarray, " edges"] | None:
        """Boundaries of the cells of `drawn`; None if its maps are whole."""
        if self.resolution is not None or self.length <= DRAWN_LENGTH:
            return self.edges
        return cell_edges(self.length, DRAWN_CELLS)

    def _may_show_hidden(self, quantity: str, layer: int) -> bool:
        """Whether invisible entries may be numbers: in weights, and in maps that were given."""
        return quantity == "weights" or self._stored(quantity, layer)

    def _stored(self, quantity: str, layer: int) -> bool:
        return f"layer.{layer}.{quantity}" in self.maps

    def _seen(self, layer: int, rows: slice, cols: slice) -> Bool[np.ndarray, "r c"]:
        """Where a query sees a key."""
        if layer in self.calls:
            return self.calls[layer].visible(rows, cols)
        queries, keys = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
        return keys <= queries if self.causal else np.ones((len(queries), len(keys)), dtype=bool)

    def pack(self) -> Pack:
        """All layers, for the viewer."""
        if any(layer not in self.calls for layer in self.layers):
            raise InputError(_without_calls(self.refused))
        described = {name: getattr(self, name) for name in _DESCRIBED}
        return make_pack({n: self.calls[n] for n in self.layers}, **pack_header(described))

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write the capture to `path`, whole or not at all, and return the path.

        Args:
            path: The file, usually .safetensors.
            overwrite: Replace an existing file whatever it is; without it, only a capture is
                replaced.
        """
        path = Path(path)
        if not overwrite:
            check_output(path, CAPTURE, advice="choose a different name, or pass overwrite=True")
        arrays = {"tokens": self.tokens, "positions": self.positions, **self.maps}
        arrays |= {name: value for name in _OPTIONAL if (value := getattr(self, name)) is not None}
        described: dict[str, Any] = {"format": FORMAT, "kind": "capture", "calls": {}}
        described |= {name: getattr(self, name) for name in _DESCRIBED}
        for layer, call in self.calls.items():
            described["calls"][str(layer)] = call.described
            arrays |= {f"call.{layer}.{name}": value for name, value in call.arrays.items()}
        contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        sums = {name: digest(value) for name, value in contiguous.items()}
        text = json.dumps(described, sort_keys=True, allow_nan=False, ensure_ascii=False)
        described = json.loads(utf8(text).decode("utf-8", "replace"))
        described["sha256"] = {DESCRIPTION: digest_of(described), **sums}
        text = json.dumps(described, sort_keys=True, ensure_ascii=False)
        with replacing(path) as part:
            save_file(contiguous, part, metadata={"headscape": text})
        return path

    def _map(
        self, quantity: str, layer: int, places: tuple[int, ...]
    ) -> Float32[np.ndarray, "n t t"]:
        """Maps computed from a call, kept for the next time."""
        known = self._computed
        for (name, number, heads), maps in known.items():
            if (name, number) == (quantity, layer) and set(places) <= set(heads):
                return _picked(maps, [heads.index(place) for place in places])
        maps = self.calls[layer].whole(quantity, places)
        known[quantity, layer, places] = maps
        while len(known) > 1 and sum(each.nbytes for each in known.values()) > KEPT_BYTES:
            del known[next(iter(known))]
        return maps

    def grid(
        self,
        quantity: str | None = None,
        layer: int = -1,
        *,
        heads: Sequence[int] | None = None,
        columns: int | None = None,
        width: float | None = None,
        shared_scale: bool = False,
        limits: tuple[float, float] | None = None,
        cmap: str | None = None,
        title: str | None = "auto",
        tokens: bool = False,
        ax: Any = None,
    ) -> "Grid":
        """Return a figure of one panel per head of a layer.

        Args:
            quantity: content, bias, final or weights; by default what the layer shows: `bias`, or
                `final` where the encoding adds none.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0, -1 is the last; by default all captured heads.
            columns: Panels in a row; by default an upright page, 3 for 12 heads.
            width: Width of the figure in inches; by default panels have a fixed size.
            shared_scale: One colour range for all panels.
            limits: Lowest and highest value with a colour of its own, for all panels; the colour
                bar has an arrow where values lie beyond.
            cmap: A matplotlib colour map in place of the chosen one.
            title: The line above the panels: "auto", your own, or None for none.
            tokens: Write the tokens at the axes; refused where they are too many to be read.
            ax: Also draw into matplotlib axes of your own, one for each head.
        """
        from headscape.plots.grid import Grid

        figure = Grid.of(
            self, quantity, layer, heads, columns=columns, width=width, shared_scale=shared_scale,
            limits=limits, cmap=cmap, tokens=tokens, **_heading(title),
        )  # fmt: skip
        if ax is not None:
            figure.draw_on(ax)
        return figure

    def curves(
        self,
        quantity: str | None = None,
        layer: int = -1,
        *,
        heads: Sequence[int] | None = None,
        columns: int | None = None,
        width: float | None = None,
        limits: tuple[float, float] | None = None,
        title: str | None = "auto",
        ax: Any = None,
    ) -> "Curves":
        """Return a figure of the quantity against distance; `curve` is the same.

        Args:
            quantity: content, bias, final or weights; by default what the layer shows.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0, -1 is the last; by default all captured heads.
            columns: Plots in a row; by default an upright page, 3 for 12 heads.
            width: Width of the figure in inches; by default plots have a fixed size.
            limits: Range of the axis of values.
            title: The line above the plots: "auto", your own, or None for none.
            ax: Also draw into matplotlib axes of your own: all heads into one, or one each.
        """
        from headscape.plots.curves import Curves

        figure = Curves.of(
            self, quantity, layer, heads, columns=columns, width=width, limits=limits,
            **_heading(title),
        )  # fmt: skip
        if ax is not None:
            figure.draw_on(ax)
        return figure

    curve = curves

    def row(
        self,
        quantity: str | None = None,
        layer: int = -1,
        query: int | None = None,
        *,
        heads: Sequence[int] | None = None,
        width: float | None = None,
        shared_scale: bool = False,
        limits: tuple[float, float] | None = None,
        cmap: str | None = None,
        title: str | None = "auto",
    ) -> "Row":
        """Return a figure of what one query gives to every key, all heads, with the tokens.

        Args:
            quantity: content, bias, final or weights; by default what the layer shows.
            layer: Counted from 0; -1 is the last captured layer.
            query: Counted from 0; by default the last.
            heads: Counted from 0, -1 is the last; by default all captured heads.
            width: Width of the figure in inches.
            shared_scale: One colour range for all heads.
            limits: Lowest and highest value with a colour of its own, for all heads.
            cmap: A matplotlib colour map in place of the chosen one.
            title: The line above: "auto", your own, or None for none.
        """
        from headscape.plots.row import Row

        return Row.of(
            self, quantity, layer, query, heads, width=width, shared_scale=shared_scale,
            limits=limits, cmap=cmap, **_heading(title),
        )  # fmt: skip

    def overview(
        self,
        quantity: str | None = None,
        *,
        heads: Sequence[int] | None = None,
        width: float | None = None,
        shared_scale: bool = False,
        limits: tuple[float, float] | None = None,
        cmap: str | None = None,
        title: str | None = "auto",
    ) -> "Overview":
        """Return a figure of all captured layers and heads as small maps.

        Args:
            quantity: content, bias, final or weights; by default what the layers show.
            heads: Counted from 0, -1 is the last; by default all captured heads.
            width: Width of the figure in inches; by default a sheet about as wide as high.
            shared_scale: One colour range for all panels.
            limits: Lowest and highest value with a colour of its own, for all panels.
            cmap: A matplotlib colour map in place of the chosen one.
            title: The line above: "auto", your own, or None for none.
        """
        from headscape.plots.overview import Overview

        return Overview.of(
            self, quantity, heads, width=width, shared_scale=shared_scale, limits=limits, cmap=cmap,
            **_heading(title),
        )  # fmt: skip

    def measures(self, quantity: str | None = None, **options: Any) -> "Measures":
        """Return the measures of every captured head, such as position share, sink and reach.

        Args:
            quantity: content, bias or final; by default what the encoding is shown as.
            **options: Those of `Measures.of`: layers, context.
        """
        from headscape.measures.measures import Measures

        return Measures.of(self, quantity, **options)

    def over_heads(self, how: str = "mean") -> "Capture":
        """Return the weights of each layer with all captured heads as one: mean or sum."""
        from headscape.captures.summaries import over_heads

        return over_heads(self, how)

    def rollout(self) -> "Capture":
        """Return attention rollout (arXiv:2005.00928) up to each layer, as a capture of weights."""
        from headscape.captures.summaries import rollout

        return rollout(self)

    @staticmethod
    def mean(captures: "Iterable[Capture]") -> "Capture":
        """Return the weights of every head averaged over captures of sequences of one length."""
        from headscape.captures.summaries import over_sequences

        return over_sequences(captures)

    def view(self, **options: Any) -> Any:
        """Show the capture in the viewer: a widget in a notebook, otherwise a server.

        Options are those of `headscape.view`: html, port, open_browser, precision.
        """
        from headscape.viewer.view import view

        return view(self, **options)

    def __repr__(self) -> str:
        from headscape.captures.labels import method

        several = "" if len(self.layers) == 1 else "s"
        layers = f"layer{several} {', '.join(map(str, self.layers))} (from 0)"
        cells = "" if self.resolution is None else f" reduced to {self.resolution} cells"
        return (
            f"<capture of {printable(method(self))}: {self.length} {self.unit}{cells}, "
            f"{layers}, {len(self.heads)} head{'s' * (len(self.heads) > 1)}; "
            f"{', '.join(self.quantities)}>"
        )

    def _repr_html_(self) -> str:
        """The grid of the last captured layer under a line of text."""
        grid = self.grid()._repr_html_() if self.quantities else ""
        return f"<p><code>{escape(repr(self))}</code></p>{grid}"


def _heading(title: str | None) -> dict[str, Any]:
    """Return the heading of a view, unless it is the one that the view makes itself."""
    return {} if title == "auto" else {"heading": title}


def _picked(maps: np.ndarray, places: list[int]) -> np.ndarray:
    return maps if places == list(range(len(maps))) else maps[places]


def _without_calls(refused: object) -> str:
    """Why a capture cannot be viewed, in one sentence."""
    why = f" ({refused})" if refused else ""
    return (
        f"this capture keeps maps instead of calls{why}, so the viewer cannot show it: use "
        f"`headscape draw`."
    )


_ARRAYS = ("tokens", "positions", "maps", "calls", "edges", "window", "_computed")
_OPTIONAL = ("edges", "window")
_DESCRIBED = tuple(each.name for each in fields(Capture) if each.name not in _ARRAYS)


def load(
    path: Path,
    layers: Sequence[int] | None = None,
    quantities: Sequence[str] | None = None,
) -> Capture:
    """Read a capture, or only the layers and quantities asked for, leaving the rest on disk."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: capture a run first, headscape capture {path}.")
    with _reading(path), safe_open(path, framework="numpy") as file:
        described, sums = describe(path, file.metadata() or {}, _DESCRIBED)
        names = list(file.keys())
        check_names(path, described, names)
        stored = _Stored.of(path, described)
        maps = [name for name in names if name.startswith("layer.")]
        if layers is not None:
            require("layer", layers, described["layers"])
            maps = [name for name in maps if int(name.split(".")[1]) in layers]
            described["layers"] = tuple(each for each in described["layers"] if each in layers)
        if quantities is not None:
            stored_maps = {name.split(".")[2] for name in names if name.startswith("layer.")}
            stored_maps |= set(described["shown"] if stored.kinds else ())
            require("quantity", quantities, [name for name in QUANTITIES if name in stored_maps])
            maps = [name for name in maps if name.split(".")[2] in quantities]
            described["shown"] = tuple(quantities)

        def read(name: str) -> np.ndarray:
            value: np.ndarray = file.get_tensor(name)
            check_sum(path, name, value, sums)
            return value

        wanted = [each for each in described["layers"] if str(each) in stored.kinds]
        calls = {
            each: stored.call(
                each, described, {name: read(name) for name in stored.own(each, names)}
            )
            for each in (wanted if described["shown"] else ())
        }
        arrays: dict[str, Any] = {
            name: read(name)
            for name in ("tokens", "positions", *(each for each in _OPTIONAL if each in names))
        }
        kept = {name: read(name) for name in maps}
        check_shapes(path, described, arrays | kept)
        return Capture(**described, **arrays, maps=kept, calls=calls)


def open_pack(path: Path) -> Pack:
    """Open a capture for the viewer; of arrays above LAZY_BYTES only what is asked for is read."""
    path = Path(path)
    with _reading(path):
        # Checks that header and file size agree, so no slice can reach beyond the file.
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
        with path.open("rb") as raw:
            size = int.from_bytes(raw.read(8), "little")
            directory = json.loads(raw.read(size))
        opened = OpenFile(path)
    described, sums = describe(path, metadata, _DESCRIBED)
    stored = _Stored.of(path, described)
    if any(str(layer) not in stored.kinds for layer in described["layers"]):
        raise InputError(f"{path}: {_without_calls(described['refused'])}")
    checked = path.stat().st_size <= CHECKED_BYTES
    calls = {}
    for layer in described["layers"]:
        mine = {}
        for name in stored.own(layer, directory):
            value = _array(opened, name, directory[name], 8 + size)
            if checked or isinstance(value, np.ndarray):
                check_sum(path, name, np.asarray(value), sums)
            mine[name] = value
        calls[layer] = stored.call(layer, described, mine)
    return make_pack(calls, path, **pack_header(described))


def _array(file: OpenFile, name: str, entry: Mapping[str, Any], start: int) -> np.ndarray:
    if entry["dtype"] not in DTYPES:
        raise InputError(f"{file.path} is damaged: {name} has dtype {entry['dtype']}.")
    dtype = np.dtype(DTYPES[entry["dtype"]])
    lazy = FileArray(file, start + entry["data_offsets"][0], dtype, entry["shape"])
    if lazy.nbytes <= LAZY_BYTES or lazy.ndim < 3 or ".turn." in name or ".mix" in name:
        return np.asarray(lazy)
    return lazy  # type: ignore[return-value]


@dataclass(frozen=True)
class _Stored:
    """Where a file has its calls: in the names of its format."""

    path: Path
    kinds: Mapping[str, Any]
    """What describes each layer, by its number."""
    prefix: str

    @classmethod
    def of(cls, path: Path, described: dict[str, Any]) -> "_Stored":
        if "factors" in described:
            return cls(path, described.pop("factors"), "factors")
        return cls(path, described.pop("calls"), "call")

    def own(self, layer: int, names: Iterable[str]) -> list[str]:
        """The names of a layer's arrays."""
        return [name for name in names if name.startswith(f"{self.prefix}.{layer}.")]

    def call(
        self, layer: int, described: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> SavedCall:
        """A layer, checked."""
        short = {name.removeprefix(f"{self.prefix}.{layer}."): x for name, x in arrays.items()}
        kind: Any = self.kinds[str(layer)]
        if self.prefix == "factors":
            kind, short = from_factors(kind, short, causal=described["causal"])
        return read_call(self.path, layer, described, kind, short)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what reading a file raises into one sentence."""
    if not path.is_file():
        raise InputError(f"there is no file {path}: `headscape capture` writes captures.")
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}.") from error
    except (SafetensorError, TypeError, ValueError) as error:
        # numpy has no bfloat16 and float8, which safetensors reports as a TypeError.
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


CAPTURE: Final = FileKind("a capture", is_capture)
"""What may be replaced by a capture."""
ANY_FILE: Final = FileKind("a file", lambda _: True)


def check_target(
    path: Path, advice: str, *, overwrite: bool, reads: Iterable[Path | str] = ()
) -> None:
    """Refuse a folder, a device or pipe, and a file that is not a capture unless `overwrite`.

    `advice` says how to replace the file. A file in `reads` is refused in any case.
    """
    target = writable_target(path)
    with reporting("write", path):
        nearest = next(folder for folder in target.parents if folder.exists())
        if not os.access(nearest, os.W_OK) or not nearest.is_dir():
            raise InputError(f"cannot write {path}: {nearest} is not a folder you may write to.")
    kind = ANY_FILE if overwrite else CAPTURE
    check_output(path, kind, reads=reads, advice=advice)
