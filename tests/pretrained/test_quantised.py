"""Small models with quantised weights: FP8 and MXFP4 as published folders store them, and others.

transformers turns FP8 and MXFP4 into bfloat16 on the CPU.
"""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import headscape as hs
from headscape.errors import InputError
from headscape.models.transformers import offload, open_published
from pretrained.test_families import tokens

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
BLOCK = 128
"""FP8 has one scale for a block of so many rows and columns."""
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The 16 numbers of FP4, in the order of their codes."""


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """transformers warns on stderr that there is no GPU, once per process."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def llama_fp8(folder: Path) -> dict[str, torch.Tensor]:
    """Write a Llama in FP8; return its weights as the stored numbers say."""
    config = transformers.LlamaConfig(
        vocab_size=80, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
    )  # fmt: skip
    return write_fp8(folder, transformers.LlamaForCausalLM(config))


def deepseek_fp8(folder: Path) -> dict[str, torch.Tensor]:
    """Write a DeepSeek-V3 in FP8, its experts one by one; return its weights."""
    config = transformers.DeepseekV3Config(
        vocab_size=80, hidden_size=128, intermediate_size=128, moe_intermediate_size=64,
        num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=64,
        kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=32,
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        first_k_dense_replace=1, initializer_range=0.3,
    )  # fmt: skip
    return write_fp8(folder, transformers.DeepseekV3ForCausalLM(config))


