"""Encodings whose bias reads queries, keys or the layer's input, against vectors of public code.

The files are in tests/golden/second; all peers ran in float64.
"""

import pytest
import torch
from second_wave import TIGHT, encoding, inputs, load, same_scores
from torch import Tensor
from torch.nn.functional import linear

from headscape.call import definition
from headscape.call.bias import dense
from headscape.call.positions import Positions, Visible
from headscape.encodings import Encoding, LayerContext, LayerInput, Stream
from headscape.errors import InputError
from headscape.gpt2.qk_norm import QKNorm
from headscape.kernels.assemble import prepare


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.detach(), theirs, **TIGHT)


def loaded(name: str, config: dict, tensors: dict[str, Tensor], **fields: object) -> Encoding:
    """An encoding with published tensors."""
    made = encoding(name, config, **fields)
    made.load_published(tensors)
    return made


@pytest.mark.parametrize("layer", ["full", "sliding"])
def test_inkling_with_its_norm_temperature_and_window(layer: str) -> None:
    z, config = load("inkling_h4")
    extent = config["extent" if layer == "full" else "window"]
    fields = {"rank": config["d_rel"], "extent": extent}
    if layer == "full":
        fields |= {
            "temperature": "inkling",
            "temperature_start": config["n_floor"],
            "temperature_rate": config["alpha"],
        }
    else:
        fields |= {"window": config["window"]}
    made = encoding("inkling", config, **fields)
    made.bank.data.copy_(z[f"proj_{layer}"])
    q, k = (rms(z[name], z[f"{name}_norm_weight"], config["norm_eps"]) for name in "qk")
    # r is given in place of a projection of the layer's input.
    r = z["r"].transpose(1, 2).requires_grad_()
    made.stream = lambda *_, **__: Stream(query=r)
    x = torch.zeros(1, config["L"], 1).double()
    call = prepare(made, q, k, z["v"], x, Positions.span(config["L"]))
    assert call.scale == pytest.approx(1 / config["D"])
    found = definition.scores(call)
    same_scores(found, z[f"scores_masked_{layer}"])
    same(definition.run(call), z[f"out_{layer}"])
    seen = found.visible.expand_as(found.final)
    heat = 1.0 if call.temperature is None else call.temperature[..., None]
    bias = dense(call.bias, call.positions) * heat
    same(bias[seen], z[f"bias_{layer}"][seen])
    loss = (definition.run(call) * z[f"grad_out_{layer}"].transpose(1, 2)).sum()
    by_bank, by_r = torch.autograd.grad(loss, [made.bank, r])
    same(by_bank, z[f"grad_proj_{layer}"])
    same(by_r.transpose(1, 2), z[f"grad_r_{layer}"])
    keys = z[f"decode_{layer}"].shape[-1]
    same(found.final[:, :, -1:, -keys:], z[f"decode_{layer}"])


@torch.no_grad()
@pytest.mark.parametrize("layer", ["full", "sliding"])
def test_inkling_2_clips_queries_keys_and_curves(layer: str) -> None:
    stored, config = load("inkling2_h4")
    z = {
        name.removesuffix(f"_{layer}"): value
        for name, value in stored.items()
        if name == "x" or name.endswith(f"_{layer}")
    }
    fields = {"rank": config["rank"], "qk_scale": "model", "clip": config["clip"]}
    if layer == "full":
        fields |= {
            "extent": config["extent"],
            "temperature": "inkling",
            "temperature_start": config["n_floor"],
            "temperature_rate": config["alpha"],
        }
    else:
        fields |= {"window": config["window"]}
    published = {
        "r_proj.weight": z["r_proj"],
        "rel_logits_proj.proj": z["bank"],
        "rel_l2_clip.scale": z["gain"],
    }
    made = loaded("inkling", config, published, **fields)
    queries, keys = (
        QKNorm(
            config["H"], config["D"], over="head", epsilon=0.0, weight=weight, kind="clip",
            per_head=True, limit=config["qk_limit"],
        ).double()
        for weight in (True, False)
    )  # fmt: skip
    queries.weight.data.copy_(z["q_weight"][:, None])
    q, k = queries(z["q"]), keys(z["k"])
    call = prepare(made, q, k, k, z["x"], Positions.span(config["L"]))
    heat = 1.0 if call.temperature is None else call.temperature[..., None]
    same(q * heat, z["q_clipped"])
    same(k, z["k_clipped"])
    found = definition.scores(call)
    seen = found.visible.expand_as(found.final)
    same((dense(call.bias, call.positions) * heat)[seen], z["bias"][seen])
    same(found.final[seen], z["scores"][seen])


