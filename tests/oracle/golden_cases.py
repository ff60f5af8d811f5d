"""What every golden file holds, worked out by the oracle.

A case takes a file's arrays and yields (array name, oracle's value[, pairs to compare]); the array
of that name in the file is what public code gave. Without pairs everything is compared; hidden
pairs are left out where peers disagree about them.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import oracle

GOLDEN = Path(__file__).parents[1] / "golden"

Golden = dict[str, np.ndarray]
Checks = Iterator[tuple[str, np.ndarray] | tuple[str, np.ndarray, np.ndarray]]


def load(name: str) -> Golden:
    """The arrays of one golden file, its JSON `config` among them."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


def square(z: Golden, key: str = "q") -> tuple[np.ndarray, np.ndarray]:
    positions = np.arange(z[key].shape[-2])
    return positions, oracle.visible_pairs(positions, positions)


def attention(z: Golden, bias: np.ndarray, scale: float | None = None) -> Checks:
    """What most files hold of one bias: the scores and the output."""
    _, seen = square(z)
    scores = oracle.content_scores(z["q"], z["k"], scale) + bias
    yield from outcome(z, scores, seen)


def outcome(z: Golden, scores: np.ndarray, seen: np.ndarray) -> Checks:
    yield "out", oracle.attend(scores, z["v"], seen)
    if "scores" in z:
        yield "scores", scores, seen
    if "scores_masked" in z:
        yield "scores_masked", np.where(seen, scores, -np.inf)


def alibi_slopes_all_peers(z: Golden) -> Checks:
    rules = {
        "fairseq": "fairseq",
        "cable": "geometric",
        "bloom": "fairseq",
        "mpt": "mpt",
        "falcon": "falcon",
        "xtrans": "fairseq",
    }
    for name in z.keys() - {"config"}:
        peer, heads = name.split("_")
        yield name, oracle.alibi_slopes(int(heads), rules[peer])


def alibi_cable_official_h12(z: Golden) -> Checks:
    at, seen = square(z)
    slopes = oracle.alibi_slopes(12, "geometric")
    bias = oracle.alibi_bias(slopes, at, at)
    yield "slopes", slopes
    yield "bias", bias, seen
    yield from attention(z, bias)
    kept = oracle.visible_pairs(at, at, causal=False, keep=z["attention_mask"])
    both = oracle.content_scores(z["q"], z["k"]) + oracle.alibi_bias(slopes, at, at, causal=False)
    yield "scores_bidir", both, kept
    yield "out_bidir", oracle.attend(both, z["v"], kept)


def alibi_neox_h12(z: Golden) -> Checks:
    at, seen = square(z)
    slopes = oracle.alibi_slopes(12, "fairseq")
    bias = oracle.alibi_bias(slopes, at, at)
    yield "slopes", slopes
    yield "bias", bias, seen
    yield from attention(z, bias)
    step = oracle.alibi_bias(slopes, at[-1:], at)
    yield "scores_decode", oracle.content_scores(z["q"][:, :, -1:], z["k"]) + step


def alibi_xtransformers_h12(z: Golden) -> Checks:
    at = np.arange(48)
    slopes = oracle.alibi_slopes(12, "fairseq")
    yield "slopes", slopes
    for name, queries in {"bias": at, "bias_1xL": at[-1:], "bias_4xL": at[-4:]}.items():
        yield name, oracle.alibi_bias(slopes, queries, at, causal=False)


def t5_buckets(z: Golden) -> Checks:
    for name in z.keys() - {"config", "rel"}:
        way, N, M = name.removeprefix("exact_").split("_")
        buckets = [
            oracle.t5_bucket(int(r), N=int(N), M=int(M), bidirectional=way == "bidir")
            for r in z["rel"]
        ]
        yield name, np.array(buckets)


def t5_hf_causal_h12_L48(z: Golden) -> Checks:  # noqa: N802 - the file's name
    at, seen = square(z, "bias")
    yield "bias", oracle.t5_bias(z["weight"], at, at), seen
    yield "bias_decode", oracle.t5_bias(z["weight"], at[-1:], at)


def t5bias_cable_official_h12(z: Golden) -> Checks:
    at, seen = square(z)
    yield "bias", oracle.t5_clipped_bias(z["weight"], at, at, causal=False)
    bias = oracle.t5_clipped_bias(z["weight"][256:], at, at)
    yield "bias", bias, seen
    yield from attention(z, bias, scale=1 / np.sqrt(12 * 16))


def fire(z: Golden) -> Checks:
    at, seen = square(z)
    bias = oracle.fire_bias(
        c=z["c"],
        L_mult=z["L_multiplier"],
        L0=z["init_L"],
        W1=z["w1"],
        b1=z["b1"],
        W2=z["w2"],
        b2=z["b2"],
        qpos=at,
        kpos=at,
    )
    yield "bias" if "bias" in z else "bias_masked", bias, seen
    yield from attention(z, bias)


