"""What an encoding read off earlier tokens (Stream), beside the keys of a transformers cache.

A cache layer keeps the stream of its tokens as an attribute: running sums, vectors, angles and
transitions. Beam search reorders a layer's batch; the layer's methods that do are wrapped once, so
that the stream follows. Which tokens are valid is said by the mask's first query, so cropping and
resetting need nothing.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from headscape.encodings import Encoding, LayerInput, Stream
from headscape.errors import InputError

STREAM = "headscape_stream"
PER_KEY = ("total", "backward", "key", "angle")
"""What of a stream belongs to keys, and is kept for every token."""
TRANSITIONS = ("reflections", "decay")
"""What changes keys on the way to a query; also kept for every token."""
FOLLOWS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "reorder_cache": lambda x, rows: x.index_select(0, rows),
    "batch_select_indices": lambda x, rows: x[rows],
    "batch_repeat_interleave": lambda x, times: x.repeat_interleave(times, dim=0),
}
"""What happens to a stream when a cache layer's method changes its batch."""


def streams(
    encoding: Encoding, x: Tensor, starts: Tensor | None, layer: Any, first_query: int, first: int
) -> tuple[Stream | None, Stream | None]:
    """Return the stream of the queries, whose input is `x`, and that of the keys from `first` on.

    `layer` is the cache's layer, or None without a cache; both numbers are indices of tokens.
    """
    if not encoding.streams:
        return None, None
    before: Stream | None = getattr(layer, STREAM, None) if first_query else None
    carry = None if before is None else _carry(before, first_query)
    new = encoding.stream(LayerInput(x, carry, starts))
    assert new is not None
    whole = new if before is None else _joined(before, new, first_query)
    if layer is not None:
        _follow(layer)
        setattr(layer, STREAM, _each(whole, Tensor.detach))
    return new, _each(whole, lambda part: part[:, :, first:], carry=False)


def _carry(before: Stream, count: int) -> Any:
    """Return what the stream goes on from after `count` tokens."""
    if before.carry is None:
        return before.carry_after(count)
    kept = before.tokens or (
        0 if before.transition is None else before.transition.tensors[0].shape[2]
    )
    if kept != count:
        raise InputError(
            f"the cache was cut from {kept} tokens to {count}, which an encoding whose stream "
            f"goes on from its last token cannot follow: start with a new cache."
        )
    return before.carry


def _joined(before: Stream, new: Stream, count: int) -> Stream:
    """Return the stream of the first `count` tokens and the new ones."""

    def join(old: Tensor | None, more: Tensor | None) -> Any:
        if old is None or more is None:
            return None
        batch = max(old.shape[0], more.shape[0])
        parts = (x.expand(batch, *x.shape[1:]) for x in (old[:, :, :count], more))
        return torch.cat(list(parts), 2)

    found = {name: join(getattr(before, name), getattr(new, name)) for name in PER_KEY}
    for name in TRANSITIONS:
        old, more = getattr(before, name), getattr(new, name)
        if old is not None and more is not None:
            found[name] = type(more)(*map(join, old.tensors, more.tensors))
    return Stream(**found, carry=new.carry)


def _each(stream: Stream, change: Callable[[Tensor], Tensor], *, carry: bool = True) -> Stream:
    """Return a stream with every tensor changed; `carry` has no axis of tokens."""
    changed: dict[str, Any] = {}
    for item in fields(Stream):
        value = getattr(stream, item.name)
        if item.name == "carry":
            changed["carry"] = _map(value, change) if carry else value
        elif isinstance(value, Tensor):
            changed[item.name] = change(value)
    for name in TRANSITIONS:
        own = getattr(stream, name)
        if own is not None:
            changed[name] = type(own)(*map(change, own.tensors))
    return replace(stream, **changed)


def _map(carry: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a carry, whose form is the encoding's own, with every tensor changed."""
    if isinstance(carry, tuple):
        return tuple(_map(part, change) for part in carry)
    return change(carry) if isinstance(carry, Tensor) else carry


def _follow(layer: Any) -> None:
    if hasattr(layer, STREAM):
        return

    def wrap(name: str, change: Callable[[Tensor, Any], Tensor]) -> None:
        original = getattr(layer, name)

        def run(how: Any) -> Any:
            def one(x: Tensor) -> Tensor:
                return x if x.shape[0] == 1 else change(x, how)

            batch = layer.keys.shape[0]
            every = one if batch > 1 else (lambda x: change(x, how))
            setattr(layer, STREAM, _each(getattr(layer, STREAM), every))
            return original(how)

        setattr(layer, name, run)

    for name, change in FOLLOWS.items():
        if hasattr(layer, name):
            wrap(name, change)
