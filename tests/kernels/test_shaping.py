"""Windows, sinks, softcap, temperature, grouped queries, sheared biases: the definition itself."""

import numpy as np
import pytest
import torch
from torch import Tensor

import oracle
from headscape.call import definition
from headscape.call.bias import RelativeCurves, Toeplitz, dense
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.call.transition import Reflections
from headscape.encodings import LayerInput, Side, build
from headscape.errors import InputError
from headscape.kernels import attend, flex
from headscape.kernels.assemble import assemble, check, prepare
from headscape.properties.probe import draw

HEADS, LENGTH = 4, 9


def made(visible: Visible | None = None, keys: int = HEADS, **given: object) -> AttentionCall:
    q = draw(2, HEADS, LENGTH, 4, seed=1)
    k, v = draw(2, keys, LENGTH, 4, seed=2), draw(2, keys, LENGTH, 6, seed=3)
    bias = given.pop("bias", None)
    where = Positions.span(LENGTH)
    return AttentionCall(q, k, v, bias, where, visible or Visible(), 0.7, **given)


def expected(inputs: AttentionCall, seen: np.ndarray, bias: np.ndarray | float = 0.0) -> Tensor:
    """The oracle's output."""
    k, v = (oracle.repeated(x.numpy(), HEADS) for x in (inputs.k, inputs.v))
    scores = oracle.content_scores(inputs.q.numpy(), k, inputs.scale) + bias
    tau = inputs.temperature
    if tau is not None:
        tau = np.broadcast_to(tau.numpy(), (2, HEADS, LENGTH))
    scores = oracle.shaped(scores, tau, inputs.softcap)
    if inputs.sink is None:
        weights = oracle.masked_softmax(scores, seen)
    else:
        weights = oracle.softmax_with_sink(scores, seen, inputs.sink.numpy())
    return torch.from_numpy(weights @ v)


def agree(inputs: AttentionCall, seen: np.ndarray, bias: np.ndarray | float = 0.0) -> None:
    torch.testing.assert_close(
        definition.run(inputs), expected(inputs, seen, bias), rtol=1e-12, atol=1e-12
    )


CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 5, LENGTH - 1, LENGTH, 100])
def test_a_window_is_the_oracles(window: int, causal: bool) -> None:
    visible, at = Visible(causal, window=window), np.arange(LENGTH)
    seen = oracle.windowed(at, at, window, causal=causal)
    assert np.array_equal(visible.dense(Positions.span(LENGTH))[0, 0].numpy(), seen)
    agree(made(visible), seen)
    part = visible.block(slice(3, 7), slice(2, 9)).dense(
        Positions.span(LENGTH).block(slice(3, 7), slice(2, 9))
    )
    assert np.array_equal(part[0, 0].numpy(), seen[3:7, 2:9])


@pytest.mark.parametrize("chunk", [1, 2, 4, LENGTH, 100])
@pytest.mark.parametrize("start", [0, 3])
def test_chunks_are_the_oracles(chunk: int, start: int) -> None:
    at = torch.arange(start, start + LENGTH)[None]
    where, visible = Positions(at, at), Visible(chunk=chunk)
    seen = oracle.chunked(at[0].numpy(), at[0].numpy(), chunk)
    assert np.array_equal(visible.dense(where)[0, 0].numpy(), seen)
    part = visible.block(slice(3, 7), slice(2, 9)).dense(where.block(slice(3, 7), slice(2, 9)))
    assert np.array_equal(part[0, 0].numpy(), seen[3:7, 2:9])
    assert torch.equal(visible.chunks_as_groups(where).dense(where), visible.dense(where))


def test_chunks_of_documents_are_groups_too() -> None:
    groups = torch.tensor([[-1, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 2, -1]])
    at = torch.tensor([[0, 0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 0, 1, 2, 3, 0, 0]])
    where, visible = Positions(at, at), Visible(True, groups, groups, chunk=2)
    grouped = visible.chunks_as_groups(where)
    assert grouped.chunk is None
    assert torch.equal(grouped.dense(where), visible.dense(where))
    assert not visible.dense(where)[0, 0, 0].any()
    last = visible.starts(5)
    assert last.tolist() == [[False, True, False, False, False], [False, False, False, True, True]]
    assert visible.starts(LENGTH)[:, 0].all()
    assert Visible(chunk=2).starts(5) is None


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("path", ["native", "torch", "flex"])
def test_every_path_serves_chunks(path: str) -> None:
    q, k, v = (draw(2, HEADS, LENGTH, 8, seed=seed).float() for seed in (1, 2, 3))
    where, visible = Positions.span(LENGTH), Visible(chunk=4)
    call = AttentionCall(q, k, v, None, where, visible, 0.4)
    out = flex.run(call, compiled=False) if path == "flex" else attend.run(call, path)
    torch.testing.assert_close(out, definition.run(call), rtol=1e-5, atol=1e-5)


def layer_call(name: str) -> AttentionCall:
    encoding = build(name, heads=HEADS, head_dim=8, width=32, train_length=8)
    q, k, v = (draw(1, HEADS, LENGTH, 8, seed=seed).float() for seed in (1, 2, 3))
    x = draw(1, LENGTH, 32, seed=4).float()
    return prepare(encoding, q, k, v, x, Positions.span(LENGTH))


