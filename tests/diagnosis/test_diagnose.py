"""Whole diagnoses: planted faults are named, healthy models get none, a kill changes nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import headscape
import headscape as hs
import headscape.diagnosis.remedies
from diagnosis.small_models import TRAINED, language, trained
from headscape.call.definition import scores
from headscape.call.positions import Positions, Visible
from headscape.diagnosis import diagnose as whole
from headscape.diagnosis import far_positions
from headscape.diagnosis.changes import Rotations
from headscape.diagnosis.heads import control_changes, head_effects, measured, one_head
from headscape.diagnosis.loss_by_position import LossPlan, windows_of
from headscape.diagnosis.remedies import REMEDIES, Remedy, longrope, remedied, remedies_for
from headscape.diagnosis.report import FILES, Diagnosis
from headscape.diagnosis.retrieval import COPY_DEPTH, KINDS, copying_heads, question
from headscape.diagnosis.settings import config_of, patch, write_config
from headscape.errors import InputError
from headscape.io.html_page import NO_SCRIPT
from headscape.kernels.attend import run
from headscape.models.changed import ChangedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.load import load
from pretrained.families import FAMILIES, VOCABULARY

transformers = pytest.importorskip("transformers")
LENGTH = 8 * TRAINED


def text(count: int = 4000) -> np.ndarray:
    return language(count, seed=9)


@pytest.fixture(scope="module")
def broken() -> Diagnosis:
    return hs.diagnose(trained("rope"), LENGTH, text(), questions=0, effects=2)


def test_rope_past_its_length_breaks_by_positions(broken: Any) -> None:
    assert broken.findings == ["breaks", "positions"]
    assert broken.data["loss"]["holds_to"] == TRAINED
    rows = {each["name"]: each for each in broken.data["remedies"]}
    assert len(rows) >= 10
    clipped = rows["clip"]
    assert clipped["excess"][0] < 0.1 < broken.data["loss"]["excess"][0]
    assert clipped["gain"][1] > 0
    assert abs(clipped["cost"][0]) < 0.05
    assert broken.data["advice"]["best"] == "clip"
    assert "Clipped positions is best" in broken.sentence


def test_heads_have_a_control_and_effects(broken: Any) -> None:
    heads = broken.data["heads"]
    entropy = heads["parts"]["entropy"]
    whole_change = entropy["length"] - entropy["trained"]
    assert entropy["position"] + entropy["keys"] == pytest.approx(whole_change)
    assert len(heads["most_changed"]) == 8
    assert list(heads["by_length"]) == ["32", "64", "128", "256"]
    assert set(heads["effects"]) == {f"{n['layer']}.{n['head']}" for n in heads["most_changed"]}
    # Some head that looks five tokens back does better with positions that it knows.
    assert min(each[0] for each in heads["effects"].values()) < -0.05


@pytest.mark.parametrize("encoding", ["fox", "rope:window=16"])
def test_models_that_hold_get_no_finding(encoding: str) -> None:
    found = hs.diagnose(trained(encoding), LENGTH, text(), questions=0, quick=True, windows=6)
    assert found.findings == []
    assert found.data["loss"]["holds_to"] == LENGTH
    assert found.data["advice"]["patch"] is None
    assert found.sentence.endswith("Nothing needs to be mended.")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_shortly_trained_alibi_really_breaks(seed: int) -> None:
    """Not a false alarm: other windows, scored without the diagnosis, have the same loss rise."""
    model = trained("alibi", seed=seed)
    found = hs.diagnose(
        model,
        4 * TRAINED,
        language(12_000, seed=9),
        questions=0,
        windows=24,
        remedies=["clip-bias"],
    )
    mean, low, _ = found.data["loss"]["excess"]
    assert found.findings == ["breaks", "keys"]
    assert 0.1 < mean < 0.15
    assert low > 0.05
    windows = torch.from_numpy(language(24 * (4 * TRAINED + 1), seed=11)).view(24, -1)
    losses = model.losses(windows, 0).mean(dim=0)
    assert float(losses[TRAINED:].mean() - losses[TRAINED // 2 : TRAINED].mean()) > 0.1


def test_a_random_llama_gets_no_finding_and_a_wrong_key_is_named(tmp_path: Path) -> None:
    theirs = FAMILIES["llama"].build(initializer_range=0.02)
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, size=2000)
    given: dict[str, Any] = {"quick": True, "questions": 0}
    found = hs.diagnose(load(theirs), 128, tokens, **given)
    assert found.findings == []
    assert found.sentence.endswith("There is no interval: 1 window is fewer than 6.")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_scaling"] = {"typ": "yarn", "factor": 2.0}
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = hs.diagnose(f"hf:{tmp_path}", 128, tokens, **given)
    assert found.findings == ["inactive"]


@pytest.mark.parametrize(
    ("encoding", "length", "every", "given"),
    [
        ("fox", LENGTH, 2, {"quick": True, "windows": 2, "questions": 1}),
        ("rope", LENGTH, 23, {"quick": True, "questions": 1}),
        ("rope", 2 * TRAINED, 5, {"windows": 2, "questions": 0, "effects": 1}),
    ],
)
def test_a_stop_at_any_stage_changes_no_byte(
    encoding: str,
    length: int,
    every: int,
    given: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(far_positions, "WINDOWS", 1)
    model = trained(encoding)
    hs.diagnose(model, length, text(), out=tmp_path / "whole", **given)
    expected = {name: (tmp_path / "whole" / name).read_bytes() for name in FILES}
    real, done = whole.resumed, 0

    class StoppedError(Exception):
        pass

    def stopping(folder: Any, header: Any, batches: Any, compute: Any) -> Any:
        def once(batch: Any) -> Any:
            nonlocal done
            done += 1
            if done % every == 0:
                raise StoppedError
            return compute(batch)

        return real(folder, header, batches, once)

    monkeypatch.setattr(whole, "resumed", stopping)
    stops = 0
    while True:
        try:
            hs.diagnose(model, length, text(), out=tmp_path / "parts", **given)
            break
        except StoppedError:
            stops += 1
    assert stops > 5
    assert {name: (tmp_path / "parts" / name).read_bytes() for name in FILES} == expected


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("family", "fields", "declared", "fault"),
    [
        ("llama", {"max_position_embeddings": 512, "original": 64}, None, "original-length"),
        ("llama", {"max_position_embeddings": 256, "original": 512}, None, "original-length"),
        ("llama", {"max_position_embeddings": 1024, "original": 64}, None, "applied-twice"),
        ("mistral", {"sliding_window": 16}, {"sliding_window": 40}, "window"),
    ],
)
def test_a_planted_fault_of_the_config_is_named(
    family: str, fields: dict[str, Any], declared: dict[str, Any] | None, fault: str
) -> None:
    if "original" in fields:
        original = fields.pop("original")
        fields["rope_parameters"] = {**YARN, "original_max_position_embeddings": original}
    theirs = FAMILIES[family].build(initializer_range=0.02, **fields)
    given: dict[str, Any] = {"quick": True, "questions": 0, "remedies": ["clip"], "trained": 64}
    found = hs.diagnose(theirs, 128, tokens_for_llama(), declared=declared, **given)
    assert found.findings == [fault]
    assert fault in found.to_html()


def test_frequencies_that_are_divided_twice_are_named() -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    theirs = FAMILIES["llama"].build(initializer_range=0.02, rope_parameters=rope)
    theirs.model.rotary_emb.inv_freq /= 4.0
    found = hs.diagnose(theirs, 128, tokens_for_llama(), quick=True, questions=0, trained=64)
    assert found.findings == ["applied-twice"]
    # The rotation is not that of the config, so nothing that repeats it is tried.
    assert found.data["refused"]["clip"] == "it changes RoPE, and the encoding is unknown"
    assert found.data["far"] is None


def test_files(broken: Any, tmp_path: Path) -> None:
    page = broken.save(tmp_path)
    html = page.read_text()
    assert "<script" not in html
    assert NO_SCRIPT in html
    assert html.count("<svg") == 3
    assert "clipped positions" in html
    assert broken.to_markdown() == (tmp_path / "diagnosis.md").read_text()
    lines = (tmp_path / "remedies.csv").read_text().splitlines()
    assert len(lines) == 1 + len(broken.data["remedies"])
    assert len((tmp_path / "heads.csv").read_text().splitlines()) == 1 + 8
    assert json.loads((tmp_path / "diagnosis.json").read_text()) == broken.data
    broken.save(tmp_path)
    (tmp_path / "diagnosis.md").write_text("my notes")
    with pytest.raises(InputError, match="exists and is not"):
        broken.save(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": TRAINED}, "must be above the trained length of 32"),
        ({"length": 8000}, "fewer than a window of 8,001"),
        ({"text": "some words"}, "has no tokenizer"),
        ({"text": None}, "has no text of its own"),
        ({"remedies": ["ice"]}, "unknown remedy 'ice'"),
        ({"windows": 0}, "windows must be at least 1"),
        ({"trained": 3}, "trained length must be at least 16"),
    ],
)
def test_bad_input_is_one_sentence(given: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"length": LENGTH, "text": text(), "quick": True, **given}
    with pytest.raises(InputError, match=message):
        hs.diagnose(trained("fox"), **options)


def test_a_length_that_a_table_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="learned table's 32 rows"):
        hs.diagnose(trained("learned", steps=1), LENGTH, text(), quick=True)


def test_scored_tokens_have_half_to_all_of_the_trained_length_before_them() -> None:
    windows, _ = windows_of([text()], LENGTH, 2, "a text")
    plan = LossPlan(trained=TRAINED, length=LENGTH, windows=windows)
    seen = [(start, at) for start, some in plan.short_contexts() for at in some.tolist()]
    assert [at for _, at in seen] == plan.at[plan.past].tolist()
    assert all(TRAINED // 2 <= at - start < TRAINED for start, at in seen)


def test_the_searched_window_is_not_scored() -> None:
    tokens = np.arange(1000)
    scored, searched = windows_of([tokens], 99, 4, "a text")
    assert scored.shape == (4, 100)
    assert not set(scored.ravel().tolist()) & set(searched.tolist())


def test_an_effect_equals_a_run_with_the_head_clipped() -> None:
    from headscape.diagnosis.changes import Clipped

    model = trained("rope")
    windows, _ = windows_of([text()], 64, 1, "a text")
    found = head_effects(model, windows, TRAINED, [(1, 2)])

    class OneLayer(Clipped):
        def __call__(self, layer: int, call: Any) -> Any:
            return super().__call__(layer, call) if layer == 1 else call

    change = OneLayer(Rotations(model.spec), TRAINED - 1, heads=(2,))
    tokens = torch.from_numpy(windows)
    changed = ChangedModel(model, change, name="c", mark="c").losses(tokens, TRAINED)
    expected = float(changed.mean() - model.losses(tokens, TRAINED).mean())
    assert found["1.2"][0] == pytest.approx(expected, abs=1e-6)


def test_one_head_of_a_call_is_that_head() -> None:
    calls: list[Any] = []
    model = trained("rope")
    tokens = torch.from_numpy(text(40))[None]
    remedied(model, "clip", 64).observe(tokens, [0], lambda _, call: calls.append(call))
    every, one = run(calls[0]), run(one_head(calls[0], 3))
    assert torch.allclose(one[:, 0], every[:, 3], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_a_question_has_its_length_and_its_answer(kind: str, depth: float) -> None:
    def encode(words: str) -> np.ndarray:
        return np.frombuffer(words.encode(), dtype=np.uint8).astype(np.int64)

    pool = np.random.default_rng(0).integers(256, size=5000)
    asked = question(kind, 1, 1200, depth, pool, encode)
    assert asked is not None
    assert len(asked.text) + len(asked.answer) <= 1201
    assert len(asked.text) + len(asked.answer) > 1190
    joined = asked.text.tolist()
    answer = asked.answer.tolist()
    places = [at for at in range(len(joined)) if joined[at : at + len(answer)] == answer]
    assert places
    assert places[0] == pytest.approx(depth * 1200, abs=160)
    assert question(kind, 1, 1200, depth, pool, None) is None or kind == "copy"


@pytest.mark.parametrize("name", ["linear", "ntk", "dynamic", "yarn", "prope", "longrope"])
@pytest.mark.parametrize("trained", [64, 32])
def test_the_patch_is_the_remedy(name: str, trained: int, tmp_path: Path) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path / "plain")
    model: Any = load(f"hf:{tmp_path / 'plain'}")
    assert model.spec.train_length == 64
    found = (
        [longrope(model.spec, trained, 256, 2)]
        if name == "longrope"
        else remedies_for(model.spec, trained, 256, [name])[0]
    )
    change = patch(found[0], model.spec, trained, 256)
    path = write_config(config_of(model), tmp_path / "patched", change["transformers"])
    shutil.copy(tmp_path / "plain" / "model.safetensors", path.parent)
    windows = torch.randint(3, VOCABULARY, (1, 257), generator=torch.Generator().manual_seed(5))
    patched = load(f"hf:{path.parent}").losses(windows, 0)
    assert torch.allclose(found[0].applied(model).losses(windows, 0), patched, atol=2e-4)
    assert not torch.allclose(model.losses(windows, 0), patched, atol=2e-4)
    # The line of Python is the same remedy.
    line = change["headscape"]
    if "evaluate" not in line:
        again = eval(line, {"headscape": headscape, "model": model})  # noqa: S307
        assert torch.allclose(again.losses(windows, 0), patched, atol=2e-4)
    assert ("evaluate" in line) == (trained == 64 and name not in {"prope", "longrope"})
    with pytest.raises(InputError, match="exists already"):
        write_config(config_of(model), tmp_path / "patched", change["transformers"])


def test_patches_of_servers_mean_the_remedy() -> None:
    spec = load(FAMILIES["llama"].build()).spec
    made = {each.name: patch(each, spec, 64, 256) for each in remedies_for(spec, 64, 256)[0]}
    # Their dynamic NTK has a fixed factor, and a factor of 1 stretches nothing.
    assert made["dynamic"]["vllm"] is made["dynamic"]["sglang"] is None
    for server in ("vllm", "sglang"):
        # Without these, their LongRoPE multiplies cos and sin by a number of its own.
        assert '"short_mscale": 1.0' in made["prope"][server]
        assert '"long_mscale": 1.0' in made["prope"][server]
        assert "mscale" not in made["yarn"][server]
    assert "short_mscale" not in made["prope"]["transformers"]["rope_parameters"]
    [yarn], _ = remedies_for(spec, 64, 256, ["yarn"])
    kept = patch(yarn, spec, 64, 256, {"mrope_section": [2, 1, 1], "rope_type": "default"})
    assert kept["transformers"]["rope_parameters"]["mrope_section"] == [2, 1, 1]
    assert kept["transformers"]["rope_parameters"]["rope_type"] == "yarn"
    assert '"mrope_section": [2, 1, 1]' in kept["vllm"]
    assert "rope_scaling" in kept["note"]


def test_a_remedy_that_is_no_setting_has_no_patch(tmp_path: Path) -> None:
    model = trained("rope")
    [remedy], _ = remedies_for(model.spec, TRAINED, LENGTH, ["clip"])
    change = patch(remedy, model.spec, TRAINED, LENGTH)
    assert change["transformers"] is change["vllm"] is None
    assert change["headscape"].endswith(f'remedied(model, "clip", {LENGTH}, trained={TRAINED})')
    with pytest.raises(InputError, match="not a setting of transformers"):
        write_config({}, tmp_path / "new", None)


def test_remedies_say_why_they_do_not_apply() -> None:
    spec = trained("fox").spec
    chosen, refused = remedies_for(spec, TRAINED, LENGTH)
    assert {each.name for each in chosen} == {"log", "sinks", "chunk", "stretch", "clip-bias"}
    assert set(refused) == set(REMEDIES) - {each.name for each in chosen}
    with pytest.raises(InputError, match="does not apply to fox"):
        remedied(trained("fox"), "yarn", LENGTH)


def test_the_command(tmp_path: Path) -> None:
    from headscape.cli.app import app

    gpt2 = hs.GPT2.from_preset("nano", encoding="rope", vocabulary=257, train_length=32)
    hs.load(gpt2, tokenizer="bytes").save(tmp_path / "model")
    (tmp_path / "text.txt").write_text("A line of text that repeats itself. " * 60)
    out = tmp_path / "out"
    words = ["diagnose", str(tmp_path / "model"), "--length", "64", "--quick", "--text"]
    words += [str(tmp_path / "text.txt"), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (out / "diagnosis.html").is_file()
    assert str(out / "diagnosis.html") in done.output
    assert not any((out / "stages").glob("*.part"))


def test_the_command_reads_several_files_and_standard_input(tmp_path: Path) -> None:
    from headscape.cli.app import app

    gpt2 = hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257, train_length=32)
    hs.load(gpt2, tokenizer="bytes").save(tmp_path / "model")
    (tmp_path / "one, two.txt").write_text("A line of text that repeats itself. " * 20)
    out = tmp_path / "out"
    words = ["diagnose", str(tmp_path / "model"), "--length", "64", "--quick", "--questions", "0"]
    words += ["--text", str(tmp_path / "one, two.txt"), "--text", "-", "--out", str(out)]
    done = CliRunner().invoke(app, words, input="Other words, again and again. " * 20)
    assert done.exit_code == 0, done.output
    assert "of 2 texts" in (out / "diagnosis.md").read_text()


def test_windows_are_taken_from_all_texts() -> None:
    one, two, short = np.arange(450), 1000 + np.arange(250), 2000 + np.arange(50)
    scored, searched = windows_of([one, two, short], 99, 8, "3 texts")
    starts = [int(window[0]) for window in scored]
    assert starts == [0, 100, 200, 300, 1000]
    assert int(searched[0]) == 1100
    with pytest.raises(InputError, match="3 texts have at most 450 tokens each"):
        windows_of([one, two, short], 499, 8, "3 texts")
    model = trained("alibi", steps=1)
    several = hs.diagnose(model, 64, [text(300), text(300)], quick=True, questions=0, remedies=[])
    assert several.data["about"]["text"] == "2 texts"
    single = hs.diagnose(model, 64, [text(300)], quick=True, questions=0, remedies=[])
    assert single.data["loss"] == several.data["loss"]


def test_a_model_of_transformers_in_memory() -> None:
    theirs = FAMILIES["llama"].build(initializer_range=0.02)
    given: dict[str, Any] = {"quick": True, "questions": 0, "remedies": ["clip"]}
    found = hs.diagnose(theirs, 128, tokens_for_llama(), **given)
    assert found.data == hs.diagnose(load(theirs), 128, tokens_for_llama(), **given).data
    with pytest.raises(InputError, match="load takes a folder"):
        hs.diagnose(3, 128, tokens_for_llama())  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [300, 48])
def test_the_search_of_a_quick_diagnosis_reads_a_window_that_is_not_scored(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or says that it is scored, where the text has no other."""
    seen: dict[bool, list[np.ndarray]] = {True: [], False: []}
    real = whole.FarPlan.losses

    def losses(self: Any, model: ChangedModel, number: int) -> list[float]:
        # One window is searched with several gaps.
        same = bool((self.windows == self.windows[0]).all())
        searching = same and "longrope" in getattr(model, "_mark", "")
        assert not searching or length == 48 or len(set(self.gaps)) > 1
        seen[searching].append(self.windows[number])
        return real(self, model, number)

    monkeypatch.setattr(whole.FarPlan, "losses", losses)
    count = 4000 if length == 300 else 49
    found = hs.diagnose(
        trained("rope"), length, text(count), quick=True, questions=0, remedies=["longrope"]
    )
    [row] = found.data["remedies"]
    scored = {window.tobytes() for window in seen[False]}
    searched = {window.tobytes() for window in seen[True]}
    if length == 300:
        assert searched
        assert not searched & scored
        assert row["text"].endswith("a window that is not scored")
    else:
        assert row["text"].endswith("a window that is scored, as the text has no other")


