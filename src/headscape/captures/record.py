"""One sequence through one model, as a capture with everything needed to say what it is.

A layer whose call cannot be saved keeps its maps whole. Maps that are reduced to a grid of cells
are reduced while they are computed, with one exact window beside the cells: by a kernel if one
reduces scores (kernels/native/score_cells.py), by the dense definition otherwise, a block of
queries at a time, in memory of order block x length.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

import headscape
from headscape.call.definition import AttentionCall, row_of, scores
from headscape.call.quantities import QUANTITIES
from headscape.captures.call_blocks import CannotSaveError, save_call
from headscape.captures.capture_file import Capture
from headscape.captures.pooling import CellReducer, cell_edges
from headscape.captures.saved_call import SavedCall
from headscape.captures.sequences import Text, Tokens, choose_tokens, continued, split_batch
from headscape.encodings.registry import title
from headscape.errors import InputError, at_least
from headscape.io.terminal import SlowBar
from headscape.kernels import attend
from headscape.models.model import Model, Spec

BLOCK_ENTRIES = 1 << 20
"""Query-key pairs per head in memory at once."""
Maps = dict[str, Float32[np.ndarray, "h _ _"]]
Progress = Callable[[int], None]
"""Called with the number of queries just done."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to keep of a forward pass."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    quantities: tuple[str, ...] = QUANTITIES
    resolution: int | None = None
    """Cells a side to reduce to; None keeps whole maps."""
    window: tuple[slice, slice] | None = None
    """Queries and keys to keep exactly, besides a reduced map."""

    def __post_init__(self) -> None:
        for name in self.quantities:
            if name not in QUANTITIES:
                raise InputError(f"unknown quantity {name!r}: choose from {', '.join(QUANTITIES)}.")
        at_least(1, resolution=self.resolution)
        if self.window is not None and self.resolution is None:
            raise InputError("window keeps part of a reduced map exactly: give a resolution too.")

    def edges(self, length: int) -> Int64[np.ndarray, " edges"] | None:
        """Where the cells of a reduced map begin and end; there are never more than tokens."""
        return None if self.resolution is None else cell_edges(length, min(self.resolution, length))

    def exact(self, length: int) -> tuple[slice, slice] | None:
        """Queries and keys that are kept unreduced: all, the window, or none."""
        if self.resolution is None:
            return slice(0, length), slice(0, length)
        for part in self.window or ():
            if not 0 <= part.start < part.stop <= length:
                raise InputError(
                    f"window {part.start}:{part.stop} is outside the sequence of length {length}."
                )
        return self.window


def capture(
    model: Model,
    text: Text | Tokens | None = None,
    *,
    length: int | None = None,
    seed: int = 0,
    document: int | None = None,
    layers: int | str | Sequence[int] = "last",
    heads: int | str | Sequence[int] = "all",
    quantities: Sequence[str] = QUANTITIES,
    resolution: int | None = None,
    window: tuple[slice, slice] | None = None,
    generate: int | None = None,
    positions: Sequence[Any] | np.ndarray | Tensor | None = None,
) -> Capture:
    """Run one sequence through a model and keep what every chosen head does with it.

    What is kept are the layers' calls, from which any part of any map is computed when it is asked
    for, and whole maps of a layer whose call cannot be saved.

    Args:
        model: What `load` returns.
        text: A text, token numbers [n] or [1, n], what a tokenizer returned, or the messages of a
            chat (each with role and content), which the model's chat template writes out. By
            default a part of the validation text.
        length: Tokens to read: by default the whole text, or of the validation text the trained
            length.
        seed: Of the random place in the validation text.
        document: Begin with this document of the validation text instead of at a random place.
        layers: Counted from 0, -1 is the last; "all" and "last" too.
        heads: Counted from 0, or "all".
        quantities: Any of content, bias, final and weights.
        resolution: Also reduce maps to this many cells a side.
        window: A part (queries, keys) that is kept exactly where maps are reduced.
        generate: First continue the sequence by up to this many tokens, the likeliest each time;
            prompt and continuation are captured as one.
        positions: Position ids for a transformers model where they do not count 0, 1, 2 ...: [t],
            or for M-RoPE three or four per token, [3, t]. The capture keeps them.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> hs.capture(model, [72, 105, 33], layers="all").layers
        (0, 1)
    """
    if not hasattr(model, "spec"):
        raise InputError(
            f"capture runs a model, got {type(model).__name__}: hs.Capture.from_arrays takes "
            f"arrays, hs.load opens a model."
        )
    request = make_request(model, layers, heads, quantities, resolution, window)
    chosen = (
        text
        if isinstance(text, Tokens)
        else choose_tokens(model, text, length=length, seed=seed, document=document)
    )
    if generate is not None and positions is not None:
        raise InputError("positions are those of a whole text: leave positions or generate out.")
    if generate is not None:
        chosen = continued(model, chosen, generate)
    at = None if positions is None else _position_ids(model, positions, len(chosen.tokens))
    return _captured(model, [chosen], request, at)[0]


