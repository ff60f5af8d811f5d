"""What to do: the ranking of remedies in one sentence.

Remedies are ranked by their mean loss past the trained length. Those that hide most of a long text
(window with sinks, chunks) cannot retrieve from it, however low their loss, and are named apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headscape.diagnosis.far_positions import FarTable
from headscape.diagnosis.loss_by_position import THRESHOLD, LossTable, numbers
from headscape.diagnosis.remedies import Remedy
from headscape.diagnosis.retrieval import Answers
from headscape.measures.interval import FEWEST, estimate


@dataclass(frozen=True, kw_only=True, eq=False)
class Tried:
    """A remedy with its losses and answers."""

    remedy: Remedy
    losses: LossTable | FarTable
    answers: Answers

    def row(self, own: LossTable | FarTable) -> dict[str, Any]:
        """Return its numbers beside those of the unchanged model `own`: mean, low, high."""
        return {
            "name": self.remedy.name,
            "title": self.remedy.title,
            "text": self.remedy.text,
            "forgets": self.remedy.forgets,
            "is_setting": self.remedy.rope is not None,
            "loss": numbers(estimate(self.losses.past())),
            "gain": numbers(estimate(own.past() - self.losses.past())),
            "excess": _excess(self.losses),
            "cost": numbers(estimate((self.losses.short - own.short).mean(axis=1))),
            "holds_to": self.losses.holds_to(),
            "bands": self.losses.bands(),
            "retrieval": self.answers,
        }


def ranked(tried: Sequence[Tried]) -> list[Tried]:
    """Return the remedies from the lowest mean loss past the trained length."""
    return sorted(tried, key=lambda each: float(each.losses.past().mean()))


def helps(gain: Sequence[float | None]) -> bool:
    """Return whether a gain is shown: its interval is above 0; without one, above THRESHOLD."""
    mean, low, _ = gain
    assert mean is not None
    return low > 0 if low is not None else mean > THRESHOLD


def not_worse(best: Tried, others: Sequence[Tried]) -> list[Tried]:
    """Return the remedies whose loss minus the best one's is not above 0 by its interval."""
    return [
        other for other in others if not estimate(other.losses.past() - best.losses.past())[1] > 0
    ]


def sentence(
    own: LossTable, tried: Sequence[Tried], unchanged: LossTable | FarTable | None = None
) -> str:
    """Return the ranking with its uncertainty.

    Args:
        own: The unchanged model's losses by position, which say whether it holds.
        tried: The remedies.
        unchanged: What the remedies are compared with, where that is not `own`.
    """
    plan = own.plan
    base = own if unchanged is None else unchanged
    count = len(base.past())
    worse = (
        f"past {plan.trained:,} tokens the loss is {shown(_excess(own), sign=True)} nats above "
        f"that of the same tokens with a short context"
    )
    before = ""
    if own.is_unsure:
        before = (
            f"The model is not shown to break up to {plan.length:,} tokens, nor to hold: {worse}. "
        )
    elif own.holds_to() >= plan.length:
        return (
            f"The model holds up to {plan.length:,} tokens: {worse}, and no band of positions is "
            f"shown to be more than {THRESHOLD} nats above. Nothing needs to be mended."
            f"{_sure(len(own.past()))}"
        )
    if is_too_small(own, base):
        before += (
            f"Far positions alone do not explain the excess: they raise the loss by "
            f"{shown(_excess(base))} of {shown(_excess(own))} nats, less than half. Run a "
            f"diagnosis that is not quick, which tries remedies in whole windows. "
        )
    sure = _sure(count)
    keeping = ranked([each for each in tried if not each.remedy.forgets])
    helping = [each for each in keeping if helps(each.row(base)["gain"])]
    if not helping:
        where = "" if isinstance(base, LossTable) else " at far positions"
        none = "that keeps the whole text in view is shown to lower the loss"
        return f"{before}No remedy {none}{where}.{sure}{_apart(tried)}"
    best = helping[0]
    row = best.row(base)
    where = f"past {plan.trained:,} tokens" if isinstance(base, LossTable) else "at far positions"
    mended = (
        "which mends it"
        if (row["excess"][0] or 0) <= THRESHOLD
        else f"which still leaves {row['excess'][0]:.2f} nats of excess"
    )
    others = [each for each in keeping if each is not best]
    rest = ""
    if count >= FEWEST and others:
        same = not_worse(best, others)
        names = ", ".join(each.remedy.title for each in same)
        rest = (
            f"; these are not shown to be worse: {names}"
            if same
            else "; every other one that keeps the text in view is worse beyond its interval"
        )
    return (
        f"{before}{_begin(best.remedy.title)} is best: its loss {where} is "
        f"{shown(row['gain'])} nats lower than the unchanged model's, {mended}, and costs "
        f"{shown(row['cost'], sign=True)} nats at {plan.short:,} tokens{rest}.{sure}{_apart(tried)}"
    )


def is_too_small(own: LossTable, base: LossTable | FarTable) -> bool:
    """Return whether far positions alone raise the loss by less than half of the excess."""
    if isinstance(base, LossTable):
        return False
    return bool(base.excess().mean() < 0.5 * own.excess().mean())


def _excess(table: LossTable | FarTable) -> list[float | None]:
    return numbers(estimate(table.excess().mean(axis=1)))


def _sure(count: int) -> str:
    if count >= FEWEST:
        return ""
    windows = "1 window is" if count == 1 else f"{count} windows are"
    return f" There is no interval: {windows} fewer than {FEWEST}."


def _begin(title: str) -> str:
    """Return a title at the beginning of a sentence."""
    return title[:1].upper() + title[1:]


def _apart(tried: Sequence[Tried]) -> str:
    forgetting = ranked([each for each in tried if each.remedy.forgets])
    if not forgetting:
        return ""
    first = forgetting[0]
    return (
        f" {_begin(first.remedy.title)}, which hides most of the text, "
        f"has a loss of {first.losses.past().mean():.2f}."
    )


def shown(value: Sequence[float | None], *, sign: bool = False) -> str:
    """Return mean and interval as text."""
    form = "+.3f" if sign else ".3f"
    mean, low, high = value
    if mean is None:
        return "-"
    if low is None or high is None:
        return format(mean, form)
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def best_of(
    own: LossTable,
    tried: Sequence[Tried],
    unchanged: LossTable | FarTable | None = None,
    *,
    setting: bool = False,
) -> Tried | None:
    """Return the remedy that the sentence names; None if nothing needs one or none helps.

    Args:
        own: The unchanged model's losses by position.
        tried: The remedies.
        unchanged: What the remedies are compared with, where that is not `own`.
        setting: Whether to take the best of those only that a config of transformers can have.
    """
    if own.holds_to() >= own.plan.length and not own.is_unsure:
        return None
    base = own if unchanged is None else unchanged
    keeping = ranked([each for each in tried if not each.remedy.forgets])
    some = [each for each in keeping if each.remedy.rope is not None or not setting]
    return next((each for each in some if helps(each.row(base)["gain"])), None)
