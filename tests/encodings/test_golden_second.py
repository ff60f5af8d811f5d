"""RoPE's newer recipes, BAM, Kerple's weight form and PoPE against vectors of public code.

The files are in tests/golden/second; all peers ran in float64.
"""

import pytest
import torch
from second_wave import TIGHT, encoding, inputs, load, same_scores
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, Side, build
from headscape.errors import InputError

RECIPES = load("rope_recipes_d32")
RENAMED = {
    "rope_theta": "base",
    "partial_rotary_factor": "rotary_fraction",
    "original_max_position_embeddings": "trained_length",
}


@pytest.mark.parametrize("name", sorted(RECIPES[1]["recipes"]))
def test_recipes_of_transformers(name: str) -> None:
    recipe = dict(RECIPES[1]["recipes"][name])
    longest, length = recipe.pop("max_position_embeddings"), recipe.pop("seq_len")
    factor = recipe.pop("expected_attention_factor")
    fields = {RENAMED.get(key, key): value for key, value in recipe.items()}
    fields["scaling"] = fields.pop("rope_type")
    if fields["scaling"] == "longrope":
        fields |= {key: tuple(fields[key]) for key in ("short_factor", "long_factor")}
        fields.setdefault("factor", longest / fields["trained_length"])
    made = build(
        "rope", heads=2, head_dim=32, width=64, train_length=longest, pairing="halves", **fields
    )
    found = made.frequencies(length or 0)
    torch.testing.assert_close(found, RECIPES[0][name].double(), rtol=1e-6, atol=1e-12)
    assert made.attention_factor() == pytest.approx(factor, rel=1e-9)