def write_fp8(folder: Path, model: Any) -> dict[str, torch.Tensor]:
    model.bfloat16().save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    stored: dict[str, torch.Tensor] = {}
    for name, weight in list(weights.items()):
        if weight.ndim != 2 or "_proj" not in name:
            stored[name] = weight
            continue
        rows, columns = weight.shape
        whole = torch.zeros(-(-rows // BLOCK) * BLOCK, -(-columns // BLOCK) * BLOCK)
        whole[:rows, :columns] = weight.float()
        blocks = whole.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        scale = blocks.abs().amax(dim=(1, 3)) / 448
        packed = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        real = (packed.float() * scale[:, None, :, None]).flatten(2).flatten(0, 1)
        stored[name] = packed.flatten(2).flatten(0, 1)[:rows, :columns].contiguous()
        stored[f"{name}_scale_inv"] = scale
        weights[name] = real[:rows, :columns].bfloat16().contiguous()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    quantised(
        folder, quant_method="fp8", activation_scheme="dynamic", fmt="e4m3",
        weight_block_size=[BLOCK, BLOCK],
    )  # fmt: skip
    return weights


def gpt_oss_mxfp4(folder: Path) -> dict[str, torch.Tensor]:
    """Write a GPT-OSS whose experts are in MXFP4; return its weights as the stored numbers say."""
    config = transformers.GptOssConfig(
        vocab_size=80, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=4,
        num_experts_per_tok=2, initializer_range=0.3,
    )  # fmt: skip
    transformers.GptOssForCausalLM(config).bfloat16().save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    stored: dict[str, torch.Tensor] = {}
    random = torch.Generator().manual_seed(0)
    for name, weight in list(weights.items()):
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = weight
            continue
        experts, given, made = weight.shape
        codes = torch.randint(16, (experts, made, given // 32, 32), generator=random)
        powers = torch.randint(122, 126, (experts, made, given // 32), generator=random)
        stored[f"{name}_blocks"] = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        stored[f"{name}_scales"] = powers.to(torch.uint8)
        real = torch.tensor(FP4)[codes] * 2.0 ** (powers[..., None] - 127)
        weights[name] = real.flatten(2).transpose(1, 2).bfloat16().contiguous()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    quantised(
        folder, quant_method="mxfp4",
        modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                "model.embed_tokens", "lm_head"],
    )  # fmt: skip
    return weights


def quantised(folder: Path, **how: Any) -> None:
    """Say in a model's config how its weights are quantised."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": how}))


WRITERS = {"llama": llama_fp8, "deepseek": deepseek_fp8, "gpt-oss": gpt_oss_mxfp4}


@pytest.fixture(params=list(WRITERS))
def stored(request: Any, tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A folder with quantised weights, and the weights."""
    torch.manual_seed(0)
    folder = tmp_path / request.param
    return folder, WRITERS[request.param](folder)


def plain(folder: Path, weights: dict[str, torch.Tensor], into: Path) -> Path:
    """Write the same model with its weights in bfloat16."""
    into.mkdir()
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (into / "config.json").write_text(json.dumps(config))
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    return into


def test_stored_weights_are_the_numbers_they_stand_for(
    stored: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    folder, weights = stored
    expected: Any = hs.load(f"hf:{plain(folder, weights, tmp_path / 'plain')}", dtype="bfloat16")
    found: Any = hs.load(f"hf:{folder}")
    assert {each.dtype for each in found.model.parameters()} == {torch.bfloat16}
    assert found.spec.layers == expected.spec.layers
    assert torch.equal(found.losses(tokens(), 0), expected.losses(tokens(), 0))
    text = tokens()[0].tolist()
    ours, theirs = found.capture(text), expected.capture(text)
    assert np.array_equal(ours.weights(layer=-1, head=1), theirs.weights(layer=-1, head=1))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_offloaded_they_give_the_same_numbers(
    stored: tuple[Path, dict[str, torch.Tensor]],
    dtype: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offload, "KEPT", 2000)
    folder, _ = stored
    whole: Any = hs.load(f"hf:{folder}", dtype=dtype)
    streamed: Any = hs.load(f"hf:{folder}", dtype=dtype, offload=True)
    assert streamed.stream is not None
    assert streamed.fingerprint == whole.fingerprint
    assert torch.equal(streamed.losses(tokens(), 0), whole.losses(tokens(), 0))


def test_their_size_is_that_of_the_dtype_they_are_read_into(
    stored: tuple[Path, dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, weights = stored
    size = sum(2 * weight.numel() for weight in weights.values())
    monkeypatch.setattr(open_published, "free_bytes", lambda: int(0.9 * size))
    with pytest.raises(InputError, match=r"GB in bfloat16, and .* free: open it with offload"):
        hs.load(f"hf:{folder}", offload=False)
    monkeypatch.setattr(open_published, "free_bytes", lambda: size)
    hs.load(f"hf:{folder}", offload=False)


@pytest.mark.parametrize(
    ("how", "size"),
    [
        ({"quant_method": "fp8"}, 2),
        ({"quant_method": "mxfp4"}, 2),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_threshold": 6.0}, 0.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1),
        ({"quant_method": "gptq", "bits": 8}, 1),
        ({"quant_method": "gptq", "bits": 4}, 0.5),
        ({"quant_method": "quanto", "weights": "int8"}, 1),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}},
         1),
    ],
)  # fmt: skip
def test_bytes_of_a_weight(how: dict[str, Any], size: float) -> None:
    config = transformers.LlamaConfig(quantization_config=how)
    assert open_published.bytes_per_weight(config, torch.bfloat16) == size


def bits_and_bytes(**how: Any) -> Callable[[], Any]:
    return lambda: transformers.BitsAndBytesConfig(**how)


@pytest.mark.parametrize(
    "how",
    [
        bits_and_bytes(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
        bits_and_bytes(load_in_8bit=True),
    ],
    ids=["nf4", "int8"],
)
# bitsandbytes warns about dtypes that it casts.
@pytest.mark.filterwarnings("default")
def test_bits_and_bytes_live_and_stored(how: Callable[[], Any], tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    config = transformers.LlamaConfig(
        vocab_size=80, hidden_size=128, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "plain")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=how(), dtype=torch.bfloat16
    )
    model = hs.load(theirs)
    assert [layer.encoding for layer in model.spec.layers] == ["rope", "rope"]
    packed = tmp_path / "packed"
    theirs.save_pretrained(packed)
    stored = transformers.AutoModelForCausalLM.from_pretrained(packed, dtype="auto")
    text = tokens()[0].tolist()
    expected = hs.load(stored).capture(text).weights(layer=-1, head=0)
    found = hs.load(f"hf:{packed}").capture(text).weights(layer=-1, head=0)
    assert np.array_equal(found, expected)
    with pytest.raises(InputError, match=r"weights \(bitsandbytes\), which cannot be offloaded"):
        hs.load(f"hf:{packed}", offload=True)
