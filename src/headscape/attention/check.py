"""Checks that the tensors of an attention call fit together: shapes, dtypes, devices, tokens."""

from math import inf

from torch import Tensor

from headscape.attention.reference import AttentionInputs
from headscape.encodings.stream import Transition
from headscape.errors import InputError
from headscape.types import Positions, Visible


def check(inputs: AttentionInputs) -> None:
    """Raise InputError if tensors, positions and groups do not fit together."""
    check_tensors(inputs.q, inputs.k, inputs.v)
    check_tokens(inputs.q, inputs.k, inputs.positions, inputs.visible)
    check_shaping(inputs)


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise InputError unless q, k and v agree in shape, dtype and device."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise InputError(f"{name} must be a torch tensor, got {type(x).__name__}.")
    if q.ndim != 4 or 0 in q.shape:
        raise InputError(f"q must have shape b h t e, none of them 0, got {tuple(q.shape)}.")
    if not q.is_floating_point():
        raise InputError(f"q must have a floating-point dtype, got {q.dtype}.")
    b, h, _, e = q.shape
    for name, x in (("k", k), ("v", v)):
        if x.ndim != 4 or x.shape[0] != b or 0 in x.shape or (name == "k" and x.shape[3] != e):
            raise InputError(
                f"{name} must have shape {b} {h} s {e} with s at least 1, got {tuple(x.shape)}."
            )
        if h % x.shape[1] or x.shape[1] != k.shape[1]:
            raise InputError(
                f"{name} has {x.shape[1]} heads: k and v need the same number, a divisor of {h}."
            )
        if x.dtype != q.dtype or x.device != q.device:
            raise InputError(
                f"{name} is {x.dtype} on {x.device}, but q is {q.dtype} on {q.device}."
            )
    if k.shape[2] != v.shape[2]:
        raise InputError(f"k has {k.shape[2]} keys, but v has {v.shape[2]}.")


def check_shaping(inputs: AttentionInputs) -> None:
    """Raise InputError unless temperature, softcap, sink and transition fit the queries."""
    b, h, t, _ = inputs.q.shape
    if inputs.softcap is not None and not 0 < inputs.softcap < inf:
        raise InputError(f"softcap must be positive and finite, got {inputs.softcap}.")
    sink, temperature = inputs.sink, inputs.temperature
    if sink is not None and tuple(sink.shape) != (h,):
        raise InputError(f"sink must have shape ({h},), got {tuple(sink.shape)}.")
    if temperature is not None:
        shape = tuple(temperature.shape)
        if len(shape) != 3 or shape[0] not in (1, b) or shape[1] not in (1, h) or shape[2] != t:
            raise InputError(f"temperature must have shape 1 or {b}, 1 or {h}, {t}, got {shape}.")
    if inputs.transition is not None:
        _check_transition(inputs, inputs.transition)


def _check_transition(inputs: AttentionInputs, given: Transition) -> None:
    b, h, t, e = inputs.q.shape
    count, keys = given.tensors[0].shape[2], inputs.k.shape[2]
    needed, found = given.shapes(b, h, count, e), [tuple(x.shape) for x in given.tensors]
    if found != list(needed.values()) or not t <= count <= keys:
        parts = (
            f"{name} of shape {b} {h} n" + f" {e}" * (len(shape) - 3)
            for name, shape in needed.items()
        )
        raise InputError(
            f"{type(given).__name__} needs {' and '.join(parts)}, with n from {t} to {keys}, got "
            f"{' and '.join(map(str, found))}."
        )


def check_tokens(q: Tensor, k: Tensor, positions: Positions, visible: Visible) -> None:
    """Raise InputError unless there is one position and one group per query and key."""
    if (visible.q_group is None) != (visible.k_group is None):
        raise InputError("visible needs the groups of both queries and keys, or of neither.")
    b, queries, keys, device = q.shape[0], q.shape[2], k.shape[2], q.device
    per_token = {
        "positions.q": (positions.q, queries),
        "positions.k": (positions.k, keys),
        "visible.q_group": (visible.q_group, queries),
        "visible.k_group": (visible.k_group, keys),
    }
    for name, (found, count) in per_token.items():
        if found is None:
            continue
        if found.is_floating_point() or found.is_complex() or found.device != device:
            raise InputError(
                f"{name} must be integers on {device}, got {found.dtype} on {found.device}."
            )
        if found.ndim != 2 or found.shape[0] not in (1, b) or found.shape[1] != count:
            raise InputError(
                f"{name} must have shape {b} {count} or 1 {count}, got {tuple(found.shape)}."
            )
