"""Rotations by content, stick-breaking, PaTH and Wall against vectors of public code.

The files are in tests/golden/second; all peers ran in float64.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import Float
from second_wave import TIGHT, encoding, inputs, load, same_scores
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import Slope
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible, powers
from headscape.call.transition import Decay, Reflections, Transition
from headscape.encodings import Encoding, LayerContext, LayerInput, Side, Stream
from headscape.kernels import attend
from headscape.kernels.assemble import prepare


def rms(x: Tensor, weight: Tensor | float, eps: float, dims: tuple[int, ...] = (-1,)) -> Tensor:
    return x * (x.square().mean(dims, keepdim=True) + eps).rsqrt() * weight


def whole(made: Encoding, z: dict[str, Tensor], **given: Tensor) -> AttentionCall:
    """One layer's attention over q, k, v and x of a file."""
    q, k, v = (given.get(name, z[name]) for name in "qkv")
    return prepare(made, q, k, v, z["x"], Positions.span(q.shape[2]))


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.detach(), theirs, **TIGHT)


def same_out(call: AttentionCall, expected: Tensor) -> Tensor:
    """The reference's output, after the torch path's was compared with it too."""
    out = definition.run(call)
    same(out, expected)
    same(attend.run(call, "torch"), expected)
    return out


def test_selective_rope_its_gradients_and_its_cache() -> None:
    z, config = load("selective_rope_h4")
    made = encoding("selective-rope", config, rank=8, base=config["temp_theta"])
    published = {"phi_proj_0": "phi_proj.0", "phi_proj_1": "phi_proj.1", "phi_conv1d": "phi_conv1d"}
    made.load_published(
        {f"{theirs}.weight": z[f"p_{key}_weight"] for key, theirs in published.items()}
    )
    same(powers(float(config["temp_theta"]), config["D"]), z["temperature"].flatten())
    call = whole(made, z)
    same(call.q, z["q_rot"])
    same(call.k, z["k_rot"])
    same(definition.scores(call).final, z["scores"])
    out = same_out(call, z["out"])
    learned = [made.down.weight, made.up.weight, made.taps]
    found = torch.autograd.grad((out * z["grad_out"]).sum(), learned)
    for gradient, key in zip(found, published, strict=True):
        same(gradient.reshape(z[f"grad_{key}_weight"].shape), z[f"grad_{key}_weight"])
    before = made.stream(LayerInput(z["x"][:, :-1]))
    last = made.stream(LayerInput(z["x"][:, -1:], before.carry))
    q = made.rotate(z["q"][:, :, -1:], Side(torch.tensor([[0]]), "query", last))
    same(q @ call.k.mT / config["D"] ** 0.5, z["decode"])


def test_grape_m_with_positions_and_a_norm_after_the_rotation() -> None:
    z, config = load("grape_m_h4")
    made = encoding("grape-m", config, phase="index")
    made.load_published({"grape.log_freq": z["log_freq"]})
    check_grape(made, z, config, "")


def test_grape_m_with_a_phase_of_the_context() -> None:
    z, config = load("grape_m_h4")
    made = encoding("grape-m", config)
    made.initialise()
    same(made.step.bias, z["ctx_init_omega_bias"].float().double())
    tensors = {"grape.log_freq": "log_freq", "omega_proj.weight": "omega_weight"}
    tensors |= {"omega_proj.bias": "omega_bias"}
    made.load_published({theirs: z[f"ctx_{key}"] for theirs, key in tensors.items()})
    phase = -made.stream(LayerInput(z["x"])).angle / made.log_frequency.exp()
    same(phase[:, 0, :, :1], z["ctx_phase"])
    check_grape(made, z, config, "ctx_")


def check_grape(made: Encoding, z: dict[str, Tensor], config: dict, prefix: str) -> None:
    call, eps = whole(made, z), config["norm_eps"]
    q, k = (rms(getattr(call, name), z[f"{name}_norm_weight"], eps) for name in "qk")
    call = replace(call, q=q, k=k)
    same_scores(definition.scores(call), z[f"{prefix}scores_masked"])
    out = same_out(call, z[f"{prefix}out"])
    learned = {"log_freq": made.log_frequency}
    if prefix:
        learned["omega_weight"] = made.step.weight
    loss = (out.transpose(1, 2).flatten(2) * z["grad_out"]).sum()
    for name, found in zip(learned, torch.autograd.grad(loss, list(learned.values())), strict=True):
        same(found, z[f"{prefix}grad_{name}"])


