"""attention(): rotate, stream, bias and attend in one call."""

import numpy as np
import pytest
import torch

from headscape.call import definition
from headscape.call.positions import Positions, Visible
from headscape.encodings import ENCODINGS, Encoding, build
from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig
from headscape.kernels.assemble import prepare
from headscape.kernels.attend import attention, bias
from headscape.properties.probe import draw, randomise

HEADS, DIM, LENGTH = 3, 8, 11
WIDTH = HEADS * DIM
NAMES = [*(name for name, kind in ENCODINGS.items() if not kind.at_input), "dapev2+cable"]
ONE_WAY = {"fire", "cope", "xpos", "inkling", "grape", "path", "stick-breaking", "wall"}


def encoding(name: str, *, causal: bool = True) -> Encoding:
    made = build(
        name, heads=HEADS, head_dim=DIM, width=WIDTH, train_length=LENGTH, causal=causal
    ).double()
    randomise(made)
    return made


def tensors(queries: int = LENGTH) -> tuple[torch.Tensor, ...]:
    q = draw(2, HEADS, queries, DIM, seed=1)
    k, v = (draw(2, HEADS, LENGTH, DIM, seed=seed) for seed in (2, 3))
    return q, k, v, draw(2, LENGTH, WIDTH, seed=4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", ["auto", "torch", "reference"])
def test_it_is_the_reference_on_prepared_inputs(name: str, path: str) -> None:
    q, k, v, x = tensors()
    made = encoding(name)
    expected = definition.run(prepare(made, q, k, v, x, Positions.span(LENGTH)))
    found = attention(q, k, v, encoding=made, x=x, path=path)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", sorted(set(NAMES) - ONE_WAY))
def test_both_directions(name: str) -> None:
    q, k, v, x = tensors()
    made = encoding(name, causal=False)
    expected = definition.run(prepare(made, q, k, v, x, Positions.span(LENGTH)))
    found = attention(q, k, v, encoding=made, x=x, causal=False)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_queries_are_the_last_tokens(name: str) -> None:
    q, k, v, x = tensors()
    made = encoding(name)
    whole = attention(q, k, v, encoding=made, x=x)
    for count in (1, 4):
        last = attention(q[:, :, -count:], k, v, encoding=made, x=x)
        torch.testing.assert_close(last, whole[:, :, -count:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["cable", "fire", "rope", "alibi"])
def test_positions_and_groups(name: str) -> None:
    q, k, v, x = tensors()
    made = encoding(name)
    at = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]])
    groups = torch.tensor([[0] * 5 + [1] * 6])
    visible = Visible(True, groups, groups)
    expected = definition.run(
        prepare(made, q, k, v, x, Positions(at, at), visible=visible, scale=0.5)
    )
    for positions in (at, Positions(at, at)):
        found = attention(
            q, k, v, encoding=made, x=x, positions=positions, groups=groups, scale=0.5
        )
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    alone = attention(q[:, :, :5], k[:, :, :5], v[:, :, :5], encoding=made, x=x[:, :5], scale=0.5)
    torch.testing.assert_close(expected[:, :, :5], alone, rtol=1e-9, atol=1e-9)


def test_an_encoding_without_parameters_goes_by_name() -> None:
    q, k, v, _ = tensors()
    expected = attention(q, k, v, encoding=encoding("alibi"))
    assert torch.equal(attention(q, k, v, encoding="alibi"), expected)
    both = attention(q, k, v, encoding="alibi", causal=False)
    assert torch.equal(
        both, attention(q, k, v, encoding=encoding("alibi", causal=False), causal=False)
    )


def test_a_name_may_have_fields() -> None:
    q, k, v, _ = tensors()
    made = build(
        "alibi", heads=HEADS, head_dim=DIM, width=WIDTH, train_length=8, window=4, softcap=2.0
    )
    found = attention(q, k, v, encoding="alibi:window=4:softcap=2.0")
    assert torch.equal(found, attention(q, k, v, encoding=made))
    assert not torch.allclose(found, attention(q, k, v, encoding="alibi"))


