"""RoPE stretched at evaluation time: same weights, other frequencies, an old result to compare."""

import math

import numpy as np
import pytest
import torch

from evaluate.models import stream, tiny
from headscape.errors import InputError
from headscape.evaluate.extension import Extension, extended, parse
from headscape.evaluate.perplexity import Text
from headscape.evaluate.subjects import Subject
from headscape.gpt2 import GPT2, ModelConfig


@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic", "yarn"])
@pytest.mark.parametrize("encoding", ["rope", "dapev2+rope"])
def test_an_extended_model_equals_one_built_that_way(kind, encoding):
    model = tiny(encoding)
    twin = extended(model, Extension(kind=kind), 64)
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
    twin = extended(model, Extension(kind="yarn"), 64)
    mine = {name: value.data_ptr() for name, value in model.named_parameters()}
    assert {name: value.data_ptr() for name, value in twin.named_parameters()} == mine


def test_linear_by_two_is_half_the_position():
    model = tiny("rope")
    twin = extended(model, Extension(kind="linear", factor=2.0), 16)
    tokens = torch.from_numpy(stream(9).astype(np.int64))[None]
    with torch.no_grad():
        stretched = twin(tokens, positions=2 * torch.arange(9)[None])
        assert torch.allclose(stretched, model(tokens), atol=1e-12)


def test_nothing_changes_up_to_the_trained_length():
    model = tiny("rope")
    tokens = torch.from_numpy(stream(16).astype(np.int64))[None]
    for kind in ("linear", "ntk", "dynamic", "yarn"):
        with torch.no_grad():
            twin = extended(model, Extension(kind=kind), 16)
            assert torch.allclose(twin(tokens), model(tokens), atol=1e-12), kind


def test_names():
    assert parse("yarn") == Extension(kind="yarn")
    assert parse("linear:4") == Extension(kind="linear", factor=4.0)
    assert parse("dynamic").title == "dynamic NTK"
    assert parse("ntk:2.5").title == "NTK x2.5"
    assert parse("yarn").factor_at(4096, 512) == 8
    for name in ("yarn:", "yarn:0.5", "yarn:x", "yarn:nan", "linear:inf"):
        with pytest.raises(InputError, match="factor must be"):
            parse(name)
    with pytest.raises(InputError, match="unknown extension 'pi'"):
        parse("pi")


def test_other_encodings_are_refused_at_once():
    text = Text(tokens=stream(60), corpus="c")
    with pytest.raises(InputError, match="stretches RoPE, and this model's encoding is 'alibi'"):
        Subject.of(tiny("alibi"), text, extension=parse("yarn"))


def test_subjects_are_named_after_the_extension():
    text = Text(tokens=stream(60), corpus="c")
    subject = Subject.of(tiny("rope"), text, seed=2, extension=parse("yarn"))
    assert subject.method.name == "RoPE, YaRN"
    fields = subject.scorer(64).model.config.encoding_fields
    assert fields["factor"] == pytest.approx(64 / 16)
    assert math.isclose(subject.scorer(8).model.config.encoding_fields["factor"], 1)
