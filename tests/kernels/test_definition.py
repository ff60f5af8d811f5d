"""The dense definition of attention against the oracle, and what a tap is shown."""

import numpy as np
import pytest
import torch

import oracle
from headscape.call import definition
from headscape.call.bias import Pairwise, Perceptron, Slope, Toeplitz, dense
from headscape.call.definition import AttentionCall, Scores
from headscape.call.positions import Positions, Visible
from headscape.encodings import LayerInput, build
from headscape.kernels import attend
from headscape.kernels.assemble import prepare
from headscape.properties.probe import draw, randomise


def made(name: str = "alibi", heads: int = 3, length: int = 9, **fields: object) -> AttentionCall:
    encoding = build(name, heads=heads, head_dim=4, width=4 * heads, train_length=8, **fields)
    encoding = encoding.double()
    randomise(encoding)
    q, k, v = (draw(2, heads, length, 4, seed=seed) for seed in (1, 2, 3))
    x = draw(2, length, 4 * heads, seed=4)
    return prepare(encoding, q, k, v, x, Positions.span(length))


def test_output_is_the_oracles() -> None:
    inputs = made()
    at = np.arange(9)
    seen = oracle.visible_pairs(at, at)
    bias = oracle.alibi_bias(oracle.alibi_slopes(3, "geometric"), at, at)
    scores = oracle.content_scores(inputs.q.numpy(), inputs.k.numpy()) + bias
    expected = oracle.attend(scores, inputs.v.numpy(), seen)
    np.testing.assert_allclose(definition.run(inputs).numpy(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(attend.run(inputs, "reference"), definition.run(inputs))


@pytest.mark.parametrize("scale", [1.0, 0.25, 12**-0.5])
def test_score_scale(scale: float) -> None:
    inputs = made("nope")
    scaled = AttentionCall(inputs.q, inputs.k, inputs.v, None, inputs.positions, Visible(), scale)
    expected = oracle.content_scores(inputs.q.numpy(), inputs.k.numpy(), scale)
    np.testing.assert_allclose(definition.scores(scaled).final.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["nope", "alibi", "rope", "cable", "cope", "dapev2+kerple"])
def test_a_tap_sees_every_step(name: str) -> None:
    inputs = made(name)
    seen: list[Scores] = []
    with torch.no_grad():
        out = definition.run(inputs, seen.append)
    (every,) = seen
    torch.testing.assert_close(every.content + every.bias, every.final, rtol=1e-12, atol=1e-12)
    q, k = inputs.unrotated or (inputs.q, inputs.k)
    torch.testing.assert_close(every.content, (q @ k.mT) / 2, rtol=1e-12, atol=1e-12)
    hidden = ~every.visible.expand_as(every.weights)
    assert not every.weights[hidden].any()
    torch.testing.assert_close(every.weights.sum(-1), torch.ones_like(every.weights[..., 0]))
    torch.testing.assert_close(every.weights @ inputs.v, out)
    if name == "nope":
        assert not every.bias.any()


@pytest.mark.parametrize(
    "name", ["alibi", "fire", "cable", "k-cable", "rope", "cope", "dapev2+fire"]
)
def test_rows_at_a_time_are_rows_of_the_whole(name: str) -> None:
    inputs = made(name)
    with torch.no_grad():
        whole = definition.scores(inputs)
        part = definition.scores(inputs, slice(3, 7))
    for field in ("content", "bias", "final", "weights", "visible"):
        torch.testing.assert_close(
            getattr(part, field), getattr(whole, field)[:, :, 3:7], rtol=1e-12, atol=1e-12
        )


def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients() -> None:
    encoding = build("alibi", heads=2, head_dim=4, width=8, train_length=8)
    q, k, v = (draw(1, 2, 5, 4, seed=seed).requires_grad_() for seed in (1, 2, 3))
    groups = torch.tensor([[-1, -1, 0, 0, 1]])
    visible = Visible(True, groups, groups)
    inputs = prepare(encoding, q, k, v, None, Positions.span(5), visible=visible)
    out = definition.run(inputs)
    assert not out[:, :, :2].any()
    torch.testing.assert_close(out[:, :, 4], v[:, :, 4])
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert torch.isfinite(gradient).all()
        assert not gradient[:, :, :2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_stays_in_its_dtype(dtype: torch.dtype) -> None:
    inputs = made("cable")
    exact = definition.run(inputs)
    low = build("cable", heads=3, head_dim=4, width=12, train_length=8)
    randomise(low)
    low = low.to(dtype)
    q, k, v = (draw(2, 3, 9, 4, seed=seed).to(dtype) for seed in (1, 2, 3))
    ours = definition.run(
        prepare(low, q, k, v, draw(2, 9, 12, seed=4).to(dtype), Positions.span(9))
    )
    assert ours.dtype == dtype
    assert (ours.double() - exact).abs().max() < 40 * torch.finfo(dtype).eps


def test_running_sums_keep_float64_in_a_float32_model() -> None:
    encoding = build("cable-nw", heads=1, head_dim=4, width=4, train_length=8)
    randomise(encoding)
    x = draw(1, 16_384, 4, seed=1).float()
    stream = encoding.stream(LayerInput(x))
    assert stream.total.dtype == torch.float64
    step = torch.nn.functional.softplus(encoding.increment(x)).double()[0, :, 0]
    torch.testing.assert_close(stream.total[0, 0].diff(), -step[1:], rtol=1e-9, atol=1e-9)


def test_every_kind_of_bias_is_its_definition_and_cuts_into_blocks() -> None:
    at = torch.tensor([[0, 1, 4, 9]])
    positions = Positions(at, at)
    table = draw(2, 12, seed=1)
    near, far = draw(12, seed=2), draw(1, 4, seed=3)
    first, second = draw(5, seed=4), draw(5, seed=5)
    outer, shift = draw(2, 5, seed=6), draw(2, seed=7)
    weight, row = draw(1, 2, 4, seed=8), draw(1, 2, 4, seed=9)

    def perceptron(i: int, j: int) -> torch.Tensor:
        u = near[at[0, i] - at[0, j] + 2] / far[0, i]
        hidden = first * u + second
        return outer @ torch.where(hidden > 0, hidden, 0.1 * hidden) + shift

    kinds = [
        (Toeplitz(table, 2), lambda i, j: table[:, at[0, i] - at[0, j] + 2]),
        (Slope(weight, row, row), lambda i, j: weight[0, :, i] * (row[0, :, i] - row[0, :, j])),
        (Slope(None, row, row), lambda i, j: row[0, :, i] - row[0, :, j]),
        (Perceptron(near, 2, far, first, second, outer, shift, 0.1), perceptron),
        (
            Pairwise(lambda rows, cols: row[:, :, rows, None] + row[:, :, None, cols]),
            lambda i, j: row[0, :, i] + row[0, :, j],
        ),
    ]
    for bias, value in kinds:
        whole = dense(bias, positions)
        for i in range(4):
            for j in range(i + 1):
                torch.testing.assert_close(whole[0, :, i, j], value(i, j))
        block = dense(bias, positions, slice(1, 3), slice(2, 4))
        assert torch.equal(block, whole[:, :, 1:3, 2:4])


def test_positions_count_distances() -> None:
    span = Positions.span(2, 5)
    assert span.q.tolist() == [[3, 4]]
    assert span.distance().tolist() == [[[3, 2, 1, 0, -1], [4, 3, 2, 1, 0]]]
    low, high = span.bounds
    assert low <= -1
    assert high >= 4
    exact = Positions(torch.tensor([[7, 9]]), torch.tensor([[2, 8, 30]]))
    assert exact.bounds == (-23, 7)
    assert exact.block(slice(1), slice(1, 3)).distance().tolist() == [[[-1, -23]]]


def test_groups_see_their_own() -> None:
    groups = torch.tensor([[0, 0, 1, 1, -1]])
    positions = Positions.span(5)
    causal = Visible(True, groups, groups).dense(positions)[0, 0].int().tolist()
    assert causal == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0],
    ]
    both = Visible(False, groups, groups).dense(positions)[0, 0].int().tolist()
    assert both[0] == [1, 1, 0, 0, 0]
    assert both[4] == [0] * 5
