"""Attention with an encoding in one call, and the choice of the path that computes it.

    attention(q, k, v, encoding="alibi")                    [b h t e]
    attention(q, k, v, encoding=cable, x=x, causal=True)    x is the layer's input [b s d]
    bias("alibi", heads=12, length=512)                     numpy [h length length]

The paths:

    decode      one query against a cache                       kernels/decode.py
    native      the C++ kernel on a CPU                          kernels/native/
    sdpa        torch's own attention, without a bias            kernels/sdpa.py
    flex        torch's FlexAttention                            kernels/flex.py
    torch       blocks in plain torch, any dtype and device      kernels/torch_blocks.py
    reference   whole matrices, the definition                   call/definition.py

Each is a module with the two functions of `Backend` and a record in `KERNELS`; a new one is no more
than that. `auto` takes the first record that it considers on the call's device and that serves the
call; torch serves every call. FlexAttention is taken only by name. Nothing was ever run on a GPU
here. A path asked for by name runs, or raises an InputError with the reason. `choose` returns the
path that would run and why the ones before it do not. Calls come from `assemble`, which has checked
them: a kernel checks nothing but whether it serves the call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, overload

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import dense
from headscape.call.definition import AttentionCall, Tap
from headscape.call.positions import Positions, Visible
from headscape.encodings import Encoding, LayerContext, build
from headscape.errors import InputError, at_least
from headscape.kernels import decode, flex, sdpa, torch_blocks
from headscape.kernels.assemble import check_tensors, check_tokens, prepare
from headscape.kernels.native import adapter, score_cells


class Backend(Protocol):
    """What a kernel's module has."""

    def refuses(self, inputs: AttentionCall, /) -> str | None:
        """Return why it does not serve the call; None if it does."""
        ...

    def run(self, inputs: AttentionCall, /) -> Float[Tensor, "b h t ev"]:
        """Return the attention of rotated q and k over v."""
        ...


class RowBackend(Protocol):
    """One query over keys that it sees all of, its bias written out: decoding in other code."""

    def serves_row(self, q: Tensor, k: Tensor, v: Tensor, /) -> bool:
        """Return whether it takes these tensors."""
        ...

    def run_row(
        self, inputs: AttentionCall, row: Float[Tensor, "#b h *one s"] | None, /
    ) -> Float[Tensor, "b h 1 ev"]:
        """Return the attention of one query; `row` is its bias."""
        ...


class CellsBackend(Protocol):
    """The scores of one sequence reduced to a grid of cells, as native/score_cells.py does."""

    def refuses(self, inputs: AttentionCall, /) -> str | None:
        """Return why the scores of a call cannot be reduced; None if they can."""
        ...

    def reduce_scores(
        self, inputs: AttentionCall, edges: Int64[np.ndarray, " edges"], /
    ) -> Mapping[str, Mapping[str, Float32[np.ndarray, "h r r"]]]:
        """Return the mean, min and max of every cell, by quantity."""
        ...


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One way to compute attention."""

    backend: Backend
    auto: Literal["anywhere", "on CPUs", "on GPUs", "never"] = "never"
    """Where `auto` considers it, in the order of the table."""
    learns: bool = True
    """Whether `auto` takes it where gradients are needed."""
    fused: bool = False
    """Whether it computes without whole rows of scores in memory, so that a model of transformers
    gains by it: attn_implementation="headscape" serves what such a kernel serves."""
    row: RowBackend | None = None
    """How it computes one query whose bias is a row."""
    with_lse: Callable[[AttentionCall], tuple[Tensor, Tensor]] | None = None
    """Returns attention [b h t ev] and the logarithm [b h t] of every softmax's denominator."""
    cells: CellsBackend | None = None
    """How it reduces scores to cells."""

    def unwanted(self, q: Tensor) -> str | None:
        """Return why `auto` does not take it though it supports the call."""
        if self.auto != "anywhere" and (self.auto == "on CPUs") != (q.device.type == "cpu"):
            return f"auto takes it {self.auto} only"
        if not self.learns and torch.is_grad_enabled() and q.requires_grad:
            return "gradients are needed"
        return None


KERNELS: dict[str, Kernel] = {
    "decode": Kernel(backend=decode, auto="anywhere", learns=False, row=decode),
    "native": Kernel(
        backend=adapter,
        auto="on CPUs",
        fused=True,
        with_lse=adapter.run_with_lse,
        cells=score_cells,
    ),
    "sdpa": Kernel(backend=sdpa, auto="on GPUs"),
    "flex": Kernel(backend=flex),
    "torch": Kernel(backend=torch_blocks, auto="anywhere"),
    "reference": Kernel(backend=definition),
}


