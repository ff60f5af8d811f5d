"""Padded batches and positions that do not start at 0: what is read is what the model computes."""

from typing import Any

import pytest
import torch

from headscape.call import definition
from headscape.call.definition import AttentionCall, scores
from headscape.errors import InputError
from headscape.models.load import load
from headscape.models.transformers.attention_watch import AttentionWatch
from pretrained.families import FAMILIES

pytest.importorskip("transformers")
# transformers scripts a function of DeBERTa with TorchScript while it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
LENGTH = 17
PADDED = ["llama", "mistral", "qwen3", "gemma2", "gpt2", "opt", "bloom", "falcon-rope", "bert",
          "mpnet", "t5", "modernbert", "deberta-v1", "layoutlmv3", "wav2vec2-bert",
          "wav2vec2-bert-relative", "wav2vec2-bert-rotary", "seamless-m4t-v2"]  # fmt: skip


FIRST_ONLY = {"gemma2", "bloom"}
"""Families whose own forward gives padding NaN in float64, and with it every later layer."""


def run(model: Any, given: torch.Tensor, **more: torch.Tensor) -> dict[int, torch.Tensor]:
    """The attention results of the model's own forward pass."""
    results: dict[int, torch.Tensor] = {}
    with torch.no_grad(), AttentionWatch(model._body, lambda *_: None, results.__setitem__):
        model._run(given, **more)
    return results


def padding(side: str) -> torch.Tensor:
    """The second sequence has five tokens fewer."""
    real = torch.ones(2, LENGTH, dtype=torch.bool)
    real[1, slice(5) if side == "left" else slice(LENGTH - 5, None)] = False
    return real


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", PADDED)
def test_a_padded_batch(name: str, side: str) -> None:
    family = FAMILIES[name]
    model: Any = load(family.build())
    real, given = padding(side), family.read(LENGTH, 2)
    inputs: dict[int, AttentionCall] = {}
    layers = range(1 if name in FIRST_ONLY else len(model.spec.layers))
    model.observe(given, layers, inputs.__setitem__, real=real)
    results = run(model, given, attention_mask=real.long())
    check(layers, inputs, results, real)


# torch warns that WavLM's own call mixes a boolean and a float mask.
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("name", ["wav2vec2-conformer", "wav2vec2-conformer-rotary", "wavlm"])
def test_a_padded_waveform(name: str) -> None:
    """Padding is counted in samples, and attention sees frames."""
    family = FAMILIES[name]
    model: Any = load(family.build())
    given = family.read(LENGTH, 2)
    samples = torch.ones(given.shape, dtype=torch.bool)
    samples[1, family.read(LENGTH - 5).shape[1] :] = False
    inputs: dict[int, AttentionCall] = {}
    layers = range(len(model.spec.layers))
    model.observe(given, layers, inputs.__setitem__, real=samples)
    check(layers, inputs, run(model, given, attention_mask=samples.long()), padding("right"))


def test_a_waveform_padded_on_the_left_is_refused() -> None:
    family = FAMILIES["wavlm"]
    model: Any = load(family.build())
    given = family.read(LENGTH, 2)
    samples = torch.ones(given.shape, dtype=torch.bool)
    samples[1, :30] = False
    with pytest.raises(InputError, match="padded on the right, got padding before samples: move"):
        model.observe(given, [0], lambda *_: None, real=samples)


def check(
    layers: range,
    inputs: dict[int, AttentionCall],
    results: dict[int, torch.Tensor],
    real: torch.Tensor,
) -> None:
    """What was read is what the model computes wherever a query is not padding."""
    for layer in layers:
        ours = definition.run(inputs[layer]).transpose(1, 2)[real]
        own = results[layer].transpose(1, 2)[real]
        torch.testing.assert_close(ours, own, rtol=1e-5, atol=1e-5)
        every = scores(inputs[layer])
        torch.testing.assert_close(every.content + every.bias, every.final, rtol=1e-9, atol=1e-9)
        hidden = ~real[1]
        assert not every.weights[1, :, real[1]][..., hidden].any()


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi", "cohere", "gpt2"])
def test_positions_that_do_not_start_at_0(name: str) -> None:
    model: Any = load(FAMILIES[name].build())
    at, given = torch.arange(7, 7 + LENGTH)[None], FAMILIES[name].read(LENGTH, 2)
    inputs: dict[int, AttentionCall] = {}
    model.observe(given, [0, 1], inputs.__setitem__, positions=at)
    results = run(model, given, position_ids=at)
    for layer in (0, 1):
        found = inputs[layer]
        assert torch.equal(found.positions.q, at)
        torch.testing.assert_close(definition.run(found), results[layer], rtol=1e-5, atol=1e-5)
        if found.unrotated is not None:
            turned = found.turns[0].apply(found.unrotated[0])
            torch.testing.assert_close(turned, found.q, rtol=1e-4, atol=1e-4)


def test_positions_for_a_model_that_takes_none_are_refused() -> None:
    model: Any = load(FAMILIES["bloom"].build())
    given, at = FAMILIES["bloom"].read(LENGTH), torch.arange(3, 3 + LENGTH)[None]
    with pytest.raises(InputError, match="takes no position_ids: leave it out"):
        model.observe(given, [0], lambda *_: None, positions=at)
