"""What a config declares and the model does not do, planted and found."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from headscape.models.load import load
from headscape.models.transformers.declared import DeclaredSetting, settings
from pretrained.families import FAMILIES

transformers = pytest.importorskip("transformers")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def faults(found: list[DeclaredSetting]) -> list[str]:
    return [each.fault for each in found if each.fault is not None]


def llama(**fields: Any) -> Any:
    return FAMILIES["llama"].build(**fields)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("llama", {}),
        ("llama", {"rope_parameters": {**YARN, "rope_theta": 1e4}, "max_position_embeddings": 256}),
        ("llama", {"rope_parameters": {**YARN, "rope_theta": 1e4}}),
        ("qwen3", {}),
        ("mistral", {}),
        ("llama3", {}),
        ("phi", {}),
        ("llama-proportional", {}),
        ("llama-yarn", {}),
        ("deepseek-v2-yarn", {}),
        ("llama3-step", {}),
        ("ministral3", {}),
        ("qwen2-vl-text", {}),
        ("gemma3", {}),
        ("llama", {"rope_parameters": {**YARN, "rope_theta": 1e4, "attention_factor": 1.3}}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 5}),
    ],
)
def test_healthy_models_have_no_fault(name: str, fields: dict[str, Any]) -> None:
    found = settings(load(FAMILIES[name].build(**fields)))  # type: ignore[arg-type]
    assert faults(found) == [], found


@pytest.mark.parametrize(
    ("rope", "original"),
    [
        ({"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, {}),
        (
            {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4,
             "long_factor": [2.0] * 4, "original_max_position_embeddings": 16},
            {"original_max_position_embeddings": 16},
        ),
    ],
)  # fmt: skip
def test_a_table_that_a_long_text_replaced_is_no_fault(
    rope: dict[str, Any], original: dict[str, Any]
) -> None:
    theirs = llama(rope_parameters=rope, max_position_embeddings=32, **original)
    model: Any = load(theirs)
    theirs(torch.arange(3, 63)[None])
    assert faults(settings(model)) == []
    theirs.model.rotary_emb.original_inv_freq /= 2.0
    assert faults(settings(model)) == ["table"]


@pytest.mark.parametrize("key", ["rope_type", "kind"])
def test_the_trained_length_is_the_one_before_a_declared_scaling(tmp_path: Path, key: str) -> None:
    llama(max_position_embeddings=256).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] |= {"factor": 4.0, "original_max_position_embeddings": 64}
    config["rope_parameters"] |= {"rope_type": "default", key: "yarn"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model: Any = load(f"hf:{tmp_path}")
    assert model.spec.train_length == 64
    assert model.length_error(256) is None
    assert model.capture(torch.arange(256) % 60 + 3).length == 256
    assert faults(settings(model)) == ([] if key == "rope_type" else ["inactive"])


def test_the_window_of_an_old_qwen2_config_is_that_of_its_later_layers() -> None:
    model: Any = load(
        FAMILIES["qwen2"].build(use_sliding_window=True, sliding_window=5, max_window_layers=2)
    )
    old = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    assert faults(settings(model, old)) == []
    assert settings(model, old)[-1].active == "5"
    assert faults(settings(model, {**old, "sliding_window": 9})) == ["window"]


PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LAYERED = {"sliding_attention": PLAIN, "full_attention": {**PLAIN, "rope_theta": 1e6}}


@pytest.mark.parametrize(
    ("active", "declared", "says"),
    [
        (YARN, {"rope_parameters": {**YARN, "factor": 2.0}}, "declares factor 2, and .* is 4"),
        (
            {"rope_type": "linear", "factor": 4.0},
            {"rope_parameters": YARN},
            "by linear scaling: the type is 'yarn'",
        ),
        (
            YARN,
            {"rope_parameters": {**YARN, "attention_factor": 2.0}},
            "declares attention factor 2, and .* is 1.13",
        ),
        ({}, {"rope_theta": 1e6}, "declares rope_theta 1e\\+06, and .* is 10000"),
        ({}, {"rope_parameters": {**PLAIN, "rope_theta": 5e5}}, "declares rope_theta 500000"),
        (
            YARN,
            {"rope_parameters": {**YARN, "atention_factor": 1.0}},
            "an entry 'atention_factor', which transformers does not read",
        ),
        ({}, {"rope_scaling_factor": 4.0}, "an entry 'rope_scaling_factor', which"),
        ({}, {"yarn": {"factor": 4.0}}, "an entry 'yarn', which"),
    ],
)
def test_what_is_declared_and_not_active(
    active: dict[str, Any], declared: dict[str, Any], says: str
) -> None:
    model: Any = load(llama(rope_parameters={**active, "rope_theta": 1e4}))
    [found] = [each for each in settings(model, declared) if each.fault]
    assert found.fault == "inactive"
    assert re.search(says, found.text), found.text


@pytest.mark.parametrize(
    ("kind", "entries", "says"),
    [
        ("full_attention", {"rope_type": "default", "kind": "linear"}, "'kind' is not an entry"),
        ("full_attention", {"rope_theta": 1e5}, "declares rope_theta 100000"),
        ("full_atention", {"rope_type": "linear", "factor": 8.0}, "there are none"),
    ],
)
def test_rope_parameters_of_a_type_of_layers(kind: str, entries: dict[str, Any], says: str) -> None:
    model: Any = load(FAMILIES["gemma3"].build(rope_parameters=LAYERED))
    assert faults(settings(model, {"rope_parameters": LAYERED})) == []
    declared = {**LAYERED, kind: {**LAYERED["full_attention"], **entries}}
    [found] = [each for each in settings(model, {"rope_parameters": declared}) if each.fault]
    assert found.fault == "inactive"
    assert says in found.text
    assert kind in found.name


def test_old_gemma3_configs_scale_their_full_layers_only() -> None:
    scaled = {**PLAIN, "rope_theta": 1e6, "rope_type": "linear", "factor": 8.0}
    model: Any = load(
        FAMILIES["gemma3"].build(rope_parameters={**LAYERED, "full_attention": scaled})
    )
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    old |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # type: ignore[dict-item]
    assert faults(settings(model, old)) == []


def test_a_scaling_under_a_wrong_key_is_not_active(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    config["rope_scaling"] = {"kind": "yarn", "factor": 4.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    [found] = [each for each in settings(load(f"hf:{tmp_path}")) if each.fault]  # type: ignore[arg-type]
    assert found.fault == "inactive"
    assert "'kind'" in found.text
    assert found.active == "none"


def test_a_scaling_that_was_meant_is_not_active() -> None:
    found = settings(load(llama()), {"rope_parameters": YARN})  # type: ignore[arg-type]
    assert faults(found) == ["inactive"]


@pytest.mark.parametrize(
    ("original", "promised", "fault"),
    [
        (64, 1024, "applied-twice"),
        (64, 512, "original-length"),
        (512, 256, "original-length"),
    ],
)
def test_lengths_that_do_not_fit_each_other(original: int, promised: int, fault: str) -> None:
    rope = {**YARN, "rope_theta": 1e4, "original_max_position_embeddings": original}
    model: Any = load(llama(rope_parameters=rope, max_position_embeddings=promised))
    assert faults(settings(model)) == [fault]


def test_frequencies_divided_twice() -> None:
    theirs = llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4})
    theirs.model.rotary_emb.inv_freq /= 4.0
    found = [each for each in settings(load(theirs)) if each.fault]  # type: ignore[arg-type]
    assert [each.fault for each in found] == ["applied-twice"]


def test_a_table_from_before_the_config_was_changed() -> None:
    theirs = llama()
    theirs.model.rotary_emb.inv_freq *= torch.linspace(1.0, 1.5, 4)
    assert faults(settings(load(theirs))) == ["table"]  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [1.0, 1.3])
@pytest.mark.parametrize("kind", ["yarn", "yarn-mscale", "longrope"])
def test_an_attention_factor_that_the_scaling_does_not_imply(kind: str, factor: float) -> None:
    rope: dict[str, Any] = {**YARN, "rope_theta": 1e4}
    more: dict[str, Any] = {"max_position_embeddings": 256}
    if kind == "yarn-mscale":
        rope |= {"mscale": 1.0, "mscale_all_dim": 0.5}
    if kind == "longrope":
        lists = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        rope |= {"rope_type": "longrope", **lists}
        more["original_max_position_embeddings"] = 64
    theirs = llama(rope_parameters=rope, **more)
    implied = theirs.model.rotary_emb.attention_scaling
    assert abs(implied - 1) > 0.01
    assert faults(settings(load(theirs))) == []  # type: ignore[arg-type]
    theirs.model.rotary_emb.attention_scaling = factor
    [found] = [each for each in settings(load(theirs)) if each.fault]  # type: ignore[arg-type]
    assert found.fault == "inactive"
    assert (
        f"implies {implied:.4g}, and the model multiplies cos and sin by {factor:g}" in found.text
    )


def test_a_window_smaller_than_declared() -> None:
    model: Any = load(FAMILIES["mistral"].build(sliding_window=16))
    found = [each for each in settings(model, {"sliding_window": 40}) if each.fault]
    assert [each.fault for each in found] == ["window"]
    assert found[0].active == "16"
    assert faults(settings(model, {"sliding_window": 16})) == []
    assert settings(model, {"sliding_window": 40}, reach=20)[-1].active == "not reached"