def test_repo_and_its_gradients() -> None:
    z, config = load("repo_h4")
    made = encoding("repo", config, base=config["rope_theta"], hidden=config["mid"])
    maps = {"gate_map": made.gate, "content_map": made.content, "final_map": made.final}
    made.load_published({f"{name}.weight": z[name] for name in maps})
    same(made.position(z["x"]), z["positions"])
    q, k = (rms(z[name], 1.0, config["norm_eps"], (1, 3)) for name in "qk")
    call = whole(made, z, q=q, k=k)
    same(call.q, z["q_rot"])
    same(call.k, z["k_rot"])
    same(definition.scores(call).final, z["scores"])
    out = same_out(call, z["out"])
    loss = (out.transpose(1, 2) * z["grad_out"]).sum()
    found = torch.autograd.grad(loss, [layer.weight for layer in maps.values()])
    for name, gradient in zip(maps, found, strict=True):
        same(gradient, z[f"grad_{name}"])


@pytest.mark.parametrize("current", ["excluded", "attended"])
def test_stick_breaking(current: str) -> None:
    z, config = load("stickbreaking_ref_h6")
    name = "exclude_current" if current == "excluded" else "attend_current"
    z |= {key: z[key].requires_grad_() for key in "qk"}
    dropped = inputs(encoding("stick-breaking", config, current=current, remainder="dropped"), z)
    out = same_out(dropped, z[f"out_{name}"])
    same(1 - definition.scores(dropped).weights.sum(-1), z[f"rem_{name}"])
    whole = inputs(encoding("stick-breaking", config, current=current), z)
    same_out(whole, z[f"out_{name}_with_rem"])
    weights = definition.scores(whole).weights
    same(weights.sum(-1), torch.ones_like(z[f"rem_{name}"]))
    if current == "excluded":
        found = torch.autograd.grad((out * z["grad_out"]).sum(), [z["q"], z["k"]])
        same(found[0], z["grad_q"])
        same(found[1], z["grad_k"])


@pytest.mark.parametrize("gated", [False, True])
def test_path_and_its_gradients(gated: bool) -> None:
    z, config = load("path_fla_h6")
    made = encoding("path", config, gate=gated)
    w, beta = (z[name].transpose(1, 2).requires_grad_() for name in ("w", "beta"))
    total = z["g"].cumsum(1).transpose(1, 2)
    where, stream = Positions.span(config["L"]), Stream(total)
    call = AttentionCall(
        z["q"], z["k"], z["v"], made.bias(LayerContext(where, stream, stream)), where, Visible(),
        config["D"] ** -0.5, transition=Reflections(w, beta),
    )  # fmt: skip
    if gated:
        assert isinstance(call.bias, Slope)
        same_out(call, z["out_gated"])
        return
    out = same_out(call, z["out"])
    loss = (out.transpose(1, 2) * z["grad_out"]).sum()
    for found, name in zip(torch.autograd.grad(loss, [w, beta]), ("w", "beta"), strict=True):
        same(found.transpose(1, 2), z[f"grad_{name}"])


def scores_of(
    transition: Transition, q: Tensor, k: Tensor, rows: slice = slice(None)
) -> Float[Tensor, "b h r s"]:
    """The scores with every key; 0 for keys after the last block of queries."""
    found = transition.through(q, k).scores(rows)
    return F.pad(found, (0, k.shape[2] - found.shape[3]))


def test_cached_keys_go_through_the_reflections() -> None:
    z, config = load("path_fla_h6")
    w, beta = (z[name].transpose(1, 2) for name in ("w", "beta"))
    scores = scores_of(Reflections(w, beta), z["q"], z["k"])
    for old in (1, 13, 29):
        kept = Reflections(w[:, :, :old], beta[:, :, :old]).advance(z["k"][:, :, :old])
        keys = torch.cat([kept, z["k"][:, :, old:]], dim=2)
        new = scores_of(Reflections(w[:, :, old:], beta[:, :, old:]), z["q"][:, :, old:], keys)
        seen = torch.ones(config["L"], config["L"]).tril().bool()[old:]
        same(new[:, :, seen], scores[:, :, old:][:, :, seen])
        part = scores_of(Reflections(w, beta), z["q"], z["k"], slice(old, old + 3))
        below = torch.ones(config["L"], config["L"]).tril().bool()[old : old + 3]
        same(part[:, :, below], scores[:, :, old : old + 3][:, :, below])


