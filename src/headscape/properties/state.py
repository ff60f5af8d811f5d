"""A module stores its learned parameters and nothing else."""

import copy

import torch

from headscape.properties.probe import (
    Factory,
    logits,
    model,
    observe,
    observe_in_place,
    tokens,
)
from headscape.properties.tolerance import require, require_same, require_same_scores


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
