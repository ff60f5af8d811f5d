"""The package against values that public code gave, file by file (tests/golden/INDEX.md: whose).

Tolerance: 1e-6 relative where the peer ran in float64, 1e-4 where in float32. Every array that is
neither input nor gradient is compared, hidden pairs aside, about which peers disagree.
"""

import json
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from published import FILES, NAMES, TABLES, Golden, encoding, load, scale, tensor

from headscape.call import definition
from headscape.call.bias import dense
from headscape.call.positions import Positions, Visible
from headscape.encodings import LayerContext, LayerInput, Side, build
from headscape.encodings.alibi import SLOPES
from headscape.encodings.t5 import bucket
from headscape.kernels.assemble import prepare

Found = Iterator[tuple[str, torch.Tensor]]

INPUT = re.compile(
    r"config|q|k|v|x|w|b|[wb][12]|c|init_L|L_multiplier|attention_mask|rel|mlp.*|cable_layer_.*"
    r"|(param_)?bias_[pa]|gpt2_(ids|wte|wpe)|nope_[qkv]|grad_.*"
)


def attention(name: str, z: Golden) -> Found:
    """Everything a file with q, k, v can hold."""
    made, length = encoding(name, z), z["q"].shape[2]
    q, k, v = (tensor(z[part]) for part in "qkv")
    x = tensor(z["x"]) if "x" in z else None
    inputs = prepare(made, q, k, v, x, Positions.span(length), scale=scale(z))
    found = definition.scores(inputs)
    yield "scores", found.final
    yield "scores_masked", found.final.masked_fill(~found.visible, -torch.inf)
    yield "out", definition.run(inputs)
    if inputs.bias is not None:
        value = dense(inputs.bias, inputs.positions)
        for array in ("bias", "bias_masked", "base_bias"):
            yield array, value if array in z and z[array].ndim == 4 else value[0]
        yield "slopes", -value[0, :, 1, 0]
    # The authors' one-row call of DAPEv2 sees key 0 only; it is documented as wrong.
    if not name.startswith("dapev2"):
        at = Positions.span(1, length)
        last = prepare(made, q[:, :, -1:], k, v, x, at, scale=scale(z))
        yield "scores_decode", definition.scores(last).final
    if x is not None:
        stream = made.stream(LayerInput(x))
        yield "cumsum", stream.total
        yield "log_fgate", stream.total.diff(dim=2, prepend=0 * stream.total[:, :, :1]).mT
        if stream.weight is not None:
            yield "weight", stream.weight
    if "attention_mask" in z:
        yield from both_directions(name, z)


def both_directions(name: str, z: Golden) -> Found:
    """The bidirectional run, whose padded keys are hidden by subtracting 10000."""
    made = encoding(name, z, causal=False)
    q, k, v = (tensor(z[part]) for part in "qkv")
    x = tensor(z["x"]) if "x" in z else None
    keep = torch.tensor(z["attention_mask"]) > 0
    visible = Visible(False, torch.zeros(keep.shape).long(), torch.where(keep, 0, -1))
    inputs = prepare(made, q, k, v, x, Positions.span(q.shape[2]), visible=visible)
    far = -10_000.0 * ~keep[:, None, None, :]
    yield "scores_bidir", definition.scores(inputs).final + far
    yield "out_bidir", definition.run(inputs)
    yield "bias_bidir", dense(inputs.bias, inputs.positions) + far


def rotation(name: str, z: Golden) -> Found:
    made = encoding(name, z)
    at = torch.arange(z["q"].shape[2])[None]
    for part, role in (("q", "query"), ("k", "key")):
        yield f"{part}_rot", made.rotate(tensor(z[part]), Side(at, role))
        yield f"{part}_rot_f32", made.rotate(torch.tensor(z[part]), Side(at, role))
    yield "inv_freq", made.frequencies(24)
    ones = torch.zeros(1, 1, 24, 64, dtype=torch.float64)
    ones[..., :32] = 1.0
    if "cos" in z:
        turned = made.rotate(ones, Side(at, "key"))[0, 0]
        yield "cos", turned[:, :32].repeat(1, 2)
        yield "sin", turned[:, 32:].repeat(1, 2)
    yield from attention(name, z)


def slopes(name: str, z: Golden) -> Found:
    rules = {"cable": "geometric", "bloom": "fairseq", "xtrans": "fairseq"}
    for array in z.keys() - {"config"}:
        peer, heads = array.split("_")
        yield array, tensor(SLOPES[rules.get(peer, peer)](int(heads)))


def symmetric_alibi(name: str, z: Golden) -> Found:
    made = encoding(name, z, causal=False)
    for array, queries in (("bias", 48), ("bias_1xL", 1), ("bias_4xL", 4)):
        at = Positions.span(queries, 48)
        yield array, dense(made.bias(LayerContext(at)), at)[0]
    at = Positions.span(2, 2)
    yield "slopes", -dense(made.bias(LayerContext(at)), at)[0, :, 1, 0]


def buckets(name: str, z: Golden) -> Found:
    for array in z.keys() - {"config", "rel"}:
        way, rows, far = array.removeprefix("exact_").split("_")
        distance = -torch.tensor(z["rel"])
        yield (
            array,
            bucket(distance, buckets=int(rows), max_distance=int(far), causal=way == "causal"),
        )


def table(name: str, z: Golden) -> Found:
    made = encoding(name, z)
    for array, queries in (("bias", 48), ("bias_decode", 1)):
        at = Positions.span(queries, 48)
        yield array, dense(made.bias(LayerContext(at)), at)[0]


