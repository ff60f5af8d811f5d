"""What holds for every encoding in a model: order, batches and state.

order      no token depends on a later one: causality, prefixes, decoding with a cache
batches    sequences do not affect one another: rows of a batch, packed documents, padding
state      a module stores its learned parameters and nothing else
"""

import copy
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
    observe_in_place,
    require,
    require_same,
    require_same_scores,
    tokens,
)


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


def rows(factory: Factory, heads: int, length: int) -> None:
    """A row of a batch does not depend on the other rows."""
    subject, text = model(factory, heads, layers=1), tokens(3, length)
    together = observe(subject, text)
    for row in (0, 2):
        alone = observe(subject, text[row : row + 1])
        require_same(alone.logits, together.logits[row : row + 1], "logits of a row alone")
        for mine, other in zip(alone.scores, together.scores, strict=True):
            seen = mine.visible.expand_as(mine.final)
            expected = other.final[row : row + 1][seen]
            require_same(mine.final[seen], expected, "raw scores of a row alone")


def packing(factory: Factory, heads: int, length: int, cut: int | None = None) -> None:
    """Two documents packed into one row give the same results as each alone."""
    subject, text = model(factory, heads), tokens(1, length)
    cut = length // 3 if cut is None else cut
    at = torch.cat([torch.arange(cut), torch.arange(length - cut)])[None]
    groups = (torch.arange(length) >= cut).long()[None]
    packed = logits(subject, text, positions=at, groups=groups)
    for document in (slice(0, cut), slice(cut, length)):
        if text[:, document].numel():
            alone = logits(subject, text[:, document])
            require_same(packed[:, document], alone, "logits of a packed document")


def padding(factory: Factory, heads: int, length: int, pads: int = 3) -> None:
    """Padding on the left changes nothing."""
    subject, text = model(factory, heads), tokens(1, length)
    padded = torch.cat([tokens(1, pads, seed=5), text], dim=1)
    at = (torch.arange(length + pads) - pads)[None]
    groups = torch.where(at < 0, -1, 0)
    ours = logits(subject, padded, positions=at.clamp(min=0), groups=groups)
    require_same(ours[:, pads:], logits(subject, text), "logits after padding")


def no_memory(factory: Factory, heads: int, length: int) -> None:
    """A short pass after a longer one equals a first pass, bit for bit."""
    subject = model(factory, heads, layers=1)
    text, longer = tokens(1, length), tokens(1, length + 9, seed=2)
    fresh = observe(subject, text)
    observe_in_place(subject, longer)
    again = observe_in_place(subject, text)
    require_same(again.logits, fresh.logits, "logits after a longer pass", 0.0)
    require_same_scores(again, fresh, slice(None), "after a longer pass")
    for mine, other in zip(again.scores, fresh.scores, strict=True):
        seen = mine.visible.expand_as(mine.final)
        require_same(mine.bias[seen], other.bias[seen], "biases after a longer pass", 0.0)


def learned_only(factory: Factory, heads: int, length: int) -> None:  # noqa: ARG001
    """A checkpoint contains the learned parameters and nothing else."""
    subject = model(factory, heads)
    stored, learned = set(subject.state_dict()), {name for name, _ in subject.named_parameters()}
    require(
        stored == learned,
        f"state_dict and parameters differ in {', '.join(sorted(stored ^ learned))}",
    )
    buffers = [name for name, _ in subject.named_buffers()]
    require(not buffers, f"the module has buffers: {', '.join(buffers)}")


def round_trip(factory: Factory, heads: int, length: int) -> None:
    """A second model with the same parameters gives the same result, bit for bit."""
    saved, text = model(factory, heads), tokens(1, length)
    loaded = copy.deepcopy(model(factory, heads, seed=1))
    loaded.load_tensors(saved.tensors(), source="the checkpoint")
    expected = logits(saved, text)
    require_same(logits(loaded, text), expected, "logits after loading a checkpoint", 0.0)


def no_side_effects(factory: Factory, heads: int, length: int) -> None:
    """A forward pass changes no parameter."""
    subject = model(factory, heads)
    before = {name: value.clone() for name, value in subject.state_dict().items()}
    with torch.no_grad():
        subject(tokens(1, length))
    after = subject.state_dict()
    for name in before.keys() & after.keys():
        require(torch.equal(before[name], after[name]), f"a forward pass changes {name}")