def test_a_bidirectional_model_is_refused() -> None:
    gpt2 = hs.GPT2.from_preset("nano", encoding="rope", vocabulary=257, causal=False)
    with pytest.raises(InputError, match="does not predict the next token"):
        hs.diagnose(GPT2Model(gpt2), 1024, list(range(200)) * 20)


def test_quick_leaves_out_only_what_was_not_asked_for() -> None:
    chosen = hs.diagnose(
        trained("rope"), LENGTH, text(), quick=True, questions=0, effects=1, remedies=["longrope"]
    )
    assert [each["name"] for each in chosen.data["remedies"]] == ["longrope"]
    assert not any("remedies:" in each for each in chosen.data["about"]["left_out"])
    assert not any("effects" in each for each in chosen.data["about"]["left_out"])
    usual = hs.diagnose(trained("rope"), LENGTH, text(), quick=True, questions=0)
    left_out = " ".join(usual.data["about"]["left_out"])
    assert "no effects of single heads" in left_out
    assert "remedies: LongRoPE-type factors, window with sinks, chunks" in left_out
    assert "compared at far positions in short windows" in left_out


def test_the_searched_remedy_says_why_it_does_not_apply() -> None:
    found = hs.diagnose(
        trained("fox"), LENGTH, text(), quick=True, questions=0, remedies=["longrope"]
    )
    assert found.data["remedies"] == []
    assert found.data["refused"] == {"longrope": "it changes RoPE, and the encoding is fox"}


