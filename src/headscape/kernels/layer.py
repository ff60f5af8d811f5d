"""One attention layer around an encoding: rotate, stream, bias, attend.

out = attention(q, k, v, encoding="alibi")                     [b h t e]
out = attention(q, k, v, encoding=cable, x=x, causal=True)     x is the layer's input [b s d]
inputs = prepare(encoding, q, k, v, x, Positions.span(5))      what attention is a function of
"""

from jaxtyping import Float, Int
from torch import Tensor

from headscape.call.check import check_tensors, check_tokens
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.encodings import Encoding, LayerInput, build
from headscape.encodings.context import Project
from headscape.errors import InputError
from headscape.kernels.assemble import assemble
from headscape.kernels.attend import Path, parse_path, run


def attention(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b h s e"],
    v: Float[Tensor, "b h s e"],
    *,
    encoding: Encoding | str,
    x: Float[Tensor, "b s d"] | None = None,
    positions: Positions | Int[Tensor, "#b s"] | None = None,
    causal: bool = True,
    groups: Int[Tensor, "#b s"] | None = None,
    scale: float | None = None,
    path: Path = "auto",
) -> Float[Tensor, "b h t e"]:
    """Return attention with a position encoding, from q and k before rotation.

    The queries are the last t of the s tokens; t is usually s. `encoding` is an Encoding (`build`
    makes one, with a window, temperature, softcap or sink), or the name of one without parameters,
    such as "rope:window=64". `x` is the layer's input for every key; only encodings with a stream
    (CABLE, FoX, Inkling, PaTH and others) read it. `positions` default to 0, 1, 2 ...; `groups`
    keeps packed documents apart, a negative group is padding. `scale` defaults to the encoding's
    own, for most 1/sqrt(e).

    Example:
        >>> import headscape as hs, torch
        >>> q, k, v = torch.randn(3, 1, 12, 8, 16).unbind()
        >>> hs.attention(q, k, v, encoding="alibi").shape
        torch.Size([1, 12, 8, 16])
    """
    check_tensors(q, k, v)
    parse_path(path)
    encoding = _resolve(encoding, q, k, x, causal=causal)
    queries, keys = q.shape[2], k.shape[2]
    if queries > keys:
        raise InputError(f"q has {queries} tokens, more than the {keys} of k and v.")
    if positions is None:
        positions = Positions.span(queries, keys, on=q.device)
    elif isinstance(positions, Tensor):
        positions = Positions(positions[..., keys - queries :], positions)
    q_group = None if groups is None else groups[..., keys - queries :]
    visible = Visible(causal, q_group, groups)
    check_tokens(q, k, positions, visible)
    _check_input(encoding, k, x)
    if not encoding.streams:
        x = None
    inputs = prepare(encoding, q, k, v, x, positions, visible=visible, scale=scale, observed=False)
    return run(inputs, path)


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


def _resolve(
    encoding: Encoding | str, q: Tensor, k: Tensor, x: Tensor | None, *, causal: bool
) -> Encoding:
    """Return the encoding, built for these tensors if it is given by name."""
    _, heads, _, head_dim = q.shape
    if isinstance(encoding, str):
        name = encoding
        encoding = build(
            name,
            heads=heads,
            head_dim=head_dim,
            width=heads * head_dim if x is None else x.shape[-1],
            train_length=k.shape[2],
            causal=causal,
        )
        if next(encoding.parameters(), None) is not None:
            raise InputError(
                f"{name!r} has learned parameters: build it once with headscape.build() "
                f"and pass the object."
            )
    if not isinstance(encoding, Encoding):
        raise InputError(
            f"encoding must be an Encoding or the name of one, got {encoding!r}: pass 'nope' for "
            f"attention without position."
        )
    if encoding.at_input:
        raise InputError(
            f"{encoding.title} acts on the token embeddings, not in attention: call its embed() "
            f"there and pass encoding='nope' here."
        )
    if (encoding.shape.heads, encoding.shape.head_dim) != (heads, head_dim):
        raise InputError(
            f"{encoding.title} was built for {encoding.shape.heads} heads of "
            f"{encoding.shape.head_dim} dims, but q has {heads} heads of {head_dim}."
        )
    return encoding


def _check_input(encoding: Encoding, k: Tensor, x: Tensor | None) -> None:
    if x is None:
        if encoding.streams:
            raise InputError(f"{encoding.title} needs the layer's input: pass x of shape b s d.")
        return
    batch, _, keys, _ = k.shape
    if x.ndim != 3 or x.shape[:2] != (batch, keys):
        raise InputError(
            f"x must have shape {batch} {keys} d, one row per key, got {tuple(x.shape)}."
        )
    if not encoding.streams:
        return
    if x.shape[2] != encoding.shape.width:
        raise InputError(
            f"x has width {x.shape[2]}, but {encoding.title} was built for {encoding.shape.width}."
        )
    parameter = next(encoding.parameters(), None)
    if parameter is not None and (x.dtype, x.device) != (parameter.dtype, parameter.device):
        raise InputError(
            f"x is {x.dtype} on {x.device}, but the parameters of {encoding.title} are "
            f"{parameter.dtype} on {parameter.device}."
        )
