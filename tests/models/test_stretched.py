"""RoPE stretched at evaluation time: same weights, different frequencies, known results."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evaluation.models import Numbers, stream, tiny
from headscape.data.dataset import Dataset
from headscape.errors import InputError
from headscape.evaluation.evaluate import evaluate
from headscape.gpt2 import GPT2, ModelConfig
from headscape.models.gpt2_model import GPT2Model
from headscape.models.stretched import Extension, parse_extension, stretch, stretched_gpt2


@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic", "yarn"])
@pytest.mark.parametrize("encoding", ["rope", "dapev2+rope"])
def test_a_stretched_model_equals_one_built_that_way(kind, encoding):
    model = tiny(encoding)
    twin = stretched_gpt2(model, Extension(kind=kind), 64)
    factor = 1.0 if kind == "dynamic" else 4.0
    built = GPT2(
        ModelConfig.from_json(
            model.config.to_json() | {"encoding_fields": {"scaling": kind, "factor": factor}}
        )
    ).double()
    built.load_tensors(model.tensors(), source="the model")
    tokens = torch.from_numpy(stream(64).astype(np.int64))[None]
    with torch.no_grad():
        assert torch.equal(twin(tokens), built(tokens))
        assert not torch.allclose(twin(tokens), model(tokens))
    assert twin.config == built.config
    assert model.config.encoding_fields == {}


def test_weights_are_shared():
    model = tiny("rope")
    twin = stretched_gpt2(model, Extension(kind="yarn"), 64)
    mine = {name: value.data_ptr() for name, value in model.named_parameters()}
    assert {name: value.data_ptr() for name, value in twin.named_parameters()} == mine


def test_linear_by_two_is_half_the_position():
    model = tiny("rope")
    twin = stretched_gpt2(model, Extension(kind="linear", factor=2.0), 16)
    tokens = torch.from_numpy(stream(9).astype(np.int64))[None]
    with torch.no_grad():
        stretched = twin(tokens, positions=2 * torch.arange(9)[None])
        assert torch.allclose(stretched, model(tokens), atol=1e-12)


def test_nothing_changes_up_to_the_trained_length():
    model = tiny("rope")
    tokens = torch.from_numpy(stream(16).astype(np.int64))[None]
    for kind in ("linear", "ntk", "dynamic", "yarn"):
        with torch.no_grad():
            twin = stretched_gpt2(model, Extension(kind=kind), 16)
            assert torch.allclose(twin(tokens), model(tokens), atol=1e-12), kind


def test_names():
    assert parse_extension("yarn") == Extension(kind="yarn")
    assert parse_extension("linear:4") == Extension(kind="linear", factor=4.0)
    assert parse_extension("dynamic").title == "dynamic NTK"
    assert parse_extension("ntk:2.5").title == "NTK x2.5"
    assert parse_extension("yarn").factor_at(4096, 512) == 8
    for name in ("yarn:", "yarn:0.5", "yarn:x", "yarn:nan", "linear:inf"):
        with pytest.raises(InputError, match="factor must be"):
            parse_extension(name)
    with pytest.raises(InputError, match="unknown extension 'pi'"):
        parse_extension("pi")


def test_different_encodings_are_refused_at_once():
    with pytest.raises(InputError, match="stretches RoPE, and this model's encoding is 'alibi'"):
        stretch(GPT2Model(tiny("alibi")), "yarn")


@pytest.mark.parametrize(
    ("extension", "factor"), [("yarn", 3.0), ("linear:2", 2.0), ("ntk", 3.0), ("dynamic", 1.0)]
)
def test_a_capture_says_how_the_model_is_stretched(extension, factor):
    model = stretch(GPT2Model(tiny("rope"), seed=2), extension)
    kind = extension.partition(":")[0]
    cap = model.capture(stream(48).astype(np.int64))
    assert (cap.conventions["scaling"], cap.conventions["factor"]) == (kind, factor)
    assert cap.model["name"] == model.spec.name == f"RoPE, {model.extension.title}"
    assert model.spec.seed == 2
    assert model.spec.layers[0].conventions["scaling"] == kind
    assert model.fingerprint == model.for_length(16).fingerprint != model.base.fingerprint


def test_measures_are_of_the_model_at_their_length():
    model = stretch(GPT2Model(tiny("rope")), "yarn")
    about = model.measures(stream(300).astype(np.int64), length=32, sequences=2).about
    assert about["model"] == "RoPE, YaRN"
    assert about["fingerprint"] == model.for_length(32).fingerprint != model.fingerprint
    assert any("scaling='yarn', factor=2.0" in line for line in about["recognised"])


def test_a_row_is_named_after_the_extension():
    side = SimpleNamespace(tokens=stream(200))
    data = Dataset(
        corpus="random", fingerprint="0", tokenizer=Numbers(), train_side=side, validation_side=side
    )
    model = stretch(GPT2Model(tiny("rope"), dataset=lambda: data, seed=2), "yarn")
    table = evaluate(model, lengths=(8, 64))
    assert table.methods == ["RoPE, YaRN"]
    fields = model.for_length(64).gpt2.config.encoding_fields
    assert fields["factor"] == pytest.approx(64 / 16)
    assert math.isclose(model.for_length(8).gpt2.config.encoding_fields["factor"], 1)
