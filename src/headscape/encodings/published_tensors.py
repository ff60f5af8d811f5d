"""Copies authors' tensors into the parameters of an encoding, by their published names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from headscape.errors import InputError

if TYPE_CHECKING:
    from headscape.encodings.base import Encoding

SHARED_TENSORS = ("sink_score", "ssmax")
"""Parameters that any encoding may have; no encoding's paper publishes them."""


def copy_published(
    encoding: "Encoding", tensors: Mapping[str, Tensor], source: str, prefix: str
) -> None:
    """Copy tensors by the names in `encoding.published`, each with `prefix` in front."""
    mine = {
        name: value
        for name, value in encoding.named_parameters()
        if not name.startswith("base.") and name not in SHARED_TENSORS
    }
    if not mine:
        raise InputError(f"{encoding.title} has no learned tensors, so there is nothing to load.")
    converted = {}
    for theirs, ours in _names(encoding, set(mine), tensors, source, prefix).items():
        converted[ours] = encoding.from_published(ours, tensors[prefix + theirs])
        if converted[ours].shape != mine[ours].shape:
            raise InputError(
                f"{source}: {prefix + theirs!r} has shape "
                f"{tuple(tensors[prefix + theirs].shape)}, but this {encoding.title} needs "
                f"{tuple(mine[ours].shape)}; build it with the sizes of the checkpoint."
            )
    for ours, value in converted.items():
        mine[ours].copy_(value)


def _names(
    encoding: "Encoding", mine: set[str], tensors: Mapping[str, Tensor], source: str, prefix: str
) -> dict[str, str]:
    """Return the mapping whose names are in `tensors`, limited to existing parameters."""
    spellings = [
        {theirs: ours for theirs, ours in each.items() if ours in mine}
        for each in encoding.published
    ]
    spellings = [each for each in spellings if set(each.values()) == mine]
    for each in spellings:
        if all(prefix + theirs in tensors for theirs in each):
            return each
    if not spellings:
        raise InputError(f"{encoding.title} lists no published names of {', '.join(sorted(mine))}.")
    closest = max(spellings, key=lambda each: sum(prefix + name in tensors for name in each))
    missing = next(prefix + theirs for theirs in closest if prefix + theirs not in tensors)
    raise InputError(
        f"{source} has no tensor {missing!r}, which {encoding.title} needs; pass prefix= if its "
        f"names start with the path of a layer."
    )