def _position_ids(
    model: Model, given: Sequence[Any] | np.ndarray | Tensor, length: int
) -> Int64[np.ndarray, "s t"]:
    """Return a user's position ids with one row per section; M-RoPE has several."""
    if "positions" not in inspect.signature(model.observe).parameters:
        raise InputError(
            f"{model.spec.name} counts its positions 0, 1, 2 ... itself: leave positions out."
        )
    try:
        found = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except ValueError as error:
        raise InputError("positions must be rows of whole numbers of the same length.") from error
    if found.ndim == 3 and found.shape[1] == 1:
        found = found[:, 0]
    rows = np.atleast_2d(found)
    whole = rows.dtype.kind in "iu"
    if not whole or rows.ndim != 2 or rows.shape[1] != length or (rows < 0).any():
        raise InputError(
            f"positions must be whole numbers from 0, [{length}] or for M-RoPE [3, {length}], got "
            f"shape {list(found.shape)} of {found.dtype}."
        )
    reason = model.length_error(int(rows.max()) + 1)
    if reason is not None:
        raise InputError(reason)
    return rows.astype(np.int64)


def captures(
    model: Model,
    batch: Sequence[Text] | np.ndarray | Tensor | Mapping[str, Any],
    *,
    length: int | None = None,
    layers: int | str | Sequence[int] = "last",
    heads: int | str | Sequence[int] = "all",
    quantities: Sequence[str] = QUANTITIES,
    resolution: int | None = None,
    window: tuple[slice, slice] | None = None,
    generate: int | None = None,
) -> list[Capture]:
    """Return the capture of every sequence of a batch; sequences of one length share a pass.

    `batch` is several texts, chats or token lists, token numbers [b, n], or what a tokenizer
    returned for several texts, whose padding is left out. The options are those of `capture`.
    """
    request = make_request(model, layers, heads, quantities, resolution, window)
    chosen = [choose_tokens(model, each, length=length) for each in split_batch(batch)]
    if generate is not None:
        chosen = [continued(model, each, generate) for each in chosen]
    by_place: dict[int, Capture] = {}
    lengths = dict.fromkeys(len(each.tokens) for each in chosen)
    for count in lengths:
        group = [at for at, each in enumerate(chosen) if len(each.tokens) == count]
        made = _captured(model, [chosen[at] for at in group], request)
        by_place |= dict(zip(group, made, strict=True))
    return [by_place[at] for at in range(len(chosen))]


def make_request(
    model: Model,
    layers: int | str | Sequence[int],
    heads: int | str | Sequence[int],
    quantities: Sequence[str],
    resolution: int | None,
    window: tuple[slice, slice] | None,
) -> Request:
    """Return what to keep of a model's pass, with layers and heads as indices."""
    spec = model.spec
    return Request(
        layers=_layer_numbers(spec, layers),
        heads=indices(heads, spec.heads, "head"),
        quantities=(quantities,) if isinstance(quantities, str) else tuple(quantities),
        resolution=resolution,
        window=window,
    )


