"""Published RoPE models stretched by a flag: transformers' own scaling, and its loss."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headscape.errors import InputError
from headscape.models.load import load
from headscape.models.stretched import stretch
from headscape.models.transformers import open_published
from pretrained.families import FAMILIES, VOCABULARY

transformers = pytest.importorskip("transformers")
TRAINED = 64


def windows(length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi"])
@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
def test_a_stretched_model_has_transformers_own_loss(name: str, kind: str) -> None:
    family = FAMILIES[name]
    theirs = family.build()
    model = stretch(load(theirs), kind)
    tokens = windows(4 * TRAINED + 1)
    own = theirs.config.rope_parameters
    factor = 1.0 if kind == "dynamic" else 4.0
    fields = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        fields["original_max_position_embeddings"] = TRAINED
    expected = load(family.build(rope_parameters={**own, **fields}))
    assert torch.equal(model.losses(tokens, 0), expected.losses(tokens, 0))
    assert not torch.allclose(model.losses(tokens, 0), load(theirs).losses(tokens, 0))
    stretched: Any = model.for_length(4 * TRAINED)
    assert stretched.spec.layers == expected.spec.layers
    assert stretched.spec.layers[0].conventions["scaling"] == kind


def test_a_larger_base_is_ours() -> None:
    theirs = FAMILIES["llama"].build()
    model: Any = stretch(load(theirs), "ntk:4").for_length(16)
    layer = model.spec.layers[0]
    assert layer.encoding == "rope"
    kept = {name: layer.conventions[name] for name in ("base", "scaling", "factor")}
    assert kept == {"base": 10_000.0, "scaling": "ntk", "factor": 4.0}
    assert model.model.config.rope_parameters["rope_theta"] == 10_000 * 4 ** (8 / 6)


@pytest.mark.parametrize(
    ("extension", "factor"), [("yarn:2", 2.0), ("linear", 1.5), ("ntk:3", 3.0), ("dynamic", 1.0)]
)
def test_a_capture_says_how_the_model_is_stretched(extension: str, factor: float) -> None:
    base = load(FAMILIES["llama"].build())
    model = stretch(base, extension)
    cap = model.capture(windows(96)[0].numpy())
    assert cap.conventions["scaling"] == extension.partition(":")[0]
    assert cap.conventions["factor"] == factor
    assert cap.model["name"] == model.spec.name == f"LlamaForCausalLM, {model.extension.title}"
    assert model.spec.layers[0].conventions["scaling"] == extension.partition(":")[0]
    assert model.fingerprint != base.fingerprint
    assert not (cap.final() == base.capture(windows(96)[0].numpy()).final()).all()


def test_weights_are_shared_and_the_model_is_unchanged() -> None:
    theirs = FAMILIES["llama"].build()
    base: Any = load(theirs)
    before = base.losses(windows(20), 0)
    twin: Any = stretch(base, "yarn:2").for_length(20)
    assert twin.model.lm_head.weight is theirs.lm_head.weight
    assert torch.equal(base.losses(windows(20), 0), before)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bloom", "stretches RoPE, and this model's encoding is 'alibi'"),
        ("llama-yarn", r"stretches its frequencies already \(yarn\)"),
        ("modernbert", "whose rotary frequencies cannot be stretched"),
        ("gptj", "whose rotary frequencies cannot be stretched"),
    ],
)
def test_what_cannot_be_stretched_says_why(name: str, message: str) -> None:
    base = load(FAMILIES[name].build())
    for extension in ("yarn:2", "ntk:2"):
        with pytest.raises(InputError, match=message):
            stretch(base, extension).losses(windows(9), 0)


def test_a_rotary_width_of_two_has_no_larger_base() -> None:
    model = stretch(load(FAMILIES["gpt-neox"].build()), "ntk:2")
    with pytest.raises(InputError, match=r"needs a rotary width above 2, and .* has 2"):
        model.losses(windows(9), 0)


def test_a_model_larger_than_memory_says_its_size_and_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = FAMILIES["llama"].build()
    theirs.save_pretrained(tmp_path / "large")
    weights = sum(weight.numel() for weight in theirs.parameters())
    monkeypatch.setattr(open_published, "free_bytes", lambda: 4 * weights)
    load(f"hf:{tmp_path / 'large'}")
    monkeypatch.setattr(open_published, "free_bytes", lambda: 4 * weights - 1)
    message = rf"large has {weights / 1e9:.3g} billion weights, .* GB in float32, and .* GB of "
    with pytest.raises(InputError, match=message + "memory are free: open it in bfloat16"):
        load(f"hf:{tmp_path / 'large'}", offload=False)
    monkeypatch.setattr(open_published, "free_bytes", lambda: 4 * weights)
    assert load(f"hf:{tmp_path / 'large'}").spec.heads == 6


def test_free_memory_is_read_where_the_system_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_published, "MEMORY", tmp_path / "meminfo")
    assert open_published.free_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:    7 kB\n")
    assert open_published.free_bytes() == 7 * 1024
