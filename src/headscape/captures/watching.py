"""Captures of forward passes that other people's code makes, the cache's steps included.

A pass that continues from a cache computes queries, keys and values of its new tokens only. Causal
attention never looks ahead, so these are what a pass over the whole sequence would compute. A watch
therefore collects them step by step, and a sequence becomes one capture when the next one begins or
the watch closes. At every step the keys that the cache returns are compared with those that were
seen: beams that were reordered and caches that are quantised or longer than the text are refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch
from torch import Tensor

from headscape.call.definition import row_of
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
from headscape.models.transformers.observed_call import ObservedCall
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
    closes: a forward pass, or a prompt with all steps that follow it from the cache. Only queries,
    keys and values of the chosen layers are kept. The model computes what it always computes.

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

    def add(self, call: ObservedCall) -> None:
        """Keep what a step computed for its new tokens."""
        new = call.q.shape[2]
        self._check(call.k, new)
        if self.q and not _plain_mask(call, sum(each.shape[2] for each in self.q)):
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

    def _check(self, keys: Tensor, new: int) -> None:
        if self.keys is None:
            return
        before = keys[:, :, :-new]
        count = min(before.shape[2], self.keys.shape[2])
        if count == 0:
            raise InputError(
                f"{type(self.first.module).__name__} does not show its cache, so its steps cannot "
                f"be watched: capture the finished text instead."
            )
        if before.shape[2] > self.keys.shape[2] or not torch.equal(
            before[:, :, before.shape[2] - count :], self.keys[:, :, -count:]
        ):
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


def _plain_mask(call: ObservedCall, past: int) -> bool:
    """Return whether a step after `past` tokens sees what a causal window or chunk lets it see."""
    if call.mask is None:
        return True
    new, keys = call.q.shape[2], call.k.shape[2]
    at = torch.arange(past + new, device=call.q.device)[None]
    positions = Positions(at[:, past:], at[:, past + new - keys :])
    rule = Visible(causal=True, window=call.window, chunk=call.chunk)
    return bool((rule.dense(positions) == call.mask).all())


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
        mask = inputs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask.all()):
            raise InputError("watch reads sequences without padding: run one length at a time.")
        positions = inputs.get("position_ids")
        if isinstance(positions, Tensor):
            expected = length + torch.arange(ids.shape[1], device=positions.device)
            if not bool((positions == expected).all()):
                raise InputError("watch reads positions that count 0, 1, 2 ...")
        self.tokens.append(ids.detach().cpu())
        return length

    def on_call(self, layer: int, call: ObservedCall) -> None:
        """Keep the new queries, keys and values of a layer."""
        if layer not in self.layers:
            bias = None if call.bias is None else call.bias.detach()
            self.layers[layer] = _Steps(replace(call, bias=bias))
        self.layers[layer].add(call)

    @torch.no_grad()
    def finish(self) -> None:
        """Make captures of the sequence that was read."""
        tokens, layers = self.tokens, self.layers
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
        for layer, steps in sorted(layers.items()):
            inputs = self._inputs(layer, steps)
            for number, one in enumerate(kept):
                one.add(layer, row_of(inputs, number), self.request, lambda _: None)
        for row, one in zip(ids, kept, strict=True):
            source = {"corpus": "watched", "offset": 0, "steps": len(tokens)}
            sequence = Tokens(row.long().numpy(), source)
            self.seen._captures.append(described(self.model, sequence, self.request, one))  # noqa: SLF001

    def _inputs(self, layer: int, steps: _Steps) -> Any:
        reading, call = self.model.readings[layer], steps.call()
        if len(steps.q) == 1:
            return reading.inputs(call, layer)
        if not _plain_mask(replace(steps.first, q=steps.q[0]), 0):
            raise _patterned(call)
        if call.bias is not None and (
            reading.name == UNKNOWN or family_of(call.module).rounds_bias
        ):
            raise InputError(
                f"layer {layer} (counted from 0) adds a bias that is known for the tokens of one "
                f"step only: capture the finished text instead."
            )
        inputs = reading.inputs(call, layer)
        return replace(inputs, visible=Visible(causal=True, window=call.window, chunk=call.chunk))