def _captured(
    model: Model,
    group: Sequence[Tokens],
    request: Request,
    at: Int64[np.ndarray, "s t"] | None = None,
) -> list[Capture]:
    """Return the captures of sequences of the same length, from one pass.

    `at` is position ids, one row per section of M-RoPE.
    """
    length = len(group[0].tokens)
    model = model.for_length(length)
    reason = model.length_error(length)
    if reason is not None:
        raise InputError(reason)
    kept = [Kept() for _ in group]
    with SlowBar("capturing", length * len(request.layers) * len(group)) as bar:

        def watch(layer: int, inputs: AttentionCall) -> None:
            for number, one in enumerate(kept):
                row = inputs if len(kept) == 1 else row_of(inputs, number)
                one.add(layer, row, request, bar.advance)

        given: dict[str, Any] = {}
        if at is not None:
            ids = torch.from_numpy(at)
            given["positions"] = ids if len(ids) == 1 else ids[:, None]
        batch = torch.cat([each.batch() for each in group])
        model.observe(batch, request.layers, watch, **given)
    return [described(model, each, request, one, at) for each, one in zip(group, kept, strict=True)]


@dataclass
class Kept:
    """What is kept of the layers seen so far."""

    maps: Maps = field(default_factory=dict)
    calls: dict[int, SavedCall] = field(default_factory=dict)
    refused: str | None = None

    def add(self, layer: int, inputs: AttentionCall, request: Request, progress: Progress) -> None:
        """Keep one layer: its call where that can be saved, its maps where not or where reduced."""
        whole = request.resolution is None
        try:
            self.calls[layer] = save_call(
                inputs, request.heads, lse=whole and "weights" in request.quantities
            )
        except CannotSaveError as reason:
            self.refused = self.refused or f"layer {layer} (counted from 0): {reason}"
        if request.quantities and not (whole and layer in self.calls):
            self.maps |= layer_maps(layer, inputs, request, progress)
        else:
            progress(inputs.q.shape[2])


def layer_maps(layer: int, inputs: AttentionCall, request: Request, progress: Progress) -> Maps:
    """The maps asked for of one layer, by their name in a capture; `progress` counts queries."""
    length, heads = inputs.k.shape[2], list(request.heads)
    cells, exact, rows = request.edges(length), request.exact(length), slice(0, length)
    maps: Maps = {}
    reducers: dict[str, CellReducer] = {}
    kernel = None if cells is None else attend.cells_backend(inputs)
    if cells is not None and kernel is not None:
        # A kernel takes all heads at once.
        reduced = kernel.reduce_scores(inputs, cells)
        for name in request.quantities:
            maps |= {f"{name}.{how}": values[heads] for how, values in reduced[name].items()}
        rows = slice(0, 0) if exact is None else exact[0]
        progress(length - (rows.stop - rows.start))
    elif cells is not None:
        for name in request.quantities:
            reducers[name] = CellReducer(cells, cells, heads=len(heads), dtype=np.float32)
    queries, keys = exact or (slice(0, 0), slice(0, 0))
    end = "" if cells is None else ".exact"
    if exact is not None:
        size = (len(heads), queries.stop - queries.start, keys.stop - keys.start)
        maps |= {name + end: np.empty(size, dtype=np.float32) for name in request.quantities}
    for part, name, values, hidden in _blocks(inputs, rows, request, progress):
        if name in reducers:
            reducers[name].add(part, np.where(hidden, np.float32(np.nan), values))
        first, last = max(part.start, queries.start), min(part.stop, queries.stop)
        if first < last:
            own = np.s_[first - part.start : last - part.start, keys]
            shown = np.where(hidden[own], 0.0 if name == "weights" else np.nan, values[:, *own])
            maps[name + end][:, first - queries.start : last - queries.start] = shown
    for name, reducer in reducers.items():
        maps |= {f"{name}.{how}": x.astype(np.float32) for how, x in reducer.result().items()}
    return {f"layer.{layer}.{name}": values for name, values in maps.items()}


