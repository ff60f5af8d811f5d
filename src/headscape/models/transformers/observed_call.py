"""What a published model's attention is called with in one layer, and how far rounding moves it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headscape.call.bias import Bias
from headscape.call.definition import AttentionCall, scores, shared
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, LayerInput, QueriesAndKeys
from headscape.encodings.context import Project

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

ENCODING = "headscape_encoding"
"""The child of an attention module that `set_encoding` put in, and the field of the config."""
ENCODING_NAME = "headscape_encoding_name"
"""The attribute of the same module with the encoding's name in the table."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Relative:
    """Relative attention by the layer's own parameters."""

    name: str
    """The encoding it should be."""
    fields: dict[str, object]
    tensors: dict[str, Tensor]
    """By their published names."""
    project: Project | None = None
    """The layer's projections to queries and keys, where it projects positions by them."""
    shared: str | None = None
    """Published name of a tensor that only the first layer has, for all layers."""
    hidden: Tensor | None = None
    """The layer's input, where the encoding reads it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedCall:
    """The arguments of one layer's self-attention, as the model itself computed them."""

    module: nn.Module
    q: Float[Tensor, "b h t e"]
    """Queries, rotated."""
    k: Float[Tensor, "b hk s e"]
    """Keys, rotated; hk divides h."""
    v: Float[Tensor, "b hk s ev"]
    scale: float
    causal: bool
    """Whether a query sees no later key, where `mask` is None."""
    mask: Bool[Tensor, "#b #h t s"] | None
    """True where a query sees a key; None where that follows from `causal`."""
    bias: Float[Tensor, "#b #h #t s"] | None = None
    """What the model adds to the scores besides the mask."""
    unrotated: tuple[Tensor, Tensor] | None = None
    """q and k from the model's own code with all angles 0; None where it rotates nothing."""
    rotation: tuple[Tensor, Tensor] | None = None
    """The cos and sin that the model rotates by, where it hands them to its attention."""
    shares_position: bool = True
    """False if equal hidden states give q or k that differ by more than a factor, that is, position
    enters in a way that could not be undone."""
    growth: Float[Tensor, "h t"] | None = None
    """The factor between each query and the first one if all hidden states are equal; None if it
    was not measured."""
    window: int | None = None
    """The sliding window as the model states it; `mask` is what it does."""
    flash: bool = False
    """Whether flash attention runs, which has no mask and applies `window` itself."""
    chunk: int | None = None
    """Length of the blocks of positions that queries do not see beyond, as the config states it."""
    softcap: float | None = None
    sink: Float[Tensor, " h"] | None = None
    relative: Relative | None = None
    """Where `bias` comes from, if it reads queries and keys."""
    injected: AttentionCall | None = None
    """The whole call, in a layer whose encoding `set_encoding` put in: our own code made it."""
    encoding: Encoding | None = None
    """That encoding."""

    def bias_of(self, encoding: Encoding, positions: Positions) -> Bias | None:
        """Return the bias that an encoding adds to the scores of this call."""
        given = self.relative
        project = None if given is None else given.project
        heads = QueriesAndKeys(self.q, self.k, self.scale, project)
        hidden = None if given is None else given.hidden
        stream = None if hidden is None else encoding.stream(LayerInput(hidden))
        return encoding.bias(LayerContext(positions, stream, stream, heads))

    def positions(self) -> Positions:
        """Return the positions of queries and keys where they count 0, 1, 2 ..."""
        return Positions.span(self.q.shape[2], self.k.shape[2], on=self.q.device)

    @property
    def heads(self) -> int:
        """Heads of the queries."""
        return self.q.shape[1]

    def seen(self) -> Bool[Tensor, "#b #h t s"]:
        """The mask written out: True where a query sees a key."""
        if self.mask is not None:
            return self.mask
        queries, keys = self.q.shape[2], self.k.shape[2]
        every = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=self.q.device)
        return every.tril(keys - queries) if self.causal else every


Listener = Callable[[AttentionCall, Encoding | None], None]
_LISTENERS: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have our own attention in a transformers model report its calls while the context is open."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.pop()


def listener() -> Listener | None:
    """Return what our own attention reports a call and its injected encoding to, or None."""
    return _LISTENERS[-1] if _LISTENERS else None


