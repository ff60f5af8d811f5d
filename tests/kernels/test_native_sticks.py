"""Stick-breaking by the native kernels: sticks that last, that are used up, and NaN."""

import pytest
import torch
from torch import Tensor

from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.kernels.native import adapter
from kernels.calls import Call, agree, plain_call

pytestmark = pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))
KINDS = ["sticks", "sticks, current", "sticks, dropped", "sticks, current, dropped"]


def shifted(call: Call, score: float) -> Call:
    """The same call with scores around `score`: queries and keys share a direction."""
    q, k = call.leaves["q"], call.leaves["k"]
    size = abs(score * q.shape[3] ** 0.5) ** 0.5
    q[..., 0], k[..., 0] = size, size if score > 0 else -size
    return call


def one_key(scores: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The weight of a key with each score and what it leaves: outputs for the values 1 and 0."""
    n = len(scores)
    at, group = torch.tensor([[0, 1]]).expand(n, 2), torch.zeros(n, 2, dtype=torch.long)
    q = torch.zeros(n, 1, 1, 8)
    q[:, 0, 0, 0] = scores
    k, v = torch.zeros(n, 1, 2, 8), torch.zeros(n, 1, 2, 8)
    k[..., 0] = 8**0.5
    v[:, :, 0, 0], v[:, :, 1, 1] = 1, 1
    call = Call(kind, {}, Positions(at[:, 1:], at), Visible(True, group[:, 1:], group))
    out = adapter.run(call.inputs({"q": q, "k": k, "v": v}))
    return out[:, 0, 0, 0], out[:, 0, 0, 1]


def test_a_share_and_its_rest_are_precise_for_both_signs() -> None:
    scores = torch.linspace(-60, 60, 4001)
    exact = (scores * torch.tensor(8**0.5) * 8**-0.5).double()
    for found, wanted in zip(one_key(scores, "sticks"), (exact, -exact), strict=True):
        torch.testing.assert_close(found.double(), wanted.sigmoid(), rtol=8e-6, atol=0)


@pytest.mark.parametrize("size", [100.0, 1e4, 1e20, torch.inf])
def test_the_largest_scores_take_all_or_nothing(size: float) -> None:
    taken, left = one_key(torch.tensor([size, -size]), "sticks")
    assert taken.tolist() == [1, 0]
    assert left.tolist() == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("score", [-300.0, -8.0, -2.0, 2.0, 300.0])
def test_sticks_that_last_and_sticks_that_are_used_up(kind: str, score: float) -> None:
    agree(shifted(plain_call(kind, 300, 16), score), adapter.run)


@pytest.mark.parametrize("size", [10.0, 1000.0])
def test_scores_of_any_size(size: float) -> None:
    """Weights of 0 and 1 and gradients of 0 beside others; nothing overflows."""
    call = plain_call("sticks", 200, 16)
    call.leaves["q"] *= size
    found = call.outcome(adapter.run, torch.float32)
    assert all(x.isfinite().all() for x in found.values())
    exact = call.outcome(definition.run, torch.float64)
    # A score is rounded at its own size.
    rounding = 4 * torch.finfo(torch.float32).eps * size
    for name in ("out", "v"):
        error = (found[name] - exact[name]).abs().max() / exact[name].abs().max()
        assert error <= rounding, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries", [1, 40, 129])
def test_queries_after_a_cache(kind: str, queries: int) -> None:
    call = shifted(plain_call(kind, 270, 16), -3.0)
    call.leaves["q"] = call.leaves["q"][:, :, -queries:]
    call.upstream = call.upstream[:, :, -queries:]
    call.positions = Positions.span(queries, 270)
    agree(call, adapter.run)
    # The own key is the last that a query sees, wherever that is.
    call.positions = Positions(call.positions.q + 5, call.positions.k)
    agree(call, adapter.run)


@pytest.mark.parametrize("chunk", [1, 7, 100, 128, 200])
def test_chunks(chunk: int) -> None:
    call = shifted(plain_call("sticks", 270, 16), -3.0)
    call.visible = Visible(chunk=chunk)
    agree(call, adapter.run)


def test_keys_beyond_the_end_of_a_stick_are_not_read() -> None:
    call = shifted(plain_call("sticks", 400, 16), 4.0)
    leaves = {name: x.float() for name, x in call.leaves.items()}
    whole = adapter.run(call.inputs(leaves))
    leaves["v"][:, :, :64] = torch.nan
    poisoned = adapter.run(call.inputs(leaves))
    assert torch.equal(whole[:, :, 256:], poisoned[:, :, 256:])
    assert poisoned[:, :, :64].isnan().all()


def test_nan_reaches_the_output() -> None:
    call = shifted(plain_call("sticks", 300, 16), -6.0)
    leaves = {name: x.float() for name, x in call.leaves.items()}
    leaves["k"][:, 0, 7] = torch.nan
    out = adapter.run(call.inputs(leaves))
    assert out[:, :2, 8:].isnan().all()
    assert out[:, :2, :7].isfinite().all()
    assert out[:, 2:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["sticks", "sticks, current, dropped", "factor"])
def test_half_precision_loses_nothing_over_many_keys(kind: str, dtype: torch.dtype) -> None:
    """Gradients do not read the rounded output, so they are those of float32, rounded."""
    call = plain_call(kind, 400, 16)
    call = shifted(call, -4.0) if "sticks" in kind else call
    for name in "qkv":
        call.leaves[name] = call.leaves[name].to(dtype).double()
    call.upstream = call.upstream.to(dtype).double()
    wide = call.outcome(adapter.run, torch.float32)
    half = call.outcome(adapter.run, dtype, torch.float32)
    for name, x in wide.items():
        if "sticks" in kind:
            assert torch.equal(half[name], x.to(half[name].dtype)), name
        error = float((half[name].float() - x).abs().max())
        assert error <= 4 * torch.finfo(dtype).eps * max(float(x.abs().max()), 1.0), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sticks", "sticks, current, dropped", "factor"])
def test_gradients_at_16384_tokens(kind: str) -> None:
    """Only the last 64 rows of the output have a gradient; the reference computes only those."""
    length, rows = 16_384, slice(16_384 - 64, 16_384)
    call = plain_call(kind, length, 8)
    if kind == "factor":
        call.leaves["table"] = call.leaves["table"].abs().clamp(max=1)
    else:
        call = shifted(call, -7.0)
    call.upstream[:, :, : rows.start] = 0

    def some(inputs: AttentionCall) -> Tensor:
        weights = definition.scores(inputs, rows).weights
        whole = torch.zeros_like(inputs.q)
        whole[:, :, rows] = weights @ definition.shared(inputs.v, inputs.q.shape[1])
        return whole

    exact = call.outcome(some, torch.float64)
    rough = call.outcome(some, torch.float32)
    found = call.outcome(adapter.run, torch.float32)
    found["out"][:, :, : rows.start] = 0
    for name, wanted in exact.items():
        error, dense = (
            float((x[name] - wanted).abs().max() / wanted.abs().max()) for x in (found, rough)
        )
        assert error <= max(2 * dense, 2e-6), (name, error, dense)
