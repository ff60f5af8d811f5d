"""One sequence through one model, as a capture with everything needed to say what it is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

import headscape
from headscape.call.definition import AttentionCall
from headscape.captures.capture import Capture
from headscape.captures.choice import QUANTITIES
from headscape.captures.factors import LayerFactors
from headscape.captures.factors_of import NoFactorsError, factors_of
from headscape.captures.layer_maps import Progress, Request, cells_of, edges, layer_maps
from headscape.captures.sequences import Text, Tokens, choose_tokens
from headscape.captures.sinks import Maps
from headscape.encodings.registry import title
from headscape.errors import InputError
from headscape.io.progress import SlowBar
from headscape.models.model import Model, Spec


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
) -> Capture:
    """Run one sequence through a model and keep what every chosen head does with it.

    The sequence is `text` (or token numbers); without one, `length` tokens of the validation text:
    at a random place given by `seed`, or the beginning of a `document`. Layers and heads count from
    0 and -1 is the last; `"all"` and `"last"` are accepted too. `quantities` is any of content,
    bias, final and weights. What is kept are factors, which any part of any map is computed from
    when it is asked for, and whole maps of layers that have none. With `resolution`, maps are
    reduced to that many cells a side as well; `window` (queries, keys) is then kept exactly
    besides.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> hs.capture(model, [72, 105, 33], layers="all").layers
        (0, 1)
    """
    spec = model.spec
    request = Request(
        layers=tuple(sorted(indices(layers, len(spec.layers), "layer"))),
        heads=indices(heads, spec.heads, "head"),
        quantities=(quantities,) if isinstance(quantities, str) else tuple(quantities),
        resolution=resolution,
        window=window,
    )
    chosen = (
        text
        if isinstance(text, Tokens)
        else choose_tokens(model, text, length=length, seed=seed, document=document)
    )
    model = model.for_length(len(chosen.tokens))
    reason = model.length_error(len(chosen.tokens))
    if reason is not None:
        raise InputError(reason)
    kept = _Kept()
    with SlowBar("capturing", len(chosen.tokens) * len(request.layers)) as bar:

        def watch(layer: int, inputs: AttentionCall) -> None:
            kept.add(layer, inputs, request, bar.advance)

        model.observe(chosen.batch(), request.layers, watch)
    return _described(model, chosen, request, kept)


@dataclass
class _Kept:
    """What is kept of the layers seen so far."""

    maps: Maps = field(default_factory=dict)
    factors: dict[int, LayerFactors] = field(default_factory=dict)
    refused: str | None = None

    def add(self, layer: int, inputs: AttentionCall, request: Request, progress: Progress) -> None:
        """Keep one layer: its factors where it has some, its maps where not or where reduced."""
        whole = request.resolution is None
        try:
            self.factors[layer] = factors_of(
                inputs, request.heads, lse=whole and "weights" in request.quantities
            )
        except NoFactorsError as reason:
            self.refused = self.refused or f"layer {layer + 1}: {reason}"
        if request.quantities and not (whole and layer in self.factors):
            self.maps |= layer_maps(layer, inputs, request, progress)
        else:
            progress(inputs.q.shape[2])


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
    found = []
    for number in numbers:
        if not isinstance(number, int | np.integer) or isinstance(number, bool):
            raise InputError(f"{what} {number!r} is not a whole number.")
        low = -count if first == 0 else first
        if not low <= number < first + count:
            raise InputError(
                f"there is no {what} {number}: the model has {what}s {first} to "
                f"{first + count - 1}."
            )
        found.append(int(number - first) % count)
    return tuple(dict.fromkeys(found))


def _schedule(spec: Spec, layers: Sequence[int]) -> dict[str, dict[str, object]]:
    """Return title, shows and claims of some layers by number, for a model whose layers differ."""
    found: dict[str, dict[str, object]] = {}
    for number in layers:
        layer = spec.layers[number]
        known = layer.encoding != "unknown"
        found[str(number)] = {
            "title": title(layer.encoding) if known else "not recognised",
            "shows": layer.shows,
            "claims": dict(layer.claims),
        }
    return found


def _described(model: Model, chosen: Tokens, request: Request, kept: _Kept) -> Capture:
    spec, length = model.spec, len(chosen.tokens)
    decode: Callable[[np.ndarray], str] | None = None
    if model.tokenizer is not None:
        decode = model.tokenizer.decode
    pieces = [] if decode is None else [decode(chosen.tokens[i : i + 1]) for i in range(length)]
    bounds = None
    if request.window is not None:
        ends = [edge for part in request.window for edge in (part.start, part.stop)]
        bounds = np.array(ends, dtype=np.int64)
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
        resolution=cells_of(length, request),
        causal=spec.causal,
        sequence={**chosen.source, "pieces": pieces},
        provenance={"headscape": headscape.__version__, **spec.provenance},
        trained=spec.trained,
        tokens=chosen.tokens,
        positions=np.arange(length, dtype=np.int64),
        maps=kept.maps,
        factors=kept.factors,
        shown=request.quantities,
        refused=kept.refused,
        edges=edges(length, request),
        window=bounds,
    )
