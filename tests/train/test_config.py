"""A configuration is complete, re-runnable, and refused in one sentence where it makes no sense."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from headscape.errors import InputError
from headscape.train import PRESETS, TrainConfig, preset
from headscape.train.config import config_file


@pytest.mark.parametrize("name", PRESETS)
def test_a_written_config_is_complete_and_reads_back_equal(name: str, tmp_path: Path) -> None:
    config = preset(name, encoding="dapev2+kerple", encoding_fields={"kernel": 5})
    path = tmp_path / "config.toml"
    config_file.write(path, config)
    assert config_file.read(path) == config
    assert set(tomllib.loads(path.read_text())) == {f.name for f in fields(TrainConfig)} - {
        "minutes"
    }


def test_minutes_survive_without_steps(tmp_path: Path) -> None:
    config = preset("nano", minutes=0.5)
    assert config.steps is None
    config_file.write(tmp_path / "c.toml", config)
    assert config_file.read(tmp_path / "c.toml") == config


def test_an_unknown_key_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("warm_up = 3\n")
    with pytest.raises(InputError, match=r"'warm_up'.*did you mean 'warmup'"):
        config_file.read(path)


@pytest.mark.parametrize("text", ["steps = ", "steps = 1\nsteps = 2", "\xff"])
def test_what_is_not_toml_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is not TOML"):
        config_file.read(path)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"steps": None}, "give one"),
    ({"minutes": 1.0}, "give one"),
    ({"steps": 50, "warmup": 50}, "warm-up of 50"),
    ({"rate": 1e-4, "final_rate": 1e-3}, "final_rate"),
    ({"curriculum": (128, 256)}, "ends at 256"),
    ({"curriculum": (1024, 512)}, "1024"),
    ({"tokens_per_step": 1000}, "1000"),
    ({"curriculum": (384, 512)}, "384"),
    ({"steps": 0}, "steps"),
    ({"steps": 2.5}, "steps=2.5"),
    ({"minutes": -1.0, "steps": None}, "minutes"),
    ({"rate": float("nan")}, "rate"),
    ({"beta2": 1.0}, "beta2"),
    ({"batch": 0}, "batch"),
    ({"batch": True}, "batch=True"),
    ({"clip": -1.0}, "clip"),
    ({"compile": "yes"}, "compile='yes'"),
    ({"precision": "fp8"}, "fp8"),
    ({"distributed": "horovod"}, "ddp"),
    ({"path": "quick"}, "quick"),
    ({"width": 190}, "12 heads do not divide"),
    ({"encoding": "cabel"}, "cable"),
    ({"encoding": "alibi", "encoding_fields": {"slope": "x"}}, "slope"),
    ({"curriculum": [128, 512]}, "curriculum"),
]


@pytest.mark.parametrize(("change", "said"), CONTRADICTIONS)
def test_a_contradiction_is_one_sentence(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        TrainConfig(**change)
    assert "\n" not in str(caught.value)


def test_presets_carry_the_papers_numbers() -> None:
    for name, shape in {
        "paper-tiny-1024": (6, 8, 512, 1024),
        "paper-small-512": (12, 12, 768, 512),
        "paper-small-1024": (12, 12, 768, 1024),
        "paper-medium-1024": (24, 16, 1024, 1024),
    }.items():
        run = preset(name, encoding="dapev2+kerple")
        assert (run.layers, run.heads, run.width, run.length) == shape
        assert (run.tokens_per_step, run.steps, run.warmup) == (524_288, 19_000, 750)
        assert (run.rate, run.final_rate, run.clip, run.decay) == (6e-4, 6e-5, 1.0, 0.1)
        assert (run.beta1, run.beta2, run.precision) == (0.9, 0.95, "bf16")
        assert (run.corpus, run.tokenizer) == ("fineweb-edu", "gpt2")
        assert run.model(50_257).vocabulary == 50_304
        # Eight processes share a step evenly, in whole passes.
        assert run.tokens_per_step % (8 * run.batch * run.length) == 0


def test_what_hangs_on_a_changed_field_follows_it() -> None:
    run = preset("nano", length=512, batch=8, steps=400, seed=7, encoding="cable", rate=None)
    assert (run.tokens_per_step, run.curriculum, run.warmup) == (4096, (128, 256, 512), 40)
    assert preset("nano", length=96).curriculum == ()
    assert preset("nano", length=96).tokens_per_step == 960
    assert preset("nano", rate=1e-4).final_rate == pytest.approx(1e-5)
    assert preset("nano", steps=1).warmup == 0
    with pytest.raises(InputError, match="did you mean 'paper-small-512'"):
        preset("paper-smal-512")


def test_a_curriculum_has_stages_of_equal_length() -> None:
    run = preset("nano", curriculum=(128, 128, 256, 512))
    at = [run.length_at(step / 8) for step in range(9)]
    assert at == [128, 128, 128, 128, 256, 256, 512, 512, 512]
