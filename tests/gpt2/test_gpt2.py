"""The GPT-2 family: sizes, initialisation, score scale, sharing."""

import math

import pytest
import torch
from torch import nn

from headscape.gpt2 import GPT2, PRESETS, ModelConfig, preset


def tiny(**changes: object) -> GPT2:
    fields = {"layers": 2, "heads": 4, "width": 32, "vocabulary": 50, "train_length": 16}
    return GPT2(ModelConfig(**(fields | changes)))


def count(config: ModelConfig) -> int:
    with torch.device("meta"):
        made = GPT2(config)
    return sum(parameter.numel() for parameter in made.parameters())


@pytest.mark.parametrize(
    ("name", "layers", "heads", "width"),
    [
        ("tiny", 6, 8, 512),
        ("small", 12, 12, 768),
        ("medium", 24, 16, 1024),
        ("large", 36, 20, 1280),
        ("xl", 48, 25, 1600),
        ("mini", 6, 12, 384),
        ("nano", 2, 12, 192),
    ],
)
def test_presets(name: str, layers: int, heads: int, width: int) -> None:
    config = preset(name, vocabulary=50_257)
    assert (config.layers, config.heads, config.width) == (layers, heads, width)
    block = 12 * width**2 + 13 * width
    expected = (50_257 + 1024) * width + layers * block + 2 * width
    assert count(config) == expected
    assert set(PRESETS) == {"tiny", "small", "medium", "large", "xl", "mini", "nano"}


def test_small_is_gpt2_small() -> None:
    config = preset("small", vocabulary=50_257, train_length=1024, encoding="learned")
    assert count(config) == 124_439_808


def test_the_embedding_is_the_output_matrix() -> None:
    model = tiny()
    assert sum(value.shape == (50, 32) for value in model.parameters()) == 1
    hidden = torch.randn(1, 3, 32)
    assert torch.equal(model.logits(hidden), hidden @ model.tokens.weight.T)
    model(torch.tensor([[1, 2]])).sum().backward()
    assert model.tokens.weight.grad[40].any(), "an unused token learns from the output alone"


@pytest.mark.parametrize("encoding", ["fire", "cable", "t5", "dape+kerple", "fox"])
def test_initialisation(encoding: str) -> None:
    model = tiny(layers=8, width=128, encoding=encoding)
    deep = 0.02 / math.sqrt(2 * 8)
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        residual = name.endswith(("attention.out", "down"))
        expected = deep if residual else 0.02
        values = module.weight.detach()
        # Five standard errors of a standard deviation, so a right one fails once in millions.
        slack = 5 * expected / math.sqrt(2 * values.numel())
        assert abs(values.std(correction=0).item() - expected) < slack, name
        assert abs(values.mean().item()) < 5 * expected / math.sqrt(values.numel()), name
        if isinstance(module, nn.Linear):
            assert not module.bias.any(), name


def test_what_the_initialisation_leaves_alone() -> None:
    fox = tiny(encoding="fox", encoding_fields={"gate_bias": 5.0})
    assert torch.equal(fox.encoding().gate.bias, torch.full((4,), 5.0))
    fire = tiny(encoding="fire").encoding()
    assert fire.c.item() == pytest.approx(0.1)
    assert fire.length_multiplier.item() == 1.0
    convolution = tiny(encoding="dapev2+kerple").encoding().inner.weight
    assert convolution.abs().max() > 0.05, "Conv2d keeps PyTorch's own, wider start"
    kernel = tiny(encoding="kerple", heads=32, width=32).encoding()
    assert kernel.p().min() >= 0.01
    assert kernel.p().max() <= 2.0 + 1e-6
    assert kernel.a().min() >= 0.01
    assert kernel.a().max() <= 1.0 + 1e-6
    assert not tiny(encoding="cope").encoding().table.any()


@pytest.mark.parametrize(
    ("scale", "factor"), [("head_dim", 8**-0.5), ("width", 32**-0.5), ("one", 1.0)]
)
def test_score_scale(scale: str, factor: float) -> None:
    seen = []
    model = tiny(scale=scale, encoding="nope")
    model(torch.tensor([[1, 2, 3]]), watch=lambda _, inputs: seen.append(inputs.scale))
    assert seen == pytest.approx([factor, factor])


def test_a_shared_encoding_is_one_and_stored_once() -> None:
    shared = tiny(encoding="kerple", share_encoding=True)
    apart = tiny(encoding="kerple")
    assert shared.encoding(0) is shared.encoding(1)
    assert apart.encoding(0) is not apart.encoding(1)
    names = [name for name in shared.tensors() if name.endswith("raw_p")]
    assert len(names) == 1


def test_an_input_encoding_is_not_repeated_in_the_layers() -> None:
    model = tiny(encoding="learned")
    assert sum("table" in name for name in model.tensors()) == 1
    assert model.encoding() is model.position


def test_a_bidirectional_model_looks_ahead() -> None:
    for causal in (True, False):
        model = tiny(encoding="alibi", causal=causal).double()
        text = torch.tensor([[1, 2, 3, 4]])
        other = torch.tensor([[1, 2, 3, 5]])
        with torch.no_grad():
            same = torch.allclose(model(text)[:, 0], model(other)[:, 0], atol=1e-12)
        assert same == causal


def test_conventions_are_written_out() -> None:
    said = tiny(encoding="dapev2+alibi", encoding_fields={"slopes": "mpt"}).conventions()
    assert said == {
        "kernel": 3,
        "hidden": 32,
        "boundary": "masked",
        "slopes": "mpt",
        "divisor": "one",
        "chunk": None,
        "window": None,
        "temperature": "none",
        "temperature_rate": 0.1,
        "temperature_start": None,
        "temperature_on": "scores",
        "softcap": None,
        "sink": False,
    }
