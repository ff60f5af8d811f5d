"""Real published weights; `make test-pretrained` runs this."""

from typing import Any

import numpy as np
import pytest
import torch

from headscape.call.definition import AttentionCall, run, scores
from headscape.data.tokenize.published_tokenizer import PublishedTokenizer
from headscape.models.load import load
from headscape.models.loaded import LoadedModel
from pretrained import weights
from pretrained.onnx_t5 import t5_from_onnx

# transformers and gguf warn about their own code while they read a file.
pytestmark = [pytest.mark.pretrained, pytest.mark.filterwarnings("default")]
TEXT = (
    "The lighthouse keeper climbed the stairs every evening, lit the lamp, and wrote down the "
    "weather. In winter the storms came from the north, and the ships that passed at night were "
    "few. He counted them all the same, and every spring he sent the book to the harbour office. "
)


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    pytest.importorskip("gguf")
    return load(f"hf:{weights.smollm2()}")


@pytest.fixture(scope="module")
def mpnet() -> LoadedModel:
    return load(f"hf:{weights.mpnet()}")


@pytest.fixture(scope="module")
def titles() -> Any:
    """The distilled flan-t5-small as a transformers model."""
    pytest.importorskip("onnx")
    return t5_from_onnx(weights.flan_t5())


@pytest.fixture(scope="module")
def flan_t5(titles: Any) -> LoadedModel:
    return load(titles, tokenizer=_titles_tokenizer())


@pytest.fixture(scope="module")
def flan_t5_decoder(titles: Any) -> LoadedModel:
    return load(titles.get_decoder(), tokenizer=_titles_tokenizer())


def _titles_tokenizer() -> PublishedTokenizer:
    return PublishedTokenizer((weights.flan_t5() / "tokenizer.json").read_text(), 1)


def tokens_of(model: LoadedModel) -> torch.Tensor:
    assert model.tokenizer is not None
    return torch.from_numpy(model.tokenizer.encode(TEXT).astype(np.int64))[None]


def test_smollm2_is_rope_in_every_layer(smollm2: LoadedModel) -> None:
    spec = smollm2.spec
    assert (len(spec.layers), spec.heads, spec.head_dim) == (30, 9, 64)
    assert len(set(map(str, spec.layers))) == 1
    found = spec.layers[0]
    assert found.encoding == "rope"
    expected = {"pairing": "halves", "base": 1e5, "scaling": "none", "key_heads": 3}
    assert {name: found.conventions[name] for name in expected} == expected


def test_smollm2_has_transformers_own_loss(smollm2: LoadedModel) -> None:
    tokens = tokens_of(smollm2)
    theirs = smollm2.model  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = theirs(tokens[:, :-1]).logits.double()
        reported = theirs(tokens, labels=tokens).loss.item()
    exact = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:]).item()
    ours = smollm2.losses(tokens, 0).mean().item()
    assert ours == pytest.approx(exact, rel=1e-6)
    assert ours == pytest.approx(reported, rel=1e-4)
    assert ours < 0.5 * np.log(smollm2.spec.vocabulary)


@pytest.mark.parametrize("name", ["smollm2", "mpnet", "flan_t5", "flan_t5_decoder"])
def test_every_layer_is_the_models_own(name: str, request: pytest.FixtureRequest) -> None:
    """Attention on a text, longer than what loading checks, from what was read."""
    from headscape.models.transformers.attention_watch import AttentionWatch

    model = request.getfixturevalue(name)
    tokens = tokens_of(model)
    inputs: dict[int, AttentionCall] = {}
    results: dict[int, torch.Tensor] = {}
    model.observe(tokens, range(len(model.spec.layers)), inputs.__setitem__)
    with torch.no_grad(), AttentionWatch(model._body, lambda *_: None, results.__setitem__):
        model._run(tokens)
    assert len(inputs) == len(results) == len(model.spec.layers)
    for layer, own in results.items():
        gap = (run(inputs[layer]) - own).abs().max()
        assert gap <= 1e-4 * own.abs().max(), layer


def test_smollm2_rotation_is_ours_far_out(smollm2: LoadedModel) -> None:
    """At 2,000 tokens the angles that the model rounds to float32 are still ours."""
    found: dict[int, AttentionCall] = {}
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1000, 40_000, (1, 2000), generator=generator)
    smollm2.observe(tokens, [0], found.__setitem__)
    inputs = found[0]
    assert inputs.unrotated is not None
    turned = inputs.turns[0].apply(inputs.unrotated[0])
    assert (turned - inputs.q).abs().max() <= 1e-3 * inputs.q.abs().max()


def test_mpnet_table_is_read_exactly(mpnet: LoadedModel) -> None:
    found: dict[int, AttentionCall] = {}
    tokens = tokens_of(mpnet)
    mpnet.observe(tokens, [0, 11], found.__setitem__)
    encoder = mpnet.model.base_model.encoder  # type: ignore[attr-defined]
    own = encoder.compute_position_bias(torch.zeros(1, tokens.shape[1], 1))
    for inputs in found.values():
        assert torch.equal(scores(inputs).bias, own)
    assert mpnet.spec.provenance["input"] == "Learnable"


def test_flan_t5_tables_are_read_exactly(
    titles: Any, flan_t5: LoadedModel, flan_t5_decoder: LoadedModel
) -> None:
    for model, stack in ((flan_t5, titles.encoder), (flan_t5_decoder, titles.decoder)):
        tokens = tokens_of(model)
        found: dict[int, AttentionCall] = {}
        model.observe(tokens, [0, 7], found.__setitem__)
        own = stack.block[0].layer[0].SelfAttention
        length = tokens.shape[1]
        for layer, inputs in found.items():
            assert model.spec.layers[layer].encoding == "t5"
            every = scores(inputs)
            bias = own.compute_bias(length, length).where(every.visible, 0.0)
            assert torch.equal(every.bias.where(every.visible, 0.0), bias)
    assert flan_t5_decoder.spec.causal
    assert not flan_t5.spec.causal


def test_flan_t5_was_dequantised_into_a_model_that_writes(titles: Any) -> None:
    """With wrong weights the model writes noise; a title takes its words from the text."""
    tokenizer = _titles_tokenizer()
    text = "The user asked to fix a failing test in the parser and to run the suite again."
    ids = torch.from_numpy(tokenizer.encode(text).astype(np.int64))[None]
    with torch.no_grad():
        written = titles.generate(ids, max_new_tokens=12, do_sample=False)[0]
    words = set(tokenizer.decode(written.numpy()).lower().replace("<pad>", "").split())
    assert words & {"fix", "test", "parser", "suite", "run"}