@pytest.mark.parametrize("name", ["path", "wall"])
@pytest.mark.parametrize("path", ["native", "flex"])
def test_fused_paths_refuse_keys_that_change(name: str, path: str) -> None:
    call = layer_call(name)
    with pytest.raises(InputError, match="on their way to a query"):
        attend.run(call, path)
    assert set(attend.choose(call).passed_over) == {"decode", "native", "sdpa"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("stick-breaking", "softmax"), ("kerple-weight", "does not mix whole rows")],
)
def test_flex_refuses_all_but_a_softmax_of_sums(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        attend.run(layer_call(name), "flex")


@pytest.mark.parametrize(("tokens", "heads"), [(LENGTH - 1, HEADS), (LENGTH, 1), (12, HEADS)])
def test_reflections_that_do_not_fit_are_refused(tokens: int, heads: int) -> None:
    w, beta = draw(2, heads, tokens, 4, seed=1), draw(2, heads, tokens, seed=2)
    with pytest.raises(InputError, match="Reflections needs w of shape 2 4 n 4"):
        check(made(transition=Reflections(w, beta)))


def test_path_without_its_reflections_is_refused() -> None:
    encoding = build("path", heads=HEADS, head_dim=4, width=16, train_length=8)
    call = made()
    with pytest.raises(InputError, match="PaTH needs the layer's input"):
        assemble(encoding, call.q, call.k, call.v, call.positions, Visible())


def test_rotations_by_content_need_the_layers_input() -> None:
    encoding = build("carope", heads=HEADS, head_dim=8, width=32, train_length=8)
    q = draw(1, HEADS, LENGTH, 8, seed=1).float()
    at = torch.arange(LENGTH)[None]
    with pytest.raises(InputError, match="CARoPE rotates by the layer's input: put"):
        encoding.rotate(q, Side(at, "query"))
    short = encoding.stream(LayerInput(torch.zeros(1, LENGTH - 1, 32)))
    with pytest.raises(InputError, match="the stream has 8 tokens, but there are 9 to rotate"):
        encoding.rotate(q, Side(at, "query", short))


@pytest.mark.parametrize("shape", [(1, 1, LENGTH), (1, HEADS, LENGTH), (2, HEADS, LENGTH)])
def test_temperature_multiplies_score_and_bias(shape: tuple[int, ...]) -> None:
    table = draw(HEADS, LENGTH, seed=5)
    inputs = made(temperature=draw(*shape, seed=4), bias=Toeplitz(table, 0))
    bias = dense(Toeplitz(table, 0), Positions.span(LENGTH)).numpy()
    agree(inputs, CAUSAL, bias)


def test_softcap_holds_score_and_bias() -> None:
    table = 3 * draw(HEADS, LENGTH, seed=5)
    inputs = made(softcap=1.5, bias=Toeplitz(table, 0), temperature=draw(1, 1, LENGTH, seed=4))
    agree(inputs, CAUSAL, dense(Toeplitz(table, 0), Positions.span(LENGTH)).numpy())
    assert float(definition.scores(inputs).final.abs().max()) <= 1.5


def test_a_sink_takes_weight() -> None:
    agree(made(sink=draw(HEADS, seed=6)), CAUSAL)
    without = made(Visible(window=3), sink=draw(HEADS, seed=6), softcap=2.0)
    agree(without, oracle.windowed(np.arange(LENGTH), np.arange(LENGTH), 3))


def test_a_query_that_sees_nothing_gives_zeros_beside_a_sink() -> None:
    groups = torch.tensor([[-1, -1, *[0] * (LENGTH - 2)]])
    inputs = made(Visible(True, groups, groups), sink=draw(HEADS, seed=6))
    assert not definition.run(inputs)[:, :, :2].any()


@pytest.mark.parametrize("keys", [1, 2, 4])
def test_grouped_queries_share_keys(keys: int) -> None:
    agree(made(keys=keys), CAUSAL)


@pytest.mark.parametrize("heads", [1, HEADS])
def test_a_sheared_bias_is_the_oracles(heads: int) -> None:
    at = np.arange(LENGTH)
    r, basis = draw(2, HEADS, LENGTH, 3, seed=7), draw(heads, 3, 6, seed=8)
    u, other = draw(1, HEADS, LENGTH, 2, seed=9), draw(heads, 2, 6, seed=10)
    wide = [np.broadcast_to(x.numpy(), (HEADS, *x.shape[1:])) for x in (basis, other)]
    by_query = oracle.sheared_bias(r.numpy(), wide[0], at, at, 2)
    agree(made(bias=RelativeCurves(r, basis, 2)), CAUSAL, by_query)
    flipped = oracle.sheared_bias(u.numpy(), wide[1][:, :, ::-1], at, at, 6 - 1 - 2)
    both = RelativeCurves(r, basis, 2, (u, other))
    agree(made(bias=both), CAUSAL, by_query + flipped.swapaxes(2, 3))
    whole = dense(both, Positions.span(LENGTH))
    block = dense(both, Positions.span(LENGTH), slice(2, 5), slice(1, 7))
    torch.testing.assert_close(block, whole[:, :, 2:5, 1:7], rtol=1e-12, atol=1e-12)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="window must be at least 1, got 0"):
        Visible(window=0)
