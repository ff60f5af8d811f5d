"""What our attention and set_encoding cannot do is refused in one sentence, or passed on once."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from headscape.errors import InputError
from headscape.huggingface import load, register, set_attention, set_encoding
from headscape.huggingface.attend import attention_function
from huggingface.small_models import build, inputs
from pretrained.families import FAMILIES

transformers = pytest.importorskip("transformers")


def llama(**fields: Any) -> Any:
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**FAMILIES["llama"].config, **fields})
    )
    set_attention(model)
    return model


@pytest.mark.parametrize("name", ["mpt", "falcon", "gptj"])
def test_a_model_with_attention_of_its_own(name: str) -> None:
    model = FAMILIES[name].build()
    for change in (set_attention, lambda m: set_encoding(m, "alibi")):
        with pytest.raises(InputError, match="computes attention in its own code"):
            change(model)


def test_a_model_built_with_our_attention_that_bypasses_it() -> None:
    register()
    model = FAMILIES["mpt"].build()
    model.config._attn_implementation = "headscape"
    with pytest.raises(InputError, match="mpt computes attention in its own code"):
        model(torch.ones(1, 4, dtype=torch.long))


def test_an_unsupported_dtype() -> None:
    with pytest.raises(InputError, match=r"LlamaAttention cannot run .* not float64"):
        llama().double()(torch.ones(1, 4, dtype=torch.long))


def test_an_unsupported_head_dim() -> None:
    with pytest.raises(InputError, match="multiples of 8 up to 256, not 12"):
        llama(head_dim=12)(torch.ones(1, 4, dtype=torch.long))


def test_dropout_weights_and_a_written_mask() -> None:
    model, tokens = llama(attention_dropout=0.1), torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(InputError, match=r"no attention dropout, got 0\.1; set it to 0"):
        model.train()(tokens)
    with pytest.raises(InputError, match="attention weights"):
        model.eval()(tokens, output_attentions=True)
    with pytest.raises(InputError, match=r"written out as a tensor of shape \(1, 1, 4, 4\)"):
        model(tokens, attention_mask=torch.ones(1, 1, 4, 4, dtype=torch.bool))


def test_or_sdpa_passes_on_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_function, "_WARNED", set())
    for name in ("llama", "mistral", "t5"):
        model, other = build(name, torch.float64), build(name, torch.float64)
        set_attention(model, "headscape-or-sdpa")
        given = inputs(name, padding="left")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            logits = model(**given).logits
        assert len(found) == (1 if name == "llama" else 0)
        assert torch.equal(logits, other(**given).logits)


def test_or_sdpa_takes_a_written_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_function, "_WARNED", set())
    model, other = build("llama"), build("llama")
    set_attention(model, "headscape-or-sdpa")
    tokens, mask = torch.ones(1, 4, dtype=torch.long), torch.ones(1, 1, 4, 4).tril().bool()
    with pytest.warns(UserWarning, match="passes attention on to sdpa: its mask is written out"):
        found = model(tokens, attention_mask=mask).logits
    assert torch.equal(found, other(tokens, attention_mask=mask).logits)


def test_or_sdpa_never_drops_a_softcap() -> None:
    register()
    model = build("gemma2", torch.float64)
    model.config._attn_implementation = "headscape-or-sdpa"
    with pytest.raises(InputError, match="sdpa has no softcap and no sinks"):
        model(torch.ones(1, 4, dtype=torch.long))


def test_an_unknown_name() -> None:
    with pytest.raises(InputError, match="must be one of headscape, headscape-or-sdpa, got 'fast'"):
        set_attention(build("llama"), "fast")


@pytest.mark.parametrize(
    ("name", "encoding", "options", "message"),
    [
        ("bert", "cope", {}, "no bidirectional form"),
        ("t5", "dape+cope", {}, "no bidirectional form"),
        ("llama", "kabel", {}, "unknown encoding 'kabel'"),
        ("llama", "alibi", {"slope": 2}, "unknown field of 'alibi'"),
        ("llama", "alibi", {"layers": [9]}, "no layer 9: the model has 3 layers, counted from 0"),
        ("llama", "alibi", {"layers": []}, "layers is empty"),
        ("llama", "learned", {"layers": [1]}, "'learned' acts at the input of the whole model"),
        ("gpt2", "alibi", {"layers": [1]}, "gpt2 has its positions at the input"),
        ("llama3", "rope", {}, "scaled by 'llama3'"),
        ("opt", "alibi", {}, "does not know where opt adds its positions"),
    ],
)
def test_set_encoding_refuses(
    name: str, encoding: str, options: dict[str, Any], message: str
) -> None:
    model = build(name)
    before = model.state_dict()
    with pytest.raises(InputError, match=message) as raised:
        set_encoding(model, encoding, **options)
    assert str(raised.value).count(". ") == 0
    assert list(model.state_dict()) == list(before)
    assert model.config._attn_implementation == "sdpa"
    assert not hasattr(model.config, "headscape_encoding")


def test_an_encoding_is_never_dropped_unnoticed(tmp_path: Any) -> None:
    for name, encoding in (("llama", "alibi"), ("t5", "nope"), ("gpt2", "rope")):
        model, given = build(name), inputs(name)
        set_encoding(model, encoding)
        model.save_pretrained(tmp_path / name)
        for kind in ("sdpa", "eager"):
            model.set_attn_implementation(kind)
            with pytest.raises(InputError, match=f"attn_implementation='{kind}' would drop"):
                model(**given)
        loaded = type(model).from_pretrained(tmp_path / name)
        with pytest.raises(InputError, match=r"load it with headscape\.huggingface\.load"):
            loaded(**given)
        stored = json.loads((tmp_path / name / "config.json").read_text())
        assert stored["attn_implementation"] == "headscape"


def test_an_encoding_in_a_bloom() -> None:
    register()
    with pytest.raises(InputError, match="does not know where bloom adds its positions"):
        set_encoding(build("bloom"), "cable")


def test_load_takes_only_what_was_saved_with_an_encoding(tmp_path: Any) -> None:
    build("llama").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="load it with from_pretrained"):
        load(tmp_path)


def test_load_opens_no_pickle_that_an_index_names(tmp_path: Path) -> None:
    model = build("llama")
    set_encoding(model, "cable")
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.bin")
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "weights.bin"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"names the file 'weights.bin': weights must be"):
        load(tmp_path)


def test_without_transformers_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    block = "import sys; sys.modules['transformers'] = None; import headscape.cli.__main__"
    done = subprocess.run(
        [sys.executable, "-c", block, "export", "run", "--out", str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "need transformers: pip install 'headscape[transformers]'" in " ".join(
        done.stderr.split()
    )
    assert "Traceback" not in done.stderr
