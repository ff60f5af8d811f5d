"""Every measure of a head: what it is, where it comes from, how it is computed and printed.

Letters in formulas: i query, j key, d = i - j distance, T tokens, S score (before the softmax),
w weight (after it). The texts use words instead. Queries of the second half are those of the middle
half in a bidirectional model.

A measure is one record. Its `compute` reads a layer's sums (sums.py) and returns a value per
sequence and head; tables give the mean and a 95% interval over sequences. Being registered puts it
into the measures of captures and models: rows, CSV, JSON, data frames, tables, the atlas and the
viewer. Measures with runs of their own have no `compute`: see probes.py, effects.py, context.py and
`length_drift` in measure_model.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jaxtyping import Float

from headscape.errors import InputError
from headscape.measures.interval import estimate, largest

if TYPE_CHECKING:
    from torch import Tensor

    from headscape.measures.sums import LayerSums, QueryRows


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure."""

    name: str
    """Key of rows, CSV and JSON."""
    label: str
    """Column heading."""
    text: str
    """What it is, in one sentence."""
    reference: str = "headscape"
    """The paper it follows, or `headscape` where it is ours."""
    form: str = ".2f"
    """How a number is printed."""
    compute: "Callable[[LayerSums], Tensor | None] | None" = None
    """Returns [b h], or what `estimate` takes, from a layer's sums; None where it cannot apply."""
    reads: str = "scores"
    """The part of the sums that it reads; without that part it is not computed."""
    estimate: "Callable[[np.ndarray, QueryRows], np.ndarray]" = lambda values, _: estimate(values)
    """Returns mean, low and high [3 layers h] from the values of all sequences [b layers h ...]."""
    main: bool = False
    """Whether tables for reading show it; CSV, JSON and data frames have all."""
    drifts: bool = False
    """Whether it is also measured at multiples of the trained length."""
    numbers_heads: bool = False
    """Whether it is the number of a head, which counts from 0 or from 1 as the heads do."""

    def measured_on(self, quantity: str) -> "Measure":
        """Return the measure with label and text that name the quantity it was computed from.

        quantity  `final`, or what a capture has measured in place of the scores
        """
        if quantity == "final" or self.compute is None or self.reads not in {"scores", "products"}:
            return self
        word, words = _IN_PLACE_OF_SCORES[quantity]
        text = self.text.replace("the scores", words)
        return replace(self, label=f"{self.label} ({word})", text=text)


_IN_PLACE_OF_SCORES: Final = {
    "bias": ("position only", "the positional part of the scores"),
    "content": ("content only", "the content part of the scores"),
    "weights": ("weights", "the weights"),
}


def _position_share(layer: "LayerSums") -> "Tensor":
    within, between = layer.scores.within(), layer.scores.between()
    # A map that is the same everywhere has nothing to explain: 0 / 0, which is not measured.
    return (between / (between + within)).where((within > 0) | (between == 0), 1.0)


def _absolute_leak(layer: "LayerSums") -> "Tensor | None":
    """Return sum over bands b and d of n_bd dev_bd dev'_bd / sum (S_ij - mean S)^2.

    dev_bd is the mean of S in band b at distance d minus kappa(d), and dev' is the mean of dev over
    the other sequences: the product leaves only what sequences have in common.
    """
    scores = layer.scores
    batch = scores.band.shape[1]
    if batch < 2:
        return None
    seen = scores.count[:, None, None]
    dev = (scores.band / seen.clamp(min=1) - scores.kernel().nan_to_num(0.0)).where(seen > 0, 0.0)
    others = (dev.sum(dim=1, keepdim=True) - dev) / (batch - 1)
    total = scores.within() + scores.between()
    return ((seen * dev * others).sum(dim=(0, 3)) / total.where(total > 0, 1.0)).clamp(min=0.0)


def _closed_form_r2(layer: "LayerSums") -> "Tensor | None":
    """Return 1 - squares left / squares about the mean, every visible pair counting once."""
    from headscape.measures.rotation import closed_form

    fit = None if layer.call is None else closed_form(layer.call)
    if fit is None:
        return None
    count, kernel = layer.scores.pairs, layer.scores.kernel()
    kernel, fit, n = kernel[..., count > 0], fit[..., count > 0], count[count > 0]
    mean = (n * kernel).sum(dim=-1, keepdim=True) / n.sum()
    return 1 - (n * (kernel - fit) ** 2).sum(dim=-1) / (n * (kernel - mean) ** 2).sum(dim=-1)