def test_an_offloaded_model_has_the_same_diagnosis(tmp_path: Path) -> None:
    FAMILIES["llama"].build(initializer_range=0.02).save_pretrained(tmp_path)
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, size=2000)
    offloaded, in_memory = (
        hs.diagnose(load(f"hf:{tmp_path}", offload=offload), 128, tokens, quick=True, questions=0)
        for offload in (True, False)
    )
    assert offloaded.data["loss"] == in_memory.data["loss"]
    assert offloaded.data["remedies"] == in_memory.data["remedies"]


def test_the_command_has_the_options_of_published_models(tmp_path: Path) -> None:
    from headscape.cli.app import app

    words = ["diagnose", str(tmp_path), "--length", "64", "--offload"]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith("--offload is for published models (hf:)")


def tokens_for_llama() -> np.ndarray:
    return np.random.default_rng(0).integers(3, VOCABULARY, size=2000)


@pytest.mark.parametrize("folder", [True, False])
def test_apply_writes_a_config_of_a_folder_and_of_a_model_in_memory(
    folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = FAMILIES["llama"].build()
    theirs.save_pretrained(tmp_path / "plain")
    # No remedy helps a random model, so the first setting is taken as the best.
    monkeypatch.setattr(
        whole, "best_of", lambda _, tried, *__, **___: next(t for t in tried if t.remedy.rope)
    )
    source = f"hf:{tmp_path / 'plain'}" if folder else load(theirs)
    given: dict[str, Any] = {"quick": True, "questions": 0, "remedies": ["clip", "yarn"]}
    found = hs.diagnose(source, 128, tokens_for_llama(), apply=tmp_path / "new", **given)
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert found.data["advice"]["setting"]["remedy"] == "yarn"
    assert config["rope_parameters"]["rope_type"] == "yarn"
    assert config["max_position_embeddings"] == 128
    plain = json.loads((tmp_path / "plain" / "config.json").read_text())
    changed = {"rope_parameters", "max_position_embeddings", "transformers_version"}
    assert {k: v for k, v in plain.items() if k not in changed} == {
        k: v for k, v in config.items() if k not in changed
    }
    shutil.copy(tmp_path / "plain" / "model.safetensors", tmp_path / "new")
    assert load(f"hf:{tmp_path / 'new'}").spec.layers[0].conventions["scaling"] == "yarn"


def test_settings_of_a_run_are_listed_by_layer() -> None:
    gpt2 = hs.GPT2.from_preset("nano", encoding="rope:window=8,rope", vocabulary=64)
    rows = {row["name"]: row["active"] for row in whole._config(load(gpt2), None, 64)}
    assert rows["base"] == "10000.0"
    assert (rows["window, layer 1"], rows["window, layer 2"]) == ("8", "none")


def test_a_loss_that_is_not_finite_is_refused_and_never_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {"quick": True, "questions": 0, "remedies": ["ntk", "clip"]}
    real = ChangedModel.losses_at

    def broken(mark: str) -> Any:
        def losses(self: ChangedModel, windows: Any, at: Any) -> Any:
            found = real(self, windows, at)
            return found * torch.nan if mark in self._mark else found

        return losses

    # A remedy that breaks is named with the reason, and the others are ranked.
    monkeypatch.setattr(ChangedModel, "losses_at", broken("ntk"))
    found = hs.diagnose(trained("rope"), LENGTH, text(), **given)
    assert "is not finite" in found.data["refused"]["ntk"]
    assert [each["name"] for each in found.data["remedies"]] == ["clip"]
    # A model that breaks is no model that holds.
    monkeypatch.setattr(ChangedModel, "losses_at", broken(""))
    with pytest.raises(InputError, match="is not finite: load it in float32 or bfloat16"):
        hs.diagnose(trained("rope"), LENGTH, text(), **given)


def test_the_best_remedy_with_a_setting_is_named_beside_a_better_one_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No setting helps this model, so the first one is taken as the best of them.
    def best_of(_: Any, tried: Any, *__: Any, setting: bool = False) -> Any:
        return next(each for each in tried if bool(each.remedy.rope) or not setting)

    monkeypatch.setattr(whole, "best_of", best_of)
    given: dict[str, Any] = {"quick": True, "questions": 0, "remedies": ["clip", "yarn"]}
    found = hs.diagnose(trained("rope"), LENGTH, text(), **given)
    advice, text_of_page = found.data["advice"], found.to_markdown()
    assert (advice["best"], advice["setting"]["remedy"]) == ("clip", "yarn")
    assert advice["patch"]["vllm"] is None
    assert advice["setting"]["vllm"].startswith("--hf-overrides")
    assert found.setting_sentence is not None
    assert found.setting_sentence.startswith("Other software has no setting for clipped positions")
    assert "| vllm | --hf-overrides" in text_of_page
    alone = hs.diagnose(trained("rope"), LENGTH, text(), **{**given, "remedies": ["yarn"]})
    assert alone.setting_sentence is None
    assert "| vllm | --hf-overrides" in alone.to_markdown()


def test_what_cannot_be_applied_is_refused_before_anything_runs(tmp_path: Path) -> None:
    model: Any = load(FAMILIES["llama"].build())
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (trained("rope"), {}, "is not a model of transformers"),
        (model, {"remedies": ["clip"]}, r"\(clip\) is a setting of transformers"),
        (load(FAMILIES["gemma3"].build()), {}, "RoPE parameters per layer type"),
    ]
    for given, more, message in cases:
        with pytest.raises(InputError, match=message):
            hs.diagnose(
                given, 128, tokens_for_llama() % 24, out=tmp_path, apply=tmp_path / "new", **more
            )
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="exists already"):
        hs.diagnose(model, 128, tokens_for_llama(), out=tmp_path, apply=tmp_path / "new")
    assert not (tmp_path / "stages").exists()


