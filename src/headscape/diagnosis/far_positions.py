"""What far positions alone do to a loss, in short windows: a remedy is tried without a long pass.

A window of T = min(512, L) tokens is read with its second half some positions later (`Far`): its
queries meet the distances of a long text, and no more keys than before. A pass costs T tokens,
where the whole text costs N. Scored is the last quarter, once at its own positions (near) and once
far: its tokens have at least T / 4 tokens before them that are not far. The number of keys, the
other thing that a long text changes, is not in these numbers.

Every window has a gap of its own (`gaps`), since pairs that turn come round again: at one distance
a remedy may bring all of the loss back by chance, and none of it at the next. The gaps are the same
for every remedy. They are spread evenly, as the positions are that a whole window is scored at, but
without a common step, since a pair that turns once in that step would have one angle in every
window. The interval is over windows that differ in text and in gap.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float64, Int64

from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions
from headscape.diagnosis.changes import Gap, Rotations
from headscape.diagnosis.loss_by_position import losses_at
from headscape.models.changed import Change, ChangedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.model import Spec
from headscape.models.transformers.published_model import PublishedModel

TOKENS: Final = 512
WINDOWS: Final = 6
"""Windows of TOKENS tokens; of shorter ones as many more as have the same number of tokens."""
GOLDEN: Final = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Far:
    """A change of calls whose second half stands far behind the first."""

    gap: Gap
    change: Change | None = None

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call at far positions, changed."""
        at = call.positions
        q, k = (x + self.gap.by * (x >= self.gap.after) for x in (at.q, at.k))
        far = replace(self.gap(layer, call), positions=Positions(q, k))
        return far if self.change is None else self.change(layer, far)


def far(spec: Spec, tokens: int, by: int, change: Change | None = None) -> Far:
    """Return the change that puts the second half of `tokens` tokens `by` positions later."""
    return Far(Gap(Rotations(spec), tokens // 2, by), change)


def gaps(trained: int, length: int, tokens: int, count: int) -> tuple[int, ...]:
    """Return how much later the second half of each of `count` windows stands, farthest first.

    They go from the gap at which every query of the last quarter is at least L away from the first
    half to the gap at which the window ends with N positions. A single window gets the farthest
    gap. Those between are multiples of the golden ratio modulo 1, which are spread evenly for any
    count.

    Args:
        trained: L.
        length: N.
        tokens: Length of a window.
        count: Number of windows.
    """
    most = length - tokens
    least = min(max(1, trained - tokens // 4), most)
    between = [(number * GOLDEN) % 1 for number in range(count - 1)]
    return tuple(round(least + (most - least) * at) for at in sorted([*between, 1.0], reverse=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class FarPlan:
    """Which windows are read with a gap."""

    trained: int
    length: int
    windows: Int64[np.ndarray, "n t_plus_1"]
    gaps: tuple[int, ...]
    """How much later the second half of each window stands."""
    short: int
    """Length of the windows on which a remedy's cost is measured."""

    def model(
        self, base: GPT2Model | PublishedModel, change: Change | None, mark: str, number: int
    ) -> ChangedModel:
        """Return the model at the far positions of one window, with a remedy's change."""
        by = self.gaps[number]
        moved = far(base.spec, self.windows.shape[1] - 1, by, change)
        return ChangedModel(base, moved, name=base.spec.name, mark=f"far {by} {mark}")

    def losses(self, model: ChangedModel, number: int) -> list[float]:
        """Return one window's losses in its last quarter."""
        window = torch.from_numpy(self.windows[number])[None]
        length = window.shape[1] - 1
        at = torch.arange(3 * length // 4, length)
        return losses_at(model, window, at)


@dataclass(frozen=True, kw_only=True, eq=False)
class FarTable:
    """The losses of one model or remedy at far positions; what advice.py reads of a LossTable."""

    plan: FarPlan
    far: Float64[np.ndarray, "n scored"]
    near: Float64[np.ndarray, "n scored"]
    """Of the unchanged model without the gap."""
    short: Float64[np.ndarray, "m some"]
    """At short lengths without a gap."""

    def excess(self) -> Float64[np.ndarray, "n scored"]:
        """Return the loss minus that of the unchanged model without the gap, of each token."""
        more: np.ndarray = self.far - self.near
        return more

    def past(self) -> Float64[np.ndarray, " n"]:
        """Return the mean loss at far positions, by window."""
        means: np.ndarray = self.far.mean(axis=1)
        return means

    def bands(self) -> list[dict[str, Any]]:
        """Return []: no long window was read."""
        return []

    def holds_to(self) -> None:
        """Return None: no long window was read."""