def kerple(z: Golden) -> Checks:
    at, seen = square(z)
    power = json.loads(str(z["config"]))["pos_emb"].startswith("kerple_power")
    form = oracle.kerple_power_bias if power else oracle.kerple_log_bias
    p_max = 2.0 if power else np.inf
    p, a = oracle.kerple_clamp(z["param_bias_p"], z["param_bias_a"], p_max=p_max)
    bias = form(p, a, at, at)
    yield "bias", bias, seen
    yield from attention(z, bias)
    step = form(p, a, at[-1:], at)
    yield "scores_decode", oracle.content_scores(z["q"][:, :, -1:], z["k"]) + step


def network(z: Golden, prefix: str = "mlp2") -> dict[str, np.ndarray]:
    names = {"W1": "0_weight", "b1": "0_bias", "W2": "2_weight", "b2": "2_bias"}
    return {ours: z[f"{prefix}_{theirs}"] for ours, theirs in names.items()}


def base_bias(z: Golden) -> np.ndarray:
    at, _ = square(z)
    if "bias_p" in z:
        return oracle.kerple_log_bias(z["bias_p"], z["bias_a"], at, at)
    return oracle.alibi_bias(oracle.alibi_slopes(z["q"].shape[1], "fairseq"), at, at)


def dape_v1_kerple_h12(z: Golden) -> Checks:
    _, seen = square(z)
    A, B = oracle.content_scores(z["q"], z["k"]), base_bias(z)
    yield "base_bias", B, seen
    yield from outcome(z, oracle.dape_scores(A, B, **network(z)), seen)
    yield "scores_decode", oracle.dape_scores(A[:, :, -1:], B[:, -1:], **network(z))


def dape_v1_rope_h12(z: Golden) -> Checks:
    _, seen = square(z)
    A = oracle.content_scores(z["q"], z["k"])
    yield from outcome(z, oracle.dape_scores(A, None, **network(z)), seen)
    yield "scores_decode", oracle.dape_scores(A[:, :, -1:], None, **network(z))


def dape_cable_official_kerple_h12(z: Golden) -> Checks:
    _, seen = square(z)
    A = oracle.content_scores(z["q"], z["k"])
    scores = oracle.dape_scores(A, base_bias(z), **network(z, "mlp_dape"), add_bias=False)
    yield from outcome(z, scores, seen)


def dapev2(z: Golden) -> Checks:
    _, seen = square(z)
    A, B = oracle.content_scores(z["q"], z["k"]), base_bias(z)
    yield "base_bias", B, seen
    yield from outcome(
        z, oracle.dapev2_scores(A, B, **network(z), visible=seen, boundary="released"), seen
    )
    interior = seen.copy()
    interior[-1] = False
    masked = oracle.dapev2_scores(A, B, **network(z), visible=seen, boundary="masked")
    yield "scores", masked, interior
    # The authors' one-row call hides every key but the first from the convolution.
    first = np.arange(len(seen))[None] == 0
    step = oracle.dapev2_scores(
        A[:, :, -1:], B[:, -1:], **network(z), visible=first, boundary="released"
    )
    yield "scores_decode", step


def running_sums(bias: np.ndarray, first: np.ndarray) -> np.ndarray:
    """S from S_i - S_0 and S_0."""
    return bias[..., 0] + first[..., None]


def cable_official_v1_h12(z: Golden) -> Checks:
    at, seen = square(z)
    bias = oracle.cable_bias(z["x"], z["w"], z["b"], at, at, increments="softplus")
    yield "bias_masked", bias, seen
    first = -oracle.softplus(z["x"][:, 0].astype(np.float64) @ z["w"].T + z["b"])
    yield "cumsum", running_sums(bias, first)
    yield from attention(z, bias, scale=1.0)


def kcable_nw_h12(z: Golden) -> Checks:
    at, seen = square(z)
    W, b = z["cable_layer_weight"], z["cable_layer_bias"]
    for kernel in ("sums", "bias"):
        bias = oracle.cable_bias(z["x"], W, b, at, at, increments="softplus", kernel=kernel)
        yield "bias_masked", bias, seen
        yield from attention(z, bias)
    both = oracle.cable_bias(
        z["x"], W, b, at, at, increments="softplus", kernel="sums", causal=False
    )
    kept = oracle.visible_pairs(at, at, causal=False, keep=z["attention_mask"])
    yield "bias_bidir", both, kept


def cable6_weighted_thirdparty_h12(z: Golden) -> Checks:
    at, _ = square(z)
    W, b = z["cable_layer_weight"], z["cable_layer_bias"]
    U, c = z["cable_layer_scale_weight"], z["cable_layer_scale_bias"]
    bias = oracle.cable_bias(z["x"], W, b, at, at, U=U, c=c, increments="relu")
    yield from attention(z, bias)
    x = z["x"].astype(np.float64)
    plain = oracle.cable_bias(x, W, b, at, at, increments="relu")
    yield "cumsum", running_sums(plain, -np.maximum(x[:, 0] @ W.T + b, 0))
    yield "weight", np.swapaxes(oracle.softplus(x @ U.T + c), 1, 2)


