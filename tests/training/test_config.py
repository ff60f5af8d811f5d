"""A configuration is complete, re-runnable, and refused in one sentence where it makes no sense."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from headscape.errors import InputError
from headscape.gpt2.model_config import ModelConfig
from headscape.training import PRESETS, TrainConfig, preset
from headscape.training.config import NAMES, changed, flat, read_toml, to_toml, unflat, write_toml


@pytest.mark.parametrize("name", PRESETS)
def test_a_written_config_is_complete_and_reads_back_equal(name: str, tmp_path: Path) -> None:
    config = preset(name, encoding="dapev2+kerple", encoding_fields={"kernel": 5})
    path = tmp_path / "config.toml"
    write_toml(path, config)
    assert read_toml(path) == config
    absent = {"minutes", "qk_norm_scale", "qk_norm_limit"}
    assert set(tomllib.loads(path.read_text())) == set(NAMES) - absent


def test_a_field_with_several_numbers_reads_back_equal(tmp_path: Path) -> None:
    factors = {"short_factor": (1.0,) * 8, "long_factor": (2.0,) * 8}
    config = preset("nano", encoding="rope", encoding_fields={"scaling": "longrope", **factors})
    write_toml(tmp_path / "config.toml", config)
    assert read_toml(tmp_path / "config.toml") == config


def test_minutes_survive_without_steps(tmp_path: Path) -> None:
    config = preset("nano", minutes=0.5)
    assert config.steps is None
    write_toml(tmp_path / "c.toml", config)
    assert read_toml(tmp_path / "c.toml") == config


def test_an_unknown_key_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("warm_up = 3\n")
    with pytest.raises(InputError, match=r"'warm_up'.*did you mean 'warmup_steps'"):
        read_toml(path)


@pytest.mark.parametrize("text", ["steps = ", "steps = 1\nsteps = 2", "\xff"])
def test_what_is_not_toml_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is not TOML"):
        read_toml(path)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"steps": None}, "give one"),
    ({"minutes": 1.0}, "give one"),
    ({"steps": 50, "warmup_steps": 50}, "warmup_steps=50 must be below steps=50"),
    ({"lr": 1e-4, "final_lr": 1e-3}, "final_lr"),
    ({"curriculum": (128, 256)}, r"last length of curriculum=\(128, 256\)"),
    ({"curriculum": (1024, 512)}, "1024"),
    ({"tokens_per_step": 1000}, "1000"),
    ({"curriculum": (384, 512)}, "384"),
    ({"steps": 0}, "steps"),
    ({"steps": 2.5}, "steps=2.5"),
    ({"minutes": -1.0, "steps": None}, "minutes"),
    ({"lr": float("nan")}, "lr"),
    ({"beta2": 1.0}, "beta2"),
    ({"batch_size": 0}, "batch_size"),
    ({"batch_size": True}, "batch_size=True"),
    ({"grad_clip": -1.0}, "grad_clip"),
    ({"compile": "yes"}, "compile='yes'"),
    ({"precision": "fp8"}, "fp8"),
    ({"optimizer": "sgd"}, "optimizer='sgd' is not one of 'adamw', 'muon'"),
    ({"muon_lr": 0.0}, "muon_lr must be above 0"),
    ({"distributed": "horovod"}, "ddp"),
    ({"path": "quick"}, "quick"),
    ({"width": 190}, "12 heads do not divide"),
    ({"encoding": "cabel"}, "cable"),
    ({"encoding": "alibi", "encoding_fields": {"slope": "x"}}, "slope"),
    ({"curriculum": ("128", 512)}, "curriculum='128' is not of type int"),
    ({"curriculum": 512}, "curriculum=512 is not of type tuple"),
    ({"seed": -1}, "seed must be at least 0, got -1"),
    ({"seed": 1 << 70}, "seed must be at most"),
    ({"steps": 10**30}, "steps must be at most"),
    ({"layers": 10**9}, "layers must be at most 1,000, got 1000000000"),
    ({"context_length": 10**12}, "context_length must be at most"),
    ({"lr": 10**400}, "lr is too large"),
    ({"minutes": float("inf"), "steps": None}, "minutes must be above 0"),
    ({"weight_decay": float("nan")}, "weight_decay must be at least 0, got nan"),
]


@pytest.mark.parametrize(("change", "said"), CONTRADICTIONS)
def test_a_contradiction_is_one_sentence(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        unflat(flat(TrainConfig()) | change)
    assert "\n" not in str(caught.value)


def size(model: ModelConfig) -> tuple[int, int, int]:
    return model.layers, model.heads, model.width


def test_presets_carry_the_papers_numbers() -> None:
    for name, shape in {
        "paper-tiny-1024": (6, 8, 512, 1024),
        "paper-small-512": (12, 12, 768, 512),
        "paper-small-1024": (12, 12, 768, 1024),
        "paper-medium-1024": (24, 16, 1024, 1024),
    }.items():
        run = preset(name, encoding="dapev2+kerple")
        assert (*size(run.model), run.context_length) == shape
        assert (run.tokens_per_step, run.steps, run.warmup_steps) == (524_288, 19_000, 750)
        assert (run.lr, run.final_lr, run.grad_clip, run.weight_decay) == (6e-4, 6e-5, 1.0, 0.1)
        assert (run.beta1, run.beta2, run.precision) == (0.9, 0.95, "bf16")
        assert run.optimizer == "adamw"
        assert (run.corpus, run.tokenizer) == ("fineweb-edu", "gpt2")
        assert run.model_for(50_257).vocabulary == 50_304
        # Eight processes share a step evenly, in whole passes.
        assert run.tokens_per_step % (8 * run.batch_size * run.context_length) == 0


def test_what_hangs_on_a_changed_field_follows_it() -> None:
    run = preset(
        "nano", context_length=512, batch_size=8, steps=400, seed=7, encoding="cable", lr=None
    )
    assert (run.tokens_per_step, run.curriculum, run.warmup_steps) == (4096, (128, 256, 512), 25)
    assert preset("nano", context_length=96).curriculum == ()
    assert preset("nano", context_length=96).tokens_per_step == 960
    assert preset("nano", lr=1e-4).final_lr == pytest.approx(1e-5)
    assert preset("nano", lr=1e-4).muon_lr == pytest.approx(4e-5)
    assert preset("nano", lr=1e-4, muon_lr=1.0).muon_lr == 1.0
    assert preset("nano", steps=1).warmup_steps == 0
    with pytest.raises(InputError, match="did you mean 'paper-small-512'"):
        preset("paper-smal-512")


def test_a_curriculum_has_stages_of_equal_length() -> None:
    run = preset("nano", curriculum=(128, 128, 256, 512))
    at = [run.length_at(step / 8) for step in range(9)]
    assert at == [128, 128, 128, 128, 256, 256, 512, 512, 512]


def test_no_setting_is_stated_twice_and_the_defaults_are_the_preset_nano() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert TrainConfig() == preset("nano")
    assert preset("nano", context_length=96, encoding="alibi").model == ModelConfig(
        layers=2, heads=12, width=192, encoding="alibi", train_length=96
    )
    with pytest.raises(InputError, match="leave vocabulary and causal out"):
        TrainConfig(model=ModelConfig(layers=1, heads=1, width=8, vocabulary=300))
    with pytest.raises(InputError, match="unknown setting 'vocabulary'"):
        preset("nano", vocabulary=300)


def test_a_partial_file_is_its_preset_with_changes(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('preset = "small"\nencoding = "alibi"\nlr = 1e-3\ncontext_length = 256\n')
    changes = {"encoding": "alibi", "lr": 1e-3, "context_length": 256}
    assert read_toml(path) == preset("small", **changes)
    assert read_toml(path, lr=2e-3) == preset("small", **changes | {"lr": 2e-3})
    path.write_text("steps = 100\n")
    assert read_toml(path) == preset("nano", steps=100)
    path.write_text('preset = "smal"\n')
    with pytest.raises(InputError, match="did you mean 'small'"):
        read_toml(path)


def test_a_complete_file_is_taken_at_its_word(tmp_path: Path) -> None:
    """Also where it names no preset of ours, and where it is older than some fields."""
    path = tmp_path / "config.toml"
    config = changed(preset("nano", steps=100), preset="mine", warmup_steps=60, tokens_per_step=512)
    write_toml(path, config)
    assert read_toml(path) == config
    assert read_toml(path, lr=2e-2) == changed(config, lr=2e-2)
    later = ("optimizer", "muon_lr", "qk_norm", "norm_epsilon")
    lines = to_toml(config).splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(later)))
    assert read_toml(path) == changed(config, optimizer="adamw")
