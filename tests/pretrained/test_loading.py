"""What loading refuses, what it cannot recognise, and that a wrong reading is caught."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headscape.call.definition import scores
from headscape.errors import InputError
from headscape.models.load import load
from pretrained.families import FAMILIES, GROUPED, SIZES
from pretrained.test_families import observed, tokens

transformers = pytest.importorskip("transformers")


def one_tensor(folder: Path) -> None:
    """Write weights of a single tensor."""
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")


def test_a_folder_opens_as_the_model_in_memory(tmp_path: Path) -> None:
    theirs = FAMILIES["llama3"].build().float()
    theirs.save_pretrained(tmp_path / "small")
    opened = load(f"hf:{tmp_path / 'small'}")
    assert opened.spec.name == "small"
    assert opened.spec.layers == load(theirs).spec.layers
    assert opened.fingerprint
    assert opened.tokenizer is None


def test_an_encoder_opens_as_what_its_config_names(tmp_path: Path) -> None:
    FAMILIES["mpnet"].build().float().save_pretrained(tmp_path)
    opened = load(f"hf:{tmp_path}")
    assert opened.spec.encoding == "t5"
    assert opened.spec.provenance["input"] == "Learnable"
    with pytest.raises(InputError, match="does not predict the next token"):
        opened.losses(tokens(), 0)
    assert not opened.capture(tokens()[0].tolist()).causal


def test_the_read_table_is_the_models_own() -> None:
    theirs = FAMILIES["mpnet"].build()
    encoding = load(theirs)._reading.layers[0].encoding  # type: ignore[attr-defined]
    assert torch.equal(encoding.table.weight, theirs.encoder.relative_attention_bias.weight)
    opt = FAMILIES["opt"].build()
    found = load(opt)._reading.at_input.table.weight  # type: ignore[attr-defined]
    assert torch.equal(found, opt.model.decoder.embed_positions.weight)


def test_content_is_q_k_before_rotation() -> None:
    theirs = FAMILIES["llama"].build()
    model = load(theirs)
    attention = theirs.model.layers[0].self_attn
    hidden = theirs.model.layers[0].input_layernorm(theirs.model.embed_tokens(tokens()))
    with torch.no_grad():
        q, k = (
            project(hidden)[0].unflatten(-1, (-1, 8)).transpose(0, 1)
            for project in (attention.q_proj, attention.k_proj)
        )
        expected = torch.stack([q[head] @ k[head // 3].T for head in range(6)]) / 8**0.5
    assert torch.allclose(scores(observed(model)[0]).content[0], expected, atol=1e-9)


def test_a_window_hides_what_it_hides_at_any_length() -> None:
    model = load(FAMILIES["mistral"].build())
    for length in (1, 5, 6, 40):
        for inputs in observed(model, length).values():
            seen = scores(inputs).visible[0, 0]
            assert seen.sum(dim=-1).max() == min(length, 5)


def test_a_rotation_that_is_none_of_ours_is_said_to_be_unknown() -> None:
    theirs = FAMILIES["llama"].build()
    theirs.model.rotary_emb.inv_freq *= 1.3
    model = load(theirs)
    assert {layer.encoding for layer in model.spec.layers} == {"unknown"}
    assert model.spec.layers[0].claims == {}
    cap = model.capture(tokens()[0].tolist(), layers="all")
    assert cap.encoding == "unknown"


def test_position_in_a_projection_is_said_to_be_unknown() -> None:
    theirs = FAMILIES["gpt2"].build()
    theirs.transformer.h[1].attn.c_attn.register_forward_hook(
        lambda _, __, out: out + torch.arange(out.shape[1])[None, :, None]
    )
    found = [layer.encoding for layer in load(theirs).spec.layers]
    assert found == ["learned", "unknown", "learned"]


def test_slopes_that_are_none_of_ours_are_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.models.bloom import modeling_bloom

    theirs = FAMILIES["bloom"].build()
    made = modeling_bloom._get_alibi_slopes
    monkeypatch.setattr(modeling_bloom, "_get_alibi_slopes", lambda *given: 0.7 * made(*given))
    model = load(theirs)
    assert {layer.encoding for layer in model.spec.layers} == {"unknown"}
    every = scores(observed(model)[0])
    gap = every.bias[0, :, 20, 1] - every.bias[0, :, 20, 0]
    assert gap[0] == pytest.approx(0.7 * 2 ** (-8 / 4))


def test_a_wrong_reading_stops_loading_with_the_layer_and_the_size() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def odd(module: Any, q: Any, k: Any, v: Any, mask: Any, **more: Any) -> Any:
        more["scaling"] *= 1.01 if module.layer_idx == 2 else 1.0
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, q, k, v, mask, **more)

    theirs = FAMILIES["llama"].build()
    ALL_ATTENTION_FUNCTIONS["odd"] = odd
    try:
        theirs.config._attn_implementation = "odd"
        with pytest.raises(InputError, match=r"in layer 2 .* differs by .* rounding explains"):
            load(theirs)
    finally:
        del ALL_ATTENTION_FUNCTIONS["odd"]
    assert "get_interface" not in vars(ALL_ATTENTION_FUNCTIONS)


@pytest.mark.parametrize("name", ["t5", "bloom", "mpnet", "longt5-local"])
def test_flash_attention_is_refused_for_a_biased_model(name: str) -> None:
    theirs = FAMILIES[name].build()
    for module in (theirs, *theirs.children()):
        if hasattr(module, "config"):
            module.config._attn_implementation = "flash_attention_2"
    message = "adds a bias to its scores, which flash_attention_2 ignores: load the model with"
    with pytest.raises(InputError, match=message):
        load(theirs)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_flash_attention_without_a_bias_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for flash attention: no mask, the window as a keyword."""
    from transformers import masking_utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def flash(module: Any, q: Any, k: Any, v: Any, mask: Any, **more: Any) -> Any:
        assert mask is None
        distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        seen = (distance >= 0) & (distance < (more.get("sliding_window") or len(distance)))
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        final = (more["scaling"] * q @ k.mT).masked_fill(~seen, -torch.inf)
        return (final.softmax(dim=-1) @ v).transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_stand_in", flash)
    masks = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    monkeypatch.setitem(masks._global_mapping, "flash_stand_in", masks["flash_attention_2"])
    theirs = FAMILIES[name].build()
    usual = {layer: scores(inputs) for layer, inputs in observed(load(theirs)).items()}
    theirs.config._attn_implementation = "flash_stand_in"
    for layer, inputs in observed(load(theirs)).items():
        found = scores(inputs)
        torch.testing.assert_close(found.weights, usual[layer].weights)
        torch.testing.assert_close(found.bias, usual[layer].bias)


