"""Tiles at consecutive positions: their borders, their shortcuts and their precision."""

import math

import pytest
import torch
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import Bias, Slope, Toeplitz, dense
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.encodings import LayerContext, LayerInput, build
from headscape.kernels import torch_blocks, torch_regular
from headscape.kernels.torch_regular import Operands, Rule

HEAD_DIM = 8
KINDS = ["none", "table", "steep table", "slope", "weighted slope", "any slope"]


def leaves(kind: str, batch: int, t: int, s: int) -> list[Tensor]:
    """The tensors of a bias for two heads, in float64."""
    if kind == "none":
        return []
    if kind.endswith("table"):
        steep = -0.9 * torch.arange(s).double() if kind.startswith("steep") else torch.zeros(s)
        return [steep + torch.randn(2, s, dtype=torch.float64)]
    steps = torch.rand(batch, 2, s, dtype=torch.float64)
    if kind == "any slope":
        steps = steps - 0.5
    weight = torch.rand(batch, 2, t, dtype=torch.float64) - (0.5 if kind == "any slope" else 0)
    col = -steps.cumsum(-1)
    return [col] if kind == "slope" else [col, weight]


def bias_of(given: list[Tensor], t: int) -> Bias | None:
    if not given:
        return None
    if given[0].ndim == 2:
        return Toeplitz(given[0], 0)
    return Slope(given[1] if len(given) > 1 else None, given[0][..., -t:], given[0])


def outcomes(
    kind: str, t: int, s: int, batch: int = 2, size: float = 1.0, dtype: torch.dtype = torch.float64
) -> list[list[Tensor]]:
    """Output and gradients of the tiles in some dtype, and of the definition in float64."""
    where, scale = Positions.span(t, s), 0.4
    made = [
        torch.randn(batch, n, 2, HEAD_DIM, dtype=torch.float64).transpose(1, 2) for n in (t, s, s)
    ]
    made = [size * made[0], size * made[1], made[2], *leaves(kind, batch, t, s)]
    upstream = torch.randn(batch, 2, t, HEAD_DIM, dtype=torch.float64)
    found = []
    for path, kept in ((torch_blocks.run, dtype), (definition.run, torch.float64)):
        # A running sum is float64 whatever the model is.
        kinds = [kept] * 3 + [torch.float64 if kind.endswith("slope") else kept, kept]
        given = [x.to(d).requires_grad_() for x, d in zip(made, kinds, strict=False)]
        out = path(AttentionCall(*given[:3], bias_of(given[3:], t), where, Visible(), scale))
        found.append([out, *torch.autograd.grad(out, given, upstream.to(kept))])
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("t", "s"), [(64, 64), (127, 127), (129, 129), (300, 300), (513, 513), (65, 600), (1, 130)]
)
def test_tile_borders(kind: str, t: int, s: int) -> None:
    for a, b in zip(*outcomes(kind, t, s), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_too_large_for_a_fixed_reference(kind: str) -> None:
    for a, b in zip(*outcomes(kind, 140, 140, size=12.0), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_in_float32(kind: str) -> None:
    for a, b in zip(*outcomes(kind, 700, 700, batch=1, dtype=torch.float32), strict=True):
        assert (a - b).abs().max() < 1e-5 * b.abs().max()


def test_hidden_keys_get_exactly_nothing() -> None:
    q, k, v = (torch.randn(1, 2, 200, HEAD_DIM, requires_grad=True) for _ in range(3))
    bias = Toeplitz(-torch.arange(200.0).expand(2, -1), 0)
    out = torch_blocks.run(AttentionCall(q, k, v, bias, Positions.span(200), Visible(), 1.0))
    for grad in torch.autograd.grad(out[:, :, :150].sum(), (k, v)):
        assert torch.equal(grad[:, :, 150:], torch.zeros(1, 2, 50, HEAD_DIM))


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "none"])
def test_keys_passed_over_have_no_weight(kind: str) -> None:
    t = s = 640
    bias = bias_of(leaves(kind, 1, t, s), t)
    assert bias is not None
    q, k = (0.5 * torch.randn(2, n, HEAD_DIM, dtype=torch.float64) for n in (t, s))
    rule = Rule(gap=0, causal=True, scale=0.4)
    if isinstance(bias, Toeplitz):
        part = Operands(q, k, k, bias.table.flip(1))
    else:
        weight = None if bias.weight is None else bias.weight[0]
        part = Operands(q, k, k, None, weight, bias.row[0], bias.col[0])
    known = torch_regular.bounds(part, rule)
    scores = 0.4 * q @ k.mT + dense(bias, Positions.span(s))[0]
    weights = scores.masked_fill(torch.ones(t, s).triu(1) > 0, -math.inf).softmax(-1)
    passed = 0
    for block, start in enumerate(range(0, t, torch_regular.BLOCK)):
        rows = slice(max(0, t - start - torch_regular.BLOCK), t - start)
        for head, first in enumerate(f[block] for f in known.first):
            assert (weights[head, rows, :first] < torch_regular.TINY).all()
            passed += first
    assert (passed > 0) == (kind in {"steep table", "slope"})
    own = scores.diagonal(dim1=1, dim2=2)[..., None]
    assert not known.cannot_overflow or (scores - own).tril().max() < torch_regular.SAFE_EXPONENT
    assert known.cannot_overflow == (kind != "any slope")