def test_reflections_over_many_blocks_are_a_product_of_matrices() -> None:
    n, old, e = 150, 7, 4
    random = torch.Generator().manual_seed(0)
    q, k, w = torch.randn(3, 1, 1, n + old, e, generator=random, dtype=torch.float64).unbind()
    w, beta = w / w.norm(dim=-1, keepdim=True), 2 * torch.rand(1, 1, n + old, generator=random)
    beta[0, 0, :old] = 0  # these tokens' keys come from a cache
    expected = torch.zeros(n + old, n + old, dtype=torch.float64)
    for i in range(n + old):
        back = q[0, 0, i]
        for j in range(i, -1, -1):
            expected[i, j] = back @ k[0, 0, j]
            back = back - beta[0, 0, j] * (back @ w[0, 0, j]) * w[0, 0, j]
    new = Reflections(w[:, :, old:], beta[:, :, old:])
    for rows in (slice(None), slice(60, 70), slice(149, 150)):
        found = scores_of(new, q[:, :, old:], k, rows)[0, 0]
        same(
            found.tril(old + (rows.start or 0)), expected[old:][rows].tril(old + (rows.start or 0))
        )
    for fewer in (1, 30, 64, 130):  # queries than reflections
        found = scores_of(new, q[:, :, -fewer:], k)[0, 0]
        same(found.tril(n + old - fewer), expected[-fewer:].tril(n + old - fewer))
    moved = new.advance(k)
    same((q[0, 0, -1] * moved[0, 0]).sum(-1), expected[-1])


def wall_call(z: dict[str, Tensor], config: dict, gate: Tensor, **fields: object) -> AttentionCall:
    made = encoding("wall", config, **fields)
    where, total = Positions.span(config["L"]), z["g_scalar"].cumsum(1).transpose(1, 2)
    stream = Stream(total, decay=Decay(gate.transpose(1, 2)))
    if made.sink_score is not None:
        made.sink_score.data.copy_(z["sinks"])
    return AttentionCall(
        z["q"], z["k"], z["v"], made.bias(LayerContext(where, stream, stream)), where, Visible(),
        config["D"] ** -0.5, sink=made.sink(), transition=stream.transition,
    )  # fmt: skip


def test_wall_and_its_gradients() -> None:
    z, config = load("wall_h4")
    gate = z["g"].requires_grad_()
    call = wall_call(z, config, gate)
    out = same_out(call, z["out"])
    loss = (out.transpose(1, 2) * z["grad_out"]).sum()
    (gradient,) = torch.autograd.grad(loss, [gate])
    same(gradient, z["grad_g"])
    more = wall_call(z, config, gate, scalar_gate=True, sink=True)
    same_out(more, z["out_scalar_sink"])
    # The stored gates were rounded to float32.
    made = encoding("wall", config)
    logits = z["gate_logits"] + made.config.gate_bias
    clamped = made.clamped(torch.nn.functional.logsigmoid(logits))
    torch.testing.assert_close(clamped, gate.detach(), rtol=1e-6, atol=1e-7)


def test_gates_that_leave_the_range_of_floats() -> None:
    z, _ = load("wall_h4")
    gate = -z["gate_logits"].abs().transpose(1, 2).float() * 200
    assert (gate.cumsum(2)[:, :, -1] < -1000).any()
    q, k, total = z["q"].float(), z["k"].float(), gate.double().cumsum(2)
    seen = torch.ones(q.shape[2], q.shape[2]).tril().bool()
    gap = total[:, :, :, None] - total[:, :, None]
    gap = gap.masked_fill(~seen[..., None], -torch.inf)
    expected = (q[:, :, :, None] * k[:, :, None] * gap.exp()).sum(-1)
    found = scores_of(Decay(gate), q, k).double()
    torch.testing.assert_close(found[:, :, seen], expected[:, :, seen], rtol=1e-5, atol=1e-5)
