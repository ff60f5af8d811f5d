"""Windows, temperatures, softcaps and sinks against vectors of public code (tests/golden/second).

gpt-oss, Gemma 2, Ministral 3, x-transformers and the SSMax of BAM's repository, run in float64.
"""

from dataclasses import replace

import pytest
import torch
from second_wave import TIGHT, encoding, inputs, load, same_scores
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import Pairwise
from headscape.call.positions import Positions, Visible
from headscape.encodings import Encoding, build
from headscape.kernels.assemble import prepare

YARN = {"pairing": "halves", "scaling": "yarn"}


def decoded(made: Encoding, z: dict[str, Tensor], expected: Tensor, **changes: object) -> None:
    """Compare the weights of the last query over as many keys as the peer's cache has."""
    last = inputs(made, {**z, "q": z["q"][:, :, -1:]}, **changes)
    weights = definition.scores(last).weights.detach()
    kept = expected.shape[-1]
    torch.testing.assert_close(weights[..., -kept:], expected, **TIGHT)
    assert not weights[..., :-kept].any()


@pytest.mark.parametrize("layer", [0, 1])
def test_gpt_oss_layers(layer: int) -> None:
    z, config = load("sink_gptoss_h4")
    rope = config["rope"]
    made = encoding(
        "rope", config, **YARN, base=rope["rope_theta"], factor=rope["factor"], truncate=False,
        trained_length=rope["original_max_position_embeddings"], sink=True,
        window=None if layer else config["window"],
    )  # fmt: skip
    with torch.no_grad():
        made.sink_score.copy_(z["sinks"])
    call = inputs(made, z)
    found = definition.scores(call)
    same_scores(found, z[f"scores_masked_L{layer}"])
    torch.testing.assert_close(found.weights.detach(), z[f"weights_L{layer}"], **TIGHT)
    out = definition.run(call)
    torch.testing.assert_close(out.detach(), z[f"out_L{layer}"], **TIGHT)
    decoded(made, z, z[f"decode_weights_L{layer}"])
    if layer:
        # granite_swa reports weights without the sink; its output has it.
        without = definition.scores(replace(call, sink=None)).weights
        torch.testing.assert_close(without, z["granite_weights_L1"], **TIGHT)
        loss = (out * z["grad_out"].transpose(1, 2)).sum()
        (gradient,) = torch.autograd.grad(loss, [made.sink_score])
        torch.testing.assert_close(gradient, z["grad_sinks"], **TIGHT)


@pytest.mark.parametrize("layer", [0, 1])
def test_gemma2_layers(layer: int) -> None:
    z, config = load("softcap_gemma2_h4")
    window = None if layer else config["window"]
    made = encoding("rope", config, pairing="halves", softcap=config["cap"], window=window)
    call = inputs(made, z, scale=config["query_pre_attn_scalar"] ** -0.5)
    same_scores(definition.scores(call), z[f"scores_masked_L{layer}"])
    torch.testing.assert_close(definition.run(call), z[f"out_L{layer}"], **TIGHT)
    decoded(made, z, z[f"decode_weights_L{layer}"], scale=call.scale)


def test_x_transformers_puts_the_bias_inside_the_softcap() -> None:
    z, config = load("softcap_xt_h4")
    made = encoding("nope", config, softcap=config["cap"], sink=True)
    with torch.no_grad():
        made.sink_score.copy_(z["sinks"])
    bias = Pairwise(lambda rows, cols: z["bias"][None, :, rows, cols])
    call = inputs(made, z, bias=bias)
    same_scores(definition.scores(call), z["scores_masked"])
    weights = definition.scores(call).weights.detach()
    torch.testing.assert_close(weights, z["weights"], **TIGHT)
    out = definition.run(call)
    torch.testing.assert_close(out.detach(), z["out"], **TIGHT)
    (gradient,) = torch.autograd.grad((out * z["grad_out"]).sum(), [made.sink_score])
    torch.testing.assert_close(gradient, z["grad_sinks"], **TIGHT)


def test_ministral_heats_every_layer() -> None:
    z, config = load("temp_ministral3_h4")
    rope = config["rope"]
    made = encoding(
        "rope", config, **YARN, base=rope["rope_theta"], factor=rope["factor"], trained_length=8,
        attention_factor=1.0, temperature="ministral", temperature_start=config["L0"],
    )  # fmt: skip
    call = inputs(made, z)
    torch.testing.assert_close(call.temperature[0, 0], z["temperature"], **TIGHT)
    torch.testing.assert_close(call.q * call.temperature[..., None], z["q_final"], **TIGHT)
    torch.testing.assert_close(call.k, z["k_final"], **TIGHT)
    torch.testing.assert_close(definition.scores(call).final, z["scores"], **TIGHT)
    last = definition.scores(inputs(made, {**z, "q": z["q"][:, :, -1:]})).final
    torch.testing.assert_close(last, z["decode"], **TIGHT)
    torch.testing.assert_close(definition.run(call), z["out"], **TIGHT)


def test_ssmax_counts_the_keys_of_its_document() -> None:
    z, config = load("temp_ssmax_h4")
    made = encoding("nope", config, temperature="ssmax")
    with torch.no_grad():
        made.ssmax.copy_(z["s"])
    call = inputs(made, z)
    same_scores(definition.scores(call), z["scores_masked"])
    out = definition.run(call)
    torch.testing.assert_close(out.detach(), z["out"], **TIGHT)
    (gradient,) = torch.autograd.grad((out * z["grad_out"]).sum(), [made.ssmax])
    torch.testing.assert_close(gradient, z["grad_s"], **TIGHT)
    groups = z["documents"]
    starts = torch.cat([torch.ones(1, 1).bool(), groups.diff() != 0], dim=1)
    at = torch.arange(groups.shape[1])
    at = (at - torch.cummax(torch.where(starts, at, 0), dim=1).values).long()
    where, visible = Positions(at, at), Visible(True, groups, groups)
    packed = prepare(made, z["q"], z["k"], z["v"], None, where, visible=visible)
    same_scores(definition.scores(packed), z["scores_masked_packed"])
    torch.testing.assert_close(definition.run(packed).detach(), z["out_packed"], **TIGHT)


@pytest.mark.parametrize(
    ("kind", "key"), [("llama4", "llama4"), ("ministral", "ministral3"), ("inkling", "inkling")]
)
def test_temperatures_by_position(kind: str, key: str) -> None:
    z, config = load("temp_tables_s")
    made = build(
        "nope", heads=2, head_dim=4, width=8, train_length=9, temperature=kind,
        temperature_rate=config["alpha"], temperature_start=config["n0"],
    )  # fmt: skip
    found = made.temperature(z["positions"][None])
    torch.testing.assert_close(found[0, 0], z[key], rtol=1e-12, atol=0)
