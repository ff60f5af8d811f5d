"""Queries and keys given to a bias: what is missing is said, and a model gives everything."""

import pytest
import torch

from headscape.call import definition
from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import LayerContext, QueriesAndKeys, build
from headscape.errors import InputError
from headscape.gpt2 import GPT2, Cache, ModelConfig
from headscape.kernels.assemble import prepare
from headscape.properties.probe import draw, randomise

HEADS, DIM = 3, 4
SHAPE = {"heads": HEADS, "head_dim": DIM, "width": HEADS * DIM, "train_length": 16}


def model(**fields: object) -> GPT2:
    made = GPT2(
        ModelConfig(layers=2, heads=HEADS, width=12, vocabulary=11, train_length=16, **fields)
    )
    randomise(made)
    return made.double()


@pytest.mark.parametrize("name", ["shaw", "transformer-xl", "deberta", "grape"])
def test_a_bias_without_its_heads_says_so(name: str) -> None:
    made, q = build(name, **SHAPE), torch.zeros(1, HEADS, 5, DIM)
    title = made.title
    with pytest.raises(InputError, match=f"^the bias of {title} reads queries and keys: put "):
        made.bias(LayerContext(Positions.span(5)))
    with pytest.raises(InputError, match=r"^there are 5 keys, but 7 positions"):
        made.bias(LayerContext(Positions.span(5, 7), heads=QueriesAndKeys(q, q, 1.0)))


@pytest.mark.parametrize("name", ["shaw", "transformer-xl", "deberta", "grape"])
def test_shared_keys_are_repeated_for_every_head(name: str) -> None:
    made = build(name, heads=4, head_dim=DIM, width=16, train_length=16).double()
    randomise(made)
    where, q, k = Positions.span(6), draw(1, 4, 6, DIM, seed=1), draw(1, 2, 6, DIM, seed=2)
    few, all_keys = (
        dense(made.bias(LayerContext(where, heads=QueriesAndKeys(q, keys, 0.5))), where)
        for keys in (k, k.repeat_interleave(2, dim=1))
    )
    assert torch.equal(few, all_keys)


def test_inkling_needs_the_input() -> None:
    with pytest.raises(InputError, match=r"^Inkling needs the layer's input: put stream"):
        build("inkling", **SHAPE).bias(LayerContext(Positions.span(5)))


def test_deberta_projects_its_rows_as_the_model_projects_tokens() -> None:
    fields = {"share_att_key": True, "buckets": 6, "max_distance": 9}
    whole = model(encoding="deberta", encoding_fields=fields)
    tokens = torch.randint(11, (2, 14), generator=torch.Generator().manual_seed(1))
    seen = []
    with torch.no_grad():
        logits = whole(tokens, watch=lambda layer, inputs: seen.append(inputs))
        attention = whole.blocks[0].attention
        weight, bias = attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)
        projected = [
            torch.nn.functional.linear(attention.encoding.rows, weight[part], bias[part])
            .unflatten(-1, (HEADS, DIM))
            .transpose(0, 1)
            for part in (0, 1)
        ]
        q, k, v, where = seen[0].q, seen[0].k, seen[0].v, Positions.span(14)
        expected = prepare(
            attention.encoding, q, k, v, None, where, project=lambda _: tuple(projected)
        )
        ours, theirs = (definition.scores(each).final for each in (seen[0], expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        cache = Cache()
        parts = [whole(part, cache=cache) for part in tokens.split([5, 1, 8], dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), logits, rtol=1e-9, atol=1e-9)
    with pytest.raises(InputError, match="use it in a model, or set share_att_key to false"):
        prepare(attention.encoding, q, k, v, None, where)


def test_a_scale_of_the_encoding_and_one_of_the_model_contradict() -> None:
    for name in ("inkling", "deberta"):
        with pytest.raises(
            InputError, match=r"has its own factor of q\.k, but the model has scale="
        ):
            model(encoding=name, scale="one")
    assert model(encoding="inkling", encoding_fields={"qk_scale": "model"}, scale="one")


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("shaw", {"left": -1}, "left must be at least 0, got -1"),
        ("shaw", {"right": -2}, "right must be at least 0, got -2"),
        ("deberta", {"buckets": 1}, "buckets must be at least 2, got 1"),
        ("deberta", {"buckets": 8, "max_distance": 5}, "max_distance must be above .* 5, got 5"),
        ("transformer-xl", {"clamp": 0}, "clamp must be at least 1, got 0"),
        ("transformer-xl", {"base": 1.0}, "base must be above 1, got 1.0"),
        ("inkling", {"rank": 0}, "rank must be at least 1, got 0"),
        ("inkling", {"extent": 0}, "extent must be at least 1, got 0"),
        ("grape", {"gate": "path", "path_dim": 3}, "path_dim must be even and at least 2, got 3"),
        ("grape", {"path_dim": 4}, "path_dim belongs to gate='path', got gate='key'"),
    ],
)
def test_fields_out_of_range(name: str, fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build(name, **SHAPE, **fields)
