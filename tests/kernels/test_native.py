"""The fused paths equal the definition, gradients included.

The budget is twice the error that the dense definition itself makes in float32 (against float64)
and, for values that it happens to hit, what the rounding of as many terms as there are tokens
amounts to at random: sqrt(tokens) times half a unit in the last place of the largest gradient.
"""

import copy
import inspect
from dataclasses import dataclass
from types import GenericAlias
from typing import get_origin

import pytest
import torch
from torch import Tensor
from torch.library import CustomOpDef
from torch.utils.checkpoint import checkpoint

from headscape.call import definition
from headscape.call.bias import Pairwise, Toeplitz
from headscape.call.definition import AttentionCall
from headscape.call.mixing import CountedTable, PairPerceptron, Product
from headscape.call.positions import Positions, Visible
from headscape.call.weighting import Sticks
from headscape.encodings import Encoding, LayerContext, LayerInput, build
from headscape.errors import InputError
from headscape.kernels import torch_blocks
from headscape.kernels.assemble import check as checked
from headscape.kernels.attend import run
from headscape.kernels.native import adapter, ops
from headscape.kernels.native.ops import Settings

PATHS = {"native": adapter.run, "torch": torch_blocks.run}
EPS = torch.finfo(torch.float32).eps
HEADS, WIDTH = 3, 12

built = pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))


@dataclass(frozen=True)
class Place:
    """Positions and visibility, without values."""

    positions: Positions
    visible: Visible
    batch: int = 1


