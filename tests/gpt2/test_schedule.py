"""A schedule gives every layer its encoding, window and fields, in every place that reads them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.call.definition import AttentionCall
from headscape.captures.capture_file import load
from headscape.encodings import title
from headscape.encodings.registry import Entry, parse, per_layer, slug
from headscape.errors import InputError
from headscape.gpt2 import GPT2, Cache, ModelConfig
from headscape.plots.gallery import caption
from headscape.properties.probe import randomise

TYPES = Path(__file__).parents[1] / "golden" / "second" / "layer_types_n14.npz"


def model(encoding: str, layers: int = 4, **fields: object) -> GPT2:
    config = ModelConfig(
        layers=layers, heads=2, width=8, vocabulary=11, train_length=12, encoding=encoding, **fields
    )
    made = GPT2(config).double()
    randomise(made)
    return made


def layers_of(gpt2: GPT2, tokens: int = 9) -> list[AttentionCall]:
    found: list[AttentionCall] = []
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


def test_a_wide_window_takes_memory_as_it_fills() -> None:
    made, cache, rooms = model("rope:window=30,nope"), Cache(capacity=8), []
    text = torch.randint(11, (1, 80), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        whole = made(text, path="reference")
        parts = []
        for at in range(0, 80, 4):
            parts.append(made(text[:, at : at + 4], cache=cache))
            rooms.append(cache.layers[0].room)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)
    assert rooms[:4] == [8, 8, 16, 16]
    assert max(rooms) == 30 - 1 + 16


@pytest.mark.parametrize(
    "pattern", ["rope:window=7,path:window=7", "alibi:chunk=7", "cohere2:window=7"]
)
def test_one_token_at_a_time_never_keeps_more_than_the_window(pattern: str) -> None:
    made = model(pattern)
    text = torch.randint(11, (1, 120), generator=torch.Generator().manual_seed(3))
    cache, rooms = Cache(capacity=4), []
    with torch.no_grad():
        whole = made(text, path="reference")
        for at in range(120):
            last = made(text[:, at : at + 1], cache=cache)
            rooms.append([store.k.shape[2] for store in cache.layers.values()])
    torch.testing.assert_close(last, whole[:, -1:], rtol=1e-10, atol=1e-10)
    limited = [made.encoding(layer).reach is not None for layer in range(4)]
    for layer, limit in enumerate(limited):
        most = max(room[layer] for room in rooms)
        assert most == 7 - 1 + 16 if limit else most >= 120


@pytest.mark.parametrize("pattern", ["rope:window=5", "alibi:window=5:sink=true", "nope:chunk=5"])
@pytest.mark.parametrize("step", [1, 3])
def test_a_window_is_of_positions_not_of_places_in_the_cache(pattern: str, step: int) -> None:
    made = model(pattern, 1)
    # A row with gaps of different sizes beside one that starts later.
    at = torch.stack([torch.arange(40) * 7 // 4, torch.arange(40) + 3])
    text = torch.randint(11, (2, 40), generator=torch.Generator().manual_seed(3))
    cache = Cache(capacity=4)
    with torch.no_grad():
        whole = made(text, positions=at, path="reference")
        parts = [
            made(text[:, i : i + step], positions=at[:, i : i + step], cache=cache)
            for i in range(0, 40, step)
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)
    assert cache.layers[0].room < 40


def test_positions_that_go_back_behind_the_window_are_refused() -> None:
    made, cache = model("rope:window=5", 1), Cache()
    text = torch.zeros(1, 40, dtype=torch.long)
    with torch.no_grad():
        made(text, positions=torch.arange(40)[None], cache=cache)
        with pytest.raises(InputError, match="a cache of 5 positions has dropped"):
            made(text[:, :1], positions=torch.tensor([[7]]), cache=cache)
        made(text[:, :1], positions=torch.tensor([[40]]), cache=cache)


def test_documents_decode_apart_behind_a_window() -> None:
    made = model("selective-rope:window=5,path:window=6", 2)
    text = torch.randint(11, (1, 45), generator=torch.Generator().manual_seed(3))
    at = torch.cat([torch.arange(30), torch.arange(15)])[None]
    group = (torch.arange(45) >= 30).long()[None]
    cache = Cache(capacity=4)
    with torch.no_grad():
        alone = made(text[:, 30:], path="reference")
        parts = [
            made(text[:, part], positions=at[:, part], groups=group[:, part], cache=cache)
            for part in (slice(0, 29), slice(29, 32), slice(32, 33), slice(33, 45))
        ]
    found = torch.cat(parts, dim=1)[:, 30:]
    torch.testing.assert_close(found, alone, rtol=1e-10, atol=1e-10)


def test_a_norm_of_queries_and_keys_decodes_as_it_trains(tmp_path: Path) -> None:
    text = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(3))
    for order, over in (("before", "all"), ("after", "head")):
        made = model("rope,grape-m,selective-rope,path", qk_norm=order, qk_norm_over=over)
        cache = Cache()
        with torch.no_grad():
            whole = made(text, path="reference")
            parts = [made(text[:, :9], cache=cache)]
            parts += [made(text[:, i : i + 1], cache=cache) for i in range(9, 20)]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)
        made.save_pretrained(tmp_path)
        assert GPT2.from_pretrained(tmp_path).config == made.config


def test_a_norm_after_the_rotation_is_in_the_spec() -> None:
    layers = hs.load(model("rope,nope", 2, qk_norm="after")).spec.layers
    assert [layer.claims["shift_invariant"] for layer in layers] == [False, True]
    assert layers[0].conventions["qk_norm"] == "after"
    plain = hs.load(model("rope,nope", 2, qk_norm="after", qk_norm_weight=False)).spec.layers
    assert plain[0].claims["shift_invariant"]


def test_captures_say_conventions_per_layer(tmp_path: Path) -> None:
    loaded = hs.load(model("rope:window=3*3,nope:temperature=llama4"))
    tokens = [1, 2, 3, 4, 5, 6]
    cap = hs.capture(loaded, tokens, layers="all")
    by_layer = [cap.conventions[str(layer)] for layer in range(4)]
    assert [each["encoding"] for each in by_layer] == ["rope", "rope", "rope", "nope"]
    assert [each["window"] for each in by_layer] == [3, 3, 3, None]
    assert cap.claims == {
        "shift_invariant": False, "toeplitz": False, "pointwise": True, "context_dependent": True,
    }  # fmt: skip
    captions = [caption(cap, layer, "weights") for layer in (2, 3)]
    assert "window 3" in captions[0]
    assert "temperature llama4" not in captions[0]
    assert "temperature llama4" in captions[1]
    cap.save(tmp_path / "cap.safetensors")
    kept = load(tmp_path / "cap.safetensors").conventions
    assert kept == json.loads(json.dumps(cap.conventions))
    alike = hs.capture(loaded, tokens, layers=[0, 2]).conventions
    assert [(number, each["encoding"], each["window"]) for number, each in alike.items()] == [
        ("0", "rope", 3),
        ("2", "rope", 3),
    ]


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
        ("rope:chunk=0", "chunk must be at least 1, got 0"),
        ("rope:window=4:chunk=4", "window=4 and chunk=4 exclude each other"),
        ("stick-breaking:sink=true", "Stick-breaking has no softmax that a sink could join"),
        ("dape+stick-breaking", "cannot wrap Stick-breaking, which makes its own weights"),
        ("cohere2:base=5", "unknown field of the schedule 'cohere2:base=5' 'base': .*window"),
        ("cohere2*2", "'cohere2' is a schedule of layers, so it cannot be an entry"),
        ("gemma3", "has 6 layers, which does not divide the model's 4"),
        ("grape-m:phase=index:per_head=true", "per_head has no effect with phase='index'"),
        ("rope:mscale_scores=true", "mscale_scores needs scaling='yarn' and mscale_all_dim"),
        ("rope:window=3:window=4", "sets 'window' twice"),
        ("rope*99999999999", "has more than 100,000 layers"),
        ("rope:base=nan", "base must be finite, got nan"),
        ("rope:temperature=llama4:temperature_rate=inf", "temperature_rate must be finite"),
        ("wall:gate_bias=nan", "gate_bias must be finite, got nan"),
        ("rope:window=99999999999999999999", "window must be at most 2,147,483,647"),
        ("rope:attention_factor=-1.0", "attention_factor must be positive, got -1"),
        ("rope:short_factor=[1.0,0.0]", "must contain positive numbers only"),
        ("rope:short_factor=[1.0,'a']", "short_factor='a' is not of type float"),
    ],
)
def test_contradictions_are_one_sentence(pattern: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        model(pattern)


def test_a_norm_that_is_not_there_has_no_fields() -> None:
    with pytest.raises(InputError, match="qk_norm_over='all' has no effect without qk_norm"):
        model("rope", qk_norm_over="all")


def test_a_field_that_no_entry_has_is_refused() -> None:
    with pytest.raises(InputError, match="unknown field of 'rope,nope' 'slopes'"):
        model("rope,nope", encoding_fields={"slopes": "mpt"})


def test_a_capture_of_one_layer_says_which_encoding_it_has(tmp_path: Path) -> None:
    loaded = hs.load(model("alibi:window=7*3,rope:softcap=30", 4).float())
    cap = loaded.capture(list(range(9)))
    assert cap.conventions.keys() == {"3"}
    assert cap.conventions["3"]["encoding"] == "rope"
    cap.save(tmp_path / "a.safetensors")
    read = hs.Capture.load(tmp_path / "a.safetensors")
    assert read.about(3)["title"] == "RoPE"
    assert read.grid().heading.endswith(", layer 4 (RoPE, softcap 30): final scores")
    assert "(4 of 4), RoPE, of" in caption(read, 3, "final")
    assert "softcap 30.0" in caption(read, 3, "final")


def test_every_layer_of_a_capture_is_drawn_as_what_it_is() -> None:
    loaded = hs.load(model("alibi:window=7,rope:sink=true", 2).float())
    cap = loaded.capture(list(range(9)), layers="all")
    assert cap.grid(layer=0).stem == "alibi-window-7-rope-sink-true-layer1-bias-grid"
    assert cap.grid(layer=1).stem == "alibi-window-7-rope-sink-true-layer2-final-grid"
    assert "layer 1 (ALiBi, window 7): positional bias" in cap.curves(layer=0).heading
    assert "layer 2 (RoPE, sink): final scores" in cap.row(layer=1).heading
    assert cap.overview().encodings == ("ALiBi", "RoPE")
    assert cap.measures().quantity == "final"
    assert "does not depend on the context" in caption(cap, 0, "bias")
    assert "RoPE adds no bias" in caption(cap, 1, "final")
    assert "adds no bias" not in caption(cap, 0, "final")


def test_a_long_pattern_makes_a_short_file_name(tmp_path: Path) -> None:
    long = ",".join(f"rope:base={base}.5:window=9:pairing=halves" for base in range(1000, 1008))
    other = long.replace("1007", "1008")
    names = {slug(each) for each in (long, other)}
    assert len(names) == 2
    assert all(len(name) <= 80 for name in names)
    cap = hs.load(model(long, 8).float()).capture(list(range(9)))
    path = tmp_path / f"{cap.grid().stem}.png"
    assert len(path.name) < 150
    cap.grid().save(path)


def test_a_window_is_named_in_a_model_of_one_encoding_too() -> None:
    cap = hs.load(model("rope", encoding_fields={"window": 5}).float()).capture(list(range(9)))
    assert "layer 4 (window 5): final scores" in cap.grid().heading
    assert cap.conventions["window"] == 5


def test_a_list_of_numbers_in_a_pattern_and_in_a_checkpoint(tmp_path: Path) -> None:
    lists = "short_factor=[1.0,1.5]:long_factor=[2,4]"
    made = model(f"rope:scaling=longrope:factor=2.0:{lists}*3,nope")
    assert made.encoding(2).config.long_factor == (2.0, 4.0)
    assert title(made.config.encoding).startswith("RoPE:scaling=longrope")
    assert title(made.config.encoding).endswith("*3,NoPE")
    fields = {"scaling": "longrope", "short_factor": (1.0, 1.5), "long_factor": (2.0, 4.0)}
    for each in (made, model("rope", encoding_fields=fields)):
        each.save_pretrained(tmp_path)
        again = GPT2.from_pretrained(tmp_path)
        assert again.config == each.config
        assert again.conventions() == each.conventions()


def test_stick_breaking_shows_its_weights() -> None:
    cap = hs.load(model("stick-breaking").float()).capture(list(range(9)))
    assert cap.grid().stem.endswith("-weights-grid")
    text = caption(cap, 3, "weights")
    assert "Stick-breaking adds no bias: position acts on the weights." in text
