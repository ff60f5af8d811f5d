"""Attention by the native kernels on the CPU, forward and backward.

Serves every bias of call/bias.py but BlockBias, causal or not, with any positions, groups,
windows and chunks, a temperature, a softcap and sinks, and heads that share keys. Half precision is
converted a tile at a time and summed in float32. A table by distance may multiply the scores
(Kerple's weight form). Weights may be those of stick-breaking, then without a bias or sink.
Encodings that mix whole rows (DAPE, DAPEv2) are served without windows, temperature, softcap,
sinks and shared keys. A perceptron (FIRE) goes in as its linear pieces,

    mlp(u) = slope_m u + offset_m      between its sorted knots -in_bias / in_weight,

which is exact; the kernel returns gradients of slopes, offsets, near and 1 / far, and autograd
carries them on. Anything the kernels cannot serve is refused here with its reason; native code
never sees it. Positions are cheapest in consecutive stretches.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import Bias, BlockBias, Perceptron, RelativeCurves, Slope, Toeplitz
from headscape.call.definition import AttentionCall
from headscape.call.mixing import KeyConvolution, Mixing, PairPerceptron, Product
from headscape.call.positions import Positions, Visible
from headscape.call.weighting import Sticks, Weighting
from headscape.encodings import build
from headscape.kernels.assemble import prepare
from headscape.kernels.native import ops
from headscape.kernels.native.ops import (
    FOLD,
    MARGIN,
    MOST_DIM,
    REACH,
    TYPES,
    Settings,
    attention,
    contiguous,
)

_LOADED = ops.load()
_MISSING = _LOADED if isinstance(_LOADED, str) else None
MOST_TAPS = 33
FAR = 1e30
"""Knot of a unit without a slope: beyond every input."""
SELF_CHECK = (
    "nope",
    "alibi",
    "cable",
    "fire",
    "kerple-weight",
    "stick-breaking",
    "dape+kerple",
    "dapev2+kerple",
)
"""One encoding for every kind of bias, mixing and weights that the kernels have code for."""
TOLERANCE = 1e-4
"""Largest allowed error, relative to the largest output or gradient."""


def available() -> str | None:
    """Return why the kernels are not available, or None if they are."""
    return _MISSING


def refuses(inputs: AttentionCall) -> str | None:
    """Return why the kernels do not support this call, or None if they do."""
    q = inputs.q
    if (missing := available()) is not None:
        return missing
    if q.device.type != "cpu":
        return f"the native kernels run on the CPU, not on {q.device.type}"
    if q.dtype not in TYPES:
        taken = ", ".join(str(each).removeprefix("torch.") for each in TYPES)
        return f"the native kernels take {taken}, not {str(q.dtype).removeprefix('torch.')}"
    if inputs.visible.recorded is not None:
        return "the native kernels take no mask"
    for dim in (q.shape[-1], inputs.v.shape[-1]):
        if dim % 8 or dim > MOST_DIM:
            return (
                f"the native kernels take head dims that are multiples of 8 up to {MOST_DIM}, "
                f"not {dim}"
            )
    if isinstance(inputs.bias, BlockBias):
        return f"the native kernels have no form of a {type(inputs.bias).__name__} bias"
    if inputs.transition is not None:
        return "the native kernels do not support keys that change on their way to a query"
    return _refuses_mixing(inputs) or _refuses_weights(inputs)


def _refuses_weights(inputs: AttentionCall) -> str | None:
    if inputs.weighting is None:
        return None
    # Exact types: a subclass may compute something else.
    if type(inputs.weighting) is not Sticks:
        kind = type(inputs.weighting).__name__
        return f"the native kernels compute a softmax or stick-breaking, not {kind}"
    if inputs.bias is not None or inputs.mixing is not None:
        return "the native kernels compute stick-breaking only without a bias"
    # The reference computes a softmax if there is a sink.
    return None if inputs.sink is None else "the native kernels take stick-breaking without a sink"


def _refuses_mixing(inputs: AttentionCall) -> str | None:
    mixing = inputs.mixing
    if mixing is None:
        return None
    if type(mixing) is Product:
        both = "the native kernels multiply scores by a table only without a bias"
        return None if inputs.bias is None else both
    if type(mixing) not in (PairPerceptron, KeyConvolution):
        return f"the native kernels do not mix scores as {type(mixing).__name__} does"
    if isinstance(mixing, KeyConvolution) and mixing.in_weight.shape[2] > MOST_TAPS:
        return f"the native kernels take convolutions of up to {MOST_TAPS} keys"
    return _refuses_beside_mixing(inputs)


def _refuses_beside_mixing(inputs: AttentionCall) -> str | None:
    plain = "the native kernels mix scores without"
    if inputs.visible.window is not None:
        return f"{plain} a window"
    if inputs.temperature is not None:
        return f"{plain} a temperature"
    if inputs.softcap is not None:
        return f"{plain} a softcap"
    if inputs.sink is not None:
        return f"{plain} a sink"
    if inputs.k.shape[1] != inputs.q.shape[1] or inputs.v.shape[3] != inputs.q.shape[3]:
        return f"{plain} grouped queries or values of a different head dim"
    if isinstance(inputs.bias, RelativeCurves):
        return f"{plain} a curve by distance per token"
    if not contiguous(_at(inputs)):
        return "the native kernels mix the scores of consecutive keys only"
    return None


def run(inputs: AttentionCall) -> Float[Tensor, "b h t ev"]:
    """Return the attention of rotated q and k over v."""
    return run_with_lse(inputs)[0].to(inputs.q.dtype)


def run_with_lse(
    inputs: AttentionCall,
) -> tuple[Float[Tensor, "b h t ev"], Float[Tensor, "b h t"]]:
    """Return attention, and the logarithm of every softmax's denominator."""
    operator = operands(inputs)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in operator[4])
    out, lse = attention(*operator, learns)
    return out, lse


