"""What a config declares and the model does not do, planted and found."""

import json
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
    ],
)
def test_healthy_models_have_no_fault(name: str, fields: dict[str, Any]) -> None:
    found = settings(load(FAMILIES[name].build(**fields)))  # type: ignore[arg-type]
    assert faults(found) == [], found


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


def test_a_window_smaller_than_declared() -> None:
    model: Any = load(FAMILIES["mistral"].build(sliding_window=16))
    found = [each for each in settings(model, {"sliding_window": 40}) if each.fault]
    assert [each.fault for each in found] == ["window"]
    assert found[0].active == "16"
    assert faults(settings(model, {"sliding_window": 16})) == []
    assert settings(model, {"sliding_window": 40}, reach=20)[-1].active == "not reached"