def frequencies(name: str, z: Golden) -> Found:
    recipes = json.loads(str(z["config"]))["recipes"]
    for array, recipe in recipes.items():
        kind = recipe["rope_type"]
        fields = {
            "scaling": "none" if kind == "default" else kind,
            "trained_length": recipe.get(
                "original_max_position_embeddings", recipe["max_position_embeddings"]
            ),
            **{
                field: recipe[field]
                for field in ("factor", "low_freq_factor", "high_freq_factor")
                if field in recipe
            },
        }
        made = build("rope", heads=1, head_dim=32, width=32, train_length=64, **fields)
        assert made.attention_factor() == pytest.approx(recipe["attention_factor"], rel=1e-12)
        yield array, made.frequencies(recipe.get("seq_len", 0))


def absolute(name: str, z: Golden) -> Found:
    def embedded(x: torch.Tensor, kind: str, first: int = 0, **fields: object) -> torch.Tensor:
        made = build(
            kind, heads=1, head_dim=x.shape[-1], width=x.shape[-1], train_length=32, **fields
        ).double()
        if kind == "learned":
            made.load_published({"wpe.weight": tensor(z["gpt2_wpe"])})
        return made.embed(x, torch.arange(first, first + x.shape[1])[None])

    words = tensor(z["gpt2_wte"])[torch.tensor(z["gpt2_ids"])]
    yield "gpt2_hidden0", embedded(words, "learned")
    yield "gpt2_hidden0_after15", embedded(words[:, 15:], "learned", 15)
    nothing = torch.zeros(1, 48, 96, dtype=torch.float64)
    yield "sin_cable", embedded(nothing, "sinusoidal")[0]
    for array, factor in (("sin_neox", 1.0), ("sin_marian", 1.0), ("sin_xtransformers", 96**-0.5)):
        yield array, embedded(nothing, "sinusoidal", layout="halves", scale=factor)[0]
    learned = embedded(nothing, "sinusoidal", layout="halves", scale=96**-0.5, learned_scale=True)
    yield "sin_xtransformers", learned[0]
    nope = build("nope", heads=12, head_dim=16, width=192, train_length=24)
    q, k, v = (tensor(z[f"nope_{part}"]) for part in "qkv")
    inputs = prepare(nope, q, k, v, None, Positions.span(24))
    found = definition.scores(inputs)
    yield "nope_scores_masked", found.final.masked_fill(~found.visible, -torch.inf)
    yield "nope_out", definition.run(inputs)


CASES: dict[str, Callable[[str, Golden], Found]] = {
    **dict.fromkeys(NAMES, attention),
    "absolute_and_nope": absolute,
    "alibi_slopes_all_peers": slopes,
    "alibi_xtransformers_h12": symmetric_alibi,
    "rope_halfsplit_neox_h12": rotation,
    "rope_interleaved_cable_official_h12": rotation,
    "rope_scaling_hf_inv_freq": frequencies,
    "t5_buckets": buckets,
    "t5_hf_causal_h12_L48": table,
}
SYMMETRIC = {"alibi_xtransformers_h12"}


@pytest.mark.parametrize("name", FILES)
def test_forward_values_are_those_of_public_code(name: str) -> None:
    z = load(name)
    compared = set()
    with torch.no_grad():
        found = [(array, value) for array, value in CASES[name](name, z) if array in z]
    for array, value in found:
        peer, mine = z[array], value.numpy()
        assert mine.shape == peer.shape, array
        where = np.isfinite(peer)
        if array.startswith(("scores", "bias", "base")) and name not in SYMMETRIC:
            if array.endswith("_masked"):
                assert (np.isfinite(mine) == where).all() or not array.startswith("scores")
            if not array.endswith(("_decode", "_bidir")):
                where = where & np.tri(*peer.shape[-2:], dtype=bool)
        relative, floor = (1e-4, 1e-6) if peer.dtype == np.float32 else (1e-6, 1e-9)
        np.testing.assert_allclose(
            mine[where],
            peer[where],
            rtol=relative,
            atol=floor * np.abs(peer[where]).max(),
            err_msg=array,
        )
        compared.add(array)
    forward = {array for array in z if not INPUT.fullmatch(array)}
    if name in TABLES:
        forward -= {"weight"}
    if name.startswith("dapev2"):
        forward -= {"scores_decode"}
    assert forward <= compared, forward - compared


@pytest.mark.parametrize("name", ["dapev2_alibi_h8", "dapev2_kerple_h12"])
def test_the_masked_boundary_changes_the_last_query_only(name: str) -> None:
    z = load(name)
    q, k, v = (tensor(z[part]) for part in "qkv")
    made = encoding(name, z, boundary="masked")
    with torch.no_grad():
        ours = definition.scores(prepare(made, q, k, v, None, Positions.span(32))).final
    changed = (ours - tensor(z["scores"])).abs() > 1e-6 * ours.abs().max()
    pairs = (changed & torch.ones(32, 32).tril().bool()).any(dim=1).any(dim=0)
    assert pairs.nonzero().tolist() == [[31, 31]]


def test_head_h_of_12_spans_511_times_its_slope_at_512_tokens() -> None:
    made = build("alibi", heads=12, head_dim=64, width=768, train_length=512)
    at = Positions.span(512)
    value = dense(made.bias(LayerContext(at)), at)[0]
    seen = torch.ones(512, 512).tril().bool()
    for head in range(12):
        visible = value[head][seen]
        span = (visible.max() - visible.min()).item()
        assert span == pytest.approx(511 * 2 ** (-8 * (head + 1) / 12), rel=1e-12)
    printed = json.loads(str(load("alibi_slopes_all_peers")["config"]))["paper_fig12_ranges_512"]
    spans = (value.amax(dim=(1, 2)) - value.where(seen, 0.0).amin(dim=(1, 2))).tolist()
    assert spans == pytest.approx(printed, rel=0.02)