def test_bad_folders_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        load(f"hf:{tmp_path / 'nowhere'}")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"has neither model\.safetensors nor"):
        load(f"hf:{tmp_path}")
    one_tensor(tmp_path)
    with pytest.raises(InputError, match="is not a model that transformers loads"):
        load(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nothing-known"}))
    with pytest.raises(InputError, match=r"that transformers loads: .*nothing-known"):
        load(f"hf:{tmp_path}")
    with pytest.raises(InputError, match="there is no file"):
        load(f"hf:{tmp_path / 'a.gguf'}")


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_quantised_weights_that_cannot_be_read_are_refused(method: str, tmp_path: Path) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=f"that transformers loads: .*{method.upper()} quantized"):
        load(f"hf:{tmp_path}")


def test_an_encoder_without_the_head_that_its_config_names_is_read(tmp_path: Path) -> None:
    FAMILIES["mpnet"].build().float().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "architectures": ["MPNetForMaskedLM"]})
    )
    assert load(f"hf:{tmp_path}").spec.encoding == "t5"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    FAMILIES["llama"].build().float().save_pretrained(folder)
    return folder


def changed(source: Path, folder: Path, **fields: Any) -> Path:
    """A copy of a model's folder with other values in its config."""
    copied = shutil.copytree(source, folder / "copied")
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, **fields}))
    return copied