class Captured(Exception):  # noqa: N818 - it reports a result, not an error
    """Leaves a forward pass with the arguments of its attention."""

    def __init__(self, q: Any, k: Any) -> None:
        super().__init__()
        self.q, self.k = q, k


def split_mask(
    mask: "Tensor | BlockMask | None", queries: int, keys: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return what a mask lets a query see, and what it adds to the scores of seen keys."""
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor):
        return _dense_block_mask(mask, queries, keys), None
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        return mask.expand(-1, -1, queries, -1), None
    seen = mask > torch.finfo(mask.dtype).min / 4
    added = mask.masked_fill(~seen, 0.0)
    return seen.expand(-1, -1, queries, -1), added if bool(added.any()) else None


def _dense_block_mask(mask: "BlockMask", queries: int, keys: int) -> Bool[Tensor, "b h t s"]:
    """Return the mask of flex attention, which is a function of query and key, as a tensor."""
    from torch.nn.attention.flex_attention import create_mask

    batch, heads, *_ = mask.shape
    seen: Tensor = create_mask(
        mask.mask_mod, batch, heads, queries, keys, device=str(mask.kv_num_blocks.device)
    )
    return seen


def with_bias(bias: Tensor | None, more: Tensor | None) -> Tensor | None:
    """Return the sum of two biases, either of which may be missing."""
    if bias is None or more is None:
        return more if bias is None else bias
    return bias + more


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Return [b t h e] merged to [b t d] as [b h t e]."""
    return x.reshape(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def custom_attention(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    bias: Tensor | None,
    unrotated: tuple[Tensor, Tensor] | None = None,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> ObservedCall:
    """Return a call from what a family's forward computes; `mask` as the family writes it."""
    seen, _ = split_mask(mask, q.shape[2], k.shape[2])
    causal = bool(getattr(module, "is_causal", False))
    return ObservedCall(
        module=module, q=q, k=k, v=v, scale=scale, causal=causal, mask=seen, bias=bias,
        unrotated=unrotated, rotation=rotation,
    )  # fmt: skip


def epsilon(dtype: torch.dtype) -> float:
    """The rounding of a dtype, at least float32's: models compute angles and softmax in it."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def allowance(dtype: torch.dtype) -> float:
    """Return the relative difference that rounding explains: 32 roundings, 4 in half precision."""
    eps = epsilon(dtype)
    return (32 if eps == torch.finfo(torch.float32).eps else 4) * eps


def rotation_agrees(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two rotations of the same vectors agree; an angle is rounded like its position.

    A quarter of the allowance per position.
    """
    allowed = allowance(theirs.dtype) / 4 * theirs.shape[2] * theirs.abs().amax()
    return bool((ours - theirs).abs().amax() <= allowed)


def bias_agrees(ours: Tensor, theirs: Tensor, seen: Tensor, *, within: float) -> bool:
    """Whether two biases agree where a key is seen, a constant per query aside.

    `within` is the relative difference allowed.
    """
    ours, theirs = ours.double(), theirs.double()
    gap = (ours - theirs).masked_fill(~seen, torch.nan)
    spread = (gap - gap.nanmean(dim=-1, keepdim=True)).masked_fill(~seen, 0.0)
    size = theirs.masked_fill(~seen, 0.0).abs().amax()
    return bool(spread.abs().amax() <= within * (1e-3 + size))


def output_rounding(inputs: AttentionCall) -> Float[Tensor, "b h t ev"]:
    """Return how far the output moves, to first order, per unit of relative error.

    Every number that attention computes has this error. A score changes by at most size =
    1 + scale |q| . |k| + |bias| times that error, and the output by the sum over keys of
    w_ij (size_ij |v_j - out_i| + |v_j|).
    """
    every, heads = scores(inputs), inputs.q.shape[1]
    products = inputs.q.abs() @ shared(inputs.k, heads).abs().mT
    size = 1 + abs(inputs.scale) * products + every.bias.abs()
    v, weights = shared(inputs.v, heads), every.weights
    out, moved = weights @ v, weights @ v.abs()
    for row in range(out.shape[2]):
        change = (weights * size)[:, :, row, :, None] * (v - out[:, :, row, None]).abs()
        moved[:, :, row] += change.sum(dim=2)
    return moved
