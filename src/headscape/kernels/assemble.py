"""One layer's queries, keys and values with an encoding, made into the call that attention runs.

GPT-2, an exported model, an encoding put into a transformers model and `headscape.attention` all
come through here, with or without a cache. The call is checked here, once; the definition and the
kernels trust it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from headscape.call.bias import Bias
from headscape.call.check import check
from headscape.call.definition import AttentionCall
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
    windows = [size for size in (visible.window, encoding.window) if size is not None]
    visible = replace(visible, window=min(windows, default=None), chunk=encoding.chunk)
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