@pytest.mark.parametrize(
    "named", ["weights.bin", "../x.safetensors", "/x.safetensors", ["x"], "missing.safetensors"]
)
def test_an_index_names_safetensors_of_its_folder_only(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: object
) -> None:
    folder = changed(small, tmp_path)
    every = load_file(folder / "model.safetensors")
    torch.save(every, folder / "weights.bin")
    (folder / "model.safetensors").rename(tmp_path / "x.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(every, named)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", opened)
    with pytest.raises(InputError, match=r"index\.json names .*(must be|missing)"):
        load(f"hf:{folder}")


def test_a_link_out_of_the_folder_is_refused_and_one_into_the_hub_cache_is_read(
    small: Path, tmp_path: Path
) -> None:
    folder = changed(small, tmp_path)
    (folder / "model.safetensors").rename(tmp_path / "x.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=r"is a link to .*, outside the model's folder"):
        load(f"hf:{folder}")
    cache = tmp_path / "models--a--b"
    shutil.copytree(small, cache / "blobs")
    snapshot = cache / "snapshots" / "0f"
    snapshot.mkdir(parents=True)
    for path in (cache / "blobs").iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert load(f"hf:{snapshot}").spec.encoding == "rope"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 100_000}, "num_hidden_layers is 100000, but the weights have 30"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, got 0"),
        ({"num_hidden_layers": 2}, "a weight of a layer that its config leaves out"),
        ({"hidden_size": -4}, "hidden_size must be at least 1, got -4"),
        ({"intermediate_size": 10**7}, "weights, and its config describes"),
        ({"vocab_size": 60}, r"of shape \(67, 48\), and its config needs \(60, 48\)"),
        ({"model_type": []}, r"model_type must be a string, got \[\]"),
        ({"architectures": [3]}, "architectures must be a list of strings"),
        ({"attn_implementation": "a/b"}, "is code from the Hub, which is not run"),
        ({"transformers_weights": "adapter_model.bin"}, "names the file 'adapter_model.bin'"),
        ({"rope_parameters": {"rope_type": "zzz"}}, "transformers loads: KeyError 'zzz'"),
    ],
)
def test_a_config_that_cannot_be_right_is_refused(
    small: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load(f"hf:{changed(small, tmp_path, **fields)}")


def test_a_function_of_transformers_is_no_architecture(small: Path, tmp_path: Path) -> None:
    assert load(f"hf:{changed(small, tmp_path, architectures=['pipeline'])}").spec.heads == 6


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
def test_deep_json_is_refused(small: Path, tmp_path: Path, name: str) -> None:
    folder = changed(small, tmp_path)
    for depth in (100, 100_000):
        (folder / name).write_text(f'{{"a": {"[" * depth}{"]" * depth}}}')
        with pytest.raises(InputError, match=f"{name} is JSON nested too deeply"):
            load(f"hf:{folder}")


def test_a_gguf_file_is_opened_with_its_prefix_and_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"is opened as hf:.*x\.gguf, .*headscape\[gguf\]"):
        load(path)
    monkeypatch.setattr("headscape.models.transformers.model_folder.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs .* gguf and accelerate: .*headscape\[gguf\]"):
        load(f"hf:{path}")
    with pytest.raises(InputError, match=r"is not in the Hub's cache .* offline"):
        load("hf:a-name/on-the-hub")