def paths() -> tuple[str, ...]:
    """Return every name that `path` may have."""
    return ("auto", *KERNELS)


@dataclass(frozen=True)
class Choice:
    """The path that runs, and why the ones before it do not."""

    path: str
    passed_over: dict[str, str]


def check_path(path: str) -> None:
    """Raise InputError if there is no such path."""
    if path != "auto" and path not in KERNELS:
        raise InputError(f"unknown attention path {path!r}: there are {', '.join(paths())}.")


def choose(inputs: AttentionCall, path: str = "auto") -> Choice:
    """Return the path that runs this call."""
    if path != "auto":
        check_path(path)
        reason = KERNELS[path].backend.refuses(inputs)
        if reason is not None:
            raise InputError(f"attention path {path!r} cannot run this call: {reason}.")
        return Choice(path, {})
    passed_over: dict[str, str] = {}
    for name, kernel in KERNELS.items():
        if kernel.auto == "never":
            continue
        reason = kernel.backend.refuses(inputs) or kernel.unwanted(inputs.q)
        if reason is None:
            return Choice(name, passed_over)
        passed_over[name] = reason
    raise AssertionError("torch serves every call")


def run(
    inputs: AttentionCall, path: str = "auto", tap: Tap | None = None
) -> Float[Tensor, "b h t ev"]:
    """Return the attention of rotated q and k over v.

    `tap` is called with every score, on the reference path only.
    """
    if tap is not None:
        if path not in {"auto", "reference"}:
            raise InputError(f"a tap needs the reference path, got path={path!r}.")
        return definition.run(inputs, tap)
    return KERNELS[choose(inputs, path).path].backend.run(inputs)


def no_fused_kernel(inputs: AttentionCall) -> str | None:
    """Return why no fused kernel supports a call; None if one does."""
    reasons = [each.backend.refuses(inputs) for each in KERNELS.values() if each.fused]
    return None if None in reasons else ", and ".join(map(str, reasons))


def row_backend(q: Tensor, k: Tensor, v: Tensor) -> RowBackend | None:
    """Return what computes one query with a row of bias, unless a fused kernel comes before it."""
    for kernel in KERNELS.values():
        if kernel.row is not None and kernel.row.serves_row(q, k, v):
            return kernel.row
        if kernel.fused and kernel.unwanted(q) is None:
            return None
    return None


def cells_backend(inputs: AttentionCall) -> CellsBackend | None:
    """Return what reduces the scores of a call to cells without a row of them in memory."""
    backends = (each.cells for each in KERNELS.values() if each.cells is not None)
    return next((each for each in backends if each.refuses(inputs) is None), None)


def log_sum_exp(inputs: AttentionCall) -> Float[Tensor, "b h t"] | None:
    """Return the logarithm of every softmax's denominator from a kernel, None if none gives it."""
    for kernel in KERNELS.values():
        if kernel.with_lse is not None and kernel.backend.refuses(inputs) is None:
            return kernel.with_lse(inputs)[1]
    return None


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    encoding: Encoding | str,
    x: Tensor | None = None,
    positions: Positions | Tensor | None = None,
    causal: bool = True,
    groups: Tensor | None = None,
    scale: float | None = None,
    train_length: int | None = None,
    path: str = "auto",
    return_weights: Literal[False] = False,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    encoding: Encoding | str,
    x: Tensor | None = None,
    positions: Positions | Tensor | None = None,
    causal: bool = True,
    groups: Tensor | None = None,
    scale: float | None = None,
    train_length: int | None = None,
    path: str = "auto",
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...


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
    train_length: int | None = None,
    path: str = "auto",
    return_weights: bool = False,
) -> Float[Tensor, "b h t e"] | tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h t s"]]:
    """Return attention with a position encoding, from q and k before rotation.

    Args:
        q: Queries. They are the last t of the s tokens; t is usually s.
        k: Keys.
        v: Values.
        encoding: An Encoding (`build` makes one, with a window, temperature, softcap or sink), or
            the name of one without parameters, such as "rope:window=64".
        x: The layer's input for every key; only encodings with a stream (CABLE, FoX, Inkling, PaTH
            and others) read it.
        positions: Positions of the tokens; 0, 1, 2 ... by default.
        causal: Whether a query sees only keys up to its own position.
        groups: A number per token that keeps packed documents apart; a negative one is padding.
        scale: The factor of q.k; by default the encoding's own, for most 1/sqrt(e).
        train_length: The context length in training, for an encoding by name that depends on it
            (a temperature, RoPE scaled for longer contexts). It is never taken from the keys, so
            a token decoded alone gets the same result as in the whole sequence.
        path: Which kernel computes it; "auto" chooses.
        return_weights: Whether to return the attention weights [b h t s] too. They and the output
            are then computed by the definition, which needs time and memory of order t s.

    Example:
        >>> import headscape as hs, torch
        >>> q, k, v = torch.randn(3, 1, 12, 8, 16).unbind()
        >>> hs.attention(q, k, v, encoding="alibi").shape
        torch.Size([1, 12, 8, 16])
        >>> out, weights = hs.attention(q, k, v, encoding="alibi", return_weights=True)
        >>> weights.shape
        torch.Size([1, 12, 8, 8])
    """
    # `assemble` checks the call; here only what is read before that.
    check_tensors(q, k, v)
    check_path(path)
    if return_weights and path not in {"auto", "reference"}:
        raise InputError(
            f"return_weights=True needs the weights of all pairs, which path={path!r} does not "
            f"keep: use path='auto' or 'reference'."
        )
    encoding = _resolve(encoding, q, x, train_length, causal=causal)
    queries, keys = q.shape[2], k.shape[2]
    if queries > keys:
        raise InputError(f"q has {queries} tokens, more than the {keys} of k and v.")
    counted = positions is None and groups is None
    if positions is None:
        positions = Positions.span(queries, keys, on=q.device)
    elif isinstance(positions, Tensor):
        positions = Positions(positions[..., keys - queries :], positions)
    q_group = None if groups is None else groups[..., keys - queries :]
    visible = Visible(causal, q_group, groups)
    if not counted:
        check_tokens(q, k, positions, visible)
    _check_input(encoding, k, x)
    if not encoding.streams:
        x = None
    inputs = prepare(encoding, q, k, v, x, positions, visible=visible, scale=scale, observed=False)
    if not return_weights:
        return run(inputs, path)
    weights = definition.scores(inputs).weights
    return weights @ definition.shared(v, q.shape[1]), weights


