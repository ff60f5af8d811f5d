"""Captures of forward passes that other people's code makes, the cache's steps included.

A pass that continues from a cache computes queries, keys and values of its new tokens only. Causal
attention never looks ahead, so these are what a pass over the whole sequence would compute. A watch
therefore collects them step by step, and a sequence becomes one capture when the next one begins or
the watch closes. At every step the keys that the cache returns are compared with those that were
seen: beams that were reordered and caches that are quantised or longer than the text are refused.

Padding before or after the text of a row (a 2-D attention_mask) is cut off: the row's capture is
that of its tokens alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from headscape.call.definition import AttentionCall, row_of
from headscape.call.positions import Positions, Visible
from headscape.call.quantities import QUANTITIES
from headscape.captures.capture_file import Capture
from headscape.captures.record import Kept, Request, described, make_request
from headscape.captures.sequences import Tokens
from headscape.errors import InputError
from headscape.models.load import load
from headscape.models.transformers.attention_watch import AttentionWatch, arguments
from headscape.models.transformers.families import family_of
from headscape.models.transformers.layer_reading import UNKNOWN
from headscape.models.transformers.observed_call import ObservedCall, rotation_agrees
from headscape.models.transformers.published_model import PublishedModel, body_of


class Watched(Sequence[Capture]):
    """The captures of a watch, one per sequence, in the order in which they began."""

    def __init__(self) -> None:
        self._captures: list[Capture] = []

    @overload
    def __getitem__(self, at: int) -> Capture: ...
    @overload
    def __getitem__(self, at: slice) -> list[Capture]: ...
    def __getitem__(self, at: int | slice) -> Capture | list[Capture]:
        """Return a capture by its number, or several."""
        if not self._captures:
            raise InputError("nothing was captured: no forward pass ended inside of the watch.")
        return self._captures[at]

    def __len__(self) -> int:
        """Return the number of captures."""
        return len(self._captures)

    def __repr__(self) -> str:
        return f"<watched: {len(self)} sequence{'' if len(self) == 1 else 's'}>"


@contextmanager
def watch(
    model: Any,
    *,
    layers: int | str | Sequence[int] = "last",
    heads: int | str | Sequence[int] = "all",
    quantities: Sequence[str] = QUANTITIES,
    tokenizer: object = None,
) -> Iterator[Watched]:
    """Capture what a model's attention does while other code runs it, as it happens.

    Every sequence that the model reads inside of the context becomes a capture when the context
    closes: a forward pass, or a prompt with all steps that follow it from the cache. Padding that
    the attention_mask states is left out. Only queries, keys and values of the chosen layers are
    kept. The model computes what it always computes.

    Args:
        model: A transformers model, or what `load` returned for one.
        layers: Counted from 0 and -1 is the last; a number, several, "last" or "all".
        heads: The same for heads.
        quantities: Which maps the captures show.
        tokenizer: For the tokens' texts, if the model has none.

    Example:
        >>> import torch, transformers
        >>> import headscape as hs
        >>> sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = transformers.LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
        >>> model = transformers.LlamaForCausalLM(config)
        >>> with hs.watch(model) as seen:
        ...     _ = model(torch.tensor([[5, 6, 7]]))
        >>> seen[0].length
        3
    """
    opened = load(model, tokenizer=tokenizer)
    if not isinstance(opened, PublishedModel):
        raise InputError(
            f"watch takes a transformers model, got {opened.spec.name}: capture reads it directly."
        )
    request = make_request(opened, layers, heads, quantities, None, None)
    seen = Watched()
    collector = _Collector(opened, request, seen)
    body = body_of(opened.model)
    outer: list[Tensor] = []
    with ExitStack() as stack:
        attention = AttentionWatch(
            body,
            collector.on_call,
            layers=set(request.layers),
            modules=opened.attention,
            cached=True,
        )
        stack.enter_context(attention)

        def begin(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            attention.layer = 0
            inputs = arguments(module.forward, args, kwargs)
            if inputs.get("input_ids") is None and outer:
                inputs["input_ids"] = outer[-1]
            attention.past = collector.begin(inputs)

        def begin_outer(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # A multimodal model embeds the tokens itself and hands on the embeddings.
            ids = arguments(module.forward, args, kwargs).get("input_ids")
            outer[:] = [] if ids is None else [ids]

        hook = body.register_forward_pre_hook(begin, with_kwargs=True)
        stack.callback(hook.remove)
        if opened.model is not body:
            hook = opened.model.register_forward_pre_hook(begin_outer, with_kwargs=True)
            stack.callback(hook.remove)
        yield seen
    collector.finish()


@dataclass
class _Steps:
    """What was seen of one layer: the call of the first step, and every step's tensors."""

    first: ObservedCall
    q: list[Tensor] = field(default_factory=list)
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    unrotated: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    """The layer's input, where its bias reads that."""
    keys: Tensor | None = None
    """All keys of the last step, to compare those of the next one with."""

    def add(self, call: ObservedCall, real: Tensor) -> None:
        """Keep what a step computed for its new tokens; `real` [b s] is False for padding."""
        new = call.q.shape[2]
        self._check(call.k, new, real)
        if self.q and not _plain_mask(call, real):
            raise _patterned(call)
        self.q.append(call.q.detach().clone())
        # A view would keep the keys of every step alive.
        self.k.append(call.k[:, :, -new:].detach().clone())
        self.v.append(call.v[:, :, -new:].detach().clone())
        if call.unrotated is not None:
            q, k = call.unrotated
            self.unrotated.append((q.detach().clone(), k[:, :, -new:].detach().clone()))
        if call.relative is not None and call.relative.hidden is not None:
            self.hidden.append(call.relative.hidden.detach().clone())
        self.keys = call.k.detach()

    def _check(self, keys: Tensor, new: int, real: Tensor) -> None:
        if self.keys is None:
            return
        before = keys[:, :, :-new]
        count = min(before.shape[2], self.keys.shape[2])
        if count == 0:
            raise InputError(
                f"{type(self.first.module).__name__} does not show its cache, so its steps cannot "
                f"be watched: capture the finished text instead."
            )
        old, now = self.keys[:, :, -count:], before[:, :, before.shape[2] - count :]
        # Keys of padding may be NaN.
        padding = ~real[:, None, -new - count : -new, None].to(now.device)
        if before.shape[2] > self.keys.shape[2] or not bool(((old == now) | padding).all()):
            raise InputError(
                "the cache changed keys between two steps, as beam search and quantised or static "
                "caches do: capture the finished text instead."
            )

    def call(self) -> ObservedCall:
        """The call of all tokens; of one step, with the mask that it had."""
        pairs = [*zip(*self.unrotated, strict=True)]
        unrotated = (torch.cat(pairs[0], dim=2), torch.cat(pairs[1], dim=2)) if pairs else None
        q, k, v = (torch.cat(parts, dim=2) for parts in (self.q, self.k, self.v))
        whole = replace(self.first, q=q, k=k, v=v, unrotated=unrotated)
        if len(self.q) == 1:
            return whole
        if whole.relative is not None and self.hidden:
            hidden = torch.cat(self.hidden, dim=1)
            whole = replace(whole, relative=replace(whole.relative, hidden=hidden))
        return replace(whole, mask=None, causal=True, rotation=None)


