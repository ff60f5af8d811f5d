"""Sequences do not affect one another: batch rows, packed documents, padding."""

import torch

from headscape.properties.probe import Factory, logits, model, observe, tokens
from headscape.properties.tolerance import require_same


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