def _low_band(layer: "LayerSums") -> "Tensor | None":
    from headscape.measures.rotation import band_use, wavelengths

    assert layer.call is not None
    bands, tokens_per_turn = band_use(layer.call), wavelengths(layer.call)
    if bands is None or tokens_per_turn is None:
        return None
    return bands[..., tokens_per_turn > (layer.context or layer.rows.length)].sum(dim=-1)


def _massive_ratio(layer: "LayerSums") -> "Tensor | None":
    from headscape.measures.rotation import norm_ratio

    assert layer.call is not None
    return norm_ratio(layer.call)


def _decay(layer: "LayerSums") -> "Tensor | None":
    """Return minus the slope of a line through the kernel, each pair counting once."""
    scores, pairs = layer.scores, layer.scores.pairs
    seen = (pairs > 0).tolist()
    used = [d for d in layer.rows.slashes if d != 0 and seen[d + scores.zero]]
    if len(used) < 2:
        return None
    at = [d + scores.zero for d in used]
    n, y = pairs[at], scores.kernel()[..., at]
    x = n.new_tensor([abs(d) for d in used])
    x = x - (n * x).sum() / n.sum()
    return -(n * x * y).sum(dim=-1) / (n * x * x).sum()


def _half_life(values: Float[np.ndarray, "b layers h"], _: "QueryRows") -> np.ndarray:
    """Return ln 2 / decay; a faster decay is a shorter half-life, so low and high change places."""
    decay = estimate(values)
    falls = np.nan_to_num(np.fmin.reduce(decay, axis=0)) > 0
    mean, low, high = np.where(falls, np.log(2) / np.where(falls, decay, 1.0), np.nan)
    return np.stack([mean, high, low])


def _entropy_growth(layer: "LayerSums") -> Any:
    """Return the slope of a least-squares line; NaN where all queries see as many keys."""
    n, x, xx, y, xy = layer.weights.line
    spread = n * xx - x * x
    return ((n * xy - x * y) / spread.clamp(min=1e-9)).where(spread > 1e-9, np.nan)


def _at_largest(slash: Float[np.ndarray, "b layers h n"], _: "QueryRows") -> np.ndarray:
    """Return the weight at the distance where its mean over sequences is largest."""
    place = slash.mean(axis=0).argmax(axis=-1)
    return estimate(np.take_along_axis(slash, place[None, ..., None], 3)[..., 0])


MEASURES: Final[dict[str, Measure]] = {}
"""Every measure by name, in the order of the tables."""


def register_measure(new: Measure) -> Measure:
    """Add a measure; a name that is taken is refused.

    new  the measure; without `compute`, something else has to compute it

    Example:
        >>> from headscape.measures import MEASURES, Measure, register_measure
        >>> own_token = Measure(
        ...     name="own_token",
        ...     label="own token",
        ...     text="Mean w of late queries on their own token.",
        ...     reads="weights",
        ...     compute=lambda layer: layer.weights.at_distance(0),
        ... )
        >>> register_measure(own_token).name in MEASURES
        True
        >>> MEASURES.pop("own_token").label
        'own token'
    """
    if new.name in MEASURES:
        raise InputError(f"a measure named {new.name} is already defined: choose a different name.")
    MEASURES[new.name] = new
    return new