def _plain_mask(call: ObservedCall, real: Tensor) -> bool:
    """Return whether a step sees what a causal window or chunk lets it see, without padding.

    `real` [b s] is True for the tokens that are not padding, those of the step included.
    """
    if call.mask is None:
        return True
    new, keys = call.q.shape[2], call.k.shape[2]
    real = real.to(call.q.device)
    at = torch.arange(real.shape[1], device=real.device) - _starts(real)[:, None]
    positions = Positions(at[:, -new:], at[:, -keys:])
    rule = Visible(causal=True, window=call.window, chunk=call.chunk)
    wanted = rule.dense(positions) & real[:, None, None, -keys:]
    # What padding sees has no meaning.
    return bool(((wanted == call.mask) | ~real[:, None, -new:, None]).all())


def _starts(real: Tensor) -> Tensor:
    """Return how many tokens of each row are padding before its text."""
    return real.long().argmax(dim=1)


def _row(call: ObservedCall, number: int, part: slice) -> ObservedCall:
    """Return the call of some of the tokens of one row, as a batch of one."""
    if call.injected is not None:
        raise InputError(
            "watch leaves padding out of a model's own attention, and this model has an encoding "
            "that set_encoding put in: run one length at a time."
        )
    total = call.q.shape[2]

    def pairs(x: Tensor | None) -> Tensor | None:
        """Return a part of [#b #h #t s]."""
        if x is None:
            return None
        own = x[number : number + 1] if x.shape[0] > 1 else x
        return own[:, :, part if x.shape[2] == total else slice(None), part]

    def tokens(x: Tensor) -> Tensor:
        return x[number : number + 1, :, part]

    relative = call.relative
    if relative is not None and relative.hidden is not None:
        relative = replace(relative, hidden=relative.hidden[number : number + 1, part])
    unrotated = call.unrotated
    return replace(
        call,
        q=tokens(call.q),
        k=tokens(call.k),
        v=tokens(call.v),
        unrotated=None if unrotated is None else (tokens(unrotated[0]), tokens(unrotated[1])),
        mask=pairs(call.mask),
        bias=pairs(call.bias),
        relative=relative,
        rotation=None,
    )