def test_a_multimodal_config_is_changed_in_its_text_part(tmp_path: Path) -> None:
    config = {"model_type": "both", "text_config": {"rope_scaling": {}, "hidden_size": 8}}
    write_config(config, tmp_path, {"rope_parameters": {"rope_type": "yarn"}})
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["text_config"] == {"hidden_size": 8, "rope_parameters": {"rope_type": "yarn"}}


def test_a_quick_diagnosis_reads_one_long_window_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    real = ChangedModel._rows

    def counted(self: Any, tokens: torch.Tensor, at: torch.Tensor) -> Any:
        passes.append(tokens.shape[1])
        return real(self, tokens, at)

    monkeypatch.setattr(ChangedModel, "_rows", counted)
    found = hs.diagnose(trained("rope"), LENGTH, text(), quick=True)
    assert [count for count in passes if count > TRAINED] == [LENGTH]
    # Sixteen keys are far here, too few for the loss that 240 cause, so no cause is named.
    assert found.findings == ["breaks"]
    assert "Far positions alone do not explain the excess" in found.sentence
    assert "diagnosis that is not quick" in found.sentence
    caused = whole._cause({**found.data, "past_half": [0.3, 0.1, 0.5]})
    assert caused is not None
    assert caused["kind"] == "positions"
    assert whole._cause({**found.data, "past_half": [0.3, -0.1, 0.5]}) is None
    rows = {each["name"]: each for each in found.data["remedies"]}
    assert len(rows) >= 8
    assert rows["clip"]["gain"][1] > 0
    assert "at far positions" in found.sentence
    monkeypatch.undo()
    # The measures of that pass are those of a pass of their own.
    windows, _ = windows_of([text()], LENGTH, 1, "a text")
    expected = measured(ChangedModel(trained("rope")), windows[0, :-1])["measures"]
    in_one_pass = found.data["heads"]["by_length"][str(LENGTH)]
    assert all(
        np.allclose(np.array(in_one_pass[name], float), np.array(table, float), equal_nan=True)
        for name, table in expected.items()
    )


