"""Weights that are read from disk block by block give what the model in memory gives."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import headscape as hs
from headscape.call.definition import scores
from headscape.cli.app import main
from headscape.errors import InputError
from headscape.models.load import load
from headscape.models.stretched import stretch
from headscape.models.transformers import offload, open_published
from headscape.models.transformers.published_model import PublishedModel
from pretrained.families import FAMILIES
from pretrained.test_families import observed, tokens

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Llama, in several files."""
    FAMILIES["llama"].build().float().save_pretrained(tmp_path / "small", max_shard_size="30KB")
    assert len(list((tmp_path / "small").glob("*.safetensors"))) > 2
    return tmp_path / "small"


@pytest.fixture(autouse=True)
def _keep_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream weights of small models too, all but their norms, biases and tables."""
    monkeypatch.setattr(offload, "KEPT", 2000)


def opened(folder: Path, **options: Any) -> PublishedModel:
    """An offloaded model."""
    model = load(f"hf:{folder}", offload=True, **options)
    assert isinstance(model, PublishedModel)
    assert model.stream is not None
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "llama4", "gpt-oss", "afmoe", "bloom", "opt", "t5", "mpnet"]
)
def test_every_number_is_that_of_the_model_in_memory(name: str, dtype: str, tmp_path: Path) -> None:
    FAMILIES[name].build().float().save_pretrained(tmp_path)
    ours, streamed = load(f"hf:{tmp_path}", dtype=dtype), opened(tmp_path, dtype=dtype)
    assert streamed.spec == ours.spec
    assert streamed.fingerprint == ours.fingerprint
    expected, found = observed(ours), observed(streamed)
    for layer, call in expected.items():
        assert torch.equal(scores(found[layer]).final, scores(call).final)
        assert torch.equal(found[layer].v, call.v)
    if ours.spec.causal and name != "t5":
        assert torch.equal(streamed.losses(tokens(), 0), ours.losses(tokens(), 0))


def test_experts_stored_one_by_one_are_joined(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(
        hidden_size=48, intermediate_size=32, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, num_local_experts=4, vocab_size=67, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert any("experts.3.w1" in name for name in stored)
    ours, streamed = load(f"hf:{tmp_path}"), opened(tmp_path)
    assert torch.equal(streamed.losses(tokens(), 0), ours.losses(tokens(), 0))
    assert streamed.fingerprint == ours.fingerprint


def test_layers_that_the_class_leaves_out_are_left_out(tmp_path: Path) -> None:
    """DeepSeek-V3 is published with a layer behind the last, for several tokens at once."""
    config = transformers.DeepseekV3Config(
        vocab_size=67, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
        num_hidden_layers=61, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=8,
        kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, n_routed_experts=4,
        num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=60,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.DeepseekV3ForCausalLM(config).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    last = {name: weight for name, weight in stored.items() if "layers.60." in name}
    more = {name.replace("layers.60.", "layers.61."): each.clone() for name, each in last.items()}
    save_file({**stored, **more}, path, metadata={"format": "pt"})
    ours, streamed = load(f"hf:{tmp_path}"), opened(tmp_path)
    assert len(streamed.spec.layers) == 61
    assert torch.equal(streamed.losses(tokens(), 0), ours.losses(tokens(), 0))


def test_measures_edits_and_evaluation_are_the_same(folder: Path) -> None:
    ours, streamed = load(f"hf:{folder}"), opened(folder)
    text = (tokens(40)[0].tolist() * 8)[:300]
    options: dict[str, Any] = {"length": 48, "sequences": 2, "effects": 1}
    expected = ours.measures(text, **options).to_json()
    assert streamed.measures(text, **options).to_json() == expected
    batch = torch.cat([tokens(20), tokens(20).flip(1)])
    assert torch.equal(streamed.losses(batch, 3), ours.losses(batch, 3))
    assert torch.equal(streamed.predictions(batch, batch > 30), ours.predictions(batch, batch > 30))


def test_a_pass_reads_each_weight_once_and_stops_after_its_last_layer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(folder)
    read: Counter[int] = Counter()
    names = {id(each): name for name, each in model.stream._stored.items()}  # type: ignore[union-attr]
    original = offload.StoredTensor.__getitem__

    def count(self: offload.StoredTensor, index: Any) -> Any:
        read[id(self)] += 1
        return original(self, index)

    monkeypatch.setattr(offload.StoredTensor, "__getitem__", count)
    model.losses(torch.cat([tokens()] * 3), 0)
    assert {names[each] for each in read} == {
        name for name in names.values() if name != "model.norm.weight"
    }
    assert set(read.values()) == {1}
    read.clear()
    model.observe(tokens(), [1], lambda *_: None)
    seen = {names[each] for each in read}
    assert any("layers.1." in name for name in seen)
    assert not any("layers.2." in name or "lm_head" in name for name in seen)


def test_between_passes_only_small_weights_are_in_memory_and_nothing_is_written(
    folder: Path,
) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    model = opened(folder)
    model.losses(tokens(), 0)
    for weight in model.model.parameters():
        small = weight.numel() * weight.element_size() <= offload.KEPT
        assert small or weight.untyped_storage().nbytes() == weight.element_size()
        assert small == bool(weight.isfinite().all())
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_an_error_in_a_pass_leaves_the_model_usable(folder: Path) -> None:
    model = opened(folder)
    expected = model.losses(tokens(), 0)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        model.observe(tokens(), [0, 1], fail)
    assert torch.equal(model.losses(tokens(), 0), expected)


def test_weights_that_are_missing_or_of_another_shape_are_refused(tmp_path: Path) -> None:
    FAMILIES["llama"].build().float().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    every = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**every, name: every[name][:-1].clone()}, path)
    with pytest.raises(InputError, match=rf"has {name} of shape .* config needs"):
        opened(tmp_path)
    del every[name]
    save_file(every, path)
    with pytest.raises(InputError, match=f"lacks .*{name}|no weight {name}"):
        opened(tmp_path)


def test_files_that_go_away_are_one_sentence(folder: Path) -> None:
    model = opened(folder)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match=r"cannot read .*small: No such file"):
        model.losses(tokens(), 0)


def test_a_model_that_does_not_fit_is_streamed_with_a_warning_or_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(weight.numel() for weight in FAMILIES["llama"].build().parameters())
    expected = load(f"hf:{folder}").losses(tokens(), 0)
    monkeypatch.setattr(open_published, "free_bytes", lambda: 3 * size)
    sizes = r"small has .* GB in float32, and .* GB of memory are free: "
    with pytest.warns(UserWarning, match=sizes + r"every pass reads .*; in bfloat16 .* they fit"):
        model = load(f"hf:{folder}")
    assert isinstance(model, PublishedModel)
    assert model.stream is not None
    assert torch.equal(model.losses(tokens(), 0), expected)
    with pytest.raises(InputError, match=sizes + "open it in bfloat16 .* or with offload"):
        load(f"hf:{folder}", offload=False)
    load(f"hf:{folder}", dtype="bfloat16", offload=False)
    opened(folder)
    monkeypatch.setattr(open_published, "free_bytes", lambda: 100)
    with pytest.raises(InputError, match="one block of small needs"):
        opened(folder)


def test_what_cannot_be_streamed_and_does_not_fit_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAMILIES["wavlm"].build().float().save_pretrained(tmp_path / "sound")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    # Less than the weights and more than the tables.
    monkeypatch.setattr(open_published, "free_bytes", lambda: 10_000)
    for source in (folder, tmp_path / "sound"):
        with pytest.raises(InputError, match="of memory are free: choose a smaller model"):
            load(f"hf:{source}")


def exit_code(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> object:
    """What the command line ends with."""
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.filterwarnings("default")
def test_the_command_line_says_that_it_streams_or_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    size = sum(weight.numel() for weight in FAMILIES["llama"].build().parameters())
    monkeypatch.setattr(open_published, "free_bytes", lambda: 3 * size)
    words = ["headscape", "encodings", "--of", f"hf:{folder}"]
    assert exit_code(monkeypatch, words) == 0
    out, err = capfd.readouterr()
    assert out.startswith("small: 3 layers")
    assert err.startswith("warning: small has ")
    assert len(err.splitlines()) == 1
    assert exit_code(monkeypatch, [*words, "--no-offload"]) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


def test_300_gb_of_weights_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files with holes: a header that states 300 GB, and no disk space."""
    config = transformers.LlamaConfig(
        hidden_size=12288, intermediate_size=49152, num_hidden_layers=62, num_attention_heads=96,
        vocab_size=32000, dtype="bfloat16", architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(config).state_dict()
    header: dict[str, Any] = {}
    end = 0
    for name, weight in empty.items():
        start, end = end, end + 2 * weight.numel()
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [start, end]}
    assert end > 300e9
    words = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        file.truncate(8 + len(words) + end)
    monkeypatch.setattr(open_published, "free_bytes", lambda: 24 * 10**9)
    with pytest.raises(
        InputError, match=r"3\d\d GB in bfloat16, and 24 GB .* with offload"
    ) as said:
        load(f"hf:{tmp_path}", dtype="auto", offload=False)
    assert "\n" not in str(said.value)


def test_what_cannot_be_offloaded_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an offloaded model cannot be stretched"):
        stretch(opened(folder), "yarn:2")
    FAMILIES["wavlm"].build().float().save_pretrained(tmp_path / "sound")
    with pytest.raises(InputError, match="only models of text can be offloaded"):
        opened(tmp_path / "sound")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"quantised weights \(gptq\), which cannot be off"):
        opened(folder)
    with pytest.raises(InputError, match="offload is for published models"):
        hs.load(hs.GPT2.from_preset("nano", vocabulary=257), offload=True)
