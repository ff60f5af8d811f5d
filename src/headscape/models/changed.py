"""A model whose attention calls are changed before they run, weights untouched.

A change is a function of a layer's number and its `AttentionCall`. It returns the call that runs
instead: other positions, a different rotation, fewer visible keys, a temperature. GPT2 and
published models go through the same function, so one remedy serves both.

Scores at chosen positions (`at`) need the logits of these positions only, so a window of 32,768
tokens does not need 32,768 rows of the output matrix.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscape.call.definition import AttentionCall
from headscape.data.dataset import Dataset
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.errors import InputError
from headscape.kernels import attend
from headscape.models.gpt2_model import GPT2Model
from headscape.models.loaded import BLOCK, LoadedModel, eval_mode, losses_in_blocks
from headscape.models.model import Spec, Watch
from headscape.models.transformers.attention_watch import AttentionWatch
from headscape.models.transformers.observed_call import ObservedCall
from headscape.models.transformers.published_model import PublishedModel

Change = Callable[[int, AttentionCall], AttentionCall]
"""Takes a layer, counted from 0, and its call; returns the call that runs."""
Rows = tuple[Tensor, Callable[[Tensor], Tensor]]
"""What is known of some positions [b n d], and what makes logits of it."""


class ChangedModel(LoadedModel):
    """A model with a change in every layer; without one, the model itself.

    Args:
        base: The model.
        change: What is done to every call; None changes nothing.
        name: What tables call it.
        mark: What the change is, for the fingerprint: equal marks must mean equal changes.
    """

    def __init__(
        self,
        base: GPT2Model | PublishedModel,
        change: Change | None = None,
        *,
        name: str | None = None,
        mark: str = "",
    ) -> None:
        self.base, self.change = base, change
        self._name, self._mark = name or base.spec.name, mark

    @property
    def spec(self) -> Spec:
        """The base's, under this model's name."""
        return replace(self.base.spec, name=self._name)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The base's."""
        return self.base.tokenizer

    @property
    def dataset(self) -> Dataset | None:
        """The base's."""
        return self.base.dataset

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the base's fingerprint and of the change; the base's without a change."""
        if self.change is None:
            return self.base.fingerprint
        return hashlib.sha256(f"{self.base.fingerprint} {self._mark}".encode()).hexdigest()

    @torch.no_grad()
    def observe(self, tokens: Int[Tensor, "b t"], layers: Sequence[int], watch: Watch) -> None:
        """Run tokens and call `watch` with the changed call of each of `layers`."""
        if self.change is None:
            self.base.observe(tokens, layers, watch)
            return
        change, last = self.change, max(layers)

        def seen(layer: int, call: AttentionCall) -> AttentionCall:
            changed = change(layer, call)
            if layer in layers:
                watch(layer, changed)
            return changed

        if isinstance(self.base, GPT2Model):
            gpt2 = self.base.gpt2
            with eval_mode(gpt2):
                gpt2.changed_hidden(tokens.to(gpt2.tokens.weight.device), seen, last)
            return
        try:
            self._published(tokens, seen, None, last)
        except _Seen:
            return

    @torch.inference_mode()
    def losses(self, windows: Int[Tensor, "b t_plus_1"], first: int) -> Float[Tensor, "b scored"]:
        """Nats of predictions first, first + 1 ... of each window, in float64."""
        return self.losses_at(windows, torch.arange(first, windows.shape[1] - 1))

    @torch.inference_mode()
    def losses_at(
        self, windows: Int[Tensor, "b t_plus_1"], at: Int[Tensor, " n"]
    ) -> Float[Tensor, "b n"]:
        """Nats of the predictions after the tokens `at`, in float64."""
        rows, logits = self._rows(windows[:, :-1], at)
        target = windows[:, 1:][:, at].to(rows.device)
        return losses_in_blocks(rows, target, logits).cpu()

    @torch.inference_mode()
    def marked_at(
        self, windows: Int[Tensor, "b t_plus_1"], at: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """Nats of the predictions after the tokens `at`, and whether the likeliest is right."""
        rows, logits = self._rows(windows[:, :-1], at)
        target = windows[:, 1:][:, at].to(rows.device)
        right: list[Tensor] = []

        def kept(block: Tensor) -> Tensor:
            found = logits(block)
            right.append(found.argmax(dim=-1))
            return found

        nats = losses_in_blocks(rows, target, kept).cpu()
        return nats, (torch.cat(right).view(target.shape) == target).cpu()

    @torch.inference_mode()
    def guesses_at(self, tokens: Int[Tensor, "b t"], at: Int[Tensor, " n"]) -> Int[Tensor, "b n"]:
        """The likeliest next token after each of the tokens `at`."""
        rows, logits = self._rows(tokens, at)
        parts = torch.split(rows.flatten(0, 1), BLOCK)
        found = torch.cat([logits(part).argmax(dim=-1) for part in parts])
        return found.view(rows.shape[:2]).cpu()

    def predictions(
        self, tokens: Int[Tensor, "b t"], where: Bool[Tensor, "b t"]
    ) -> Int[Tensor, " n"]:
        """The likeliest next token after each token that `where` selects, in row order."""
        if self.change is None:
            return self.base.predictions(tokens, where)
        at = where.any(dim=0).nonzero()[:, 0].cpu()
        return self.guesses_at(tokens, at)[where[:, at].cpu()]

    def continuation(
        self, tokens: Int[Tensor, "b t"], *, length: int, **sampling: Any
    ) -> Iterator[Int[Tensor, "b 1"]]:
        """New tokens, where nothing is changed; a changed model keeps no cache and is refused."""
        if self.change is not None:
            raise InputError(f"{self._name} can be scored and captured, but it cannot generate.")
        return self.base.continuation(tokens, length=length, **sampling)

    def length_error(self, length: int) -> str | None:
        """The base's."""
        return self.base.length_error(length)

    def cost(self, length: int) -> float:
        """The base's."""
        return self.base.cost(length)

    def _rows(self, tokens: Int[Tensor, "b t"], at: Int[Tensor, " n"]) -> Rows:
        if isinstance(self.base, PublishedModel):
            logits = self._published(tokens, self.change, at)
            return logits, lambda rows: rows
        gpt2 = self.base.gpt2
        tokens = tokens.to(gpt2.tokens.weight.device)
        with eval_mode(gpt2):
            hidden = (
                gpt2.hidden(tokens)
                if self.change is None
                else gpt2.changed_hidden(tokens, self.change)
            )
        return hidden[:, at.to(hidden.device)], gpt2.logits

    def _published(
        self, tokens: Tensor, change: Change | None, at: Tensor | None, last: int | None = None
    ) -> Tensor:
        """Return the logits at `at`; after layer `last`, raise `_Seen` instead."""
        base = self.base
        assert isinstance(base, PublishedModel)
        tokens = tokens.to(base.model.device)
        if change is None:
            return base.logits_at(tokens, at)
        outputs: list[Tensor] = []

        def on_call(layer: int, observed: ObservedCall) -> None:
            assert change is not None
            changed = change(layer, base.call_of(observed, layer))
            if layer == last:
                raise _Seen
            outputs.append(attend.run(changed).to(observed.q.dtype))

        def on_result(_: int, __: Tensor) -> Tensor:
            return outputs.pop()

        modules = base.attention
        with AttentionWatch(base.body, on_call, on_result, modules=modules, replaces=True):
            return base.logits_at(tokens, at)


class _Seen(Exception):  # noqa: N818 - it ends a forward pass, nothing is wrong
    """The last layer asked for was seen."""