def rope_halfsplit_neox_h12(z: Golden) -> Checks:
    at, _ = square(z)
    theta = oracle.rope_frequencies(64)
    yield "inv_freq", theta
    q, k = (oracle.rotate(z[name], at, theta, pairing="half") for name in ("q", "k"))
    yield "q_rot", q
    yield "k_rot", k
    yield "q_rot_f32", q
    scores = oracle.content_scores(q, k)
    yield "scores", scores
    yield from outcome(z, scores, oracle.visible_pairs(at, at))
    step = oracle.rotate(z["q"][:, :, -1:], at[-1:], theta, pairing="half")
    yield "scores_decode", oracle.content_scores(step, k)
    unit = np.zeros((1, 1, len(at), 64))
    unit[..., :32] = 1.0
    turned = oracle.rotate(unit, at, theta, pairing="half")[0, 0]
    yield "cos", np.tile(turned[:, :32], 2)
    yield "sin", np.tile(turned[:, 32:], 2)


def rope_interleaved_cable_official_h12(z: Golden) -> Checks:
    at, seen = square(z)
    theta = oracle.rope_frequencies(64)
    q, k = (oracle.rotate(z[name], at, theta, pairing="interleaved") for name in ("q", "k"))
    yield "q_rot", q
    yield "k_rot", k
    yield "q_rot_f32", q
    yield from outcome(z, oracle.content_scores(q, k), seen)


def rope_scaling_hf_inv_freq(z: Golden) -> Checks:
    yield "default", oracle.rope_frequencies(32)
    yield "linear4", oracle.linear_frequencies(32, 4.0)
    yield "dynamic2_seq160", oracle.dynamic_ntk_frequencies(32, 2.0, 160, 64)
    yield "yarn4", oracle.yarn_frequencies(32, 4.0, 64)
    yield "llama3_8", oracle.llama3_frequencies(32, 8.0, 64)
    recipe = json.loads(str(z["config"]))["recipes"]["yarn4"]
    assert oracle.yarn_factor(4.0) == pytest.approx(recipe["attention_factor"], rel=1e-12)


def fox_fla_h12(z: Golden) -> Checks:
    at, seen = square(z)
    bias = oracle.fox_bias(z["x"], z["w"], z["b"], at, at)
    yield "bias", bias, seen
    yield from attention(z, bias)
    gate = oracle.sigmoid(z["x"].astype(np.float64) @ z["w"].T + z["b"])
    yield "log_fgate", np.log(gate)


def absolute_and_nope(z: Golden) -> Checks:
    tokens, wpe = z["gpt2_wte"][z["gpt2_ids"]], z["gpt2_wpe"]
    yield "gpt2_hidden0", oracle.learned_embedding(tokens, wpe, np.arange(20))
    yield "gpt2_hidden0_after15", oracle.learned_embedding(tokens[:, 15:], wpe, np.arange(15, 20))
    with pytest.raises(IndexError):
        oracle.learned_embedding(tokens, wpe, np.arange(13, 33))
    at = np.arange(48)
    yield "sin_cable", oracle.sinusoidal_embedding(at, 96, layout="interleaved", scale=0.1)
    for name, scale in {"sin_neox": 1.0, "sin_marian": 1.0, "sin_xtransformers": 96**-0.5}.items():
        yield name, oracle.sinusoidal_embedding(at, 96, layout="halves", scale=scale)
    nope = {name.removeprefix("nope_"): z[name] for name in z if name.startswith("nope_")}
    for name, *rest in attention(nope, np.zeros(())):
        yield f"nope_{name}", *rest


CASES: dict[str, Callable[[Golden], Checks]] = {
    "absolute_and_nope": absolute_and_nope,
    "alibi_cable_official_h12": alibi_cable_official_h12,
    "alibi_neox_h12": alibi_neox_h12,
    "alibi_slopes_all_peers": alibi_slopes_all_peers,
    "alibi_xtransformers_h12": alibi_xtransformers_h12,
    "cable6_weighted_thirdparty_h12": cable6_weighted_thirdparty_h12,
    "cable_official_v1_h12": cable_official_v1_h12,
    "dape_cable_official_kerple_h12": dape_cable_official_kerple_h12,
    "dape_v1_kerple_h12": dape_v1_kerple_h12,
    "dape_v1_rope_h12": dape_v1_rope_h12,
    "dapev2_alibi_h8": dapev2,
    "dapev2_kerple_h12": dapev2,
    "fire_cable_official_h12": fire,
    "fire_dape_h12": fire,
    "fire_megatron_h12": fire,
    "fox_fla_h12": fox_fla_h12,
    "kcable_nw_h12": kcable_nw_h12,
    "kerple_log_h12": kerple,
    "kerple_power_ap_h12": kerple,
    "rope_halfsplit_neox_h12": rope_halfsplit_neox_h12,
    "rope_interleaved_cable_official_h12": rope_interleaved_cable_official_h12,
    "rope_scaling_hf_inv_freq": rope_scaling_hf_inv_freq,
    "t5_buckets": t5_buckets,
    "t5_hf_causal_h12_L48": t5_hf_causal_h12_L48,
    "t5bias_cable_official_h12": t5bias_cable_official_h12,
}