def place(kind: str, length: int) -> Place:
    at = torch.arange(length)[None]
    if kind == "causal":
        return Place(Positions.span(length), Visible(), 2)
    if kind == "bidirectional":
        return Place(Positions.span(length), Visible(causal=False))
    if kind == "offset":
        return Place(Positions.span(-(-length // 3), length), Visible())
    if kind == "packed":
        group, at = at // 50, at % 50
        return Place(Positions(at, at), Visible(True, group, group))
    if kind == "packed both ways":
        group, at = at // 70, at % 70
        return Place(Positions(at, at), Visible(False, group, group))
    assert kind == "left padding"
    pads = torch.tensor([[0], [length // 3]])
    group, at = (at >= pads).long() - 1, (at - pads).clamp(min=0)
    return Place(Positions(at, at), Visible(True, group, group), 2)


def encoding(name: str, *, causal: bool = True, head_dim: int = 16, **fields: object) -> Encoding:
    found = build(
        name, heads=HEADS, head_dim=head_dim, width=WIDTH, train_length=64, causal=causal, **fields
    )
    with torch.no_grad():
        for p in found.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return found


def tensors(where: Place, head_dim: int) -> list[Tensor]:
    """q, k, v, the layer's input, and the output's gradient."""
    b, t, s = where.batch, where.positions.q.shape[1], where.positions.k.shape[1]
    heads = [torch.randn(b, n, HEADS, head_dim).transpose(1, 2) for n in (t, s, s, t)]
    return [*heads[:3], torch.randn(b, s, WIDTH), heads[3]]


def outcome(path: object, found: Encoding, where: Place, given: list[Tensor]) -> list[Tensor]:
    """The output and every gradient."""
    q, k, v, x = (a.clone().requires_grad_() for a in given[:4])
    keys = found.stream(LayerInput(x))
    count = where.positions.q.shape[1]
    queries = None
    if keys is not None:
        weight = None if keys.weight is None else keys.weight[..., -count:]
        queries = type(keys)(keys.total[..., -count:], weight)
    layer = LayerContext(where.positions, queries, keys)
    call = AttentionCall(
        q, k, v, found.bias(layer), where.positions, where.visible, q.shape[-1] ** -0.5,
        mixing=found.mixing(layer), weighting=found.weighting,
    )  # fmt: skip
    out = definition.run(call) if path is None else path(call)
    wanted = [q, k, v, x, *found.parameters()]
    grads = torch.autograd.grad(out, wanted, given[4], allow_unused=True)
    return [out.detach(), *(torch.zeros(1) if g is None else g for g in grads)]


def check(path: str, found: Encoding, where: Place) -> None:
    given = tensors(where, found.shape.head_dim)
    exact = outcome(None, copy.deepcopy(found).double(), where, [x.double() for x in given])
    dense = outcome(None, found, where, given)
    fused = outcome(PATHS[path], found, where, given)
    largest = max(float(x.abs().max()) for x in exact)
    tokens = where.positions.k.shape[1]
    for e, d, f in zip(exact, dense, fused, strict=True):
        rounding = EPS * largest * (2 + 2 * tokens**0.5)
        budget = 2 * float((d - e).abs().max()) + rounding
        assert float((f - e).abs().max()) <= budget


ADDITIVE = ["nope", "alibi", "t5", "kerple", "cable", "cable-nw", "fox", "fire"]
NOT_ADDITIVE = ["kerple-weight", "stick-breaking"]
MIXING = ["dape+nope", "dape+fire", "dapev2+kerple", "dapev2+cable", "dapev2+nope"]


@built
@pytest.mark.parametrize("name", [*ADDITIVE, *NOT_ADDITIVE, *MIXING])
@pytest.mark.parametrize("kind", ["causal", "offset", "packed", "left padding"])
def test_native_equals_the_definition(name: str, kind: str) -> None:
    check("native", encoding(name), place(kind, 137))


@built
@pytest.mark.parametrize("name", ["nope", "kerple", "kerple-weight", "dape+alibi", "dapev2+t5"])
@pytest.mark.parametrize("kind", ["bidirectional", "packed both ways"])
def test_native_without_a_causal_mask(name: str, kind: str) -> None:
    check("native", encoding(name, causal=False), place(kind, 137))


@built
@pytest.mark.parametrize("name", ["kerple", "cable", "fire", "dapev2+kerple", *NOT_ADDITIVE])
@pytest.mark.parametrize("length", [1, 63, 65, 127, 300])
def test_native_at_odd_lengths(name: str, length: int) -> None:
    check("native", encoding(name), place("causal", length))


@built
@pytest.mark.parametrize("name", ["dape+alibi", "dapev2+kerple", "dapev2+fire"])
@pytest.mark.parametrize("length", [47, 48, 49, 64, 97, 113])
def test_native_mixing_at_tile_borders(name: str, length: int) -> None:
    check("native", encoding(name), place("causal", length))


@built
@pytest.mark.parametrize("name", ["dape+kerple", "dapev2+kerple", "dapev2+cable"])
@pytest.mark.parametrize("heads", [6, 8, 12])
def test_native_mixing_of_many_heads(
    name: str, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "HEADS", heads)
    monkeypatch.setitem(globals(), "WIDTH", 2 * heads)
    check("native", encoding(name), place("causal", 101))


@built
@pytest.mark.parametrize("name", ["nope", "kerple", "cable", "fire", *NOT_ADDITIVE])
def test_native_at_a_thousand(name: str) -> None:
    check("native", encoding(name, head_dim=8), place("causal", 1000))


@built
@pytest.mark.parametrize("name", ["kerple", *NOT_ADDITIVE])
@pytest.mark.parametrize("head_dim", [8, 24, 48, 64, 80])
def test_native_head_dims(name: str, head_dim: int) -> None:
    check("native", encoding(name, head_dim=head_dim), place("causal", 70))


@built
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("fire", {"activation": "leaky_relu"}),
        ("dape+fire", {"base_bias": "channel-only", "hidden": 7}),
        ("dapev2+alibi", {"kernel": 1}),
        ("dapev2+kerple", {"kernel": 5, "hidden": 9, "boundary": "released"}),
        ("dapev2+kerple", {"kernel": 7, "boundary": "masked"}),
        ("dapev2+kerple", {"kernel": 33}),
        ("stick-breaking", {"current": "attended"}),
        ("stick-breaking", {"remainder": "dropped"}),
        ("stick-breaking", {"current": "attended", "remainder": "dropped"}),
    ],
)
def test_native_conventions(name: str, fields: dict[str, object]) -> None:
    check("native", encoding(name, **fields), place("causal", 80))


@built
@pytest.mark.parametrize("kernel", [3, 33])
@pytest.mark.parametrize("kind", ["offset", "packed", "packed both ways", "left padding"])
def test_native_taps_beside_the_keys(kind: str, kernel: int) -> None:
    found = encoding("dapev2+kerple", causal=kind != "packed both ways", kernel=kernel)
    check("native", found, place(kind, 137))


@built
def test_native_with_more_threads_than_heads() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(8)
    try:
        for name in ("cable", *NOT_ADDITIVE):
            check("native", encoding(name), place("causal", 300))
        check("native", encoding("dapev2+kerple"), place("causal", 150))
    finally:
        torch.set_num_threads(threads)


@built
@pytest.mark.parametrize("name", ["dapev2+kerple", *NOT_ADDITIVE])
def test_native_is_deterministic(name: str) -> None:
    found, where = encoding(name), place("causal", 150)
    given = tensors(where, 16)
    first, second = (outcome(adapter.run, found, where, given) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@built
@pytest.mark.parametrize("name", ["kerple", *NOT_ADDITIVE])
def test_irregular_positions(name: str) -> None:
    at = torch.tensor([[0, 1, 2, 5, 6, 9, 3, 4]])
    check("native", encoding(name), Place(Positions(at, at), Visible()))


@built
def test_not_a_number_is_not_hidden() -> None:
    q = torch.randn(1, HEADS, 40, 16)
    k = q.clone()
    k[0, 1, 7] = torch.nan
    out = adapter.run(AttentionCall(q, k, q, None, Positions.span(40), Visible(), 0.25))
    assert out[0, 1, 7:].isnan().all()
    assert out[0, 0].isfinite().all()


@built
def test_long_sums_keep_their_precision() -> None:
    length, rows = 4096, slice(4000, 4096)
    found = build("cable-nw", heads=1, head_dim=8, width=4, train_length=64)
    q, k, v = (torch.randn(1, 1, length, 8) for _ in range(3))
    stream = found.stream(LayerInput(torch.randn(1, length, 4)))
    where = Positions.span(length)
    bias = found.bias(LayerContext(where, stream, stream))
    out = adapter.run(AttentionCall(q, k, v, bias, where, Visible(), 1.0))
    wide = AttentionCall(q.double(), k.double(), v.double(), bias, where, Visible(), 1.0)
    exact = definition.scores(wide, rows).weights @ v.double()
    assert float((out[:, :, rows] - exact).detach().abs().max()) <= 1.5e-5


@built
def test_checkpointed() -> None:
    found, where = encoding("kerple"), place("causal", 40)
    given = tensors(where, 16)

    def path(*arguments: object) -> Tensor:
        return checkpoint(adapter.run, *arguments, use_reentrant=False)

    plain = outcome(adapter.run, found, where, given)
    for a, b in zip(plain, outcome(path, found, where, given), strict=True):
        assert torch.equal(a, b)


@built
def test_the_operator_is_registered_in_full() -> None:
    q, k, v = (torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3))
    at = [torch.arange(9)[None]] * 2
    table = torch.randn(2, 9 + 2 * ops.MARGIN + 1, requires_grad=True)
    temperature, sink = (torch.rand(1, 2, 9) + 1).requires_grad_(), torch.rand(2).requires_grad_()
    plain = Settings(causal=1.0, scale=0.3, low=-ops.MARGIN)
    shaped = plain._replace(window=4, softcap=2.0)
    for kind in ("toeplitz", "factor"):
        arguments = (q, k, v, at, [table], kind, "")
        torch.library.opcheck(ops.attention, (*arguments, floats(plain), None, None, True))
        torch.library.opcheck(ops.attention, (*arguments, floats(shaped), temperature, sink, True))
    sticks = floats(shaped._replace(low=0, sticks=1, keeps_rest=1))
    arguments = (q, k, v, at, [], "none", "", sticks)
    torch.library.opcheck(ops.attention, (*arguments, temperature, None, True))


def floats(settings: Settings) -> list[float]:
    return [float(x) for x in settings]


class Halves:
    """Weights of its own."""

    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        return 0.5 * definition.softmax(scores, visible)


def table(columns: int = 5, heads: int = HEADS) -> Toeplitz:
    return Toeplitz(torch.zeros(heads, columns), 0)


def wrong(**changes: object) -> dict[str, object]:
    q = torch.randn(1, HEADS, 5, 8)
    return {
        "q": q, "k": q, "v": q, "bias": None,
        "positions": Positions.span(5), "visible": Visible(), "scale": 1.0,
    } | changes  # fmt: skip


def short(n: int, e: int = 8) -> Tensor:
    return torch.randn(1, HEADS, n, e)


@built
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"q": short(5).double(), "k": short(5).double(), "v": short(5).double()}, "float64"),
        ({"q": short(0), "k": short(5), "v": short(5)}, "q must"),
        ({"k": short(0), "v": short(0)}, "k must"),
        ({"k": short(5).double()}, "k is"),
        ({"q": short(5, 6), "k": short(5, 6), "v": short(5, 6)}, "multiples of 8"),
        ({"positions": Positions.span(4)}, "positions.q"),
        ({"bias": Toeplitz(torch.full((HEADS, 5), torch.nan), 0)}, "bias"),
        ({"bias": table(heads=HEADS + 1)}, "bias"),
        ({"bias": table(4)}, "covers distances 0 to 3"),
        ({"bias": Pairwise(lambda _rows, _cols: torch.zeros(1))}, "no form of a Pairwise bias"),
        ({"visible": Visible(True, torch.zeros(1, 5).long(), torch.zeros(1, 4).long())}, "k_group"),
        ({"mixing": CountedTable(torch.zeros(8, 4))}, "CountedTable"),
        ({"mixing": PairPerceptron(*(torch.zeros(4, 4) for _ in range(4)))}, "channels"),
        ({"mixing": Product(table()), "bias": table()}, "only without a bias"),
        ({"mixing": Product(table(4))}, "covers distances 0 to 3"),
        ({"weighting": Sticks(False, True), "sink": torch.zeros(HEADS)}, "without a sink"),
        ({"weighting": Sticks(False, True), "bias": table()}, "without a bias"),
        ({"weighting": Halves()}, "not Halves"),
    ],
)
def test_bad_input_is_refused_by_name(changes: dict[str, object], named: str) -> None:
    def checked_and_run(call: AttentionCall) -> None:
        checked(call)
        run(call, "native")

    with pytest.raises(InputError, match=named):
        checked_and_run(AttentionCall(**wrong(**changes)))


@built
def test_lying_bounds_are_refused() -> None:
    at = torch.arange(200)[None]
    lying = Positions(at, at, (0, 3))
    q = short(200)
    with pytest.raises(InputError, match="bounds"):
        adapter.run(
            AttentionCall(
                **wrong(q=q, k=q, v=q, positions=lying, bias=Toeplitz(torch.ones(3, 9), 0))
            )
        )


@pytest.mark.parametrize("operator", [ops.attention, ops.attention_backward])
def test_an_operators_signature_is_one_that_torch_2_6_reads(operator: CustomOpDef) -> None:
    signature = inspect.signature(operator._init_fn)
    types = [parameter.annotation for parameter in signature.parameters.values()]
    lists = [one for one in (*types, signature.return_annotation) if get_origin(one) is list]
    assert lists
    # `typing.List[Tensor]` and `list[Tensor]` are equal to Python, not to torch 2.6.
    assert [one for one in lists if isinstance(one, GenericAlias)] == []