def rms(x: Tensor, weight: Tensor | float, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def test_gemma4_turns_a_part_of_the_whole_head() -> None:
    z, config = load("rope_gemma4_proportional_h4")
    rope, eps = config["rope"], config["norm_eps"]
    made = encoding(
        "rope", config, pairing="halves", scaling="proportional", base=rope["rope_theta"],
        rotary_fraction=rope["partial_rotary_factor"],
    )  # fmt: skip
    normed = {key: rms(z[key], z[f"{key}_norm_weight"], eps) for key in "qk"}
    call = inputs(made, {**normed, "v": rms(z["v"], 1.0, eps)}, scale=config["scaling"])
    torch.testing.assert_close(call.q, z["q_rot"], **TIGHT)
    torch.testing.assert_close(call.k, z["k_rot"], **TIGHT)
    torch.testing.assert_close(definition.scores(call).final, z["scores"], **TIGHT)
    torch.testing.assert_close(definition.run(call), z["out"], **TIGHT)
    torch.testing.assert_close(call.v, z["v_normed"], **TIGHT)
    torch.testing.assert_close(made.frequencies(0), z["inv_freq"], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("length", "name"), [(12, "at_original"), (18, "beyond")])
def test_longrope_switches_for_all_tokens(length: int, name: str) -> None:
    z, config = load("rope_phi3_longrope_h4")
    made = longrope(config)
    call = inputs(made, {key: z[key][:, :, :length] for key in "qkv"})
    torch.testing.assert_close(definition.scores(call).final, z[f"scores_{name}"], **TIGHT)
    torch.testing.assert_close(definition.run(call), z[f"out_{name}"], **TIGHT)


def longrope(config: dict) -> Encoding:
    return encoding(
        "rope", config, pairing="halves", scaling="longrope", base=config["rope_theta"],
        trained_length=config["original"],
        factor=config["max_position_embeddings"] / config["original"],
        short_factor=tuple(config["short_factor"]), long_factor=tuple(config["long_factor"]),
    )  # fmt: skip


def test_longrope_keys_of_before_the_switch_are_stale_behind_it() -> None:
    z, config = load("rope_phi3_longrope_h4")
    made, old = longrope(config), config["original"]
    at = torch.arange(old + 1)[None]
    q = made.rotate(z["q"][:, :, old : old + 1], Side(at[:, old:], "query"))
    new = made.rotate(z["k"][:, :, old : old + 1], Side(at[:, old:], "key"))
    stale = torch.cat([made.rotate(z["k"][:, :, :old], Side(at[:, :old], "key")), new], dim=2)
    torch.testing.assert_close(q @ stale.mT / config["D"] ** 0.5, z["decode_stale"], **TIGHT)
    # Cached rotated keys give stale scores, so our cache keeps keys unrotated.
    assert not made.cacheable_keys
    right = q @ made.rotate(z["k"][:, :, : old + 1], Side(at, "key")).mT / config["D"] ** 0.5
    assert (right - z["decode_stale"]).abs().max() > 0.1


def test_longrope_needs_a_factor_per_pair() -> None:
    with pytest.raises(InputError, match="needs 8 numbers in short_factor, got 0"):
        build("rope", heads=2, head_dim=16, width=32, train_length=8, scaling="longrope")


def test_bam_and_its_gradients() -> None:
    z, config = load("bam_h4")
    made = encoding("bam", config, train_loc=True)
    torch.testing.assert_close(made.scale.detach(), z["init_scale"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(made.power().detach(), z["init_shape"])
    made.load_published({name: z[name].reshape(1, -1, 1, 1) for name in ("scale", "shape", "loc")})
    where = Positions.span(config["L"])
    found = dense(made.bias(LayerContext(where)), where)[0]
    torch.testing.assert_close(found.tril().detach(), z["bias"].tril(), **TIGHT)
    loss = (found.tril() * z["grad_out"][0]).sum()
    by_scale, by_raw, by_loc = torch.autograd.grad(loss, [made.scale, made.raw_power, made.loc])
    torch.testing.assert_close(by_scale, z["grad_scale"], **TIGHT)
    torch.testing.assert_close(by_raw / z["shape"], z["grad_shape"], **TIGHT)
    torch.testing.assert_close(by_loc, z["grad_loc"], **TIGHT)
    call = inputs(made, z)
    same_scores(definition.scores(call), z["scores_masked"])
    torch.testing.assert_close(definition.run(call).detach(), z["out"], **TIGHT)


def test_bam_under_ssmax_heats_the_prior_too() -> None:
    z, config = load("bam_h4")
    made = encoding("bam", config, train_loc=True, temperature="ssmax")
    learned = {"scale": z["scale"], "raw_power": z["shape"].log(), "loc": z["loc"]}
    made.load_state_dict(learned | {"ssmax": z["s"]})
    call = inputs(made, z)
    same_scores(definition.scores(call), z["scores_masked_ssmax"])
    torch.testing.assert_close(definition.run(call).detach(), z["out_ssmax"], **TIGHT)


def test_the_weight_form_of_kerple() -> None:
    z, config = load("kerple_power_wei_h12")
    made = encoding("kerple-weight", config)
    made.load_published({"wei_p": z["param_wei_p"], "wei_a": z["param_wei_a"]})
    found = definition.scores(inputs(made, z))
    seen = found.visible.expand_as(found.final)
    torch.testing.assert_close(found.final[seen].detach(), z["scores"][seen], **TIGHT)
    torch.testing.assert_close(definition.run(inputs(made, z)).detach(), z["out"], **TIGHT)
    last = definition.scores(inputs(made, {**z, "q": z["q"][:, :, -1:]})).final
    torch.testing.assert_close(last.detach(), z["scores_decode"], **TIGHT)
    loss = (found.final.tril() * z["grad_out"]).sum()
    by_a, by_p = torch.autograd.grad(loss, [made.raw_a, made.raw_p])
    # Ours are gradients of the logarithm of a and of the logit of p / 2.
    a, p = made.a().detach(), made.p().detach()
    torch.testing.assert_close(by_a / a, z["grad_a"].reshape(-1), **TIGHT)
    inside = p < 2 - 1e-6
    exact = z["grad_p"].reshape(-1)[inside]
    torch.testing.assert_close((by_p / (p * (1 - p / 2)))[inside], exact, **TIGHT)


def test_pope_and_the_clamp_of_its_phase() -> None:
    z, config = load("pope_h4")
    made = encoding("pope", config, base=config["base"])
    made.load_published({"learned_bias": z["bias"][:, None]})
    call = inputs(made, z)
    same_scores(definition.scores(call), z["scores_masked"])
    last = definition.scores(inputs(made, {**z, "q": z["q"][:, :, -1:]})).final
    torch.testing.assert_close(last.detach(), z["decode"], **TIGHT)
    out = definition.run(call)
    torch.testing.assert_close(out.detach(), z["out"], **TIGHT)
    (gradient,) = torch.autograd.grad((out * z["grad_out"]).sum(), [made.phase])
    torch.testing.assert_close(gradient, z["grad_bias"], **TIGHT)
    assert call.q.shape[-1] == 2 * z["q"].shape[-1]