def _patterned(call: ObservedCall) -> InputError:
    return InputError(
        f"{type(call.module).__name__} chooses the keys of each token by a pattern of its own, "
        f"which is known one step at a time only: capture the finished text instead."
    )


class _Collector:
    """The sequence that is being read, until the next one begins."""

    def __init__(self, model: PublishedModel, request: Request, seen: Watched) -> None:
        self.model, self.request, self.seen = model, request, seen
        self.tokens: list[Tensor] = []
        self.layers: dict[int, _Steps] = {}
        self.real = torch.ones(0, 0, dtype=torch.bool)
        """False for padding, [b s]."""
        self.has_position_ids = True
        """Whether the passes of a padded batch were given position ids."""

    def begin(self, inputs: dict[str, Any]) -> int:
        """Take the arguments of a forward pass; return how many tokens are in its cache."""
        ids = inputs.get("input_ids")
        if ids is None:
            raise InputError("watch reads tokens, and this pass was given embeddings.")
        past = inputs.get("past_key_values")
        length = 0 if past is None else int(past.get_seq_length())
        if length == 0:
            self.finish()
        known = sum(each.shape[1] for each in self.tokens)
        if length < known:
            raise InputError(
                f"the cache went back from {known} tokens to {length}, as prompt lookup and "
                f"assisted generation do when a guess is wrong: capture the finished text instead."
            )
        if length != known:
            raise InputError(
                f"a pass continues from a cache of {length} tokens, and {known} were seen: open "
                f"the watch before the first pass."
            )
        self.real = self._padding(inputs.get("attention_mask"), ids.shape, length)
        positions = inputs.get("position_ids")
        self.has_position_ids = isinstance(positions, Tensor) and (
            self.has_position_ids or length == 0
        )
        if isinstance(positions, Tensor):
            at = torch.arange(self.real.shape[1]) - _starts(self.real)[:, None]
            same = positions.cpu() == at[:, length:]
            if not bool((same | ~self.real[:, length:]).all()):
                raise InputError(
                    "position_ids must count 0, 1, 2 ... from the first token of each row, padding "
                    "not counted."
                )
        self.tokens.append(ids.detach().cpu())
        return length

    def _padding(self, mask: object, shape: torch.Size, past: int) -> Tensor:
        """Return which tokens of the cache and of a pass of `shape` are not padding, [b s]."""
        rows, total = shape[0], past + shape[1]
        real = torch.ones(rows, total, dtype=torch.bool)
        if isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask.all()):
            if mask.shape != real.shape:
                raise InputError(
                    f"attention_mask must be [{rows}, {total}], as the tokens, got "
                    f"{list(mask.shape)}: run one length at a time."
                )
            real = mask.detach().cpu().bool()
        counts, at = real.sum(dim=1)[:, None], torch.arange(total)
        after = at - _starts(real)[:, None]
        if not bool((real == ((after >= 0) & (after < counts))).all()) or not bool(counts.all()):
            raise InputError(
                "watch reads rows whose padding is before or after all of their tokens: pad on "
                "the left to generate, or run one length at a time."
            )
        if past and not torch.equal(real[:, :past], self.real):
            raise InputError(
                "a step from the cache was given a different attention_mask for the tokens "
                "before it: give every step the mask of all tokens so far."
            )
        return real

    def on_call(self, layer: int, call: ObservedCall) -> None:
        """Keep the new queries, keys and values of a layer."""
        if layer not in self.layers:
            bias = None if call.bias is None else call.bias.detach()
            self.layers[layer] = _Steps(replace(call, bias=bias))
        self.layers[layer].add(call, self.real)

    @torch.no_grad()
    def finish(self) -> None:
        """Make captures of the sequence that was read."""
        tokens, layers, real = self.tokens, self.layers, self.real
        self.tokens, self.layers = [], {}
        if not tokens:
            return
        missing = sorted(set(self.request.layers) - set(layers))
        if missing:
            raise InputError(
                f"{self.model.spec.name} did not compute layer {missing[0]} (counted from 0), so "
                f"this pass cannot be captured."
            )
        ids = torch.cat(tokens, dim=1)
        kept = [Kept() for _ in ids]
        spans = [
            slice(int(at), int(at + n)) for at, n in zip(_starts(real), real.sum(1), strict=True)
        ]
        first = [0 for _ in ids]
        padded = not bool(real.all())
        for layer, steps in sorted(layers.items()):
            call = self._call(layer, steps, real)
            every = None if padded else self._inputs(layer, steps, call, 0)
            for number, one in enumerate(kept):
                if every is not None:
                    row = row_of(every, number)
                else:
                    at, row = self._unpadded(layer, steps, call, number, spans[number])
                    first[number] = max(first[number], at)
                one.add(layer, row, self.request, lambda _: None)
        for number, (span, one) in enumerate(zip(spans, kept, strict=True)):
            source = {"corpus": "watched", "offset": 0, "steps": len(tokens)}
            sequence = Tokens(ids[number, span].long().numpy(), source)
            ids_at = first[number] + np.arange(len(sequence.tokens), dtype=np.int64)[None]
            self.seen._captures.append(  # noqa: SLF001
                described(self.model, sequence, self.request, one, ids_at)
            )

    def _call(self, layer: int, steps: _Steps, real: Tensor) -> ObservedCall:
        """Return the call of all tokens of a layer, padding included."""
        call = steps.call()
        if len(steps.q) == 1:
            return call
        first = replace(steps.first, q=steps.q[0])
        if not _plain_mask(first, real[:, : first.q.shape[2]]):
            raise _patterned(call)
        if call.bias is not None and (
            self.model.readings[layer].name == UNKNOWN or family_of(call.module).rounds_bias
        ):
            raise InputError(
                f"layer {layer} (counted from 0) adds a bias that is known for the tokens of one "
                f"step only: capture the finished text instead."
            )
        return call

    def _unpadded(
        self, layer: int, steps: _Steps, call: ObservedCall, number: int, part: slice
    ) -> tuple[int, AttentionCall]:
        """Return a row's first position, which is not 0 if padding was counted, and its call."""
        row = _row(call, number, part)
        if part.start:
            self._need_own_positions(layer, row)
        for first in dict.fromkeys((0, part.start)):
            inputs = self._inputs(layer, steps, row, first)
            if inputs.turns is None or inputs.unrotated is None:
                return first, inputs
            turned = (turn.apply(x) for turn, x in zip(inputs.turns, inputs.unrotated, strict=True))
            if all(map(rotation_agrees, turned, (inputs.q, inputs.k))):
                return first, inputs
        raise InputError(
            f"layer {layer} (counted from 0) rotates the padded row {number} by positions that "
            f"count neither from its padding nor from its text: run one length at a time."
        )

    def _need_own_positions(self, layer: int, row: ObservedCall) -> None:
        """Raise InputError if a layer may count the padding before a row, which cannot be seen."""
        reading = self.model.readings[layer]
        if reading.encoding.temperature(row.positions().q) is not None:
            raise InputError(
                f"layer {layer} (counted from 0) scales its queries by position and may count "
                f"the padding before a text: run one length at a time."
            )
        # What is added at the input does not show in layers with relative positions (DeBERTa).
        added = "input" in self.model.spec.provenance
        if not self.has_position_ids and (added or reading.name == UNKNOWN):
            raise InputError(
                f"layer {layer} (counted from 0) may count the padding before a text: give "
                f"position_ids as generate does, (attention_mask.cumsum(-1) - 1).clamp(min=0), or "
                f"run one length at a time."
            )

    def _inputs(self, layer: int, steps: _Steps, call: ObservedCall, first: int) -> AttentionCall:
        """Return the attention inputs of a call whose positions count from `first`."""
        at = None if first == 0 else first + torch.arange(call.q.shape[2])[None]
        inputs = self.model.readings[layer].inputs(call, layer, at=at)
        if len(steps.q) == 1:
            return inputs
        return replace(inputs, visible=Visible(causal=True, window=call.window, chunk=call.chunk))
