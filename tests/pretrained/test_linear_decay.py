"""The decay of layers without a softmax, against the recurrences of transformers."""

import inspect
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
import transformers
from benchmarks.architectures import small_config

import headscape as hs
from headscape.captures.labels import heading
from headscape.captures.summaries import rollout
from headscape.errors import InputError
from headscape.models.transformers.linear_decay import LinearDecay, linear_decay
from pretrained.families import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTH = 19


def built(name: str) -> Any:
    torch.manual_seed(1)
    kind = getattr(transformers, f"{name}ForCausalLM")
    return kind(small_config(kind.config_class)).eval()


def decays(model: Any) -> tuple[list[LinearDecay], Any]:
    tokens = torch.randint(3, 60, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    return linear_decay(model, tokens), sys.modules[type(model).__module__]


def test_the_public_door_has_kernels_as_numpy_and_a_table() -> None:
    model = built("Qwen3Next")
    tokens = torch.randint(3, 60, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    found = hs.decay(model, tokens)
    assert "blocks 0, 1, 2 (from 0)" in repr(found)
    for ours, layer in zip(found.layers, linear_decay(model, tokens), strict=True):
        left = layer.bias().exp().mean(dim=-1).numpy()
        expected = [np.diagonal(left, -at, 1, 2).mean(axis=-1) for at in range(LENGTH)]
        assert np.allclose(found.kernel(ours.block), np.stack(expected, axis=-1), atol=1e-12)
        assert np.array_equal(ours.log_decay, layer.log_decay.numpy())
    assert np.array_equal(hs.decay(hs.load(model), tokens[0].tolist()).kernel(1), found.kernel(1))
    rows = found.rows()
    assert len(found.to_frame()) == len(rows) == sum(len(each.kernel) for each in found.layers)
    half = rows[0]["half_life"]
    assert half is None or found.kernel(0, 0)[half] <= 0.5 < found.kernel(0, 0)[half - 1]
    assert rows[0]["left_16"] == found.kernel(0, 0)[16]
    for call, message in (
        (lambda: found.kernel(3), "block 3 has no decay"),
        (lambda: found.kernel(0, 9), "there is no head 9"),
        (lambda: hs.decay(model, "a text"), "has no tokenizer"),
        (lambda: hs.decay(model, []), "at least one token"),
        (lambda: hs.decay(hs.GPT2.from_preset("nano", encoding="nope"), [1]), "no layer without"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_captures_of_a_hybrid_name_its_blocks() -> None:
    model = hs.load(built("Qwen3Next"))
    assert model.spec.provenance["blocks"] == [4]
    cap = model.capture(list(range(3, 12)), layers="all")
    assert heading(cap, 0, "final").endswith("layer 1, block 4: final scores")
    rolled = rollout(cap)
    assert "attention layers only" in rolled.model["name"]
    assert "blocks" not in hs.load(FAMILIES["llama"].build()).spec.provenance


def whole(found: LinearDecay) -> Tensor:
    """What is left of a state at the start after the whole sequence [h c]."""
    return found.log_decay.sum(dim=1).exp()


@pytest.mark.parametrize(
    ("name", "rule", "blocks"),
    [
        ("Qwen3Next", "torch_recurrent_gated_delta_rule", [0, 1, 2]),
        ("KimiLinear", "recurrent_kimi_delta_attention", [0, 2]),
    ],
)
def test_a_delta_rule_layer(name: str, rule: str, blocks: list[int]) -> None:
    found, file = decays(built(name))
    assert [each.block for each in found] == blocks
    for each in found:
        heads, _, channels = each.log_decay.shape
        g = each.log_decay.float().transpose(0, 1)[None]
        x = torch.randn(1, LENGTH, heads, channels if channels > 1 else 8)
        # Keys of 0 write nothing, so the state only decays.
        _, state = getattr(file, rule)(
            x, torch.zeros_like(x), x, g=g[..., 0] if channels == 1 else g,
            beta=torch.ones(1, LENGTH, heads), initial_state=torch.ones(1, heads, *x.shape[3:] * 2),
            output_final_state=True, use_qk_l2norm_in_kernel=False,
        )  # fmt: skip
        expected = whole(each).float()[None, :, :, None].expand(-1, -1, x.shape[3], -1)
        assert torch.allclose(state, expected.expand_as(state), atol=1e-6)


@pytest.mark.parametrize(("name", "blocks"), [("Mamba2", [0, 1, 2, 3]), ("Bamba", [0, 2])])
def test_mamba2(name: str, blocks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(name)
    file = sys.modules[type(model).__module__]
    states, scan = [], file.mamba2_chunk_scan

    def beside(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        heads, size = x.shape[2], args[2].shape[-1]
        start = torch.ones(1, heads, x.shape[3], size)
        more = {**kwargs, "initial_states": start, "return_final_states": True}
        states.append(scan(torch.zeros_like(x), *args, **more)[1])
        return scan(x, *args, **kwargs)

    monkeypatch.setattr(file, "mamba2_chunk_scan", beside)
    # The reader binds arguments by the signature.
    vars(beside)["__signature__"] = inspect.signature(scan)
    found, _ = decays(model)
    assert [each.block for each in found] == blocks
    for each, state in zip(found, states, strict=True):
        expected = whole(each).float()[None, :, :, None].expand_as(state)
        assert torch.allclose(state, expected, atol=1e-5)


def test_lightning_attention_decays_by_a_constant_per_head() -> None:
    model = built("MiniMax")
    found, _ = decays(model)
    for each in found:
        layer = model.model.layers[each.block].self_attn
        inside = layer.diagonal_decay[0, :, :LENGTH, :LENGTH].double()
        assert torch.allclose(each.bias()[..., 0].exp(), inside, rtol=1e-5)
        assert torch.allclose(each.kernel(), inside[:, :, 0], rtol=1e-5)


def test_rwkv_decays_by_a_constant_per_channel() -> None:
    found, file = decays(built("Rwkv"))
    assert [each.block for each in found] == [0, 1, 2, 3]
    for each in found:
        channels = each.log_decay.shape[2]
        key = torch.full((1, LENGTH, channels), -1e30)
        rate = (-each.log_decay[0, 0]).log().float()
        start = [torch.ones(1, channels), torch.ones(1, channels), torch.zeros(1, channels)]
        _, state = file.rwkv_linear_attention_cpu(
            rate, torch.zeros(channels), key, torch.zeros_like(key), state=start
        )
        left = state[0] * state[2].exp()
        assert torch.allclose(left, whole(each).float(), atol=1e-6)


def test_a_kernel_is_the_mean_by_distance() -> None:
    torch.manual_seed(0)
    found = LinearDecay(block=0, kind="", log_decay=-torch.rand(2, 5, 3, dtype=torch.float64))
    expected = torch.zeros(2, 5, dtype=torch.float64)
    for distance in range(5):
        for i in range(distance, 5):
            between = found.log_decay[:, i - distance + 1 : i + 1].sum(dim=1)
            expected[:, distance] += between.exp().mean(dim=-1) / (5 - distance)
    assert torch.allclose(found.kernel(), expected)


def test_a_model_of_attention_alone_is_refused() -> None:
    with pytest.raises(InputError, match="LlamaForCausalLM has no linear layer"):
        decays(FAMILIES["llama"].build())