def test_far_losses_are_those_of_positions_with_a_gap() -> None:
    model = trained("rope")
    found = hs.diagnose(model, LENGTH, text(), quick=True, questions=0, remedies=["linear"])
    windows, _ = windows_of([text()], TRAINED, 96, "a text")
    gpt2 = model.gpt2
    tokens = torch.from_numpy(windows)
    half, scored = TRAINED // 2, 3 * TRAINED // 4
    where = torch.arange(TRAINED)
    # The farthest ends with the text; the nearest leaves no scored pair below the trained length.
    gaps = torch.tensor(far_positions.gaps(TRAINED, LENGTH, TRAINED, 96))
    assert found.data["far"]["gaps"] == [TRAINED - TRAINED // 4, LENGTH - TRAINED]
    at = where + gaps[:, None] * (where >= half)
    moved = Positions(at, at)
    with torch.no_grad():
        x = gpt2.tokens(tokens[:, :-1])
        for block in gpt2.blocks:
            x = block.finish(  # type: ignore[operator]
                x,
                block.attention(block.norm1(x), moved, Visible(True), None, "auto", None),  # type: ignore[operator]
            )
        logits = gpt2.logits(gpt2.norm(x))[:, scored:]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens[:, 1 + scored :].flatten()
    )
    assert found.data["far"]["loss"][0] == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize(("trained_length", "count"), [(32, 96), (512, 6), (8192, 6), (8192, 4)])
