"""One query against a cache equals the definition, natively and in torch."""

from dataclasses import replace

import pytest
import torch

from headscape.call import definition
from headscape.call.bias import Slope
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.kernels import decode
from headscape.kernels.native import adapter
from kernels.calls import BIASES, random_call

NATIVE = [False, *([True] if adapter.available() is None else [])]
needs_kernel = pytest.mark.skipif(
    adapter.available() is not None, reason=f"no native kernel here: {adapter.available()}"
)


def one_query(seed: int, kind: str | None = None) -> AttentionCall:
    """A random call, reduced to its last query, with keys that lie in a larger cache."""
    call = random_call(seed, None if kind is None else [kind])
    s = call.leaves["k"].shape[2]
    leaves = {}
    for name, x in call.leaves.items():
        axis = 1 if name == "far" else 2
        per_query = name in ("q", "r", "row", "weight", "temperature", "far")
        leaves[name] = (x.narrow(axis, x.shape[axis] - 1, 1) if per_query else x).float()
    for name in "kv":
        x = leaves[name]
        room = torch.full((*x.shape[:2], 2 * s, x.shape[3]), torch.nan)
        room[:, :, :s] = x
        leaves[name] = room[:, :, :s]
    call.positions = Positions.span(1, s)
    call.visible = Visible(call.visible.causal, window=call.visible.window)
    return call.inputs(leaves)


def exact(inputs: AttentionCall) -> torch.Tensor:
    wide = {name: getattr(inputs, name).double() for name in "qkv"}
    return definition.run(replace(inputs, **wide))


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("seed", range(4000, 4060))
def test_random_calls(seed: int, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = one_query(seed)
    assert decode.refuses(inputs) is None
    if not native:
        monkeypatch.setattr(decode, "serves_row", lambda *_: False)
    with torch.no_grad():
        out = decode.run(inputs)
        torch.testing.assert_close(out.double(), exact(inputs), rtol=2e-5, atol=4e-6)


@needs_kernel
@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("threads", [1, 3, 8])
def test_stretches_of_keys_go_to_threads(kind: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inputs = one_query(77, kind)
        with torch.no_grad():
            assert decode.serves_row(inputs.q, inputs.k, inputs.v)
            out = decode.run(inputs)
            torch.testing.assert_close(out.double(), exact(inputs), rtol=2e-5, atol=4e-6)
    finally:
        torch.set_num_threads(before)


@needs_kernel
def test_a_slope_in_float32_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache's sums, relative to a recent token, are not written out as a row first."""
    inputs = one_query(5, "weighted slope")
    bias = inputs.bias
    assert isinstance(bias, Slope)
    inputs = replace(inputs, bias=Slope(bias.weight, bias.row.float(), bias.col.float()))
    wanted = exact(inputs)
    monkeypatch.setattr(decode, "_row", None)
    with torch.no_grad():
        torch.testing.assert_close(decode.run(inputs).double(), wanted, rtol=2e-5, atol=4e-6)


@needs_kernel
@pytest.mark.parametrize("shared", [False, True])
def test_sums_and_weights_are_read_where_they_lie(shared: bool) -> None:
    """They are views of one token among many, and all sequences may share them."""
    inputs = one_query(14, "weighted slope")
    (b, h), s = inputs.q.shape[:2], inputs.k.shape[2]
    col, weight = torch.randn(2, 1 if shared else b, h, s).unbind()
    bias = Slope(weight[:, :, 1:2], col[:, :, -1:], col)
    inputs = replace(inputs, bias=bias)
    with torch.no_grad():
        out = decode.run(inputs)
    torch.testing.assert_close(out.double(), exact(inputs), rtol=2e-5, atol=4e-6)


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    inputs = one_query(9, "toeplitz")
    halves = {name: getattr(inputs, name).to(dtype) for name in "qkv"}
    wide = {name: x.float() for name, x in halves.items()}
    with torch.no_grad():
        out = decode.run(replace(inputs, **halves))
        assert torch.equal(out, decode.run(replace(inputs, **wide)).to(dtype))


@needs_kernel
def test_what_needs_a_gradient_goes_through_torch() -> None:
    inputs = one_query(6, "none")
    q = inputs.q.clone().requires_grad_()
    out = decode.run(replace(inputs, q=q))
    assert out.requires_grad
