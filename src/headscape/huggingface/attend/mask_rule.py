"""Which keys a query sees, as one row of integers in place of a mask of queries x keys.

transformers hands a mask from its mask function to its attention function as a 4-D tensor. This one
has shape [#b, 1, 1, n] and dtype int64:

    MARK causal window queries keys first_query first_key grouped | positions of queries, of keys
                                                                  | groups of queries, of keys

Being a tensor, it survives what models and `generate` do with masks between the two. A window of 0
is no window. Positions count from the first token that is not padding.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from headscape.call.positions import Positions, Visible
from headscape.errors import InputError

MARK = 0x68656164
HEADER = 8


@dataclass(frozen=True)
class MaskRule:
    """Positions of queries and keys, and which keys a query sees."""

    positions: Positions
    visible: Visible
    first_query: int = 0
    """The first query's index in the sequence, padding included."""
    first_key: int = 0
    """The first key's index."""

    @classmethod
    def plain(
        cls,
        queries: int,
        keys: int,
        *,
        first_query: int = 0,
        first_key: int = 0,
        causal: bool = True,
        window: int | None = None,
        device: torch.device | str = "cpu",
    ) -> "MaskRule":
        """Return the rule of a batch without padding."""
        q = first_query + torch.arange(queries, device=device)[None]
        k = first_key + torch.arange(keys, device=device)[None]
        bounds = bounds_of(queries, keys, first_query, first_key)
        visible = Visible(causal, window=window)
        return cls(Positions(q, k, bounds), visible, first_query, first_key)

    def written(self) -> "MaskRule":
        """Return the rule without the keys after the last query of a causal one.

        They are the end of a static cache, which is not written yet.
        """
        t, s = self.positions.q.shape[1], self.positions.k.shape[1]
        last = self.first_query + t - self.first_key
        if not self.visible.causal or last >= s:
            return self
        some = slice(0, last)
        bounds = bounds_of(t, last, self.first_query, self.first_key)
        positions = Positions(self.positions.q, self.positions.k[:, some], bounds)
        visible = self.visible.block(slice(None), some)
        return MaskRule(positions, visible, self.first_query, self.first_key)

    def pack(self) -> Tensor:
        """Return the rule as a row of integers."""
        at, visible = self.positions, self.visible
        rows = [at.q, at.k]
        if visible.q_group is not None and visible.k_group is not None:
            rows += [visible.q_group, visible.k_group]
        header = torch.tensor(
            [[
                MARK, visible.causal, visible.window or 0, at.q.shape[1], at.k.shape[1],
                self.first_query, self.first_key, len(rows) == 4,
            ]],
            dtype=torch.int64,
            device=at.q.device,
        )  # fmt: skip
        batch = max(row.shape[0] for row in rows)
        packed = torch.cat([row.to(torch.int64).expand(batch, -1) for row in [header, *rows]], 1)
        return packed[:, None, None]

    @classmethod
    def unpack(cls, mask: Tensor) -> "MaskRule":
        """Return the rule that `pack` wrote."""
        rows = mask[:, 0, 0]
        header = rows[0, :HEADER].tolist()
        _, causal, window, t, s, first_query, first_key, grouped = header
        ends = [HEADER, HEADER + t, HEADER + t + s, HEADER + 2 * t + s, HEADER + 2 * (t + s)]
        q, k, q_group, k_group = (rows[:, a:b] for a, b in pairwise(ends))
        positions = Positions(q, k, bounds_of(t, s, first_query, first_key))
        groups = (q_group, k_group) if grouped else (None, None)
        visible = Visible(bool(causal), groups[0], groups[1], window or None)
        return cls(positions, visible, first_query, first_key)


def is_packed(mask: Tensor) -> bool:
    """Return whether a mask is one that `MaskRule.pack` wrote."""
    return mask.dtype == torch.int64 and mask.ndim == 4 and int(mask[0, 0, 0, 0]) == MARK


@lru_cache(maxsize=4)
def packed_rule(mask: Tensor) -> MaskRule | None:
    """Return the rule that a mask is, or None; all layers of a pass ask for the same ones."""
    return MaskRule.unpack(mask) if is_packed(mask) else None


def bounds_of(queries: int, keys: int, first_query: int, first_key: int) -> tuple[int, int]:
    """Return the smallest and largest distance between queries and keys that follow each other."""
    gap = first_query - first_key
    return gap - keys + 1, gap + queries - 1


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