def operands(inputs: AttentionCall) -> tuple[Any, ...]:
    """Return what the operator of ops.py takes, up to `learns`."""
    q, k, v, bias, visible = inputs.q, inputs.k, inputs.v, inputs.bias, inputs.visible
    factor = inputs.mixing.table if isinstance(inputs.mixing, Product) else None
    kind, tensors, low = _bias_operands(factor or bias, inputs.positions, visible.causal)
    kind = kind if factor is None else "factor"
    mixing, mixers = _mixing_operands(inputs.mixing)
    if mixing and kind == "toeplitz":
        h, (inner, in_bias) = q.shape[1], mixers[:2]
        tensors += [fold(tensors[0], low, inner[:, h:], in_bias, causal=visible.causal)]
        mixers[0] = inner[:, :h]
    temperature, sink = inputs.temperature, inputs.sink
    if temperature is not None:
        temperature = temperature.float().expand(q.shape[:3])
    if mixing:
        q, k, v = q.float(), k.float(), v.float()
    at = _at(inputs)
    if isinstance(bias, RelativeCurves):
        _, most = inputs.positions.bounds
        at += [bias.columns(torch.arange(low, max(most, low + REACH) + REACH + 1))[None]]
    settings = Settings(
        visible.causal, inputs.scale, low, visible.window or 0, inputs.softcap or 0.0,
        *_stick_settings(inputs.weighting),
    )  # fmt: skip
    return (
        q, k, v, at, [*tensors, *mixers], kind, mixing, [float(x) for x in settings], temperature,
        None if sink is None else sink.float(),
    )  # fmt: skip


def _at(inputs: AttentionCall) -> list[Tensor]:
    """Positions of queries and keys and, where there are any, their groups."""
    at = [inputs.positions.q, inputs.positions.k]
    visible = inputs.visible.chunks_as_groups(inputs.positions)
    if visible.q_group is not None and visible.k_group is not None:
        at += [visible.q_group, visible.k_group]
    return at


def _mixing_operands(mixing: Mixing | None) -> tuple[str, list[Tensor]]:
    """How rows are mixed, as ops.py names it, and the weights as convolutions [out, in, taps]."""
    if isinstance(mixing, PairPerceptron):
        name = f"dape {'added' if mixing.adds_bias else 'channel-only'}"
        weights = [mixing.in_weight[..., None], mixing.out_weight[..., None]]
    elif isinstance(mixing, KeyConvolution):
        name = f"dapev2 {mixing.boundary}"
        weights = [mixing.in_weight, mixing.out_weight]
    else:
        return "", []
    return name, [x.float() for x in (weights[0], mixing.in_bias, weights[1], mixing.out_bias)]


def _stick_settings(weighting: Weighting | None) -> tuple[bool, ...]:
    """Return the last three fields of `Settings`; none if the weights are a softmax."""
    if weighting is None:
        return ()
    assert isinstance(weighting, Sticks)
    return True, weighting.takes_own, weighting.keeps_rest