def test_gaps_are_spread_and_have_no_common_step(trained_length: int, count: int) -> None:
    tokens, length = min(512, trained_length), 4 * trained_length
    found = far_positions.gaps(trained_length, length, tokens, count)
    assert (found[0], found[-1]) == (length - tokens, trained_length - tokens // 4)
    # The nearest pair of a scored query and a key before the gap is L apart.
    assert 3 * tokens // 4 + found[-1] - (tokens // 2 - 1) >= trained_length
    steps = -np.diff(found)
    assert max(steps) < 2.7 * (found[0] - found[-1]) / (count - 1)
    if count < 10:
        # No period brings every gap to the same angle.
        shortest = min(steps[steps > 0])
        for period in np.linspace(shortest / 4, 2 * shortest, 500):
            angle = np.exp(2j * np.pi * np.array(found) / period)
            assert abs(angle.mean()) < 0.99


def test_a_remedy_that_is_good_at_one_gap_only_is_not_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rotations come round again: at one distance a remedy may look like a cure."""

    def cures_the_end(layer: int, call: Any) -> Any:
        q, k = call.positions.q, call.positions.k
        if int(q.max()) != LENGTH - 1 or q.shape[1] != TRAINED:
            return call
        rotations = Rotations(trained("rope").spec)
        later = (LENGTH - TRAINED) * (torch.arange(TRAINED) >= TRAINED // 2)
        q, k = rotations.turned(layer, call, (q - later, k - later))
        return replace(call, q=q, k=k)

    def no_reason(_: Any) -> None:
        return None

    cures_the_end.refuses = no_reason  # type: ignore[attr-defined]
    alias = Remedy(name="alias", title="alias", text="a cure at one gap", change=cures_the_end)
    monkeypatch.setitem(REMEDIES, "alias", lambda *_: alias)
    given: dict[str, Any] = {"quick": True, "questions": 0}
    found = hs.diagnose(trained("rope"), LENGTH, text(), remedies=["alias", "clip"], **given)
    rows = {each["name"]: each for each in found.data["remedies"]}
    assert found.data["advice"]["best"] == "clip"
    assert rows["alias"]["gain"][0] < 0.1 < rows["clip"]["gain"][0]
    # With its one gap in every window it would be the best.
    monkeypatch.setattr(far_positions, "gaps", lambda _, length, t, n: (length - t,) * n)
    found = hs.diagnose(trained("rope"), LENGTH, text(), remedies=["alias", "clip"], **given)
    assert found.data["advice"]["best"] == "alias"


@pytest.mark.parametrize(
    ("past_half", "kind"),
    [
        ([0.2, 0.1, 0.3], "positions"),
        ([-0.2, -0.3, -0.1], "keys"),
        ([0.2, -0.1, 0.5], "cause-unclear"),
        ([-0.2, -0.5, 0.1], "cause-unclear"),
        ([0.2, None, None], "cause-unclear"),
    ],
)
def test_a_cause_is_named_if_its_interval_is_on_one_side_of_half(
    past_half: list[float | None], kind: str, broken: Any
) -> None:
    caused = whole._cause({**broken.data, "past_half": past_half})
    assert caused is not None
    assert caused["kind"] == kind
    assert ("cannot tell" in caused["text"]) == (kind == "cause-unclear")


def test_the_control_has_several_gaps() -> None:
    spec = trained("rope").spec
    changes = control_changes(spec, TRAINED, LENGTH, 4)
    assert [each.by for each in changes] == [224, 148, 71, 24]
    assert [each.by for each in control_changes(spec, TRAINED, LENGTH, 1)] == [224]
    found = hs.diagnose(trained("rope"), LENGTH, text(), quick=True, questions=0, remedies=[])
    windows, _ = windows_of([text()], LENGTH, 1, "a text")
    tables = [
        measured(ChangedModel(trained("rope"), gap, name="g", mark="g"), windows[0, :TRAINED], gap)
        for gap in control_changes(spec, TRAINED, LENGTH, 2)
    ]
    for name in ("sink", "entropy"):
        expected = np.mean([each["measures"][name] for each in tables], axis=0)
        assert np.allclose(found.data["heads"]["control"][name], expected)


def test_retrieval_by_head_is_the_weight_on_the_copied_token() -> None:
    gpt2 = hs.GPT2.from_preset("nano", encoding="rope", vocabulary=257, train_length=256)
    model = GPT2Model(gpt2)
    pool = np.random.default_rng(0).integers(256, size=3000)
    marks, weight = copying_heads(model, 256, 1, pool)
    asked = question("copy", 0, 256, COPY_DEPTH, pool, None)
    assert asked is not None
    tokens = np.concatenate([asked.text, asked.answer])
    first = next(at for at in range(256) if tokens[at : at + 16].tolist() == asked.answer.tolist())
    calls: list[Any] = []
    model.observe(torch.from_numpy(tokens[:-1])[None], range(2), lambda _, c: calls.append(c))
    for layer, call in enumerate(calls):
        weights = scores(call).weights[0]
        expected = sum(weights[:, len(asked.text) - 1 + n, first + n] for n in range(16)) / 16
        assert np.allclose(weight[layer], expected, atol=1e-6)
    assert len(marks) == 1
    found = hs.diagnose(model, 512, pool, quick=True, windows=1)
    heads = found.data["heads"]
    assert np.allclose(heads["by_length"]["256"]["retrieval"], weight)
    assert heads["control"]["retrieval"][0][0] != heads["by_length"]["256"]["retrieval"][0][0]
    assert "retrieval_256" in found.heads_csv().splitlines()[0]
    assert "The 5 heads with most of it" in found.to_html()