def test_missing_weights_are_not_replaced_by_random_ones(tmp_path: Path) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path)
    every = load_file(tmp_path / "model.safetensors")
    # A packed matrix under a name of its own, as quantised weights are stored.
    every["model.layers.1.mlp.up_proj.qweight"] = every.pop("model.layers.1.mlp.up_proj.weight")
    save_file(every, tmp_path / "model.safetensors", {"format": "pt"})
    message = (
        r"lacks 1 weights of its model, the first of them model\.layers\.1\.mlp\.up_proj\.weight"
    )
    with pytest.raises(InputError, match=message):
        load(f"hf:{tmp_path}")


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    theirs = FAMILIES["llama"].build()
    theirs.config.save_pretrained(tmp_path)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin is a pickle, which can run code"):
        load(f"hf:{tmp_path}")


def test_code_in_a_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "modeling.py").write_text(f"open({str(ran)!r}, 'w')\n")
    described = {"model_type": "own", "auto_map": {"AutoConfig": "modeling.Config",
                 "AutoModelForCausalLM": "modeling.Model"}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(described))
    one_tensor(tmp_path)

    def answer(question: str) -> str:
        raise AssertionError(f"asked {question!r}")

    monkeypatch.setattr("builtins.input", answer)
    with pytest.raises(InputError, match="is not a model that transformers loads: The repository"):
        load(f"hf:{tmp_path}")
    assert not ran.exists()


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    model = load(FAMILIES["llama"].build())
    with pytest.raises(InputError, match="has no tokenizer"):
        model.capture("a text")
    with pytest.raises(InputError, match="has no tokenizer"):
        model.generate("a text")
    assert load(FAMILIES["llama"].build(), tokenizer="bytes").tokenizer is not None


def test_attention_that_no_reader_sees_is_scored_and_not_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from headscape.models.transformers import families

    without = [each for each in families.FAMILIES if "xglm.XGLMAttention" not in each.attention]
    monkeypatch.setattr(families, "FAMILIES", tuple(without))
    theirs = FAMILIES["xglm"].build()
    model = load(theirs)
    assert model.spec.encoding == "unknown"
    with pytest.raises(InputError, match="'xglm' model, whose attention does not go through"):
        model.capture([3, 4, 5])
    with torch.no_grad():
        expected = theirs(tokens(), labels=tokens()).loss.item()
    assert model.losses(tokens(), 0).mean().item() == pytest.approx(expected, rel=1e-5)


def test_longt5_with_global_tokens_is_not_captured() -> None:
    theirs = FAMILIES["longt5-local"].build(encoder_attention_type="transient-global")
    with pytest.raises(InputError, match="'longt5' model, whose attention does not go through"):
        load(theirs).capture([3, 4, 5])


@pytest.mark.parametrize("name", ["t5", "umt5", "longt5-local", "bart"])
def test_a_decoder_is_read_by_itself(name: str) -> None:
    theirs = FAMILIES[name].build()
    model = load(theirs.get_decoder())
    assert model.spec.causal
    for layer, inputs in observed(model).items():
        if name == "bart":
            assert model.spec.layers[layer].encoding == "learned"
            continue
        assert model.spec.layers[layer].encoding == "t5"
        own = theirs.get_decoder().block[layer if name == "umt5" else 0].layer[0].SelfAttention
        seen = scores(inputs).visible[0, 0]
        bias = own.compute_bias(len(seen), len(seen))
        assert torch.equal(scores(inputs).bias[0][:, seen], bias[0][:, seen])


def test_longrope_changes_its_frequencies_where_the_model_does() -> None:
    model = load(FAMILIES["phi3-longrope"].build())
    for length in (26, 27):
        for inputs in observed(model, length).values():
            assert inputs.unrotated is not None
            turned = inputs.turns[0].apply(inputs.unrotated[0])
            torch.testing.assert_close(turned, inputs.q, rtol=1e-4, atol=1e-4)


def test_a_temperature_is_position_and_not_content() -> None:
    theirs = FAMILIES["llama4-nope"].build()
    inputs = observed(load(theirs))[2]
    every = scores(inputs)
    assert inputs.temperature is not None
    factor = inputs.temperature[0, 0, :, None]
    assert factor.max() > 1.1
    torch.testing.assert_close(every.final, every.content * factor, rtol=1e-6, atol=1e-6)
    theirs.config.floor_scale = theirs.model.layers[2].self_attn.floor_scale = 10**6
    with_none = scores(observed(load(theirs))[2])
    torch.testing.assert_close(with_none.content, every.content, rtol=1e-5, atol=1e-5)


