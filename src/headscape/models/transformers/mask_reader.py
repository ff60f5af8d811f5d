"""Masks of published models: what they hide, what they add, and the rule they follow.

A mask of transformers is boolean, True where a key is seen, or it is added to the scores, with a
very negative number where a key is hidden. Some families put their bias into it.
"""

from typing import Any

import torch
from torch import Tensor

from headscape.call.positions import Positions, Visible
from headscape.errors import InputError
from headscape.models.transformers.observed_call import ObservedCall

ROWS = 256
"""Queries compared at a time, so that memory is of order length."""


def read_visible(
    call: ObservedCall, positions: Positions, layer: int, real: Tensor | None = None
) -> Visible:
    """Return the mask of a call as a rule: causal or not, within a window, or within chunks.

    Padding, where `real` is False, is a group of its own.
    """
    group = None if real is None else torch.where(real, 0, -1)
    if call.mask is None:
        return Visible(call.causal, group, group, call.window if call.flash else None)
    # What padding sees has no meaning: some families let it see everything.
    mask = call.mask if real is None else call.mask & real[:, None, :, None]
    ahead, behind = _reach(mask, positions)
    # One token has nothing ahead of it, so the mask does not say.
    causal = ahead == 0 and (positions.bounds[0] < 0 or call.causal)
    rules = [Visible(causal, group, group, window) for window in (None, max(ahead, behind) + 1)]
    if real is None:
        rules.append(Visible(causal, chunk=_chunk(call)))
    for visible in rules:
        if _follows(mask, visible, positions):
            return visible
    other = "chunks" if real is None else "one of these beside its padding"
    raise InputError(
        f"layer {layer} has a mask that is neither causal nor bidirectional, a sliding window or "
        f"{other}: it cannot be read."
    )


def is_causal(call: ObservedCall) -> bool:
    """Return whether no query sees a later key."""
    if call.mask is None:
        return call.causal
    positions = Positions.span(call.q.shape[2], call.k.shape[2], on=call.q.device)
    return _reach(call.mask, positions)[0] == 0


def chunk_of(module: Any) -> int | None:
    """Return the length of the chunks that the config states for a layer (Llama 4), or None."""
    config = getattr(module, "config", None)
    types, at = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if not types or at is None or types[at] != "chunked_attention":
        return None
    size = getattr(config, "attention_chunk_size", None)
    return None if size is None else int(size)


def _chunk(call: ObservedCall) -> int:
    """Return the length of a chunk: the config's, or the number of tokens that see the first."""
    assert call.mask is not None
    return call.chunk or max(1, int(call.mask[0, 0, :, 0].sum()))


def _reach(mask: Tensor, positions: Positions) -> tuple[int, int]:
    """Return how many tokens ahead and back the farthest seen keys are."""
    ahead = behind = 0
    for start in range(0, mask.shape[2], ROWS):
        rows = slice(start, start + ROWS)
        distance = positions.block(rows).distance()[:, None] * mask[:, :, rows]
        ahead, behind = max(ahead, -int(distance.min())), max(behind, int(distance.max()))
    return ahead, behind


def _follows(mask: Tensor, visible: Visible, positions: Positions) -> bool:
    for start in range(0, mask.shape[2], ROWS):
        rows = slice(start, start + ROWS)
        seen = visible.block(rows).dense(positions.block(rows))
        if bool((seen != mask[:, :, rows]).any()):
            return False
    return True