def _bias_operands(
    bias: Bias | None,
    positions: Positions,
    causal: bool,  # noqa: FBT001
) -> tuple[str, list[Tensor], int]:
    """Return what C++ calls the bias, its tensors, and the distance of a table's first column.

    CABLE and FoX are a `Slope`: the sums by query and key, and the weight. FIRE is a `Perceptron`;
    Shaw, Transformer-XL, DeBERTa and Inkling are `RelativeCurves`, "sheared" in C++.
    """
    if bias is None:
        return "none", [], 0
    if isinstance(bias, Slope):
        sums = [bias.row.double(), bias.col.double()]
        return "slope", sums if bias.weight is None else [*sums, bias.weight.float()], 0
    least, most = positions.bounds
    margin = REACH if isinstance(bias, RelativeCurves) else MARGIN
    low = (max(least, 0) if causal else least) - margin
    distance = torch.arange(low, max(most, low) + margin + 1)
    if isinstance(bias, RelativeCurves):
        tensors = [bias.r, bias.basis.mT, *_by_key(bias)]
        # In the kernels' layout here, so that the backward pass does not copy them again.
        return "sheared", [x.float().contiguous() for x in tensors], low
    if isinstance(bias, Toeplitz):
        column = (distance + bias.zero).clamp(0, bias.table.shape[1] - 1)
        return "toeplitz", [bias.table.index_select(1, column).float()], low
    assert isinstance(bias, Perceptron)
    column = (distance + bias.zero).clamp(0, bias.near.shape[0] - 1)
    near = bias.near.index_select(0, column).float()
    return "pieces", [near, (1 / bias.far.double()).float(), *pieces(bias)], low


def _by_key(bias: RelativeCurves) -> list[Tensor]:
    """Return u and its basis, or u . basis as one number per key if the basis is constant."""
    if bias.key is None:
        return []
    u, basis = bias.key
    if basis.shape[-1] == 1 or basis.stride(-1) == 0:
        return [(u * basis[:, None, :, 0]).sum(-1)]
    return [u, basis.mT]


def pieces(mlp: Perceptron) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes [h p], offsets [h p] and knots [p - 1] of a perceptron of one input."""
    w, b = mlp.in_weight.double(), mlp.in_bias.double()
    with torch.no_grad():
        knots = torch.where(w == 0, FAR, -b / torch.where(w == 0, 1, w)).clamp(-FAR, FAR)
        knots = knots.sort().values
        inside = (knots[1:] + knots[:-1]) / 2
        inside = torch.cat([knots[:1] - 1, inside, knots[-1:] + 1])
        active = torch.where(w[:, None] * inside + b[:, None] > 0, 1.0, mlp.leak)
    out = mlp.out_weight.double()
    slopes = out @ (active * w[:, None])
    offsets = out @ (active * b[:, None]) + mlp.out_bias.double()[:, None]
    return slopes.float(), offsets.float(), knots.float()


def fold(
    table: Float[Tensor, "h n"],
    low: int,
    weight: Float[Tensor, "m h k"],
    in_bias: Float[Tensor, " m"],
    *,
    causal: bool,
) -> Float[Tensor, "k1 m n1"]:
    """Return what a bias by distance adds to the hidden maps of DAPE and DAPEv2, by distance.

    The first convolution is linear in X = [A ; B], and B depends on the distance d = i - j alone:

        conv1(X) = conv1_A(A) + fold[0, :, d]      fold[1 + t] = W_B[:, :, t] B[d + p - t]
                                                   fold[0]     = in_bias + the sum over all taps t

    with p = taps // 2 and B = 0 where it is hidden. That is half of conv1 and of its gradients,
    done once instead of for every pair of tokens. Where a tap falls outside the keys of a sequence,
    the kernel subtracts fold[1 + t]. Autograd carries the gradient of the table on to bias and
    weights. The table is for distances from low - FOLD on; `low` is that in column 0 of `table`.
    """
    taps = weight.shape[2]
    if causal:
        table = table * (torch.arange(low, low + table.shape[1]) >= 0)
    reach = FOLD + taps // 2
    shares = torch.einsum("mhk,hn->kmn", weight, F.pad(table, (reach, reach)))
    length = table.shape[1] + 2 * FOLD
    shifted = torch.stack([x[:, taps - 1 - t :][:, :length] for t, x in enumerate(shares)])
    return torch.cat([(in_bias[:, None] + shifted.sum(0))[None], shifted])


def largest_error() -> float:
    """Return the largest relative error of outputs and of the gradients of q, k and v.

    The kernels are compared with the definition on small random inputs: a library that was built
    elsewhere shows whether it works on this machine.
    """
    heads, length, dim = 4, 70, 16
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, k, v = (random(1, heads, length, dim).requires_grad_() for _ in range(3))
    upstream, x = random(1, heads, length, dim), random(1, length, heads * dim)
    positions = Positions.span(length)
    worst = 0.0
    for name in SELF_CHECK:
        encoding = build(name, heads=heads, head_dim=dim, width=heads * dim, train_length=length)
        inputs = prepare(encoding, q, k, v, x, positions, visible=Visible(), scale=None)
        native, expected = (
            [out, *torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True)]
            for out in (run(inputs), definition.run(inputs))
        )
        for ours, exact in zip(native, expected, strict=True):
            error = (ours - exact).detach().abs().max() / exact.detach().abs().max()
            worst = max(worst, error.item())
    return worst
