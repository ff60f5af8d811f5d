"""A part of a call: some heads, queries and keys of every tensor in it.

The shape strings of the dataclasses say which axis is what, so one function restricts every value:

    h heads   hk heads of keys   t queries   s keys   tail the last keys, which a transition has
    # before a letter: an axis of size 1 is left as it is

A value that is a function of queries and keys (Pairwise) becomes one of the part's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import torch
from jaxtyping import Int
from torch import Tensor

Queries = slice | Int[Tensor, " r"]
"""Some queries, as a range or by their indices."""
Leaf = Callable[[str, Any, tuple[str, ...]], Any]
"""Takes the dotted name, value and axes of a tensor or function; returns what replaces it."""


@cache
def annotated(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a dataclass with the types that are not None."""
    return tuple((each.name, _present(each.type)) for each in fields(cls))


def _present(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        others = [each for each in get_args(kind) if each is not NoneType]
        return others[0] if len(others) == 1 else kind
    return kind


@cache
def axes_of(kind: Any) -> tuple[str, ...]:
    """Return the axes in a type's shape string; none if it has no such string."""
    return tuple(getattr(kind, "dim_str", "").split())


def mapped(value: Any, leaf: Leaf, name: str = "", kind: Any = None) -> Any:
    """Return a value with every tensor and function in it replaced by what `leaf` returns."""
    if isinstance(value, Tensor) or (callable(value) and not is_dataclass(value)):
        return leaf(name, value, axes_of(kind))
    if isinstance(value, tuple):
        kinds = get_args(kind) or (None,) * len(value)
        kinds = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        items = zip(value, kinds, strict=True)
        return tuple(mapped(x, leaf, f"{name}.{n}", _present(k)) for n, (x, k) in enumerate(items))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    prefix = f"{name}." if name else ""
    return type(value)(
        **{
            field: mapped(getattr(value, field), leaf, prefix + field, kind)
            for field, kind in annotated(type(value))
        }
    )


def row_of(call: Any, number: int) -> Any:
    """Return the call of one row of a batch, as a batch of one."""

    def leaf(_: str, value: Any, axes: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            batched = bool(axes) and axes[0] in {"b", "#b"} and value.shape[0] > 1
            return value[number : number + 1] if batched else value

        def part(*given: Any) -> Any:
            whole = value(*given)
            return whole[number : number + 1] if whole.shape[0] > 1 else whole

        return part

    return mapped(call, leaf)


@dataclass(frozen=True)
class Selection:
    """Some heads, queries and keys of a call with so many of each."""

    heads: tuple[int, ...] | None
    """None: all."""
    rows: Queries
    cols: slice
    counts: tuple[int, int, int, int]
    """Heads, heads of keys, queries and keys of the whole call."""

    def take(self, x: Tensor, axes: Sequence[str]) -> Tensor:
        """Return a tensor's part; a view where ranges are asked for."""
        picked: list[slice] = []
        listed: list[tuple[int, Tensor]] = []
        for place, (axis, size) in enumerate(zip(axes, x.shape, strict=True)):
            index = self.index(axis, size)
            if isinstance(index, Tensor):
                listed.append((place, index.to(x.device)))
            picked.append(index if isinstance(index, slice) else slice(None))
        x = x[tuple(picked)]
        for place, at in listed:
            x = x.index_select(place, at)
        return x

    def index(self, axis: str, size: int) -> slice | Tensor:
        """Return what is read of one axis."""
        if axis.startswith("#") and size == 1:
            return slice(None)
        return self._by_axis.get(axis.lstrip("#"), slice(None))

    @cached_property
    def _by_axis(self) -> dict[str, slice | Tensor]:
        heads, key_heads, queries, keys = self.counts
        parts: dict[str, slice | Tensor] = {"t": self.rows, "s": self.cols}
        # A transition is of the last keys, up to the last query.
        last = self.rows.stop if isinstance(self.rows, slice) else int(self.rows.max()) + 1
        stop = last + keys - queries
        parts["tail"] = slice(None) if stop >= keys else slice(None, stop - keys)
        if self.heads is not None:
            parts["h"] = _tidy(self.heads)
            parts["hk"] = _tidy(tuple(head * key_heads // heads for head in self.heads))
        return parts

    def leaf(self, name: str, x: Any, axes: tuple[str, ...]) -> Any:  # noqa: ARG002
        """Return the part of a tensor or function of the call."""
        return self.take(x, axes) if axes else self.function(x)

    def function(self, fn: Callable[[slice, slice], Tensor]) -> Callable[[slice, slice], Tensor]:
        """Return a function of the queries and keys of the part."""
        listed: Tensor | None = None
        if isinstance(self.rows, Tensor):
            first = int(self.rows.min())
            outer, listed = range(first, int(self.rows.max()) + 1), self.rows - first
        else:
            outer = range(self.rows.start, self.rows.stop)
        cols = range(self.cols.start, self.cols.stop)

        def part(some: slice, keys: slice) -> Tensor:
            within = outer if listed is not None else outer[some]
            columns = cols[keys]
            values = fn(slice(within.start, within.stop), slice(columns.start, columns.stop))
            if listed is not None:
                values = values[:, :, listed[some]]
            return self.take(values, ("#b", "#h", "r", "c"))

        return part


def _tidy(numbers: tuple[int, ...]) -> slice | Tensor:
    """Return consecutive numbers as a range, which needs no copy."""
    first = numbers[0] if numbers else 0
    if numbers == tuple(range(first, first + len(numbers))):
        return slice(first, first + len(numbers))
    return torch.tensor(numbers)
