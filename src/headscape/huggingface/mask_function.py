"""The mask function that transformers calls in place of one that builds queries x keys.

It is given a predicate (batch, head, query, key) -> bool that masking_utils.py composed of a few
known parts. The parts say everything in their closures, so they are read, not evaluated:

    causal, bidirectional       Visible.causal
    sliding window              Visible.window; the bidirectional one counts its edge in
    chunks                      groups: index // chunk, from the first token that is not padding
    packed sequences            groups
    2-D padding mask            padding keys are in no group

Anything else (image tokens that see each other, a predicate of the user's) is refused by name.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headscape.call.positions import Positions, Visible
from headscape.errors import InputError
from headscape.huggingface.mask_rule import MaskRule, bounds_of


def rule_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """Return the mask as a packed MaskRule."""
    check_interface(others.get("config"))
    on = others.get("device", "cpu")
    q = int(q_offset) + torch.arange(q_length, device=on)[None]
    k = kv_offset + torch.arange(kv_length, device=on)[None]
    return _rule(dict(_parts(mask_function)), batch_size, q, k, attention_mask).pack()


def rule_mask_or_dense(**given: Any) -> Tensor | None:
    """Return the mask as a packed MaskRule, or as sdpa's where it is not a rule."""
    from transformers.masking_utils import sdpa_mask

    try:
        return rule_mask(**given)
    except InputError:
        dense: Tensor | None = sdpa_mask(**given)
        return dense


def check_interface(config: Any) -> None:
    """Raise InputError if the model of this config computes attention in code of its own."""
    if config is not None and not _has_interface(type(config).__module__):
        raise InputError(
            f"{config.model_type} computes attention in its own code, not through transformers' "
            f"attention interface, so attn_implementation='headscape' cannot serve it: use 'eager'."
        )


@cache
def _has_interface(module: str) -> bool:
    from transformers import PreTrainedModel

    name = module.replace("configuration_", "modeling_")
    found: list[Any] = [
        kind
        for kind in (vars(sys.modules[name]).values() if name in sys.modules else ())
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.__module__ == name
    ]
    return not found or bool(found[0]._can_set_attn_implementation())  # noqa: SLF001


def _parts(predicate: Callable[..., Any] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the constants of every predicate that a composed one requires."""
    name = "causal_mask_function" if predicate is None else predicate.__qualname__.split(".")[0]
    cells = getattr(predicate, "__closure__", None) or ()
    code = getattr(predicate, "__code__", None)
    values = dict(
        zip(code.co_freevars, (x.cell_contents for x in cells), strict=True) if code else ()
    )
    if name == "and_masks":
        for part in values["mask_functions"]:
            yield from _parts(part)
    else:
        yield name, values


def _rule(
    parts: dict[str, dict[str, Any]], batch: int, q: Tensor, k: Tensor, padding: Tensor | None
) -> MaskRule:
    """Return the rule for the queries and keys at these indices."""
    for name in parts:
        if name not in KINDS:
            raise InputError(
                f"headscape's attention takes causal, bidirectional, windowed, chunked, packed and "
                f"padded masks, but this model's mask contains {name!r}: use 'sdpa' or "
                f"'headscape-or-sdpa'."
            )
    causal = "causal_mask_function" in parts
    queries, keys, first_query, first_key = q.shape[1], k.shape[1], int(q[0, 0]), int(k[0, 0])
    seen = _seen(padding, k, causal=causal)
    groups: tuple[Tensor, Tensor] | None = None
    start = torch.zeros_like(q[:, :1])
    begins = start, start
    if "chunked_overlay" in parts:
        size, left = (parts["chunked_overlay"][name] for name in ("chunk_size", "left_padding"))
        groups = (q - left[:, None]) // size, (k - left[:, None]) // size
    if "packed_sequence_mask_function" in parts:
        packed = parts["packed_sequence_mask_function"]["packed_sequence_mask"]
        documents = packed[:, q[0]], packed[:, k[0]]
        groups = documents if groups is None else _both(documents, groups, keys)
        begin = _begin(packed)
        begins = begin[:, q[0]], begin[:, k[0]]
    if padding is not None and seen is not None:
        asking, asked = groups or (torch.zeros_like(q), torch.zeros_like(k))
        # In a causal model padding before the first token sees nothing.
        start = _start(padding) if causal else start
        asking = asking.expand(batch, -1).masked_fill(q < start, -1)
        groups = asking, asked.expand(batch, -1).masked_fill(~seen, -1)
    q, k = ((x - y.maximum(start)).clamp(min=0) for x, y in zip((q, k), begins, strict=True))
    bounds = bounds_of(queries, keys, first_query, first_key)
    q_group, k_group = groups or (None, None)
    visible = Visible(causal, q_group, k_group, _window(parts))
    return MaskRule(Positions(q, k, bounds), visible, first_query, first_key)


def _window(parts: dict[str, dict[str, Any]]) -> int | None:
    """Return the distance from which on keys are hidden."""
    if "sliding_window_overlay" in parts:
        return int(parts["sliding_window_overlay"]["sliding_window"])
    if "sliding_window_bidirectional_overlay" in parts:
        return int(parts["sliding_window_bidirectional_overlay"]["sliding_window"]) + 1
    return None


def _seen(padding: Tensor | None, k: Tensor, *, causal: bool) -> Tensor | None:
    """Return which keys are not padding; None if all are."""
    if padding is None:
        return None
    length = padding.shape[-1]
    seen = padding.bool()[:, k[0].clamp(max=length - 1)]
    # Keys past the mask are the unwritten end of a static cache, which causality hides.
    seen = seen | (k >= length) if causal else seen & (k < length)
    return None if bool(seen.all()) else seen


def _both(
    one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], most: int
) -> tuple[Tensor, Tensor]:
    """Return groups that two tokens share if they share both of the given ones."""
    q, k = (a * most + b for a, b in zip(one, other, strict=True))
    return q, k


def _start(padding: Tensor) -> Tensor:
    """Return the index of every row's first token that is not padding."""
    return padding.to(torch.uint8).argmax(-1, keepdim=True)


def _begin(packed: Tensor) -> Tensor:
    """Return for every token the index of the first token of its sequence."""
    at = torch.arange(packed.shape[1], device=packed.device)
    first = torch.ones_like(packed, dtype=torch.bool)
    first[:, 1:] = packed.diff() != 0
    return (at * first).cummax(-1).values


KINDS = {
    "causal_mask_function",
    "bidirectional_mask_function",
    "sliding_window_overlay",
    "sliding_window_bidirectional_overlay",
    "chunked_overlay",
    "packed_sequence_mask_function",
}
"""The functions of masking_utils.py whose predicates are read."""