def _blocks(
    inputs: AttentionCall, rows: slice, request: Request, progress: Progress
) -> Iterator[tuple[slice, str, np.ndarray, np.ndarray]]:
    """Some queries, a quantity, its values [h r s] by the dense definition, and what is hidden."""
    length = inputs.k.shape[2]
    block = max(1, min(length, BLOCK_ENTRIES // length))
    for start in range(rows.start, rows.stop, block):
        part = slice(start, min(rows.stop, start + block))
        some = scores(inputs, part)
        hidden = ~some.visible[0, 0].cpu().numpy()
        for name in request.quantities:
            values = getattr(some, name)[0, list(request.heads)].float().cpu().numpy()
            yield part, name, values, hidden
        progress(part.stop - part.start)


def indices(
    asked: int | str | Iterable[int], count: int, what: str, *, first: int = 0
) -> tuple[int, ...]:
    """Layers or heads by number, as indices from 0: `all`, `last`, one number or several.

    `first` is the number of the first one: 0 in Python, 1 on the command line. Negative numbers
    count from the end where counting starts at 0.
    """
    if isinstance(asked, str):
        if asked not in {"all", "last"}:
            raise InputError(f"{what}s {asked!r}: give 'all', 'last' or numbers.")
        return tuple(range(count)) if asked == "all" else (count - 1,)
    numbers = [asked] if isinstance(asked, int) else list(asked)
    if not numbers:
        raise InputError(f"no {what} is chosen: give at least one.")
    places = []
    for number in numbers:
        if not isinstance(number, int | np.integer) or isinstance(number, bool):
            raise InputError(f"{what} {number!r} is not a whole number.")
        low = -count if first == 0 else first
        if not low <= number < first + count:
            raise InputError(
                f"there is no {what} {number}: the model has {what}s {first} to "
                f"{first + count - 1}."
            )
        places.append(int(number - first) % count)
    return tuple(dict.fromkeys(places))


def _layer_numbers(spec: Spec, layers: int | str | Sequence[int]) -> tuple[int, ...]:
    """Return layers in order; a refusal says which blocks of a model are no layers of attention."""
    try:
        return tuple(sorted(indices(layers, len(spec.layers), "layer")))
    except InputError as error:
        others = spec.provenance.get("other_layers")
        if others is None:
            raise
        raise InputError(f"{str(error).rstrip('.')}: {others}.") from None


def _schedule(spec: Spec, layers: Sequence[int]) -> dict[str, dict[str, object]]:
    """Return title, shows and claims of some layers by number, for a model whose layers differ."""
    described: dict[str, dict[str, object]] = {}
    for number in layers:
        layer = spec.layers[number]
        known = layer.encoding != "unknown"
        described[str(number)] = {
            "title": title(layer.encoding) if known else "not recognised",
            "shows": layer.shows,
            "claims": dict(layer.claims),
        }
    return described


def described(
    model: Model,
    chosen: Tokens,
    request: Request,
    kept: Kept,
    at: Int64[np.ndarray, "s t"] | None = None,
) -> Capture:
    """Return the capture of what was kept of a sequence; `at` is its position ids if given."""
    spec, length = model.spec, len(chosen.tokens)
    at = np.arange(length, dtype=np.int64)[None] if at is None else at
    # A file has one position per token; those of M-RoPE stand beside the source.
    sections = {} if len(at) == 1 else {"position_ids": at.tolist()}
    pieces, window, edges = list[str](), None, request.edges(length)
    if model.tokenizer is not None:
        pieces = [model.tokenizer.decode(chosen.tokens[i : i + 1]) for i in range(length)]
    if request.window is not None:
        ends = [edge for part in request.window for edge in (part.start, part.stop)]
        window = np.array(ends, dtype=np.int64)
    return Capture(
        encoding=spec.encoding,
        conventions=spec.conventions_of(request.layers),
        claims=spec.claims_of(request.layers),
        model={
            "name": spec.name,
            "shows": spec.shows,
            "preset": spec.preset,
            "layers": len(spec.layers),
            "heads": spec.heads,
            "width": spec.width,
            "train_length": spec.train_length,
            **({"schedule": _schedule(spec, request.layers)} if spec.layers_differ else {}),
        },
        layers=request.layers,
        heads=request.heads,
        length=length,
        resolution=None if edges is None else len(edges) - 1,
        causal=spec.causal,
        sequence={**chosen.source, **sections, "pieces": pieces},
        provenance={"headscape": headscape.__version__, **spec.provenance},
        trained=spec.trained,
        tokens=chosen.tokens,
        positions=at[0],
        maps=kept.maps,
        calls=kept.calls,
        shown=request.quantities,
        refused=kept.refused,
        edges=edges,
        window=window,
    )