for _measure in (
    Measure(
        name="context_dependence",
        label="context dependence",
        text="How much of the variation of the head's maps over several sequences the input "
        "explains beyond the positions, as a share: 0 if every input has the same map.",
        form=".3g",
        main=True,
    ),
    Measure(
        name="position_share",
        label="position share",
        text="Share of the variation of the scores that the distance explains; 1 is all of it.",
        reference="headscape; one-way analysis of variance",
        form=".4g",
        compute=_position_share,
        main=True,
        drifts=True,
    ),
    Measure(
        name="absolute_leak",
        label="absolute leak",
        text="How much of the variation of the scores the position of the query explains beyond "
        "the distance, in 8 bands of queries, as far as it is the same in every sequence.",
        reference="headscape; one-way analysis of variance",
        compute=_absolute_leak,
    ),
    Measure(
        name="closed_form_r2",
        label="closed form R2",
        text="How well the curve that the rotation makes of the mean query and the mean key "
        "follows the mean score at each distance: R2, where 1 is a perfect fit.",
        reference="Su et al. 2021, arXiv:2104.09864, section 3.4",
        compute=_closed_form_r2,
    ),
    Measure(
        name="slash_score",
        label="slash",
        text="Largest mean attention weight at one distance, over queries of the second half; "
        "distances that include the first token are left out.",
        reference="Jiang et al. 2024, arXiv:2407.02490",
        compute=lambda layer: layer.weights.slash(),
        reads="weights",
        estimate=_at_largest,
        main=True,
        drifts=True,
    ),
    Measure(
        name="slash_distance",
        label="slash distance",
        text="Distance in tokens at which the slash is; 1 is a previous-token head.",
        reference="Olsson et al. 2022, arXiv:2209.11895",
        form=".0f",
        compute=lambda layer: layer.weights.slash(),
        reads="weights",
        estimate=lambda slash, rows: largest(slash) + rows.slashes.start,
        main=True,
    ),
    Measure(
        name="sink_score",
        label="sink",
        text="Mean attention weight of queries of the second half on the first token, and on a "
        "learned sink where there is one.",
        reference="Xiao et al. 2023, arXiv:2309.17453",
        compute=lambda layer: layer.weights.first / layer.weights.queries,
        reads="weights",
        main=True,
        drifts=True,
    ),
    Measure(
        name="reach_50",
        label="reach 50%",
        text="Least distance within which a query puts 50% of its attention, mean over "
        "queries of the second half.",
        form=".1f",
        compute=lambda layer: layer.weights.mean_reach(0.5, sink=True),
        reads="weights",
        drifts=True,
    ),
    Measure(
        name="reach_90",
        label="reach 90%",
        text="Least distance within which a query puts 90% of its attention, mean over "
        "queries of the second half.",
        form=".1f",
        compute=lambda layer: layer.weights.mean_reach(0.9, sink=True),
        reads="weights",
        drifts=True,
    ),
    Measure(
        name="reach_50_no_sink",
        label="reach 50%, no sink",
        text="The same as reach 50%, without the attention on the first token.",
        form=".1f",
        compute=lambda layer: layer.weights.mean_reach(0.5, sink=False),
        reads="weights",
        drifts=True,
    ),
    Measure(
        name="reach_90_no_sink",
        label="reach 90%, no sink",
        text="The same as reach 90%, without the attention on the first token.",
        form=".1f",
        compute=lambda layer: layer.weights.mean_reach(0.9, sink=False),
        reads="weights",
        main=True,
        drifts=True,
    ),
    Measure(
        name="reach_median",
        label="reach median",
        text="Distance in tokens (frames for sound) within which a query puts 90% of its "
        "attention, median over all queries of one sequence.",
        form=".0f",
        compute=lambda layer: layer.reach.nanquantile(0.5, dim=1)[None],
        reads="reach",
        main=True,
    ),
    Measure(
        name="reach_mean",
        label="reach mean",
        text="Distance within which a query puts 90% of its attention, mean over all queries of "
        "one sequence.",
        form=".1f",
        compute=lambda layer: layer.reach.nanmean(dim=1)[None],
        reads="reach",
        main=True,
    ),
    Measure(
        name="decay",
        label="decay",
        text="How fast the scores fall with the distance, in nats per token: a least-squares line "
        "over distances from 1 to half the length (bidirectional: a quarter).",
        reference="Press et al. 2021, arXiv:2108.12409: the slope of ALiBi",
        form=".3g",
        compute=_decay,
    ),
    Measure(
        name="half_life",
        label="half-life",
        text="Tokens after which the exponential of the scores has halved on average: ln 2 / "
        "decay; empty where the interval of the decay contains 0.",
        reference="Press et al. 2021, arXiv:2108.12409: the slope of ALiBi",
        form=".3g",
        compute=_decay,
        estimate=_half_life,
        main=True,
    ),
    Measure(
        name="entropy",
        label="entropy",
        text="How evenly a query spreads its attention: the entropy of its weights in nats, mean "
        "over queries of the second half; 0 if all attention is on one token.",
        reference="Zhai et al. 2023, arXiv:2303.06296",
        compute=lambda layer: layer.weights.entropy / layer.weights.queries,
        reads="weights",
        main=True,
        drifts=True,
    ),
    Measure(
        name="entropy_growth",
        label="entropy growth",
        text="Slope of the entropy against ln(visible keys), over queries: 1 for uniform "
        "attention, 0 for a head that ignores the length.",
        reference="Nakanishi 2025, arXiv:2501.19399",
        compute=_entropy_growth,
        reads="weights",
    ),
    Measure(
        name="most_similar_head",
        label="most similar head",
        text="The other head of the layer that the scores correlate with most; none for a constant "
        "map, such as a bias of 0.",
        form=".0f",
        compute=lambda layer: layer.most_similar()[0],
        reads="products",
        main=True,
        numbers_heads=True,
    ),
    Measure(
        name="similarity",
        label="similarity",
        text="Pearson correlation of the scores with those of the most similar head of the layer, "
        "from -1 to 1.",
        compute=lambda layer: layer.most_similar()[1],
        reads="products",
        main=True,
    ),
    Measure(
        name="induction",
        label="induction",
        text="On a block of random tokens that is repeated: mean attention weight from the "
        "second block to the token after the same token in the first.",
        reference="Olsson et al. 2022, arXiv:2209.11895",
        main=True,
    ),
    Measure(
        name="duplicate_token",
        label="duplicate token",
        text="On the same sequences: mean attention weight to the same token in the first block.",
        reference="Wang et al. 2022, arXiv:2211.00593",
    ),
    Measure(
        name="retrieval",
        label="retrieval",
        text="A fact stated once in a text and asked for at its end: mean attention weight from "
        "the query that predicts each answer token to that token in the fact.",
        reference="Wu et al. 2024, arXiv:2404.15574",
        main=True,
    ),
    Measure(
        name="low_band",
        label="low bands",
        text="RoPE: how much of the product of mean query and key norms is in pairs of dims that "
        "turn less than once within the trained length, as a share.",
        reference="Barbero et al. 2024, arXiv:2410.06205",
        compute=_low_band,
        reads="call",
    ),
    Measure(
        name="massive_ratio",
        label="massive values",
        text="RoPE: largest over mean, across head dims, of the norm over tokens, before rotation; "
        "the larger one of queries and keys.",
        reference="Jin et al. 2025, arXiv:2502.01563",
        form=".1f",
        compute=_massive_ratio,
        reads="call",
    ),
    Measure(
        name="effect_removed",
        label="effect: removed",
        text="Nats per token that the loss changes by when this head's scores lose their "
        "positional part and only the scaled product q.k remains.",
        form="+.4f",
        main=True,
    ),
    Measure(
        name="effect_kernel",
        label="effect: kernel",
        text="Nats per token that the loss changes by when this head's positional part becomes "
        "its mean at each distance.",
        form="+.4f",
    ),
    Measure(
        name="length_drift",
        label="length drift",
        text="Largest absolute change of position share, slash or sink between the trained length "
        "and its largest multiple that was measured.",
        main=True,
    ),
):
    register_measure(_measure)