BY_NAME = [
    name
    for name, kind in ENCODINGS.items()
    if not kind.at_input and next(encoding(name).parameters(), None) is None
]


@pytest.mark.parametrize("name", [*BY_NAME, "rope:window=4", "rope:scaling=linear:factor=2.0"])
def test_decoding_by_name_gives_the_rows_of_the_whole(name: str) -> None:
    q, k, v, _ = tensors()
    whole = attention(q, k, v, encoding=name)
    for count in range(1, LENGTH + 1):
        one, past = slice(count - 1, count), slice(0, count)
        row = attention(q[:, :, one], k[:, :, past], v[:, :, past], encoding=name)
        torch.testing.assert_close(row, whole[:, :, one], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("alibi:temperature=llama4", "temperature_start"),
        ("rope:scaling=yarn:factor=2.0", "trained_length"),
    ],
)
def test_a_name_that_depends_on_the_trained_length_needs_it(name: str, field: str) -> None:
    q, k, v, _ = tensors()
    with pytest.raises(InputError, match=f"context length in training: pass .* or set {field}"):
        attention(q, k, v, encoding=name)
    made = build(name, heads=HEADS, head_dim=DIM, width=WIDTH, train_length=4)
    expected = attention(q, k, v, encoding=made)
    assert torch.equal(attention(q, k, v, encoding=name, train_length=4), expected)
    assert torch.equal(attention(q, k, v, encoding=f"{name}:{field}=4"), expected)
    assert not torch.allclose(attention(q, k, v, encoding=name, train_length=4000), expected)
    with pytest.raises(InputError, match=r"give it to headscape\.build\(\) instead"):
        attention(q, k, v, encoding=made, train_length=4)


@pytest.mark.parametrize("name", ["alibi", "rope", "cable", "dapev2+cable", "stick-breaking"])
def test_weights_are_those_of_the_definition(name: str) -> None:
    q, k, v, x = tensors(4)
    made = encoding(name)
    out, weights = attention(q, k, v, encoding=made, x=x, return_weights=True)
    call = prepare(made, q, k, v, x, Positions.span(4, LENGTH))
    assert torch.equal(weights, definition.scores(call).weights)
    assert weights.shape == (2, HEADS, 4, LENGTH)
    torch.testing.assert_close(out, attention(q, k, v, encoding=made, x=x))
    with pytest.raises(InputError, match=r"return_weights=True .* path='torch'"):
        attention(q, k, v, encoding=made, x=x, path="torch", return_weights=True)


BIASES = ("alibi", "t5", "kerple", "bam", "alibi:window=4")


@pytest.mark.parametrize(
    ("name", "causal"), [("fire", True), *((name, way) for name in BIASES for way in (True, False))]
)
def test_a_bias_by_name_is_what_the_definition_adds(name: str, *, causal: bool) -> None:
    found = bias(name, heads=HEADS, length=LENGTH, head_dim=DIM, causal=causal, seed=3)
    torch.manual_seed(3)
    made = build(name, heads=HEADS, head_dim=DIM, width=WIDTH, train_length=LENGTH, causal=causal)
    made.initialise()
    q = torch.zeros(1, HEADS, LENGTH, DIM)
    with torch.no_grad():
        expected = definition.scores(prepare(made, q, q, q, None, Positions.span(LENGTH)))
    seen = expected.visible[0, 0].numpy()
    assert np.array_equal(found[:, seen], expected.bias[0].numpy()[:, seen])
    assert np.isnan(found[:, ~seen]).all()
    again = bias(name, heads=HEADS, length=LENGTH, head_dim=DIM, causal=causal, seed=3)
    assert np.array_equal(found, again, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rope", "RoPE adds nothing to the scores"),
        ("learned", "acts on the token embeddings"),
        ("cable", "depends on the tokens: capture a model"),
        ("shaw", "depends on the tokens"),
        ("dape+kerple", "depends on the tokens"),
        ("alib", "did you mean 'alibi'"),
    ],
)
def test_a_bias_that_is_not_a_function_of_positions_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        bias(name, heads=HEADS, length=4)