def bias(
    encoding: str,
    *,
    heads: int,
    length: int,
    head_dim: int = 64,
    width: int | None = None,
    train_length: int | None = None,
    causal: bool = True,
    seed: int = 0,
) -> Float32[np.ndarray, "h length length"]:
    """Return what an encoding adds to the scores, for every head, query and key.

    Args:
        encoding: The name of an encoding, with fields if needed: "t5:buckets=16".
        heads: Number of heads.
        length: Number of tokens, at positions 0, 1, 2 ...
        head_dim: Dims of a head; few biases depend on it.
        width: The model's width; heads x head_dim by default.
        train_length: The context length in training; `length` by default.
        causal: Whether keys after their query are hidden; hidden pairs are NaN.
        seed: Seed of learned values, which are those of a new encoding.

    Example:
        >>> import headscape as hs
        >>> hs.bias("alibi", heads=8, length=4)[0, 3, :3].tolist()
        [-1.5, -1.0, -0.5]
    """
    at_least(1, length=length)
    if not isinstance(encoding, str):
        raise InputError(
            f"bias takes the name of an encoding, got {type(encoding).__name__}: call the bias() "
            f"of an encoding that you have built."
        )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        made = build(
            encoding,
            heads=heads,
            head_dim=head_dim,
            width=heads * head_dim if width is None else width,
            train_length=length if train_length is None else train_length,
            causal=causal,
        )
        made.initialise()
        if not made.adds_bias:
            acts = "acts on the token embeddings" if made.at_input else "adds nothing to the scores"
            raise InputError(
                f"{made.title} {acts}, so it has no bias: capture a model with it "
                f"(headscape.capture) to see its scores."
            )
        if made.context_dependent:
            raise InputError(
                f"what {made.title} adds to the scores depends on the tokens: capture a model "
                f"with it (headscape.capture) and read the capture's bias."
            )
        positions = Positions.span(length)
        added = made.bias(LayerContext(positions))
        assert added is not None
        values = dense(added, positions).expand(1, heads, length, length)[0]
        seen = Visible(causal, window=made.window, chunk=made.chunk).dense(positions)[0]
        return values.float().masked_fill(~seen, torch.nan).numpy()


def _resolve(
    encoding: Encoding | str,
    q: Tensor,
    x: Tensor | None,
    train_length: int | None,
    *,
    causal: bool,
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
            train_length=train_length,
            causal=causal,
        )
        if next(encoding.parameters(), None) is not None:
            raise InputError(
                f"{name!r} has learned parameters: build it once with headscape.build() "
                f"and pass the object."
            )
    elif train_length is not None:
        raise InputError(
            "train_length is for an encoding by name: give it to headscape.build() instead."
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
