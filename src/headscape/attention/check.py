"""Whether the arguments of attention fit together: shapes, dtypes, devices, positions, groups.

A path that computes with what does not fit would give numbers that mean nothing.
"""

from math import inf

from headscape.attention.reference import AttentionInputs
from headscape.errors import InputError


def check(inputs: AttentionInputs) -> None:
    """Refuse what does not fit together, by the name of the argument."""
    q, k, v, visible = inputs.q, inputs.k, inputs.v, inputs.visible
    if q.ndim != 4 or 0 in q.shape:
        raise InputError(f"q must be b h t e, none of them 0, not {tuple(q.shape)}.")
    if not q.is_floating_point():
        raise InputError(f"q must hold floating-point numbers, not {q.dtype}.")
    if (visible.q_group is None) != (visible.k_group is None):
        raise InputError("visible needs the groups of both queries and keys, or of neither.")
    b, h, _, e = q.shape
    for name, x in (("k", k), ("v", v)):
        if x.ndim != 4 or x.shape[0] != b or 0 in x.shape or (name == "k" and x.shape[3] != e):
            raise InputError(f"{name} must be {b} {h} s {e} with s > 0, not {tuple(x.shape)}.")
        if h % x.shape[1] or x.shape[1] != k.shape[1]:
            raise InputError(
                f"{name} has {x.shape[1]} heads: k and v need the same number, a divisor of {h}."
            )
        if x.dtype != q.dtype or x.device != q.device:
            raise InputError(f"{name} is {x.dtype} on {x.device}, but q {q.dtype} on {q.device}.")
    if k.shape[2] != v.shape[2]:
        raise InputError(f"k holds {k.shape[2]} keys, but v {v.shape[2]}.")
    _check_tokens(inputs)
    _check_scores(inputs)


def _check_scores(inputs: AttentionInputs) -> None:
    b, h, t, _ = inputs.q.shape
    if inputs.softcap is not None and not 0 < inputs.softcap < inf:
        raise InputError(f"softcap must be positive and finite, got {inputs.softcap}.")
    sink, temperature = inputs.sink, inputs.temperature
    if sink is not None and tuple(sink.shape) != (h,):
        raise InputError(f"sink must be of shape ({h},), not {tuple(sink.shape)}.")
    if temperature is not None:
        shape = tuple(temperature.shape)
        if len(shape) != 3 or shape[0] not in (1, b) or shape[1] not in (1, h) or shape[2] != t:
            raise InputError(f"temperature must be 1 or {b} by 1 or {h} by {t}, not {shape}.")


def _check_tokens(inputs: AttentionInputs) -> None:
    b, _, t, _ = inputs.q.shape
    keys, device = inputs.k.shape[2], inputs.q.device
    per_token = {
        "positions.q": (inputs.positions.q, t),
        "positions.k": (inputs.positions.k, keys),
        "visible.q_group": (inputs.visible.q_group, t),
        "visible.k_group": (inputs.visible.k_group, keys),
    }
    for name, (found, count) in per_token.items():
        if found is None:
            continue
        if found.is_floating_point() or found.is_complex() or found.device != device:
            raise InputError(f"{name} must hold integers on {device}.")
        if found.ndim != 2 or found.shape[0] not in (1, b) or found.shape[1] != count:
            raise InputError(f"{name} must be 1 or {b} by {count}, not {tuple(found.shape)}.")
