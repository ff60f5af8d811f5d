"""A progress bar that advances with every layer of every forward pass of a model.

One pass over a long text takes minutes, so its layers are counted: a hook on each block adds the
layer's share of the pass, by `cost` of the tokens that it reads. Where stderr is no terminal, a
slow stage prints lines instead: its time so far and the time left.
"""

import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final

from torch import Tensor, nn

from headscape.io.terminal import SlowBar, say
from headscape.models.gpt2_model import GPT2Model
from headscape.models.transformers.published_model import PublishedModel

LINE_SECONDS: Final = 20.0
"""Time between two lines of a stage where stderr is no terminal; shorter stages print none."""


class PassBar:
    """A bar over batches of known work, in the unit of the model's `cost`."""

    def __init__(
        self, base: GPT2Model | PublishedModel, title: str, works: Iterable[float]
    ) -> None:
        self._base = base
        self._ends: list[int] = []
        """The work that is done when each batch is."""
        total = 0.0
        for work in works:
            total += work
            self._ends.append(round(total))
        self._bar = SlowBar(title, round(total))
        self._title, self._total = title, round(total)
        self._started = self._last_line = time.monotonic()
        self._done, self._batches = 0, 0
        self._stack = ExitStack()

    def __enter__(self) -> "PassBar":
        self._stack.enter_context(self._bar)
        for block in blocks(self._base):
            self._stack.callback(block.register_forward_hook(self._layer, with_kwargs=True).remove)
        return self

    def finished(self) -> None:
        """Count a batch as done, whether it was computed or read from the disk."""
        self._reach(self._ends[self._batches])
        self._batches += 1

    def _layer(self, _: nn.Module, args: Any, kwargs: Any, __: Any) -> None:
        if self._batches == len(self._ends):
            return
        x = args[0] if args else kwargs.get("hidden_states")
        if isinstance(x, Tensor) and x.dim() > 1:
            share = self._base.cost(x.shape[1]) * len(x) / len(self._base.spec.layers)
            self._reach(min(self._done + round(share), self._ends[self._batches]))

    def _reach(self, done: int) -> None:
        self._bar.advance(done - self._done)
        self._done = done
        now = time.monotonic()
        if now - self._last_line >= LINE_SECONDS and done and not sys.stderr.isatty():
            self._last_line, so_far = now, now - self._started
            left = so_far * (self._total - done) / done
            say(f"{self._title}: {so_far:.0f} s so far, about {left:.0f} s left", err=True)

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def blocks(base: GPT2Model | PublishedModel) -> list[nn.Module]:
    """Return one module per layer that every pass calls with the layer's input; [] if unknown."""
    if isinstance(base, GPT2Model):
        # A changed pass calls a block's parts, not the block.
        return [block.norm1 for block in base.gpt2.blocks]  # type: ignore[misc]
    lists = (each for each in base.body.modules() if isinstance(each, nn.ModuleList))
    return next((list(each) for each in lists if len(each) == len(base.spec.layers)), [])
