"""No token depends on a later one: causality, prefixes and decoding with a cache."""

from collections.abc import Sequence

import torch

from headscape.gpt2 import Cache
from headscape.properties.probe import (
    VOCABULARY,
    Factory,
    copied_encodings,
    logits,
    model,
    observe,
    tokens,
)
from headscape.properties.tolerance import require, require_same, require_same_scores


def causality(factory: Factory, heads: int, length: int) -> None:
    """Changing tokens after t changes nothing up to t."""
    subject, text = model(factory, heads, layers=1), tokens(1, length)
    before = observe(subject, text)
    for t in {length // 2, length - 2} & set(range(length - 1)):
        other = text.clone()
        other[:, t + 1 :] = (other[:, t + 1 :] + 1 + tokens(1, length - t - 1) // 2) % VOCABULARY
        after = observe(subject, other)
        require_same(after.logits[:, : t + 1], before.logits[:, : t + 1], "logits before a change")
        require_same_scores(after, before, slice(t + 1), "before a change")


def prefix(factory: Factory, heads: int, length: int) -> None:
    """The first t tokens give the same result with and without further tokens after them."""
    subject, text = model(factory, heads, layers=1), tokens(1, length)
    whole = observe(subject, text)
    for t in {length // 2, length - 1} & set(range(1, length)):
        part = observe(subject, text[:, :t])
        require_same(part.logits, whole.logits[:, :t], "logits of a prefix")
        require_same_scores(part, whole, slice(None), "of a prefix", slice(t))


def decoding(
    factory: Factory, heads: int, length: int, chunks: Sequence[int] | None = None
) -> None:
    """Decoding in chunks with a cache gives the logits of one full pass."""
    subject, text = model(factory, heads), tokens(2, length)
    whole = logits(subject, text)
    first, last = length // 3, min(length, 9)
    defaults = [[length - last, *[1] * last], [first, 1, length - first - 1]]
    for sizes in defaults if chunks is None else [chunks]:
        cache = Cache(capacity=3)
        with torch.no_grad(), copied_encodings(subject):
            split = torch.split(text, list(sizes), dim=1)
            parts = [subject(part, cache=cache) for part in split if part.numel()]
        require_same(torch.cat(parts, dim=1), whole, f"logits decoded in {len(sizes)} chunks")
        require(cache.length == length, f"the cache has {cache.length} tokens, expected {length}")