@pytest.mark.parametrize(("name", "most"), [("alibi", 2e-6), ("cable", 1.5e-5), ("fox", 1.5e-5)])
def test_precision_at_length(name: str, most: float) -> None:
    length, some = 16384, torch.tensor([5000, 9001, 16320, 16383])
    encoding = build(name, heads=1, head_dim=64, width=64, train_length=512)
    q, k, v = (torch.randn(1, 1, length, 64) for _ in range(3))
    where = Positions.span(length)
    with torch.no_grad():
        stream = encoding.stream(LayerInput(torch.randn(1, length, 64)))
        bias = encoding.bias(LayerContext(where, stream, stream))
        out = torch_blocks.run(AttentionCall(q, k, v, bias, where, Visible(), 0.125))
        for row in some.tolist():
            seen = slice(0, row + 1)
            added = dense(bias, where, slice(row, row + 1), seen).double()
            scores = 0.125 * q[:, :, row : row + 1].double() @ k[:, :, seen].double().mT + added
            exact = scores.softmax(-1) @ v[:, :, seen].double()
            assert (out[:, :, row : row + 1] - exact).abs().max() < most


@pytest.mark.parametrize("kind", ["none", "table", "slope"])
@pytest.mark.parametrize(
    ("first", "t", "s", "causal"),
    [
        (0, 70, 40, True),  # queries beyond the keys
        (0, 40, 70, True),  # keys that no query sees
        (-30, 40, 70, False),  # queries before the first key
        (5, 130, 90, False),
    ],
)
def test_any_stretch_of_queries_over_any_stretch_of_keys(
    first: int, t: int, s: int, causal: bool, kind: str
) -> None:
    where = Positions(first + torch.arange(t)[None], torch.arange(s)[None])
    double = {"dtype": torch.float64}
    made = [torch.randn(2, 2, n, HEAD_DIM, **double) for n in (t, s, s)]
    if kind == "table":
        made += [torch.randn(2, 400, **double)]
    elif kind == "slope":
        made += [torch.randn(2, 2, n, **double) for n in (t, t, s)]
    found = []
    for path in (torch_blocks.run, definition.run):
        given = [x.clone().requires_grad_() for x in made]
        bias: Bias | None = None
        if len(given) > 3:
            bias = Toeplitz(given[3], 200) if kind == "table" else Slope(*given[3:])
        out = path(AttentionCall(*given[:3], bias, where, Visible(causal), 0.4))
        found.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted)


def test_a_number_that_is_none_is_not_passed_over() -> None:
    where = Positions.span(300)
    encoding = build("alibi", heads=2, head_dim=HEAD_DIM, width=16, train_length=9)
    q, k, v = (torch.randn(1, 2, 300, HEAD_DIM) for _ in range(3))
    k[:, :, 3] = math.nan
    inputs = AttentionCall(q, k, v, encoding.bias(LayerContext(where)), where, Visible(), 1.0)
    ours, wanted = torch_blocks.run(inputs), definition.run(inputs)
    assert wanted[:, :, 3:].isnan().all()
    torch.testing.assert_close(ours.isnan(), wanted.isnan())


@pytest.mark.parametrize("name", ["fox", "cable-nw", "cable"])
def test_gradients_of_running_sums_do_not_drift(name: str) -> None:
    encoding = build(name, heads=2, head_dim=HEAD_DIM, width=16, train_length=9)
    where = Positions.span(512)
    q, k, v, up = (torch.randn(1, 2, 512, HEAD_DIM) for _ in range(4))
    x = torch.randn(1, 512, 16)
    found = []
    for dtype, path in ((torch.float32, torch_blocks.run), (torch.float64, definition.run)):
        encoding = encoding.to(dtype)
        stream = encoding.stream(LayerInput(x.to(dtype)))
        made = (a.to(dtype) for a in (q, k, v))
        bias = encoding.bias(LayerContext(where, stream, stream))
        out = path(AttentionCall(*made, bias, where, Visible(), 0.4))
        found.append(torch.autograd.grad(out, list(encoding.parameters()), up.to(dtype)))
    # Scores are rounded at the size that the sums reach within a block of queries.
    for ours, wanted in zip(*found, strict=True):
        assert (ours - wanted).abs().max() < 2e-4 * wanted.abs().max()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1.0, 10.0, 1e3, 1e5])
def test_sums_that_jump_are_not_rounded_by_their_size(size: float, weighted: bool) -> None:
    """Half of the tokens change a sum by up to `size`, the others by little."""
    h, t, e = 2, 150, 8
    torch.manual_seed(0)
    leaves = list(torch.randn(3, 1, h, t, e, dtype=torch.float64).unbind())
    steps = -size * torch.rand(1, h, t, dtype=torch.float64)
    leaves.append(torch.where(torch.rand(1, h, t) < 0.5, steps, steps / 1e3 / size).cumsum(-1))
    leaves += [torch.rand(1, h, t, dtype=torch.float64)] if weighted else []
    upstream = torch.randn(1, h, t, e, dtype=torch.float64)

    def outcome(path: object, dtype: torch.dtype) -> list[Tensor]:
        q, k, v, total, *weight = given = [
            x.to(torch.float64 if n == 3 else dtype).requires_grad_() for n, x in enumerate(leaves)
        ]
        bias = Slope(weight[0] if weight else None, total, total)
        at = Positions.span(t)
        out = path(AttentionCall(q, k, v, bias, at, Visible(), e**-0.5))
        return [out.detach(), *torch.autograd.grad(out, given, upstream.to(dtype))]

    exact = outcome(definition.run, torch.float64)
    for ours, theirs in zip(outcome(torch_blocks.run, torch.float32), exact, strict=True):
        most = 2e-5 * max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=most)
