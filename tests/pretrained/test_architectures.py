"""Architectures of the installed transformers, built small: read as they are, or refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

import transformers
from benchmarks import architectures
from benchmarks.architectures import Verdict, judge, listed, small_config

import headscape as hs
from headscape.call.definition import scores
from headscape.errors import InputError
from headscape.measures.measure_model import recognised
from headscape.models.load import load
from headscape.models.transformers import attention_watch, families
from pretrained.test_families import observed

pytestmark = pytest.mark.filterwarnings("ignore")


def verdict(name: str) -> Verdict:
    task, _, architecture = next(each for each in listed() if each[1] == name)
    return judge(task, name, architecture)


def hybrid() -> Any:
    """Qwen3-Next with attention in its second and fourth block."""
    config = small_config(transformers.Qwen3NextConfig)
    config.layer_types = ["linear_attention", "full_attention"] * 2
    torch.manual_seed(0)
    return transformers.Qwen3NextForCausalLM(config).eval()


@pytest.mark.parametrize(
    ("name", "layers", "compared"),
    [
        ("glm_moe_dsa", "rope*4", "weights"),  # MLA, keys chosen by an indexer
        ("gemma3n_text", "rope*10", "weights"),  # layers that read an earlier layer's keys
        ("gemma3", "rope*4", "weights"),  # by its text part
        ("longformer", "learned*4", "results"),
        ("jamba", "nope*2", "weights"),
        ("inkling_text", "inkling*4", "weights"),
        ("granite_swa", "rope*4", "results"),  # returns weights before its sink has a share
        ("dbrx", "rope*4", "weights"),  # its sizes are in configs of its parts
        ("zamba", "nope*2", "weights"),
        ("moonshine", "rope*4", "weights"),
        ("seamless_m4t", "transformer-xl*4", "weights"),  # reads frames, so it is given noise
    ],
)
def test_an_architecture_is_read(name: str, layers: str, compared: str) -> None:
    found = verdict(name)
    assert (found.verdict, found.says, found.compared) == ("read", layers, compared)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("blt", "joins bytes into patches"),
        # Heads that guess tokens from the states and keys of a larger model.
        ("gemma4_assistant", "does not run on tokens alone.* KeyError: 'sliding_attention'"),
        ("cohere_asr", "does not run on tokens alone.* must be Tensor, not NoneType"),
        ("perceiver", "reads inputs, which Headscape cannot read"),
    ],
)
def test_a_model_that_needs_more_than_tokens_is_refused_in_a_sentence(name: str, says: str) -> None:
    found = verdict(name)
    assert found.verdict == "refused"
    assert re.search(says, found.says)


def test_a_failure_of_a_model_that_runs_unwatched_is_not_taken_for_a_missing_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("a defect of ours")

    monkeypatch.setattr(attention_watch.AttentionWatch, "_report", fails)
    with pytest.raises(KeyError, match="a defect of ours"):
        load(hybrid())


@pytest.mark.parametrize("name", ["mamba2", "rwkv", "fnet", "xlstm"])
def test_a_model_without_attention_heads_is_refused_in_a_sentence(name: str) -> None:
    found = verdict(name)
    assert found.verdict == "refused"
    assert found.says.endswith("has no attention heads: Headscape reads models with attention.")


def test_a_wrong_reading_is_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(module: Any, given: families.Given) -> Any:
        call = families._read_openai(module, given)
        return families.replace(call, scale=1.1 * call.scale)

    record = families.Family(attention=("openai.Attention",), read=read, result="c_proj")
    monkeypatch.setattr(families, "FAMILIES", (record, *families.FAMILIES))
    found = verdict("openai-gpt")
    assert found.verdict == "wrong"
    assert "is not read correctly" in found.says


def test_blocks_without_attention_are_named() -> None:
    model = load(hybrid())
    assert [layer.encoding for layer in model.spec.layers] == ["rope"] * 2
    named = "the others are Qwen3NextGatedDeltaNet in 1, 3 (counted from 1)"
    assert named in model.spec.provenance["other_layers"]
    with pytest.raises(InputError, match=r"no layer 2: .*Qwen3NextGatedDeltaNet in 1, 3"):
        model.capture(torch.arange(9), layers=2)


def compressed(kind: Any = None) -> Any:
    """DeepSeek-V4, whose second block has compressed keys and whose first has them later."""
    config = small_config(transformers.DeepseekV4Config)
    config.layer_types = [
        "heavily_compressed_attention", "compressed_sparse_attention",
        "sliding_attention", "sliding_attention",
    ]  # fmt: skip
    config.compress_rates["heavily_compressed_attention"] = 32
    torch.manual_seed(0)
    return transformers.DeepseekV4ForCausalLM(config).eval()


def test_layers_are_numbered_by_module_where_one_gets_more_keys() -> None:
    theirs = compressed()
    model = load(theirs)
    assert "keys that are not tokens in 2 (counted" in model.spec.provenance["other_layers"]
    hidden: dict[int, torch.Tensor] = {}
    for block in (0, 2, 3):
        attention = theirs.model.layers[block].self_attn
        attention.sinks.data.fill_(float(block))
    for length in (2, 20, 40):
        tokens = torch.arange(3, 3 + length)[None]
        for layer, block in enumerate((0, 2, 3)):
            if (layer, length) == (0, 40):
                continue
            call = observed(model, given=tokens)[layer] if length < 32 else None
            model.observe(tokens, [layer], lambda _, seen: hidden.update({layer: seen.sink}))  # noqa: B023
            assert hidden[layer].unique().tolist() == [block]
            assert call is None or call.sink.unique().tolist() == [block]
    with pytest.raises(InputError, match=r"layer 0 .* has 41 keys for 40 tokens"):
        model.capture(torch.arange(3, 43), layers="all")


def test_position_on_values_is_recorded_where_the_model_turns_its_output_back() -> None:
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import apply_rotary_pos_emb

    theirs = compressed()
    model: Any = load(theirs)
    says = [layer.conventions.get("values") for layer in model.spec.layers]
    assert says == ["rotated, output turned back"] * 3
    assert any("values" in line and "turned back" in line for line in recognised(model.spec))
    tokens, number, own = torch.arange(3, 15)[None], 2, dict[str, Any]()
    module = theirs.model.layers[3].self_attn

    def keep(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        own.update(kwargs, out=out[0])

    hook = module.register_forward_hook(keep, with_kwargs=True)
    call = observed(model, given=tokens)[number]
    with torch.no_grad():
        theirs(tokens, use_cache=False)
    hook.remove()
    cos, sin = own["position_embeddings"][module.rope_layer_type]
    # The values are the rotated keys, whose turned dims are read as the first ones.
    assert torch.equal(call.v.roll(module.config.qk_rope_head_dim, -1), call.k)
    result = scores(call).weights @ call.v
    turned = apply_rotary_pos_emb(result, cos, -sin).transpose(1, 2)
    grouped = turned.reshape(1, 12, module.config.o_groups, -1)
    made = module.o_b_proj(module.o_a_proj(grouped).flatten(2))
    assert (made - own["out"]).abs().max() < 1e-5


def test_roformer_says_whether_it_rotates_its_values() -> None:
    for rotates in (False, True):
        config = small_config(transformers.RoFormerConfig, {"rotary_value": rotates})
        torch.manual_seed(0)
        model = load(transformers.RoFormerForMaskedLM(config).eval())
        says = [layer.conventions.get("values") for layer in model.spec.layers]
        assert says == ["rotated" if rotates else None] * 4


def test_a_watch_numbers_layers_as_a_capture_does() -> None:
    theirs = compressed()
    with hs.watch(theirs, layers="all") as seen, torch.no_grad():
        written = theirs.generate(torch.arange(3, 15)[None], max_new_tokens=4, do_sample=False)
    again = load(theirs).capture(written[0, :-1], layers="all")
    assert seen[0].layers == again.layers == (0, 1, 2)
    for layer in again.layers:
        assert abs(seen[0].weights(layer=layer) - again.weights(layer=layer)).max() < 1e-5


def test_a_layer_that_is_not_computed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = hybrid()
    model: Any = load(theirs)
    monkeypatch.setattr(theirs.model.layers[3], "forward", lambda hidden, **_: hidden)
    assert model.capture(torch.arange(9), layers=0).layers == (0,)
    with pytest.raises(InputError, match=r"did not compute layer 1 \(counted from 0\) on 9 tokens"):
        model.capture(torch.arange(9), layers="all")
    theirs = hybrid()
    with (  # noqa: PT012 - the watch reads the model before it changes
        pytest.raises(InputError, match=r"did not compute layer 1"),
        hs.watch(theirs, layers="all"),
        torch.no_grad(),
    ):
        theirs.model.layers[3].forward = lambda hidden, **_: hidden
        theirs(torch.arange(9)[None])


@pytest.mark.parametrize("name", ["DeepseekV32", "GlmMoeDsa", "Qwen4Exp"])
def test_the_steps_of_a_sparse_indexer_are_refused_in_a_sentence(name: str) -> None:
    kind = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(0)
    theirs = kind(small_config(kind.config_class)).eval()
    with pytest.raises(InputError, match="sparse indexer"), hs.watch(theirs):
        theirs.generate(torch.arange(3, 25)[None], max_new_tokens=3, eos_token_id=None)


def sparse(name: str) -> Any:
    """A model with block-sparse attention, full on up to 28 tokens."""
    kind = getattr(transformers, name)
    sizes = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
    torch.manual_seed(0)
    theirs = kind(small_config(kind.config_class, sizes)).eval()
    for parameter in theirs.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return theirs


@pytest.mark.parametrize("name", ["BigBirdForMaskedLM", "BigBirdPegasusForConditionalGeneration"])
def test_block_sparse_attention_is_read_where_transformers_computes_it_in_full(name: str) -> None:
    theirs = sparse(name)
    long = torch.randint(3, 110, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = theirs(long).logits
    model: Any = load(theirs)
    assert "full attention that transformers computes on up to 28" in str(
        model.spec.provenance["attention"]
    )
    random = torch.get_rng_state()
    capture = model.capture(long[0, :28], layers="all")
    with pytest.raises(InputError, match="more than 28 tokens, got 29"):
        model.capture(long[0, :29])
    with torch.no_grad():
        assert torch.equal(theirs(long).logits, before)  # it stays block-sparse
        assert torch.equal(torch.get_rng_state(), random)
        # transformers changes its attention for good here.
        body, own = model.body, dict[int, torch.Tensor]()
        body(long[:, :28])
        assert body.attention_type == "original_full"
        calls: dict[int, Any] = {}
        with attention_watch.AttentionWatch(body, calls.__setitem__, own.__setitem__):
            body(long[:, :28])
    for layer, result in own.items():
        v = torch.from_numpy(capture.weights(layer=layer)) @ calls[layer].v[0]
        assert (v - result[0]).abs().max() < 1e-4
    assert sorted(own) == list(range(4))


SECTIONS = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Glm4v")


def sectioned(name: str) -> Any:
    """A model with three positions per token, and large weights so that rotations are seen."""
    kind = getattr(transformers, f"{name}ForConditionalGeneration")
    config = small_config(kind.config_class)
    text = config.get_text_config()
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [4, 2, 2]}
    torch.manual_seed(0)
    theirs = kind(config).eval()
    for parameter in theirs.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    theirs.set_attn_implementation("eager")
    return theirs


@pytest.mark.parametrize("name", SECTIONS)
def test_three_positions_per_token_are_read_as_given(name: str) -> None:
    theirs = sectioned(name)
    model: Any = load(theirs)
    tokens, at = torch.arange(3, 23)[None], torch.arange(20)
    given = torch.stack([at, at // 3, at % 5])[:, None]
    with torch.no_grad():
        out = theirs(tokens, position_ids=given, output_attentions=True, use_cache=False)
    calls: dict[int, Any] = {}
    model.observe(tokens, range(4), calls.__setitem__, positions=given)
    plain = observed(model, given=tokens)
    for layer, call in calls.items():
        ours = scores(call).weights[0]
        assert (ours - out.attentions[layer][0]).abs().max() < 1e-5
        assert (ours - scores(plain[layer]).weights[0]).abs().max() > 1e-3
        turned = call.turns[0].apply(call.unrotated[0])
        assert (turned - call.q).abs().max() < 1e-4


def test_three_positions_per_token_reach_a_capture_and_its_file(tmp_path: Path) -> None:
    theirs = sectioned("Qwen2VL")
    tokens, at = torch.arange(3, 23), torch.arange(20)
    given = torch.stack([at, at // 3, at % 5])
    with torch.no_grad():
        out = theirs(
            tokens[None], position_ids=given[:, None], output_attentions=True, use_cache=False
        )
    model = load(theirs)
    capture = model.capture(tokens, layers="all", positions=given)
    assert capture.refused is None
    capture.save(tmp_path / "image.safetensors")
    plain = model.capture(tokens, layers="all")
    for each in (capture, hs.Capture.load(tmp_path / "image.safetensors")):
        assert each.sequence["position_ids"] == given.tolist()
        assert each.positions.tolist() == at.tolist()
        for layer, own in enumerate(out.attentions):
            assert abs(each.weights(layer=layer) - own[0].numpy()).max() < 1e-5
            assert abs(each.weights(layer=layer) - plain.weights(layer=layer)).max() > 1e-3
    assert "position_ids" not in plain.sequence


def test_positions_of_a_capture_count_as_given() -> None:
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(small_config(transformers.GPT2Config)).eval()
    tokens, at = torch.arange(3, 23), torch.arange(7, 27)
    with torch.no_grad():
        hidden = theirs(tokens[None], position_ids=at[None], output_hidden_states=True)
    capture = load(theirs).capture(tokens, layers=[0], positions=at[None])
    assert capture.positions.tolist() == at.tolist()
    block = theirs.transformer.h[0]
    q = block.attn.c_attn(block.ln_1(hidden.hidden_states[0]))[0, :, :64]
    stored = np.asarray(capture.calls[0].arrays["q"])
    assert abs(stored.transpose(1, 0, 2).reshape(20, 64) - q.detach().numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.arange(5), r"\[20\] or for M-RoPE \[3, 20\], got shape \[5\]"),
        (torch.arange(20.0), "got shape .20. of float32"),
        (torch.arange(-1, 19), "whole numbers from 0"),
        ([[1, 2], [3]], "rows of whole numbers of the same length"),
        (torch.arange(20).expand(3, -1), "takes one position per token"),
    ],
)
def test_positions_that_no_text_has_are_refused(given: Any, message: str) -> None:
    model: Any = load(hybrid())
    with pytest.raises(InputError, match=message):
        model.capture(torch.arange(3, 23), positions=given)
    with pytest.raises(InputError, match="leave positions or generate out"):
        model.capture(torch.arange(3, 23), positions=torch.arange(20), generate=3)
    ours = load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
    with pytest.raises(InputError, match="counts its positions"):
        ours.capture(torch.arange(3, 23), positions=torch.arange(20))


def test_a_position_beyond_the_table_is_refused() -> None:
    theirs = transformers.GPT2LMHeadModel(small_config(transformers.GPT2Config)).eval()
    last = theirs.config.n_positions
    model: Any = load(theirs)
    model.capture(torch.arange(3, 6), positions=[0, 1, last - 1])
    with pytest.raises(InputError, match=f"the {last} positions of the model's table"):
        model.capture(torch.arange(3, 6), positions=[0, 1, last])


def test_what_several_positions_do_without_sections_is_refused() -> None:
    model: Any = load(hybrid())
    given = torch.arange(20).expand(3, 1, -1)
    with pytest.raises(InputError, match="takes one position per token"):
        model.observe(torch.arange(3, 23)[None], [0], lambda *_: None, positions=given)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_multimodal_model_is_watched_while_it_writes(name: str) -> None:
    theirs = sectioned(name)
    with hs.watch(theirs, layers="all") as seen:
        written = theirs.generate(
            torch.arange(3, 25)[None], max_new_tokens=5, do_sample=False, eos_token_id=None
        )
    again = load(theirs).capture(written[0, :-1], layers="all")
    assert seen[0].tokens.tolist() == written[0, :-1].tolist()
    for layer in again.layers:
        assert abs(seen[0].weights(layer=layer) - again.weights(layer=layer)).max() < 1e-4


def test_mistral_large_4_has_learned_frequencies_and_an_affine_temperature() -> None:
    kind = transformers.MistralLarge4ForConditionalGeneration
    torch.manual_seed(0)
    theirs = kind(small_config(kind.config_class)).eval()
    plain = load(theirs).spec.layers[0].conventions
    assert (plain["temperature"], plain["learned_frequencies"]) == ("none", False)
    rotary = theirs.model.language_model.rotary_emb
    rotary.alpha.normal_(std=0.3)
    for layer in theirs.model.language_model.layers:
        scaling = layer.self_attn.softmax_scaling
        torch.nn.init.normal_(scaling.scale, std=0.3)
        torch.nn.init.uniform_(scaling.bias, 0.5, 1.5)
    theirs.set_attn_implementation("eager")
    model: Any = load(theirs)
    assert [layer.encoding for layer in model.spec.layers] == ["rope"] * 3 + ["nope"]
    assert {layer.conventions["temperature"] for layer in model.spec.layers} == {"affine"}
    assert model.spec.layers[0].conventions["learned_frequencies"] is True
    tokens = torch.arange(3, 43)[None]
    with torch.no_grad():
        out = theirs(tokens, output_attentions=True, use_cache=False)
    for layer, call in observed(model, given=tokens).items():
        assert (scores(call).weights[0] - out.attentions[layer][0]).abs().max() < 1e-5
        scaling = theirs.model.language_model.layers[layer].self_attn.softmax_scaling
        grown = torch.arange(1, 41).log() * scaling.scale[:, None] + scaling.bias[:, None]
        assert torch.allclose(call.temperature[0].float(), grown, atol=1e-5)
    frequency = rotary.inv_freq * rotary.alpha.exp()
    assert torch.allclose(call_frequencies(model, tokens), frequency.double(), rtol=1e-5)


def test_inkling_has_a_curve_per_token_and_a_temperature_on_full_layers() -> None:
    config = small_config(transformers.InklingForCausalLM.config_class)
    config.layer_types = ["hybrid_sliding", "hybrid"] * 2
    config.log_scaling_n_floor = 8
    torch.manual_seed(0)
    theirs = transformers.InklingForCausalLM(config).eval()
    for parameter in theirs.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    theirs.set_attn_implementation("eager")
    model: Any = load(theirs)
    assert [layer.encoding for layer in model.spec.layers] == ["inkling"] * 4
    temperatures = [layer.conventions["temperature"] for layer in model.spec.layers]
    assert temperatures == ["none", "inkling"] * 2
    assert [layer.conventions["extent"] for layer in model.spec.layers] == [8, 16] * 2
    tokens = torch.arange(3, 43)[None]
    with torch.no_grad():
        out = theirs(tokens, output_attentions=True, use_cache=False)
    capture = model.capture(tokens[0], layers="all")
    for layer, own in enumerate(out.attentions):
        assert abs(capture.weights(layer=layer) - own[0].numpy()).max() < 1e-5
    with hs.watch(theirs, layers="all") as seen:
        written = theirs.generate(tokens[:, :20], max_new_tokens=5, eos_token_id=None)
    again = load(theirs).capture(written[0, :-1], layers="all")
    for layer in range(4):
        assert abs(seen[0].weights(layer=layer) - again.weights(layer=layer)).max() < 1e-5


def call_frequencies(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = observed(model, given=tokens)[0].turns[0].frequencies
    return found


def test_a_recorded_mask_is_part_of_a_capture(tmp_path: Path) -> None:
    config = small_config(transformers.DeepseekV32Config)
    torch.manual_seed(0)
    model = load(transformers.DeepseekV32ForCausalLM(config).eval())
    tokens = torch.randint(3, 110, (1, 30), generator=torch.Generator().manual_seed(1))
    call = observed(model, given=tokens)[2]
    seen = call.visible.dense(call.positions)[0, 0]
    assert call.visible.recorded is not None
    assert seen.sum(dim=-1).max() == config.index_topk
    assert not seen.triu(1).any()
    capture = model.capture(tokens[0], layers="all")
    capture.save(tmp_path / "sparse.safetensors")
    again = hs.Capture.load(tmp_path / "sparse.safetensors")
    for each in (capture, again):
        weights = torch.from_numpy(each.weights(layer=2, head=1))
        assert torch.equal(weights > 0, seen)
        assert torch.allclose(weights.sum(dim=-1), torch.ones(30), atol=1e-5)


def test_the_page_is_made_of_the_data() -> None:
    verdicts = architectures.stored_verdicts()
    page = architectures.stored_page()
    assert page == architectures.table(verdicts)
    assert {each.verdict for each in verdicts} == {"read", "refused"}
    if f"transformers {transformers.__version__} lists" in page:
        assert [(each.task, each.name, each.architecture) for each in verdicts] == listed()


def test_new_verdicts_take_the_place_of_the_stored_ones() -> None:
    old = [Verdict(name=name, task="causal", architecture=name, verdict="not built", says="")
           for name in ("a", "b")]  # fmt: skip
    new = Verdict(name="b", task="causal", architecture="b", verdict="read", says="rope")
    assert architectures.joined(old, [new]) == [old[0], new]


@pytest.mark.slow
def test_no_architecture_is_read_wrongly() -> None:
    verdicts = [judge(*each) for each in listed()]
    assert {each.verdict for each in verdicts} == {"read", "refused"}
    ours = [each for each in verdicts if each.task in {"causal", "masked"}]
    assert sum(each.verdict == "read" for each in ours) >= 165
