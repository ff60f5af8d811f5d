"""Every measure of a head: what it is, where it comes from, how it is printed.

Letters: i query, j key, d = i - j distance, T tokens, S final score (before the softmax), w weight
(after it). Late queries are those of the second half; in a bidirectional model those of the middle
half. Every measure is computed per sequence; tables give its mean and a 95% interval over them.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One measure."""

    label: str
    """Column heading."""
    text: str
    """What it is, in one sentence."""
    reference: str
    """The paper it follows, or `headscape` where it is ours."""
    form: str = ".2f"
    """How a number is printed."""


MEASURES: Final[dict[str, Definition]] = {
    "position_share": Definition(
        label="position share",
        text="Share of the variance of S over visible pairs that the distance d explains.",
        reference="headscape; one-way analysis of variance",
    ),
    "absolute_leak": Definition(
        label="absolute leak",
        text="Share of the variance of S that the position of the query explains beyond d, in 8 "
        "bands of queries, as far as it is the same in every sequence.",
        reference="headscape; one-way analysis of variance",
    ),
    "closed_form_r2": Definition(
        label="closed form R2",
        text="R2 of scale q.R(d).k with the mean q and the mean k, against the kernel.",
        reference="Su et al. 2021, arXiv:2104.09864, section 3.4",
    ),
    "slash_score": Definition(
        label="slash",
        text="Largest mean w at one distance, over late queries and distances that exclude the "
        "first key.",
        reference="Jiang et al. 2024, arXiv:2407.02490",
    ),
    "slash_distance": Definition(
        label="slash distance",
        text="The distance of that mean; 1 is a previous-token head.",
        reference="Olsson et al. 2022, arXiv:2209.11895",
        form=".0f",
    ),
    "sink_score": Definition(
        label="sink",
        text="Mean w of late queries on the first key, and on a learned sink where there is one.",
        reference="Xiao et al. 2023, arXiv:2309.17453",
    ),
    "reach_50": Definition(
        label="reach 50%",
        text="Least distance that contains 50% of a query's w, mean over late queries.",
        reference="headscape",
        form=".1f",
    ),
    "reach_90": Definition(
        label="reach 90%",
        text="Least distance that contains 90% of a query's w, mean over late queries.",
        reference="headscape",
        form=".1f",
    ),
    "reach_50_no_sink": Definition(
        label="reach 50%, no sink",
        text="The same as reach 50% after removing the first key and renormalising.",
        reference="headscape",
        form=".1f",
    ),
    "reach_90_no_sink": Definition(
        label="reach 90%, no sink",
        text="The same as reach 90% after removing the first key and renormalising.",
        reference="headscape",
        form=".1f",
    ),
    "decay": Definition(
        label="decay",
        text="Nats per token by which the kernel falls, a least-squares line over distances from "
        "1 to half the length (bidirectional: a quarter).",
        reference="Press et al. 2021, arXiv:2108.12409: the slope of ALiBi",
        form=".3g",
    ),
    "half_life": Definition(
        label="half-life",
        text="ln 2 / decay: tokens after which exp(kernel) has halved; empty where the interval of "
        "the decay contains 0.",
        reference="Press et al. 2021, arXiv:2108.12409: the slope of ALiBi",
        form=".3g",
    ),
    "entropy": Definition(
        label="entropy",
        text="Entropy of w in nats, mean over late queries.",
        reference="Zhai et al. 2023, arXiv:2303.06296",
    ),
    "entropy_growth": Definition(
        label="entropy growth",
        text="Slope of the entropy against ln(visible keys), over queries: 1 for uniform "
        "attention, 0 for a head that ignores the length.",
        reference="Nakanishi 2025, arXiv:2501.19399",
    ),
    "induction": Definition(
        label="induction",
        text="On a block of n random tokens twice: mean w from the second block to the token after "
        "the same token in the first, at d = n - 1.",
        reference="Olsson et al. 2022, arXiv:2209.11895",
    ),
    "duplicate_token": Definition(
        label="duplicate token",
        text="On the same sequences: mean w to the same token in the first block, at d = n.",
        reference="Wang et al. 2022, arXiv:2211.00593",
    ),
    "retrieval": Definition(
        label="retrieval",
        text="A fact stated once in a text and asked for at its end: mean w from the query that "
        "predicts each answer token to that token in the fact.",
        reference="Wu et al. 2024, arXiv:2404.15574",
    ),
    "low_band": Definition(
        label="low bands",
        text="RoPE: share of mean |q_m| mean |k_m| in pairs m that turn less than once within the "
        "trained length.",
        reference="Barbero et al. 2024, arXiv:2410.06205",
    ),
    "massive_ratio": Definition(
        label="massive values",
        text="RoPE: largest over mean, across head dims, of the norm over tokens, before rotation; "
        "the larger one of queries and keys.",
        reference="Jin et al. 2025, arXiv:2502.01563",
        form=".1f",
    ),
    "effect_removed": Definition(
        label="effect: removed",
        text="Nats per token that the loss changes by when this head's scores lose their "
        "positional part: S becomes the scaled q.k.",
        reference="headscape",
        form="+.4f",
    ),
    "effect_kernel": Definition(
        label="effect: kernel",
        text="Nats per token that the loss changes by when this head's positional part S - q.k "
        "becomes its mean at each distance.",
        reference="headscape",
        form="+.4f",
    ),
    "length_drift": Definition(
        label="length drift",
        text="Largest absolute change of position share, slash or sink between the trained length "
        "and its largest multiple that was measured.",
        reference="headscape",
    ),
}
"""Every measure by name, in the order of the tables."""

DRIFTING: Final = (
    "position_share",
    "slash_score",
    "sink_score",
    "reach_50",
    "reach_90",
    "reach_50_no_sink",
    "reach_90_no_sink",
    "entropy",
)
"""Measures that are also given at multiples of the trained length."""

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
    slash = {1: "previous token", 0: "current token", -1: "next token"}
    found = []
    for kind, (name, threshold, _) in KINDS.items():
        value = row.get(name)
        if value is None or value < threshold:
            continue
        if name == "slash_score" and (at is None or kind != slash.get(round(at), "slash")):
            continue
        found.append(kind)
    return found
