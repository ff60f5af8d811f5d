"""Encodings that are combined with a plus: what they add up to, and which cannot meet."""

import pytest
import torch

import headscape as hs
from headscape.call import definition
from headscape.call.bias import Toeplitz, dense
from headscape.call.positions import Positions
from headscape.encodings import LayerContext, build, kinds, slug, title
from headscape.encodings.combined import Combined
from headscape.errors import InputError
from headscape.kernels.assemble import prepare
from headscape.properties.probe import draw, randomise

SHAPE = {"heads": 3, "head_dim": 8, "width": 24, "train_length": 16}
LENGTH = 20


def scores(encoding: hs.Encoding) -> torch.Tensor:
    q, k, v = (draw(1, 3, LENGTH, 8, seed=seed) for seed in (1, 2, 3))
    x = draw(1, LENGTH, 24, seed=4)
    with torch.no_grad():
        return definition.scores(prepare(encoding, q, k, v, x, Positions.span(LENGTH))).final


def made(name: str, **fields: object) -> Combined:
    encoding = build(name, **SHAPE, **fields).double()
    assert isinstance(encoding, Combined)
    randomise(encoding)
    return encoding


@pytest.mark.parametrize(
    "name", ["rope+alibi", "rope+fox", "path+fox", "alibi+t5", "fire+cable", "rope+alibi+cable"]
)
def test_scores_are_the_sum_of_what_each_part_does(name: str) -> None:
    encoding = made(name)
    plain = scores(build("nope", **SHAPE).double())
    parts = sum(scores(part) - plain for part in encoding.parts)
    torch.testing.assert_close(scores(encoding), plain + parts, rtol=1e-12, atol=1e-12)


def test_kerple_weighs_scores_and_adds_a_bias() -> None:
    encoding = made("kerple-power+kerple-weight")
    power, weight = encoding.parts
    where = Positions.span(LENGTH)
    bias = dense(power.bias(LayerContext(where)), where)
    torch.testing.assert_close(scores(encoding), scores(weight) + bias, rtol=1e-12, atol=1e-12)


def test_kerples_two_kernels_load_from_one_checkpoint() -> None:
    encoding = made("kerple-power+kerple-weight")
    tensors = {name: torch.rand(3, 1, 1) + 0.1 for name in ("bias_p", "bias_a", "wei_p", "wei_a")}
    encoding.load_published(tensors)
    power, weight = encoding.parts
    torch.testing.assert_close(power.a().flatten(), tensors["bias_a"].double().flatten())
    torch.testing.assert_close(weight.a().flatten(), tensors["wei_a"].double().flatten())


def test_tables_by_distance_stay_one_table() -> None:
    encoding = made("rope+alibi+kerple")
    assert isinstance(encoding.bias(LayerContext(Positions.span(9))), Toeplitz)


def test_fields_go_to_the_parts_and_shared_ones_to_the_whole() -> None:
    encoding = build("rope+fox:base=500:gate_bias=5.0:window=7:sink=true", **SHAPE)
    rope, fox = encoding.parts
    assert (rope.config.base, fox.config.gate_bias) == (500, 5.0)
    assert (encoding.window, rope.window, fox.window) == (7, None, None)
    assert encoding.sink() is not None
    assert rope.sink() is None
    recorded = encoding.conventions()
    assert (recorded["base"], recorded["gate_bias"], recorded["window"]) == (500, 5.0, 7)
    assert fox.gate.bias.tolist() == [5.0] * 3


def test_names() -> None:
    assert title("rope+fox") == "RoPE+FoX"
    assert title("dapev2+rope+fox") == "DAPEv2+RoPE+FoX"
    assert slug("rope+t5-clipped") == "rope-t5-bias"
    assert [kind.title for kind in kinds("dapev2+rope+fox").all] == ["DAPEv2", "RoPE", "FoX"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rope+xpos", "RoPE and xPos both rotate queries and keys"),
        ("rope+selective-rope", "RoPE and Selective RoPE both rotate queries and keys"),
        ("cope+kerple-weight", r"CoPE and Kerple \(weight\) both mix scores"),
        ("fox+cable", "FoX and CABLE both keep a running sum"),
        ("path+wall", "PaTH and Wall both change keys on their way to a query"),
        ("wavlm+inkling", "WavLM and Inkling both read a vector per query"),
        ("learned+alibi", "Learnable acts on the token embeddings, not in attention"),
        ("rope+dape", "'dape' wraps an encoding, so it comes first: write 'dape\\+kerple'"),
        ("rope+rope", "'rope' is in 'rope\\+rope' more than once"),
        ("rope+foxy", "unknown encoding 'foxy': did you mean 'fox'"),
        ("dape+cope+alibi", r"DAPE cannot wrap CoPE\+ALiBi, which mixes scores itself"),
        ("cope+alibi:sink=true", r"CoPE\+ALiBi mixes whole rows of scores"),
    ],
)
def test_encodings_that_cannot_meet_are_refused_by_name(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build(name, **SHAPE)


@pytest.mark.parametrize("name", ["rope+fox", "path+fox", "kerple-power+kerple-weight"])
def test_a_model_with_a_combination_is_saved_and_captured(name: str, tmp_path) -> None:
    model = hs.GPT2.from_preset("nano", encoding=name, vocabulary=257)
    model.save_pretrained(tmp_path / "model")
    again = hs.GPT2.from_pretrained(tmp_path / "model")
    tokens = torch.arange(30)[None]
    torch.testing.assert_close(model(tokens), again(tokens))
    cap = hs.load(model).capture(list(range(30)))
    assert cap.final(head=0).shape == (30, 30)
    assert cap.encoding == name
