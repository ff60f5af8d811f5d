"""What people capture, on the real weights of SmolLM2; `make test-pretrained` runs this."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headscape as hs
from captures.test_inputs import assert_same
from pretrained import weights

# transformers and gguf warn about their own code while they read a file.
pytestmark = [pytest.mark.pretrained, pytest.mark.filterwarnings("default")]
LAYERS = [0, 14, 29]
MESSAGES = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "Why is the sky blue?"},
]


@pytest.fixture(scope="module")
def smollm2() -> hs.Model:
    pytest.importorskip("gguf")
    return hs.load(f"hf:{weights.smollm2()}")


@pytest.fixture(scope="module")
def theirs() -> Any:
    pytest.importorskip("gguf")
    path = weights.smollm2()
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def test_a_batch_is_one_by_one(smollm2: hs.Model) -> None:
    texts = ["The capital of France is", "The weather today is very", "Once"]
    for text, cap in zip(texts, smollm2.captures(texts, layers=LAYERS), strict=True):
        assert_same(cap, smollm2.capture(text, layers=LAYERS), 2e-3)


def test_a_chat_is_the_tokenizers_own_text(smollm2: hs.Model, theirs: Any) -> None:
    expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert smollm2.capture(MESSAGES).tokens.tolist() == list(expected)


def test_bfloat16_is_within_its_rounding(smollm2: hs.Model) -> None:
    half: Any = hs.load(f"hf:{weights.smollm2()}", dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    text = "The capital of France is Paris, and the capital of Italy is"
    eps = torch.finfo(torch.bfloat16).eps
    # Roundings add up over layers: what reaches the last layer went through 29 of them.
    for layer, roundings in zip(LAYERS, (1, 4, 4), strict=True):
        ours, exact = (model.capture(text, layers=layer) for model in (half, smollm2))
        scores, expected = ours.final(layer=layer), exact.final(layer=layer)
        gap = np.nanmax(abs(scores - expected))
        assert gap <= roundings * eps * np.nanmax(abs(expected))
        weights_gap = abs(ours.weights(layer=layer) - exact.weights(layer=layer))
        assert weights_gap.max() <= 2 * roundings * eps
        assert 0 < weights_gap.mean() <= eps / 4


def test_captured_during_generate_is_captured_in_a_second_pass(
    smollm2: hs.Model, theirs: Any
) -> None:
    encoded = theirs.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    model: Any = smollm2.model  # type: ignore[attr-defined]
    with hs.watch(smollm2, layers=LAYERS) as seen, torch.no_grad():
        written = model.generate(**encoded, max_new_tokens=24, do_sample=False)
    again = smollm2.capture(written[0, :-1], layers=LAYERS)
    assert_same(seen[0], again, 2e-3)
    cap = smollm2.capture(MESSAGES, generate=24, layers=LAYERS)
    assert cap.tokens.tolist() == written[0].tolist()
    assert_same(cap, smollm2.capture(cap.tokens, layers=LAYERS), 0)
