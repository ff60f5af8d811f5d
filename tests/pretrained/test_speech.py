"""Speech models: noise from a seed, a user's array, and what cannot be read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import headscape as hs
from headscape.call.definition import scores
from headscape.captures import capture_file
from headscape.cli.app import app
from headscape.errors import InputError
from headscape.measures.context import context_dependence
from headscape.models.load import load
from headscape.plots.compare import Difference
from headscape.plots.gallery import caption
from pretrained.families import FAMILIES, SIZES
from pretrained.test_families import observed

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["wav2vec2-conformer", "wavlm", "wav2vec2-bert", "wav2vec2"])
def test_noise_comes_from_a_seed(name: str) -> None:
    model = load(FAMILIES[name].build())
    first, again, other = (model.capture(length=19, seed=seed, layers="all") for seed in (1, 1, 2))
    assert first.length == 19
    assert np.array_equal(first.final(layer=0, head=1), again.final(layer=0, head=1))
    assert not np.array_equal(first.final(layer=0, head=1), other.final(layer=0, head=1))
    assert first.sequence["seed"] == 1
    assert model.capture().length == 128


@pytest.mark.parametrize("name", ["wav2vec2-conformer", "wav2vec2-bert"])
def test_a_users_sound_is_what_the_model_reads(name: str) -> None:
    family = FAMILIES[name]
    model = load(family.build())
    sound = family.read(21)
    cap = model.capture(sound[0].numpy(), layers="all")
    assert cap.length == 21
    # An array is read in float32.
    every = observed(model, given=sound.float())
    for layer, inputs in every.items():
        expected = scores(inputs).final[0].numpy()
        np.testing.assert_allclose(cap.final(layer, 2), expected[2], rtol=1e-3, atol=1e-3)
    cut = model.capture(sound[0], length=9, layers=[0])
    assert cut.length == 9


def test_captures_of_different_sounds_are_not_said_to_be_the_same() -> None:
    model = load(FAMILIES["wav2vec2-bert"].build())
    one, other = (model.capture(length=9, seed=seed) for seed in (1, 2))
    assert "different input" in Difference.of(one, other).heading
    assert "different input" not in Difference.of(one, one).heading
    assert "9 frames (corpus noise, seed 1)" in caption(one, 2, "bias")


def test_a_capture_of_sound_speaks_of_frames(tmp_path: Path) -> None:
    cap = load(FAMILIES["wavlm"].build()).capture(length=60, layers="all")
    assert "60 frames" in repr(cap)
    assert cap.pack().header["unit"] == "frame"
    labels = set()
    views = (
        cap.grid(),
        cap.curves(),
        cap.row(),
        hs.compare(cap, cap),
        cap.curves(width=3.3, columns=2),
    )
    for view in views:
        figure = view.draw()
        labels |= {axes.get_xlabel() for axes in figure.axes} | {
            a.get_ylabel() for a in figure.axes
        }
        legends = [text.get_text() for legend in figure.legends for text in legend.texts]
        assert not any("token" in text for text in [*legends, figure.get_suptitle()])
    shown = {
        "Key frame",
        "Query frame",
        "Distance in frames",
        "Distance in frames (query \N{MINUS SIGN} key)",
    }
    assert shown <= labels
    assert not any("position" in label and "ositional" not in label for label in labels)
    assert cap.row(query=7).heading.endswith("of query frame 8, position 7")
    with pytest.raises(InputError, match="not in this capture of 60 frames"):
        cap.row(query=60)
    with pytest.raises(InputError, match="captures of 60, 9 frames cannot be compared"):
        hs.compare(cap, load(FAMILIES["wavlm"].build()).capture(length=9))
    assert "across frames" in caption(cap, 2, "bias", cap.measures(context=_context(cap)))


def _context(cap: Any) -> Any:
    found = context_dependence(cap.bias(layer) for layer in (0, 1, 2) for _ in range(6))
    return dict.fromkeys(cap.layers, found)


@pytest.mark.parametrize(
    ("name", "sound", "message"),
    [
        ("wavlm", np.zeros((4, 3)), r"samples \[n\], got shape \(4, 3\)"),
        ("wavlm", np.zeros(4), "has 0 frames, fewer than the 1 needed: give at least 11 samples"),
        ("wav2vec2-bert", np.zeros((4, 3)), r"frames \[t, 14\], got shape \(4, 3\)"),
        ("wav2vec2-bert", np.full((4, 14), np.nan), "contains 56 values that are NaN or inf"),
        ("wav2vec2-bert", [["a"]], r"an array of frames \[t, 14\], got list"),
        ("wav2vec2-bert", "a text", "reads sound: leave the text out"),
    ],
)
def test_what_is_no_sound_is_refused(name: str, sound: Any, message: str) -> None:
    model = load(FAMILIES[name].build())
    with pytest.raises(InputError, match=message):
        model.capture(sound)


def test_too_few_frames_and_scoring_are_refused() -> None:
    model = load(FAMILIES["wav2vec2-bert"].build())
    with pytest.raises(InputError, match="has 4 frames, fewer than the 5 needed"):
        model.capture(np.zeros((4, 14)), length=5)
    with pytest.raises(InputError, match="does not predict the next token"):
        model.losses(torch.zeros(1, 4, dtype=torch.long), 0)
    with pytest.raises(InputError, match="heads are measured on tokens"):
        model.measures([1, 2, 3])
    with pytest.raises(InputError, match=r"at least 1 token or frame, got shape \(1, 0, 14\)"):
        model.observe(torch.zeros(1, 0, 14), [0], lambda *_: None)  # type: ignore[arg-type]
    sound = torch.zeros(1, 4, 14)
    with pytest.raises(InputError, match="takes no position_ids"):
        model.observe(sound, [0], lambda *_: None, positions=torch.arange(4)[None])  # type: ignore[call-arg]


def test_capture_from_the_command_line(tmp_path: Path) -> None:
    FAMILIES["wavlm"].build().float().save_pretrained(tmp_path / "sound")
    # The tokenizer of a speech model is for its output, and is not opened.
    (tmp_path / "sound" / "vocab.json").write_text("{}")
    out = tmp_path / "c.safetensors"
    words = ["capture", f"hf:{tmp_path / 'sound'}", "--length", "30", "--layers", "all"]
    done = CliRunner().invoke(app, [*words, "--seed", "4", "--out", str(out)])
    assert done.exit_code == 0, done.output
    cap = capture_file.load(out)
    assert (cap.length, cap.encoding, cap.causal) == (30, "wavlm", False)
    said = CliRunner().invoke(app, ["encodings", "--of", f"hf:{tmp_path / 'sound'}"]).output
    assert "at the input: positional convolution" in said
    assert "layer 1-3: wavlm  buckets=16, max_distance=20, scale='head_dim'" in said


def test_a_tokenizer_for_a_speech_model_is_refused(tmp_path: Path) -> None:
    theirs = FAMILIES["wavlm"].build().float()
    theirs.save_pretrained(tmp_path / "sound")
    message = "reads sound and uses no tokenizer: leave tokenizer out"
    for source in (theirs, f"hf:{tmp_path / 'sound'}"):
        with pytest.raises(InputError, match=message):
            load(source, tokenizer="bytes")
    words = ["capture", f"hf:{tmp_path / 'sound'}", "--tokenizer", "bytes"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "c.safetensors")])
    assert done.exit_code != 0
    assert not (tmp_path / "c.safetensors").exists()


def test_a_convolution_that_does_not_run_is_not_named() -> None:
    """wav2vec2-Conformer has one among its weights and does not use it."""
    for name, expected in (("wav2vec2-conformer", None), ("wav2vec2", "positional convolution")):
        assert load(FAMILIES[name].build()).spec.provenance.get("input") == expected


def test_the_gated_table_of_the_first_layer_serves_every_layer() -> None:
    theirs = FAMILIES["wavlm"].build()
    table = theirs.encoder.layers[0].attention.rel_attn_embed.weight
    model = load(theirs)
    for layer, inputs in observed(model, given=FAMILIES["wavlm"].read(29)).items():
        assert torch.equal(inputs.bias.basis, table.T[:, None])
        encoding = model._reading.layers[layer].encoding
        own = theirs.encoder.layers[layer].attention.gru_rel_pos_const.flatten()
        assert torch.equal(encoding.constant, own)


@pytest.mark.parametrize("name", ["wav2vec2-conformer", "wav2vec2-bert-rotary"])
def test_content_is_q_k_without_position(name: str) -> None:
    """Without u, and without the rotation of the hidden states."""
    theirs = FAMILIES[name].build()
    attention = theirs.encoder.layers[0].self_attn
    seen: list[torch.Tensor] = []
    hook = attention.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["hidden_states"]), with_kwargs=True
    )
    given = FAMILIES[name].read(29)
    with torch.no_grad():
        theirs(given)
        hook.remove()
        q, k = (
            project(seen[0])[0].unflatten(-1, (6, 8)).transpose(0, 1)
            for project in (attention.linear_q, attention.linear_k)
        )
    found = scores(observed(load(theirs), given=given)[0])
    torch.testing.assert_close(found.content[0], q @ k.mT / 8**0.5)
    assert (found.final - found.content).abs().max() > 0.1


def test_a_changed_table_of_keys_is_not_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as theirs

    made = theirs._apply_relative_key_position_encoding

    def odd(module: Any, q: Any, k: Any) -> Any:
        q, bias = made(module, q, k)
        return q, bias * torch.linspace(1, 1.2, bias.shape[-1])

    monkeypatch.setattr(theirs, "_apply_relative_key_position_encoding", odd)
    spec = load(FAMILIES["wav2vec2-bert"].build()).spec
    assert {layer.encoding for layer in spec.layers} == {"unknown"}


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("ViTModel", {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1},
         "ViTModel reads pixel_values, which Headscape cannot read: use a model that reads tokens"),
        ("WhisperModel", None, "WhisperEncoder reads input_features"),
        ("LayoutLMv3Model", {**SIZES, "coordinate_size": 8, "shape_size": 8,
         "has_relative_attention_bias": True, "has_spatial_attention_bias": True,
         "visual_embed": False}, "bias by the boxes of words on a page"),
    ],
)  # fmt: skip
def test_what_is_neither_tokens_nor_sound_is_refused_by_name(
    kind: str, config: dict[str, Any] | None, message: str
) -> None:
    made = getattr(transformers, kind)
    if config is None:
        theirs = FAMILIES["whisper"].build().get_encoder()
    else:
        theirs = made(made.config_class(**config))
    with pytest.raises(InputError, match=message):
        load(theirs)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_talking_heads_are_refused() -> None:
    theirs = FAMILIES["deberta-v1"].build(talking_head=True)
    with pytest.raises(InputError, match="mixes the scores of different heads"):
        load(theirs)


def test_samples_and_frames_agree_with_the_models_own_count() -> None:
    from headscape.models.transformers.speech_model import sound_input

    theirs = FAMILIES["wavlm"].build()
    reads = sound_input(theirs, theirs.config, "input_values")
    assert reads is not None
    for samples in range(11, 80):
        assert reads.frames(samples) == int(theirs._get_feat_extract_output_lengths(samples))
        assert reads.needed(reads.frames(samples)) <= samples


def test_a_model_that_shortens_sound_in_a_different_way_is_refused() -> None:
    theirs = FAMILIES["wav2vec2"].build()
    theirs.feature_extractor.register_forward_hook(lambda _, __, found: found[:, :, ::2])
    with pytest.raises(InputError, match="attends to 12 frames where its config says 24"):
        load(theirs)
