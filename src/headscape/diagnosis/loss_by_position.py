"""Where a model breaks: its loss by position, against the same tokens with a short context.

Windows have the target length N. Each scored token of a position p >= L (L the trained length) is
scored twice: in its window, with p tokens before it, and with the last L/2 to L - 1 of them only.
The difference is the excess: what the long context costs this token. Up to L it is 0 by definition.
A length holds if no band of positions before it breaks. A band breaks if its mean excess is above
THRESHOLD and shown to be above 0: by Student's test over windows or, with fewer than 6, over its
scored tokens. All positions past L together are one more band, for a small excess everywhere; if it
alone breaks, L is the last length that holds.

The 5% of false alarms are split: ALARMS = 2.5% for all positions past L together, and 2.5% for the
k bands, so that each band has 2.5% / k (Bonferroni). This split was chosen after a diagnosis called
a model sound whose excess past L was 0.117 [0.053, 0.197] nats: until then all positions together
were one of k + 1 bands and had 2.5% / (k + 1), the strictest test where most is known.

Every remedy scores the same tokens of the same windows. Intervals in tables are over windows, of
one number each, by the bootstrap (measures/interval.py). Whether a length holds is not decided by
them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from headscape.errors import InputError
from headscape.measures.interval import FEWEST, estimate, student
from headscape.models.changed import ChangedModel
from headscape.models.model import Model

THRESHOLD: Final = 0.1
"""Nats per token; a smaller mean excess counts as holding."""
ALARMS: Final = 0.025
"""Chance of a false alarm in all positions past L together, and the same in all bands together."""
BANDS: Final = 16
SCORED: Final = 128
"""Most scored positions of a band, evenly spaced."""
SHORT: Final = 2048
"""Length at which a remedy's cost is measured, if the trained length is not shorter."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LossPlan:
    """Which tokens are scored."""

    trained: int
    length: int
    windows: Int64[np.ndarray, "n length_plus_1"]
    first: int | None = None
    """Token that every window and every short context begins with; None leaves their own."""

    @property
    def edges(self) -> list[int]:
        """First positions of the bands, and the length."""
        return [self.length * band // BANDS for band in range(BANDS + 1)]

    @property
    def at(self) -> Int64[np.ndarray, " scored"]:
        """Scored positions, rising."""
        parts = []
        for low, high in zip(self.edges, self.edges[1:], strict=False):
            count = min(SCORED, high - low)
            parts.append(low + np.arange(count) * (high - low) // max(1, count))
        return np.concatenate(parts).astype(np.int64)

    @property
    def past(self) -> np.ndarray:
        """Which scored positions are past the trained length."""
        beyond: np.ndarray = self.at >= self.trained
        return beyond

    @property
    def short(self) -> int:
        """Length of the windows on which a remedy's cost is measured."""
        return min(SHORT, self.trained)

    def short_contexts(self) -> Iterator[tuple[int, Int64[np.ndarray, " some"]]]:
        """Yield starts of windows of L tokens and the scored positions in their second half."""
        half = self.trained // 2
        for start in range(self.trained - half, self.length, half):
            inside = self.at[(self.at >= start + half) & (self.at < start + 2 * half)]
            if len(inside):
                yield start, inside

    def cost(self, model: Model) -> float:
        """Return the work of `window_losses`, in the model's own unit."""
        return model.cost(self.length) + model.cost(self.short)

    def short_contexts_cost(self, model: Model) -> float:
        """Return the work of `short_context_losses`."""
        return len(list(self.short_contexts())) * model.cost(self.trained)


class NotFiniteError(InputError):
    """A loss is infinite or not a number."""


def losses_at(
    model: ChangedModel, window: Int64[Tensor, "1 t_plus_1"], at: Int64[Tensor, " n"]
) -> list[float]:
    """Return one window's losses at some positions; raise NotFiniteError if one is not finite."""
    losses = model.losses_at(window, at)[0]
    wrong = at[~losses.isfinite().to(at.device)]
    if len(wrong):
        raise NotFiniteError(
            f"the loss of {model.spec.name} at position {int(wrong[0]):,} of "
            f"{window.shape[1] - 1:,} is not finite: load it in float32 or bfloat16, or choose a "
            f"shorter length."
        )
    found: list[float] = losses.tolist()
    return found


def window_losses(model: ChangedModel, plan: LossPlan, number: int) -> dict[str, list[float]]:
    """Return one window's losses at `plan.at`, and those of the window's beginning alone."""
    window = torch.from_numpy(plan.windows[number])[None]
    long = losses_at(model, window, torch.from_numpy(plan.at))
    return {"long": long, "short": short_losses(model, plan, number)}


def short_losses(model: ChangedModel, plan: LossPlan, number: int) -> list[float]:
    """Return the losses of the beginning of a window alone, up to the trained length."""
    window = torch.from_numpy(plan.windows[number])[None, : plan.short + 1]
    return losses_at(model, window, torch.arange(0, plan.short, max(1, plan.short // 256)))


def short_context_losses(
    model: ChangedModel, plan: LossPlan, number: int
) -> dict[str, list[float]]:
    """Return one window's losses past the trained length with a short context."""
    window = torch.from_numpy(plan.windows[number])[None]
    losses: list[float] = []
    for start, positions in plan.short_contexts():
        part = window[:, start : start + plan.trained + 1].clone()
        if plan.first is not None:
            part[:, 0] = plan.first
        losses += losses_at(model, part, torch.from_numpy(positions - start))
    return {"control": losses}


@dataclass(frozen=True, kw_only=True, eq=False)
class LossTable:
    """The losses of one model or remedy in every window."""

    plan: LossPlan
    long: Float64[np.ndarray, "n scored"]
    short: Float64[np.ndarray, "n some"]
    control: Float64[np.ndarray, "n past"]
    """With a short context, past the trained length."""

    @classmethod
    def of(
        cls, plan: LossPlan, entries: Sequence[dict[str, Any]], control: Sequence[dict[str, Any]]
    ) -> "LossTable":
        """Return the table of what `window_losses` and `short_context_losses` returned."""
        long, short = (np.array([entry[name] for entry in entries]) for name in ("long", "short"))
        return cls(
            plan=plan,
            long=long,
            short=short,
            control=np.array([entry["control"] for entry in control]),
        )

    def excess(self) -> Float64[np.ndarray, "n past"]:
        """Return the loss minus that with a short context, of each scored token past L."""
        beyond: np.ndarray = self.long[:, self.plan.past] - self.control
        return beyond

    def past(self) -> Float64[np.ndarray, " n"]:
        """Return the mean loss past the trained length, by window."""
        means: np.ndarray = self.long[:, self.plan.past].mean(axis=1)
        return means

    def bands(self) -> list[dict[str, Any]]:
        """Return every band with its loss and excess: mean, low, high."""
        rows = []
        at, past = self.plan.at, self.plan.at[self.plan.past]
        for low, high in zip(self.plan.edges, self.plan.edges[1:], strict=False):
            inside, beyond = (at >= low) & (at < high), (past >= low) & (past < high)
            row: dict[str, Any] = {"from": low, "to": high, "excess": None, "breaks": False}
            row["loss"] = numbers(estimate(self.long[:, inside].mean(axis=1)))
            if beyond.any():
                excess = self.excess()[:, beyond]
                row["excess"] = numbers(estimate(excess.mean(axis=1)))
                row["breaks"] = breaks(excess, self._tested)
            rows.append(row)
        return rows

    def holds_to(self) -> int:
        """Return the last length that holds."""
        last = 0
        for band in self.bands():
            if band["breaks"]:
                return max(last, self.plan.trained)
            last = int(band["to"])
        return self.plan.trained if breaks(self.excess()) else self.plan.length

    @property
    def is_unsure(self) -> bool:
        """Whether the mean excess is above THRESHOLD and yet no break is shown."""
        above = bool(self.excess().mean() > THRESHOLD)
        return above and self.holds_to() >= self.plan.length

    @property
    def _tested(self) -> int:
        """How many bands are tested together."""
        return sum(high > self.plan.trained for high in self.plan.edges[1:])


def breaks(excess: Float64[np.ndarray, "n some"], tested: int = 1) -> bool:
    """Return whether a band's mean excess is above THRESHOLD and shown to be above 0.

    Args:
        excess: Of each window and token of the band.
        tested: How many bands are tested together; each has ALARMS / tested.
    """
    means = excess.mean(axis=1)
    values = means if len(means) >= FEWEST else excess.ravel()
    if len(values) < 2:
        return False
    sure = student(1 - ALARMS / tested, len(values) - 1)
    low = values.mean() - sure * values.std(ddof=1) / np.sqrt(len(values))
    return bool(means.mean() > THRESHOLD and low > 0)


def numbers(estimated: Float64[np.ndarray, " 3"]) -> list[float | None]:
    """Return mean, low and high for JSON; None where there is no interval."""
    return [None if np.isnan(value) else float(value) for value in estimated]


Windows = tuple[Int64[np.ndarray, "n length_plus_1"], Int64[np.ndarray, " length_plus_1"]]
"""Windows for scores, and one for a search."""


def windows_of(
    texts: Sequence[Int64[np.ndarray, " n"]], length: int, count: int, name: str
) -> Windows:
    """Return at most `count` windows for scores, spread over all texts, and one for a search.

    They do not overlap. Texts with room for one window alone have it for both, and with less they
    are refused.
    """
    width = length + 1
    places = [(tokens, at) for tokens in texts for at in range(0, len(tokens) - width + 1, width)]
    if not places:
        has = f"has {len(texts[0]):,} tokens" if len(texts) == 1 else (
            f"have at most {max(map(len, texts)):,} tokens each"
        )  # fmt: skip
        raise InputError(
            f"{name} {has}, fewer than a window of {width:,} needs: give a "
            f"longer text or a shorter length."
        )
    scored = min(count, max(1, len(places) - 1))
    chosen = [places[number * (len(places) - 1) // scored] for number in range(scored)]
    windows = [tokens[at : at + width] for tokens, at in [*chosen, places[-1]]]
    return np.stack(windows[:-1]), windows[-1]