def test_a_temperature_that_the_config_does_not_state_is_said_to_be_unknown() -> None:
    theirs = FAMILIES["llama4-nope"].build()
    attention = theirs.model.layers[2].self_attn
    attention.q_proj.register_forward_hook(
        lambda _, __, out: out * torch.linspace(1, 2, out.shape[1])[None, :, None].to(out)
    )
    assert [layer.encoding for layer in load(theirs).spec.layers] == ["rope", "rope", "unknown"]


def test_chunks_are_recognised_as_chunks() -> None:
    model = load(FAMILIES["llama4"].build())
    for inputs in observed(model).values():
        assert inputs.visible.chunk == 7
        assert inputs.visible.q_group is None
    # A text of one chunk has a plain causal mask, but the layer still states its chunk.
    assert model.spec.layers[0].conventions["chunk"] == 7


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["LlamaForSequenceClassification", "DebertaV2ForMaskedLM"])
def test_what_does_not_predict_the_next_token_is_not_scored(kind: str) -> None:
    made = getattr(transformers, kind)
    model = load(made(made.config_class(**SIZES)).eval())
    with pytest.raises(InputError, match="does not predict the next token"):
        model.losses(tokens(), 0)


def test_attention_in_two_parts_is_refused() -> None:
    theirs = transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(**GROUPED))
    with pytest.raises(InputError, match="more than once per layer"):
        load(theirs)


RECURRENT = {"hidden_size": 48, "num_hidden_layers": 2, "vocab_size": 67}


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("MambaForCausalLM", RECURRENT),
        ("FalconMambaForCausalLM", RECURRENT),
        ("RwkvForCausalLM", RECURRENT),
        ("FNetModel", RECURRENT),
        ("FNetModel", SIZES),
    ],
)
def test_models_without_attention_heads_are_refused(kind: str, sizes: dict[str, Any]) -> None:
    made = getattr(transformers, kind)
    with pytest.raises(InputError, match=r"model, which has no attention heads: Headscape reads"):
        load(made(made.config_class(**sizes)).eval())


@pytest.mark.parametrize("name", ["llama", "llama4", "gptj", "roformer"])
def test_one_token_of_a_rotating_model_is_captured(name: str) -> None:
    cap = load(FAMILIES[name].build()).capture([5], layers="all")
    assert cap.length == 1
    assert cap.weights(layer=0, head=0) == pytest.approx(1.0)
    assert cap.bias(layer=0, head=0) == pytest.approx(0.0, abs=1e-6)


def test_two_models_are_not_observed_at_once() -> None:
    outer, inner = (load(FAMILIES["llama"].build()) for _ in range(2))
    with pytest.raises(InputError, match="observe one at a time"):
        outer.observe(tokens(), [0], lambda *_: inner.observe(tokens(), [0], lambda *_: None))


def test_loading_runs_an_attention_module_twice() -> None:
    """Once in the model's forward, and once up to its attention with all angles 0."""
    theirs, ran = FAMILIES["llama"].build(), []
    for layer in theirs.model.layers:
        layer.self_attn.q_proj.register_forward_hook(lambda *_: ran.append(1))
    load(theirs)
    assert len(ran) == 2 * len(theirs.model.layers)


@pytest.mark.parametrize("name", ["factor", "rope_theta", "partial_rotary_factor"])
def test_rotary_settings_must_be_numbers(name: str) -> None:
    theirs = FAMILIES["llama"].build()
    theirs.config.rope_parameters = {
        "rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, name: "x",
    }  # fmt: skip
    with pytest.raises(InputError, match=f"{name} in the config's rope_parameters must be a numb"):
        load(theirs)