def test_relative_projection_of_x_transformers() -> None:
    z, config = load("relproj_xt_h4")
    fields = {"rank": config["num_distance_basis"], "extent": config["max_dist"]}
    made = loaded(
        "inkling", {**config, "D": config["C"] // config["H"]},
        {"to_distance_weights.0.weight": z["w"], "to_distance_weights.0.bias": z["b"],
         "distance_bank": z["bank"]},
        **fields, qk_scale="model", projection_bias=True,
    )  # fmt: skip
    stream, where = made.stream(LayerInput(z["x"])), Positions.span(config["L"])
    found = dense(made.bias(LayerContext(where, stream, stream)), where)
    same(found.tril(), z["bias"])
    learned = [made.bank, made.project.weight, made.project.bias]
    gradients = torch.autograd.grad((found.tril() * z["grad_out"]).sum(), learned)
    for ours, name in zip(gradients, ("bank", "w", "b"), strict=True):
        same(ours, z[f"grad_{name}"])
    last = Positions.span(3, config["L"])
    row = dense(made.bias(LayerContext(last, stream.last(3), stream)), last)
    same(row.tril(config["L"] - 3), z["bias_last3"])


def test_music_transformer() -> None:
    z, config = load("shaw_music_h4")
    fields = {"left": config["er_len"] - 1, "beyond": "refuse", "init": "uniform"}
    made = loaded("shaw", config, {"Er": z["Er"]}, **fields)
    call = inputs(made, z)
    same_scores(definition.scores(call), z["scores_masked"])
    same(definition.run(call), z["out"])
    bias = dense(call.bias, call.positions).tril()
    same(bias, z["bias"])
    (gradient,) = torch.autograd.grad((bias * z["grad_out"]).sum(), [made.table])
    same(gradient, z["grad_Er"])
    long = torch.zeros(1, 4, config["er_len"] + 1, 16).double()
    with pytest.raises(InputError, match="rows for distances 0 to 27, but the positions have 0 to"):
        prepare(made, long, long, long, None, Positions.span(config["er_len"] + 1))


def test_shaw_in_both_directions() -> None:
    z, config = load("shaw_w2vbert_h4")
    fields = {"left": config["left"], "right": config["right"]}
    made = loaded(
        "shaw", {**config, "causal": False}, {"distance_embedding.weight": z["table"]}, **fields
    )
    call = inputs(made, z)
    same(dense(call.bias, call.positions), z["bias"])
    same(definition.scores(call).final, z["scores"])
    out = definition.run(call)
    same(out, z["out"])
    (gradient,) = torch.autograd.grad((out * z["grad_out"].transpose(1, 2)).sum(), [made.table])
    same(gradient, z["grad_table"])
    same(definition.run(inputs(made, z, visible=Visible(causal=True))), z["out_causal"])


def test_conformer() -> None:
    z, config = load("xl_conformer_h4")
    learned = {name: z[name] for name in ("pos_bias_u", "pos_bias_v")}
    learned["linear_pos.weight"] = z["linear_pos"]
    made = loaded("transformer-xl", {**config, "causal": False}, learned, layout="interleaved")
    call = inputs(made, z)
    same(definition.scores(call).final, z["scores"])
    same(definition.run(call), z["out"])


@pytest.mark.parametrize("kind", ["uni", "bi"])
def test_xlnet_behind_its_memory(kind: str) -> None:
    z, config = load("xl_xlnet_h4")
    learned = {name: z[name] for name in ("r_w_bias", "r_r_bias", "r")}
    made = loaded("transformer-xl", {**config, "causal": kind == "uni"}, learned)
    where = Positions.span(config["L"], config["L"] + config["mem"])
    call = prepare(made, z["q"], z["k"], z["v"], None, where)
    same_scores(definition.scores(call), z[f"scores_{kind}"])
    out = definition.run(call)
    same(out, z[f"out_{kind}"])
    if kind == "uni":
        loss = (out.permute(2, 0, 1, 3) * z["grad_out_uni"]).sum()
        by_u, by_w, by_r = torch.autograd.grad(
            loss, [made.content, made.position, made.project.weight]
        )
        same(by_u, z["grad_u"])
        same(by_w, z["grad_w"])
        same(by_r.T.unflatten(1, (4, 16)), z["grad_r"])


@pytest.mark.parametrize("kind", ["shared", "separate", "c2p_only"])
def test_deberta(kind: str) -> None:
    z, config = load("deberta_v2_h4")
    shared, sizes = kind == "shared", (config["H"], config["D"])
    fields = {
        "buckets": config["buckets"], "max_distance": config["max_relative_positions"],
        "share_att_key": shared, "terms": "c2p" if kind == "c2p_only" else "both",
    }  # fmt: skip
    learned = {"rel_embeddings.weight": z["rel_embeddings"]}
    for side in () if shared else ("pos_key_proj", "pos_query_proj"):
        learned |= {f"{side}.{part}": z[f"{side}_{part}"] for part in ("weight", "bias")}
    made = loaded("deberta", {**config, "causal": False}, learned, **fields)

    def heads(name: str, x: Tensor) -> Tensor:
        found = linear(x, z[f"{name}_proj_weight"], z[f"{name}_proj_bias"])
        return found.unflatten(-1, sizes).transpose(-2, -3)

    q, k, v = (heads(name, z["x"]) for name in ("query", "key", "value"))
    where = Positions.span(config["L"])
    assert torch.equal(made.bucket(where.distance()[0]), z["bucket"])
    call = prepare(
        made, q, k, v, None, where, project=lambda rows: (heads("query", rows), heads("key", rows))
    )
    assert call.scale == pytest.approx(((2 if kind == "c2p_only" else 3) * config["D"]) ** -0.5)
    same(definition.scores(call).final, z[f"scores_{kind}"])
    out = definition.run(call)
    same(out, z[f"out_{kind}"])
    if kind != "c2p_only":
        loss = (out.transpose(1, 2).flatten(2) * z[f"grad_out_{kind}"]).sum()
        (gradient,) = torch.autograd.grad(loss, [made.rows])
        same(gradient, z[f"grad_rel_{kind}"])


@pytest.mark.parametrize(
    ("gate", "name"), [("key", "key"), ("query", "query"), ("both", "querykey")]
)
def test_grape_a(gate: str, name: str) -> None:
    z, config = load("grape_a_h4")
    learned = {"omega": z["omega"], "u": z["u"], "v": z["w"]}
    made = loaded("grape", config, learned, gate=gate)
    normed = {key: rms(z[key], z[f"{key}_norm_weight"], config["norm_eps"]) for key in "qk"}
    call = inputs(made, {**normed, "v": z["v"]})
    same(dense(call.bias, call.positions).tril(), z[f"bias_{name}"].nan_to_num(neginf=0))
    same_scores(definition.scores(call), z[f"scores_masked_{name}"])
    out = definition.run(call)
    same(out, z[f"out_{name}"])
    loss = (out.transpose(1, 2).flatten(2) * z["grad_out"]).sum()
    ours = {part: getattr(made, part) for part in ("omega", "u", "w")}
    ours = {part: value for part, value in ours.items() if value is not None}
    for part, gradient in zip(ours, torch.autograd.grad(loss, list(ours.values())), strict=True):
        same(gradient, z[f"grad_{part}_{name}"])


def test_grape_ap() -> None:
    z, config = load("grape_ap_h4")
    made = loaded("grape", config, {"c_p.weight": z["c_p"]}, gate="path", path_dim=config["P"])
    q, k = (rms(z[key], z[f"{key}_norm_weight"], config["norm_eps"]) for key in "qk")
    call = prepare(made, q, k, z["v"], z["x"], Positions.span(config["L"]))
    same(dense(call.bias, call.positions).tril(), z["bias"].nan_to_num(neginf=0))
    same_scores(definition.scores(call), z["scores_masked"])
    out = definition.run(call)
    same(out, z["out"])
    loss = (out.transpose(1, 2).flatten(2) * z["grad_out"]).sum()
    (gradient,) = torch.autograd.grad(loss, [made.path.weight])
    same(gradient, z["grad_c_p"])
