"""The native kernels equal the definition on random calls: shapes, positions, groups, windows,
grouped heads, temperature, softcap, sinks, every bias, half precision.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from headscape.call import definition
from headscape.call.positions import Positions, Visible
from headscape.encodings import build
from headscape.errors import InputError
from headscape.kernels.assemble import prepare
from headscape.kernels.attend import run
from headscape.kernels.native import adapter
from kernels.calls import BIASES, Call, agree, plain_call, random_call

pytestmark = pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))


@pytest.mark.parametrize("seed", range(120))
def test_random_calls(seed: int) -> None:
    agree(random_call(seed), adapter.run)


@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("window", [1, 15, 16, 17, 127, 128, 129, 130])
def test_windows_at_tile_borders(kind: str, window: int) -> None:
    call = plain_call(kind, 270)
    for causal in (True, False):
        call.visible = Visible(causal, window=window)
        agree(call, adapter.run)


@pytest.mark.parametrize("head_dim", [16, 96, 128, 256])
def test_head_dims(head_dim: int) -> None:
    call = plain_call("toeplitz", 150, head_dim)
    agree(call, adapter.run)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_heads_that_share_keys_are_dealt_to_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        agree(plain_call("sheared by key", 300, 16, keys=1), adapter.run)
        agree(plain_call("weighted slope", 300, 16, keys=1), adapter.run)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(2000, 2020))
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, seed: int) -> None:
    """Within a few roundings of the inputs' dtype of the same numbers in float32."""
    call = random_call(seed)
    for name in "qkv":
        call.leaves[name] = call.leaves[name].to(dtype).double()
    call.upstream = call.upstream.to(dtype).double()
    wide = call.outcome(adapter.run, torch.float32)
    half = call.outcome(adapter.run, dtype, torch.float32)
    assert torch.equal(half["out"], wide["out"].to(dtype))
    largest = max(float(x.abs().max()) for x in wide.values())
    for name, x in wide.items():
        # The backward pass reads the output rounded to half precision.
        error = float((half[name].float() - x).abs().max())
        assert error <= 4 * torch.finfo(dtype).eps * largest, (name, error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_number_is_read_and_written(dtype: torch.dtype) -> None:
    """One key: the output is the value, so any number comes back as it is."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    every = every[every.isfinite() & ((every == 0) | (every.float().abs() >= 2.0**-126))]
    every = every[: len(every) // 8 * 8].reshape(1, 1, -1, 8)
    q = torch.zeros_like(every)
    at = torch.arange(every.shape[2])[None]
    call = Call("none", {}, Positions.span(every.shape[2]), Visible(True, at, at))
    out = adapter.run(call.inputs({"q": q, "k": q, "v": every}))
    assert torch.equal(out, every)


def test_a_window_costs_its_keys() -> None:
    """Keys outside every window are never read: poison there leaves no trace."""
    call = plain_call("none", 400)
    call.visible = Visible(window=64)
    leaves = {name: x.float() for name, x in call.leaves.items()}
    whole = adapter.run(call.inputs(leaves))
    leaves["v"][:, :, :64] = torch.nan
    poisoned = adapter.run(call.inputs(leaves))
    assert torch.equal(whole[:, :, 256:], poisoned[:, :, 256:])


def test_grouped_heads_equal_sdpa() -> None:
    q, k, v = torch.randn(2, 6, 90, 32), torch.randn(2, 2, 90, 32), torch.randn(2, 2, 90, 32)
    call = Call("none", {}, Positions.span(90), Visible())
    ours = adapter.run(call.inputs({"q": q, "k": k, "v": v}))
    theirs = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_rows_without_keys_beside_a_sink() -> None:
    call = plain_call("toeplitz", 40)
    groups = torch.full((1, 40), -1)
    groups[:, 20:] = 0
    call.visible = Visible(True, groups, groups)
    call.leaves["sink"] = torch.randn(4, dtype=torch.float64)
    agree(call, adapter.run)
    out = call.outcome(adapter.run, torch.float32)["out"]
    assert not out[:, :, :20].any()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"visible": Visible(window=3)}, "window"),
        ({"softcap": 2.0}, "softcap"),
        ({"sink": torch.zeros(2)}, "sink"),
        ({"temperature": torch.ones(1, 1, 9)}, "temperature"),
    ],
)
def test_mixing_refuses_by_name(changes: dict[str, object], named: str) -> None:
    found = build("dape+nope", heads=2, head_dim=8, width=8, train_length=8)
    q = torch.randn(1, 2, 9, 8)
    inputs = prepare(found, q, q, q, None, Positions.span(9))
    inputs = replace(inputs, **changes)
    with pytest.raises(InputError, match=f"mix scores without a {named}"):
        run(inputs, "native")
    assert definition.run(inputs).shape == q.shape
