"""A schedule gives every layer its encoding, window and fields, in every place that reads them."""

from pathlib import Path

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.reference import AttentionInputs
from headscape.encodings import title
from headscape.encodings.layer_schedule import Entry, parse, per_layer
from headscape.encodings.names import slug
from headscape.errors import InputError
from headscape.gpt2 import GPT2, Cache, ModelConfig
from headscape.properties.probe import randomise

TYPES = Path(__file__).parents[1] / "golden" / "second" / "layer_types_n14.npz"


def model(encoding: str, layers: int = 4, **fields: object) -> GPT2:
    config = ModelConfig(
        layers=layers, heads=2, width=8, vocabulary=11, train_length=12, encoding=encoding, **fields
    )
    made = GPT2(config).double()
    randomise(made)
    return made


def layers_of(gpt2: GPT2, tokens: int = 9) -> list[AttentionInputs]:
    found: list[AttentionInputs] = []
    with torch.no_grad():
        gpt2(torch.randint(11, (1, tokens)), watch=lambda _, inputs: found.append(inputs))
    return found


@pytest.mark.parametrize(
    ("family", "pattern", "period"),
    [
        ("cohere2", "rope:window=5*3,nope", 4),
        ("smollm3", "rope*3,nope", 4),
        ("olmo3", "rope:window=5*3,rope:scaling=yarn:factor=8", 4),
        ("gemma3", "rope:window=5*5,rope:base=1e6", 6),
        ("gpt_oss", "rope:window=5:sink=true,rope:sink=true", 2),
    ],
)
def test_patterns_of_shipped_models(family: str, pattern: str, period: int) -> None:
    with np.load(TYPES) as z:
        full = z["rope_smollm3"] == 0 if family == "smollm3" else z[f"full_{family}"] == 1
    layers = 14 // period * period
    calls = layers_of(model(pattern, layers))
    if family == "smollm3":
        assert [call.unrotated is None for call in calls] == full[:layers].tolist()
        return
    assert [call.visible.window is None for call in calls] == full[:layers].tolist()
    if family == "cohere2":
        assert [call.unrotated is None for call in calls] == full[:layers].tolist()


def test_a_schedule_shifted_by_a_layer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ModelConfig.schedule
    monkeypatch.setattr(ModelConfig, "schedule", lambda self: right(self)[1:] + right(self)[:1])
    with pytest.raises(AssertionError):
        test_patterns_of_shipped_models("cohere2", "rope:window=5*3,nope", 4)


def test_fields_reach_their_layers() -> None:
    period = parse("rope:window=3:pairing=halves*2, nope:sink=true")
    rope = Entry("rope", {"window": 3, "pairing": "halves"})
    assert period == [rope, rope, Entry("nope", {"sink": True})]
    assert per_layer("rope,nope", 2, {"base": 5.0}) == [
        Entry("rope", {"base": 5.0}),
        Entry("nope", {}),
    ]
    window, sink = layers_of(model("rope:window=3,nope:sink=true", 2))
    assert (window.visible.window, window.sink, sink.visible.window) == (3, None, None)
    assert sink.sink is not None


def test_one_encoding_is_shared_by_equal_entries_only() -> None:
    made = model("kerple:window=3*2,kerple", 6, share_encoding=True)
    kinds = [id(made.encoding(layer)) for layer in range(6)]
    assert kinds[0] == kinds[1] == kinds[3] == kinds[4] != kinds[2] == kinds[5]


def test_checkpoints_and_specs_say_it_per_layer(tmp_path: Path) -> None:
    made = model("rope:window=3*3,nope:temperature=ssmax")
    made.save_pretrained(tmp_path)
    again = GPT2.from_pretrained(tmp_path)
    assert again.config == made.config
    assert again.conventions() == made.conventions()
    spec = hs.load(made).spec
    assert [layer.encoding for layer in spec.layers] == ["rope", "rope", "rope", "nope"]
    assert [layer.conventions["window"] for layer in spec.layers] == [3, 3, 3, None]
    assert spec.encoding == "rope,nope"
    assert spec.name == title(made.config.encoding) == "RoPE:window=3*3,NoPE:temperature=ssmax"
    assert slug("rope*3,nope") == "rope-3-nope"


@pytest.mark.parametrize("prompt", [1, 5, 40])
def test_decoding_past_the_window_keeps_only_the_window(prompt: int) -> None:
    made = model("rope:window=7*2,fox:window=7:sink=true,alibi")
    text = torch.randint(11, (2, 60), generator=torch.Generator().manual_seed(3))
    cache = Cache(capacity=4)
    with torch.no_grad():
        whole = made(text, path="reference")
        parts = [made(text[:, :prompt], cache=cache)]
        parts += [made(text[:, at : at + 1], cache=cache) for at in range(prompt, 60)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)
    assert [cache.layers[layer].room for layer in range(3)] == [7 - 1 + 16] * 3
    assert cache.layers[3].room >= 60


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("rope:window=0,nope", "window must be at least 1, got 0"),
        ("rope*3", "has 3 layers, which does not divide the model's 4"),
        ("rope*0,nope", "'0' in the schedule .* is not a number of layers"),
        ("rope,,nope", "an entry without a name"),
        ("rope:window,nope", "the field 'window' is not of the form NAME=VALUE"),
        ("rope:windw=3,nope", "unknown field of 'rope' 'windw'"),
        ("dape+kerple:sink=true,nope", "DAPE mixes whole rows .* no place for a sink"),
        ("rope,learned", "'learned' acts on the token embeddings"),
        ("rope,ropee", "unknown encoding 'ropee'"),
        ("nope:softcap=0", "softcap must be positive"),
    ],
)
def test_contradictions_are_one_sentence(pattern: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        model(pattern)


def test_a_field_that_no_entry_has_is_refused() -> None:
    with pytest.raises(InputError, match="unknown field of 'rope,nope' 'slopes'"):
        model("rope,nope", encoding_fields={"slopes": "mpt"})
