"""One layer's queries, keys and values with an encoding, made into the call that attention runs.

GPT-2, an exported model, an encoding put into a transformers model and `headscape.attention` all
come through here, with or without a cache. The call is checked here, once; the definition and the
kernels trust it. Checked are shapes, dtypes, devices and tokens, and that the bias was made for
these positions. Without the last a call would silently return a wrong result: hidden pairs may lie
outside of a bias's table, so it is read by a clamped index, and a visible pair outside of it would
get the value of a nearer one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.bias import (
    Bias,
    BiasSum,
    GapKernel,
    Matrix,
    Pairwise,
    Perceptron,
    RelativeCurves,
    Slope,
    Toeplitz,
    covered_distances,
)
from headscape.call.definition import AttentionCall
from headscape.call.mixing import KeyConvolution, PairPerceptron, Product
from headscape.call.positions import Positions, Visible
from headscape.call.transition import Transition
from headscape.encodings import Encoding
from headscape.encodings.context import (
    LayerContext,
    LayerInput,
    Project,
    QueriesAndKeys,
    Role,
    Side,
    Stream,
)
from headscape.errors import InputError

Norm = Callable[[Tensor, Role], Tensor]
"""A norm of queries or keys that comes after their rotation."""


def rotated(
    encoding: Encoding, x: Float[Tensor, "b h t e"], side: Side, norm: Norm | None = None
) -> Float[Tensor, "b h t wide"]:
    """Return queries or keys as attention multiplies them: rotated, then normed."""
    turned = encoding.rotate(x, side)
    return turned if norm is None else norm(turned, side.role)


def assemble(
    encoding: Encoding,
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b hk s e"],
    v: Float[Tensor, "b hk s ev"],
    positions: Positions,
    visible: Visible,
    *,
    streams: tuple[Stream | None, Stream | None] = (None, None),
    scale: float | None = None,
    model_scale: float | None = None,
    norm: Norm | None = None,
    cached: bool = False,
    project: Project | None = None,
    kept: dict[str, tuple[int, Any]] | None = None,
    bias_of: Callable[[LayerContext], Bias | None] | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, " h"] | None = None,
    observed: bool = False,
) -> AttentionCall:
    """Return the attention call of one layer.

    Args:
        encoding: What position does in this layer.
        q: Queries before rotation.
        k: Keys before rotation; from a cache, rotated if `encoding.cacheable_keys`.
        v: Values of the keys.
        positions: Positions of queries and keys.
        visible: Causal or not, documents and a window of the model; the encoding's window and chunk
            are added.
        streams: What the encoding read off the layer's input, for the queries and for the keys.
        scale: The factor of q.k; it replaces every other.
        model_scale: The model's factor of q.k, which the encoding's own replaces; 1/sqrt(e) if
            neither is given.
        norm: A norm of queries and keys after their rotation.
        cached: Whether `k` comes from a cache.
        project: The layer's projections of other rows, for DeBERTa with share_att_key.
        kept: Where a cache keeps what depends on the encoding's parameters alone.
        bias_of: Returns the bias in place of the encoding, from what a cache keeps of it.
        softcap: The model's softcap, if the encoding has none.
        sink: The model's sinks, if the encoding has none.
        observed: Whether to keep q and k before rotation and what turned them, for captures.
    """
    queries, keys = streams
    if encoding.streams and queries is None:
        raise InputError(
            f"{encoding.title} needs the layer's input: put stream(LayerInput(x)) into `streams`."
        )
    asking, asked = Side(positions.q, "query", queries), Side(positions.k, "key", keys)
    turned_q = rotated(encoding, q, asking, norm)
    turned_k = k
    if not (cached and encoding.cacheable_keys):
        turned_k = rotated(encoding, k, Side(positions.k, "key", None) if cached else asked, norm)
    if scale is None:
        own = model_scale if encoding.content_scale is None else encoding.content_scale
        scale = q.shape[-1] ** -0.5 if own is None else own
    window, chunk = encoding.window, encoding.chunk
    if window is not None and visible.window is not None:
        window = min(window, visible.window)
    if window is not None or chunk != visible.chunk:
        visible = replace(visible, window=window or visible.window, chunk=chunk)
    scaled_q, temperature = encoding.apply_temperature(turned_q, positions, visible)
    layer = LayerContext(
        positions, queries, keys, QueriesAndKeys(turned_q, turned_k, scale, project, kept)
    )
    unrotated = turns = None
    if observed and not cached and (encoding.rotates or scaled_q is not turned_q):
        unrotated = (q, k) if norm is None else (norm(q, "query"), norm(k, "key"))
        turns = encoding.turns(asking, asked)
    call = AttentionCall(
        scaled_q,
        turned_k,
        v,
        encoding.bias(layer) if bias_of is None else bias_of(layer),
        positions,
        visible,
        scale,
        unrotated,
        mixing=encoding.mixing(layer),
        weighting=encoding.weighting,
        turns=turns,
        temperature=temperature,
        softcap=encoding.softcap or softcap,
        sink=sink if encoding.sink() is None else encoding.sink(),
        transition=_transition(queries, keys),
    )
    _check_encoding(encoding, call)
    check(call)
    return call


def prepare(
    encoding: Encoding,
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b h s e"],
    v: Float[Tensor, "b h s e"],
    x: Float[Tensor, "b s d"] | None,
    positions: Positions,
    *,
    visible: Visible | None = None,
    scale: float | None = None,
    project: Project | None = None,
    observed: bool = True,
) -> AttentionCall:
    """Return the call of one layer without a cache; `x` is the layer's input for every key.

    The queries are the last t of these tokens. The rest is as in `assemble`.
    """
    visible = Visible(encoding.shape.causal) if visible is None else visible
    keys = None
    if x is not None:
        keys = encoding.stream(LayerInput(x, starts=visible.starts(x.shape[1])))
    queries = None if keys is None else keys.last(q.shape[2])
    return assemble(
        encoding, q, k, v, positions, visible, streams=(queries, keys), scale=scale,
        project=project, observed=observed,
    )  # fmt: skip


def _transition(queries: Stream | None, keys: Stream | None) -> Transition | None:
    """Return how keys change; a cache has applied earlier tokens to its keys already."""
    for stream in (keys, queries):
        if stream is not None and stream.transition is not None:
            return stream.transition
    return None


def _check_encoding(encoding: Encoding, call: AttentionCall) -> None:
    """Refuse a causal encoding where a key follows its query, and a bias that is missing."""
    if encoding.adds_bias and call.bias is None:
        raise InputError(
            f"{encoding.title} adds a bias, but its bias() returned None: return a bias for every "
            f"call."
        )
    if call.visible.causal or not encoding.shape.causal or call.positions.bounds[0] >= 0:
        return
    if encoding.no_bidirectional_form:
        raise InputError(
            f"{encoding.title} has no bidirectional form, because "
            f"{encoding.no_bidirectional_form}: use a causal mask."
        )
    if encoding.adds_bias:
        raise InputError(
            f"{encoding.title} was built for causal attention, but the mask is bidirectional: "
            f"build it with causal=False."
        )


REBUILD = "make it with encoding.bias(LayerContext(positions, ...)) for this call"


def check(inputs: AttentionCall) -> None:
    """Raise InputError if the parts of a call do not fit together."""
    check_tensors(inputs.q, inputs.k, inputs.v)
    check_tokens(inputs.q, inputs.k, inputs.positions, inputs.visible)
    check_shaping(inputs)
    check_bias(inputs.bias, inputs)
    check_mixing(inputs)


def check_bias(bias: Bias | None, inputs: AttentionCall) -> None:
    """Raise InputError unless a bias was made for the heads and positions of the call."""
    if bias is None:
        return
    if isinstance(bias, Pairwise | BiasSum):
        for part in bias.parts if isinstance(bias, BiasSum) else ():
            check_bias(part, inputs)
        for role in ("q", "k") if bias.positions is not None else ():
            if not _equal(getattr(bias.positions, role), getattr(inputs.positions, role)):
                raise InputError(f"the bias was made for different positions.{role}: {REBUILD}.")
        return
    for name, (tensor, shape) in _shapes(bias, inputs).items():
        if tuple(tensor.shape) not in (shape, (1, *shape[1:])) or tensor.device != inputs.q.device:
            raise InputError(
                f"bias.{name} has shape {tuple(tensor.shape)} on {tensor.device}, but this call "
                f"needs {shape} on {inputs.q.device}: {REBUILD}."
            )
    _check_distances(bias, inputs)
    made_for = bias.at if isinstance(bias, Perceptron) else None
    if made_for is not None and not _equal(made_for, inputs.positions.q):
        raise InputError(f"the bias was made for different query positions: {REBUILD}.")


def check_mixing(inputs: AttentionCall) -> None:
    """Raise InputError unless the mixing was made for the heads and positions of the call."""
    mixing = inputs.mixing
    if mixing is None:
        return
    if isinstance(mixing, Product):
        _check_distances(mixing.table, inputs, "mixing")
    if isinstance(mixing, PairPerceptron | KeyConvolution):
        heads = inputs.q.shape[1]
        channels = heads * (1 if inputs.bias is None else 2)
        if mixing.in_weight.shape[1] != channels or mixing.out_weight.shape[0] != heads:
            raise InputError(
                f"{type(mixing).__name__} has {mixing.in_weight.shape[1]} channels and "
                f"{mixing.out_weight.shape[0]} heads, but q and bias have {channels} and {heads}."
            )


def _check_distances(bias: Bias, inputs: AttentionCall, name: str = "bias") -> None:
    """Raise InputError unless a table has every distance that the mask may show."""
    covered, (low, high) = covered_distances(bias), inputs.positions.bounds
    reach = inputs.visible.chunk if inputs.visible.window is None else inputs.visible.window
    if reach is not None:
        low, high = max(low, 1 - reach), min(high, reach - 1)
    if inputs.visible.causal:
        low = max(low, 0)
    if covered is not None and low <= high and not covered[0] <= low <= high <= covered[1]:
        raise InputError(
            f"the {name} covers distances {covered[0]} to {covered[1]}, but the positions have "
            f"{low} to {high}: make it with encoding.{name}(LayerContext(positions, ...)) for this "
            f"call."
        )


def _shapes(bias: Bias, inputs: AttentionCall) -> Mapping[str, tuple[Tensor, tuple[int, ...]]]:
    """Return the tensors of a bias that have an axis of heads, queries or keys; axis 0 may be 1."""
    b, h, t, _ = inputs.q.shape
    if isinstance(bias, Toeplitz):
        return {"table": (bias.table, (h, bias.table.shape[-1]))}
    if isinstance(bias, Matrix):
        return {"values": (bias.values, (b, h, t, inputs.k.shape[2]))}
    if isinstance(bias, Slope | GapKernel):
        sums = {"row": (bias.row, (b, h, t)), "col": (bias.col, (b, h, inputs.k.shape[2]))}
        return sums if bias.weight is None else sums | {"weight": (bias.weight, (b, h, t))}
    if isinstance(bias, Perceptron):
        units = bias.in_weight.shape[-1]
        return {"far": (bias.far, (b, t)), "out_weight": (bias.out_weight, (h, units))}
    if isinstance(bias, RelativeCurves):
        per_query = {"r": (bias.r, (b, h, t, bias.r.shape[-1]))}
        if bias.key is None:
            return per_query
        u = bias.key[0]
        return per_query | {"key[0]": (u, (b, h, inputs.k.shape[2], u.shape[-1]))}
    return {}


def _equal(ours: Tensor, theirs: Tensor) -> bool:
    return ours is theirs or (ours.shape[1] == theirs.shape[1] and bool(torch.all(ours == theirs)))


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


def check_shaping(inputs: AttentionCall) -> None:
    """Raise InputError unless temperature, softcap, sink and transition fit the queries."""
    b, h, t, _ = inputs.q.shape
    if inputs.softcap is not None and not 0 < inputs.softcap < math.inf:
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


def _check_transition(inputs: AttentionCall, transition: Transition) -> None:
    b, h, t, e = inputs.q.shape
    count, keys = transition.tensors[0].shape[2], inputs.k.shape[2]
    needed, shapes = transition.shapes(b, h, count, e), [tuple(x.shape) for x in transition.tensors]
    if shapes != list(needed.values()) or not t <= count <= keys:
        parts = (
            f"{name} of shape {b} {h} n" + f" {e}" * (len(shape) - 3)
            for name, shape in needed.items()
        )
        raise InputError(
            f"{type(transition).__name__} needs {' and '.join(parts)}, with n from {t} to {keys}, "
            f"got {' and '.join(map(str, shapes))}."
        )


INTEGERS = frozenset({
    torch.int64, torch.int32, torch.int16, torch.int8, torch.bool,
    torch.uint64, torch.uint32, torch.uint16, torch.uint8,
})  # fmt: skip
"""Dtypes of positions and groups."""


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
    for name, (numbers, count) in per_token.items():
        if numbers is None:
            continue
        if numbers.dtype not in INTEGERS or numbers.device != device:
            raise InputError(
                f"{name} must be integers on {device}, got {numbers.dtype} on {numbers.device}."
            )
        if numbers.ndim != 2 or numbers.shape[0] not in (1, b) or numbers.shape[1] != count:
            raise InputError(
                f"{name} must have shape {b} {count} or 1 {count}, got {tuple(numbers.shape)}."
            )