def test_it_is_a_model_layer() -> None:
    model = GPT2(
        ModelConfig(
            layers=1, heads=HEADS, width=WIDTH, vocabulary=9, train_length=8, encoding="fox"
        )
    ).double()
    randomise(model)
    block = model.blocks[0].attention
    x = draw(2, 8, WIDTH, seed=1)
    q, k, v = (
        part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in block.qkv(x).chunk(3, dim=-1)
    )
    found = attention(q, k, v, encoding=block.encoding, x=x)
    at = Positions.span(8)
    expected = block(x, at, Visible(), None, "auto", None)
    torch.testing.assert_close(block.out(found.transpose(1, 2).flatten(2)), expected)


def test_gradients_reach_everything() -> None:
    q, k, v, x = (each.requires_grad_() for each in tensors())
    made = encoding("cable")
    attention(q, k, v, encoding=made, x=x).square().sum().backward()
    assert all(each.grad is not None and each.grad.any() for each in (q, k, v, x))
    assert all(parameter.grad.any() for parameter in made.parameters())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"encoding": "alib"}, "unknown encoding 'alib': did you mean 'alibi'"),
        ({"encoding": "rope,nope"}, "a schedule of 2 layers, .* of one, 'rope' or 'nope', with"),
        ({"encoding": "cohere2"}, "'cohere2' is a schedule of 4 layers, but this is one layer"),
        ({"encoding": "rope:windw=3"}, "unknown field of 'rope' 'windw': did you mean 'window'"),
        ({"encoding": "cable"}, "'cable' has learned parameters: build it once"),
        ({"encoding": "sinusoidal"}, "Sinusoidal acts on the token embeddings"),
        ({"encoding": "xpos", "causal": False}, "xPos has no bidirectional form"),
        ({"encoding": encoding("alibi"), "causal": False}, "build it with causal=False"),
        ({"path": "fles"}, "unknown attention path 'fles'"),
        ({"path": "decode"}, "it takes one query, got 11"),
        ({"q": torch.zeros(3, 5, 8)}, "q must have shape b h t e"),
        (
            {"q": torch.zeros(2, HEADS, LENGTH + 1, DIM).double()},
            "q has 12 tokens, more than the 11",
        ),
        ({"q": torch.zeros(2, HEADS, LENGTH, DIM)}, "k is torch.float64 .* q is torch.float32"),
        ({"positions": torch.arange(4)[None]}, "positions.q must have shape 2 11 or 1 11"),
        ({"groups": torch.zeros(1, 3, dtype=torch.long)}, "visible.q_group must have shape"),
        ({"x": torch.zeros(2, 4, WIDTH)}, "x must have shape 2 11 d"),
        (
            {"encoding": build("alibi", heads=2, head_dim=8, width=16, train_length=8)},
            "ALiBi was built for 2 heads of 8 dims, but q has 3 heads of 8",
        ),
    ],
)
def test_a_wrong_argument_is_refused_with_a_sentence(
    changes: dict[str, object], sentence: str
) -> None:
    q, k, v, _ = tensors()
    given = {"q": q, "k": k, "v": v, "encoding": "alibi"} | changes
    with pytest.raises(InputError, match=sentence):
        attention(**given)


def test_a_missing_encoding_and_positions_too_far_apart_are_refused() -> None:
    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(InputError, match="must be an Encoding or the name of one, got None"):
        attention(q, q, q, encoding=None)
    with pytest.raises(InputError, match="positions must be at most 2,147,483,647 apart"):
        attention(q, q, q, encoding="alibi", positions=torch.tensor([[0, 1, 2**61]]))