def computed(layer: "LayerSums") -> dict[str, Float[np.ndarray, "b h ..."]]:
    """Return the measures that a layer's sums have, for each sequence."""
    values = {
        each.name: each.compute(layer)
        for each in MEASURES.values()
        if each.compute is not None and getattr(layer, each.reads) is not None
    }
    return {
        name: value.detach().double().cpu().numpy()
        for name, value in values.items()
        if value is not None
    }


def estimates(
    layers: list[dict[str, Float[np.ndarray, "b h ..."]]], rows: "QueryRows"
) -> dict[str, Float[np.ndarray, "3 layers h"]]:
    """Return mean, low and high of what at least one layer has, NaN for the other layers.

    layers  what `computed` returned for each layer
    rows    the queries of the sequences
    """
    values = {}
    for name, each in MEASURES.items():
        some = next((layer[name] for layer in layers if name in layer), None)
        if some is not None:
            missing = np.full_like(some, np.nan)
            stacked = np.stack([layer.get(name, missing) for layer in layers], axis=1)
            values[name] = each.estimate(stacked, rows)
    return values


KINDS: Final[dict[str, tuple[str, float, str]]] = {
    "previous token": ("slash_score", 0.5, "slash of at least 0.5 at distance 1"),
    "current token": ("slash_score", 0.5, "slash of at least 0.5 at distance 0"),
    "next token": ("slash_score", 0.5, "slash of at least 0.5 at distance -1"),
    "slash": ("slash_score", 0.5, "slash of at least 0.5 at a different distance"),
    "sink": ("sink_score", 0.5, "sink of at least 0.5"),
    "induction": ("induction", 0.3, "induction of at least 0.3"),
    "duplicate token": ("duplicate_token", 0.3, "duplicate token of at least 0.3"),
    "retrieval": ("retrieval", 0.1, "retrieval of at least 0.1"),
}
"""Names for heads with a large measure: the measure, the threshold, and the rule in words."""


def kinds_of(row: dict[str, float | None]) -> list[str]:
    """Return the names that a head's measures earn it."""
    at = row.get("slash_distance")
    slash = None if at is None else _SLASHES.get(round(at), "slash")
    return [
        kind
        for kind, (name, threshold, _) in KINDS.items()
        if (row.get(name) or 0.0) >= threshold and (name != "slash_score" or kind == slash)
    ]


_SLASHES: Final = {1: "previous token", 0: "current token", -1: "next token"}
