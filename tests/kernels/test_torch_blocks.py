"""The plain torch path equals the definition: every bias, every mixing encoding, every dtype."""

import pytest
import torch

from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.encodings import LayerContext, LayerInput, QueriesAndKeys, build
from headscape.errors import InputError
from headscape.kernels import torch_blocks
from headscape.kernels.assemble import assemble, prepare

HEADS, WIDTH, HEAD_DIM = 2, 6, 5
NAMES = ["nope", "kerple", "t5", "cable", "cable-nw", "k-cable", "fire", "cope", "dapev2+kerple"]


def both(name: str, where: Positions, visible: Visible, batch: int = 2) -> tuple[list, list]:
    """Outputs and gradients of the blocks and of the definition, in float64."""
    found = build(
        name, heads=HEADS, head_dim=HEAD_DIM, width=WIDTH, train_length=9, causal=visible.causal
    ).double()
    t, s = where.q.shape[1], where.k.shape[1]
    q, k, v = (
        torch.randn(batch, n, HEADS, HEAD_DIM, dtype=torch.float64).transpose(1, 2).requires_grad_()
        for n in (t, s, s)
    )
    x = torch.randn(batch, s, WIDTH, dtype=torch.float64, requires_grad=True)
    keys = found.stream(LayerInput(x))
    queries = None
    if keys is not None:
        weight = None if keys.weight is None else keys.weight[..., -t:]
        queries = type(keys)(keys.total[..., -t:], weight)
    layer = LayerContext(where, queries, keys, QueriesAndKeys(q, k, 0.3))
    call = AttentionCall(
        q, k, v, found.bias(layer), where, visible, 0.3, mixing=found.mixing(layer)
    )
    upstream = torch.randn(batch, HEADS, t, HEAD_DIM, dtype=torch.float64)
    wanted = [q, k, v, x, *found.parameters()]
    results = []
    for out in (torch_blocks.run(call), definition.run(call)):
        grads = torch.autograd.grad(out, wanted, upstream, retain_graph=True, allow_unused=True)
        results.append([out, *(g for g in grads if g is not None)])
    return results[0], results[1]


def agree(found: tuple[list, list]) -> None:
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 63, 65, 150])
def test_equals_the_definition(name: str, length: int) -> None:
    agree(both(name, Positions.span(length), Visible()))


@pytest.mark.parametrize("name", NAMES)
def test_later_queries(name: str) -> None:
    agree(both(name, Positions.span(30, 100), Visible()))


@pytest.mark.parametrize("name", ["nope", "kerple", "dapev2+kerple"])
def test_without_a_causal_mask(name: str) -> None:
    agree(both(name, Positions.span(90), Visible(causal=False)))


@pytest.mark.parametrize("name", ["kerple", "cable", "fire"])
def test_groups_and_irregular_positions(name: str) -> None:
    at = torch.arange(90)[None]
    group = at // 40
    agree(both(name, Positions(at % 40, at % 40), Visible(True, group, group)))
    agree(both(name, Positions(2 * at, 2 * at), Visible()))


@pytest.mark.parametrize("length", [600, 2100])
def test_every_block_size(length: int) -> None:
    agree(both("kerple", Positions.span(length), Visible(), batch=1))


def test_half_precision_is_computed_in_float32() -> None:
    found = build("alibi", heads=HEADS, head_dim=8, width=WIDTH, train_length=9)
    q, k, v = (torch.randn(1, HEADS, 70, 8).bfloat16() for _ in range(3))
    where = Positions.span(70)
    rest = (found.bias(LayerContext(where)), where, Visible(), 0.3)
    out = torch_blocks.run(AttentionCall(q, k, v, *rest))
    exact = torch_blocks.run(AttentionCall(q.float(), k.float(), v.float(), *rest))
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, exact.bfloat16())


def test_an_empty_input_is_refused() -> None:
    found = build("nope", heads=HEADS, head_dim=8, width=WIDTH, train_length=9)
    q = torch.randn(1, HEADS, 0, 8)
    with pytest.raises(InputError, match="q must"):
        assemble(found, q, q, q, Positions.span(1), Visible())


@pytest.mark.parametrize("name", ["wall", "path"])
def test_a_transition_is_not_computed_in_half_precision_by_autocast(name: str) -> None:
    torch.manual_seed(0)
    made = build(name, heads=2, head_dim=8, width=16, train_length=64)
    q, k, v = torch.randn(3, 1, 2, 150, 8).unbind()
    inputs = prepare(made, q, k, v, torch.randn(1, 150, 16), Positions.span(150))
    expected = torch_blocks.run(inputs)
    with torch.autocast("cpu", dtype=torch.float16):
        found = torch_blocks.run(inputs)
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=5e-3)
