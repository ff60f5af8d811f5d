"""The oracle against public code: every golden file, then live peers and identities for the rest.

Golden tolerance: 1e-6 relative where the peer ran in float64, 1e-4 where in float32.
"""

import re

import numpy as np
import pytest
import torch

import oracle
from oracle.golden_cases import CASES, GOLDEN, load

# x-transformers scripts a function with TorchScript while it is imported.
torchscript_warns = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

FILES = sorted(path.stem for path in GOLDEN.glob("*.npz"))

# What a golden file holds besides inputs, parameters and gradients.
FORWARD = re.compile(
    r"(out|scores|bias)(_masked|_decode|_bidir)?|bias_\dxL|base_bias|cumsum|log_fgate"
    r"|[qk]_rot(_f32)?|cos|sin|inv_freq|sin_.*|gpt2_hidden.*|nope_(out|scores_masked)"
    r"|(fairseq|cable|bloom|mpt|falcon|xtrans)_\d+|(exact_)?(causal|bidir)_\d+_\d+"
    r"|slopes|default|linear4|dynamic2_seq160|yarn4|llama3_8"
)


@pytest.mark.parametrize("name", FILES)
def test_golden(name: str) -> None:
    z = load(name)
    compared = set()
    for array, ours, *pairs in CASES[name](z):
        peer = z[array]
        relative, floor = (1e-4, 1e-6) if peer.dtype == np.float32 else (1e-6, 1e-9)
        assert ours.shape == peer.shape, array
        where = np.broadcast_to(pairs[0] if pairs else np.True_, peer.shape)
        largest = np.abs(peer[where & np.isfinite(peer)]).max()
        np.testing.assert_allclose(
            ours[where], peer[where], rtol=relative, atol=floor * largest, err_msg=array
        )
        compared.add(array)
    assert compared
    assert {array for array in z if FORWARD.fullmatch(array)} <= compared


def test_index_lists_every_golden_file() -> None:
    index = (GOLDEN / "INDEX.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", index, re.MULTILINE) == FILES == sorted(CASES)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@torchscript_warns
def test_cope_is_x_transformers(rng: np.random.Generator) -> None:
    from x_transformers.x_transformers import CoPE

    q, k = rng.normal(size=(2, 2, 3, 9, 8))
    at = np.arange(9)
    seen = oracle.visible_pairs(at, at)
    peer = CoPE(dim=8, heads=3, max_pos=4).double()
    table = rng.normal(size=(8, 4))
    peer.pos_emb.data = torch.tensor(table.T.copy())
    logits = torch.tensor(np.where(seen, oracle.content_scores(q, k), -np.inf))
    theirs = peer(torch.tensor(q), logits).detach().numpy()
    ours = oracle.cope_scores(q, k, table, at, at) - oracle.content_scores(q, k)
    where = np.broadcast_to(seen, ours.shape)
    np.testing.assert_allclose(ours[where], theirs[where], rtol=1e-10, atol=1e-12)
    assert np.nanmax(oracle.cope_positions(q, k, 4, at, at)) == 3
    whole = oracle.cope_scores(q, k, table, at, at, scale_positions=True)
    expected = (oracle.content_scores(q, k, 1.0) + theirs) / np.sqrt(8)
    np.testing.assert_allclose(whole[where], expected[where], rtol=1e-10, atol=1e-12)


@torchscript_warns
def test_xpos_is_x_transformers(rng: np.random.Generator) -> None:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    q, k = rng.normal(size=(2, 1, 2, 40, 16))
    at = np.arange(40)
    peer = RotaryEmbedding(16, use_xpos=True).double()
    # Its frequencies are float32 numbers; the formula's own are the comparison's.
    peer.inv_freq = torch.tensor(oracle.rope_frequencies(16))
    peer.scale = (torch.arange(0, 16, 2).double() + 0.4 * 16) / (1.4 * 16)
    angles, scale = peer(torch.arange(40))
    theirs = oracle.content_scores(
        apply_rotary_pos_emb(torch.tensor(q), angles, scale).numpy(),
        apply_rotary_pos_emb(torch.tensor(k), angles, scale**-1).numpy(),
    )
    for centre in (0, 20):
        ours = oracle.content_scores(
            oracle.xpos_rotate(q, at, role="query", centre=centre),
            oracle.xpos_rotate(k, at, role="key", centre=centre),
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_partial_rotation_as_complex_numbers(pairing: str, rng: np.random.Generator) -> None:
    q, k = rng.normal(size=(2, 1, 1, 6, 10))
    at, theta, R = np.array([3, 4, 9, 50, 51, 700]), oracle.rope_frequencies(8), 8
    ours = oracle.content_scores(
        *(oracle.rotate(x, at, theta, pairing=pairing, factor=1.1) for x in (q, k)), scale=1.0
    )

    def complex_pairs(x: np.ndarray) -> np.ndarray:
        turning = x[0, 0, :, :R]
        pairs = turning.reshape(6, 2, 4) if pairing == "half" else turning.reshape(6, 4, 2)
        first, second = np.moveaxis(pairs, 1 if pairing == "half" else 2, 0)
        return first + 1j * second

    turns = np.exp(1j * (at[:, None] - at)[:, :, None] * theta)
    product = complex_pairs(q)[:, None] * complex_pairs(k).conj()[None] * turns
    expected = 1.1**2 * product.real.sum(axis=-1) + q[0, 0, :, R:] @ k[0, 0, :, R:].T
    np.testing.assert_allclose(ours[0, 0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "R", "f", "L0", "base"),
    [
        ("yarn", 64, 8.0, 4096, 1e4),
        ("yarn", 128, 16.0, 2048, 5e5),
        ("yarn", 16, 2.0, 64, 1e4),
        ("llama3", 128, 8.0, 8192, 5e5),
        ("llama3", 16, 4.0, 64, 1e4),
        ("linear", 24, 3.0, 64, 1e4),
        ("dynamic", 64, 4.0, 512, 1e4),
    ],
)
def test_scaled_frequencies_are_transformers(
    kind: str, R: int, f: float, L0: int, base: float
) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    recipe = {"rope_type": kind, "factor": f, "rope_theta": base}
    if kind in ("yarn", "llama3"):
        recipe["original_max_position_embeddings"] = L0
    if kind == "llama3":
        recipe |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    longest = L0 if kind == "dynamic" else int(f * L0)
    config = LlamaConfig(
        hidden_size=2 * R,
        num_attention_heads=2,
        max_position_embeddings=longest,
        rope_parameters=recipe,
    )
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=3 * L0)
    ours = {
        "linear": lambda: oracle.linear_frequencies(R, f, base),
        "dynamic": lambda: oracle.dynamic_ntk_frequencies(R, f, 3 * L0, L0, base),
        "yarn": lambda: oracle.yarn_frequencies(R, f, L0, base),
        "llama3": lambda: oracle.llama3_frequencies(R, f, L0, base),
    }[kind]()
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5)
    assert factor == pytest.approx(oracle.yarn_factor(f) if kind == "yarn" else 1.0)


def test_ntk_keeps_the_fastest_band_and_divides_the_slowest() -> None:
    plain, scaled = oracle.rope_frequencies(64), oracle.ntk_frequencies(64, 4.0)
    assert scaled[0] == plain[0]
    assert scaled[-1] == pytest.approx(plain[-1] / 4.0)
    np.testing.assert_array_equal(plain, oracle.dynamic_ntk_frequencies(64, 4.0, 100, 512))


def test_sandwich_is_the_inner_product_of_sinusoids() -> None:
    at, R, heads = np.arange(20), 32, 4
    pe = oracle.sinusoidal_embedding(at, R, layout="halves")
    compression = np.array([2.0, 4.0, 6.0, 8.0])[:, None, None]
    ours = oracle.sandwich_bias(heads, R, at, at, first=0, shift=False, causal=False)
    np.testing.assert_allclose(ours, (pe @ pe.T) / compression, rtol=1e-10, atol=1e-12)
    from_one = oracle.sandwich_bias(heads, R, at, at, causal=False)
    distance = at[:, None] - at
    swapped = pe @ pe.T - np.cos(distance) + np.cos(distance * 1e-4) - R / 2
    np.testing.assert_allclose(from_one, swapped / compression, rtol=1e-9, atol=1e-9)


def test_fox_is_cable_of_the_negated_gate(rng: np.random.Generator) -> None:
    x, W, b, at = (
        rng.normal(size=(2, 9, 6)),
        rng.normal(size=(3, 6)),
        rng.normal(size=3),
        np.arange(9),
    )
    fox = oracle.fox_bias(x, W, b, at, at)
    cable = oracle.cable_bias(x, -W, -b, at, at, increments="softplus")
    np.testing.assert_allclose(fox, cable, rtol=1e-12)


def test_cable_with_weights_kernels_and_both_directions(rng: np.random.Generator) -> None:
    x, at = rng.normal(size=(2, 9, 6)), np.arange(9)
    W, U, b, c = rng.normal(size=(3, 6)), rng.normal(size=(3, 6)), rng.normal(size=3), np.ones(3)
    S = -np.cumsum(np.maximum(x @ W.T + b, 0), axis=1).transpose(0, 2, 1)
    g = np.log(1 + np.exp(x @ U.T + c)).transpose(0, 2, 1)[..., None]
    penalty = -np.abs(S[..., :, None] - S[..., None, :])
    expected = {
        "none": g * penalty,
        "sums": -g * np.log(penalty**2 + 1),
        "bias": -np.log((g * penalty) ** 2 + 1),
    }
    hidden = ~oracle.visible_pairs(at, at)
    for kernel, both in expected.items():
        for causal in (True, False):
            ours = oracle.cable_bias(
                x, W, b, at, at, U=U, c=c, increments="relu", kernel=kernel, causal=causal
            )
            known = np.where(hidden & causal, np.nan, both)
            np.testing.assert_allclose(ours, known, rtol=1e-10, atol=1e-12)
    unit = oracle.weighted_alibi_bias(x, U, c, at, at, causal=False)
    np.testing.assert_allclose(unit, -g * np.abs(at[:, None] - at), rtol=1e-10)


def test_dapev2_masked_does_not_depend_on_later_keys(rng: np.random.Generator) -> None:
    heads, width, keys, k = 2, 5, 12, 5
    A, B = rng.normal(size=(1, heads, keys, keys)), rng.normal(size=(heads, keys, keys))
    weights = {
        "W1": rng.normal(size=(width, 2 * heads, k)),
        "b1": rng.normal(size=width),
        "W2": rng.normal(size=(heads, width, k)),
        "b2": rng.normal(size=heads),
    }
    seen = np.tri(keys, dtype=bool)

    def scores(boundary: str, length: int, first: int = 0) -> np.ndarray:
        rows, columns = slice(first, length), slice(length)
        return oracle.dapev2_scores(
            A[:, :, rows, columns],
            B[:, rows, columns],
            **weights,
            visible=seen[rows, columns],
            boundary=boundary,
        )

    where = np.broadcast_to(seen[:7, :7], (1, heads, 7, 7))
    full = scores("masked", keys)[:, :, :7, :7]
    np.testing.assert_allclose(scores("masked", 7)[where], full[where], rtol=1e-12)
    np.testing.assert_allclose(scores("masked", 7, 6), full[:, :, 6:7], rtol=1e-12)
    released = np.abs(scores("released", 7) - scores("released", keys)[:, :, :7, :7])
    changed = (released > 1e-9).any(axis=(0, 1)) & seen[:7, :7]
    assert np.argwhere(changed).tolist() == [[5, 5], [6, 5], [6, 6]]


def test_dapev2_is_torch_conv2d(rng: np.random.Generator) -> None:
    heads, width, keys, k = 3, 4, 8, 7
    A = rng.normal(size=(2, heads, keys, keys))
    W1, W2 = rng.normal(size=(width, heads, 1, k)), rng.normal(size=(heads, width, 1, k))
    b1, b2 = rng.normal(size=width), rng.normal(size=heads)
    seen = np.ones((keys, keys), bool)
    ours = oracle.dapev2_scores(
        A, None, W1=W1, b1=b1, W2=W2, b2=b2, visible=seen, boundary="released"
    )
    conv, t = torch.nn.functional.conv2d, torch.tensor
    hidden = torch.nn.functional.leaky_relu(conv(t(A), t(W1), t(b1), padding=(0, k // 2)), 0.01)
    theirs = t(A) + conv(hidden, t(W2), t(b2), padding=(0, k // 2))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10, atol=1e-10)


def test_fire_beyond_its_threshold_and_with_leaky_relu() -> None:
    weights = {"W1": [[1.0]], "b1": [-0.5], "W2": [[2.0]], "b2": [0.25]}
    shared = {"c": 0.1, "L_mult": -1.0, "L0": 8.0, "kpos": np.arange(101), "eps": 0.0} | weights
    plain = oracle.fire_bias(qpos=np.array([4, 100]), **shared)
    leaky = oracle.fire_bias(qpos=np.array([4, 100]), negative_slope=0.01, **shared)
    assert plain[0, 1, 0] == pytest.approx(2 * 0.5 + 0.25)
    assert plain[0, 1, 100] == pytest.approx(0.25)
    assert leaky[0, 1, 100] == pytest.approx(0.25 - 2 * 0.005)
    u = np.log(1 + 0.1 * 4) / np.log(1 + 0.1 * 8)
    assert plain[0, 0, 0] == pytest.approx(2 * (u - 0.5) + 0.25)
    assert np.isnan(plain[0, 0, 5:]).all()


def test_one_query_far_away_is_a_row_of_the_whole(rng: np.random.Generator) -> None:
    at, row = np.arange(60), np.array([59])
    table = rng.normal(size=(32, 4))
    p, a = rng.uniform(0.1, 1, size=(2, 4))
    x, W, b = rng.normal(size=(1, 60, 6)), rng.normal(size=(4, 6)), rng.normal(size=4)
    for bias in (
        lambda q: oracle.t5_bias(table, q, at),
        lambda q: oracle.t5_bias(table, q, at, bidirectional=True, factor=8.0) / 8.0,
        lambda q: oracle.t5_clipped_bias(table[:21], q, at, K=20),
        lambda q: oracle.kerple_power_weight(p, a, q, at),
        lambda q: oracle.cable_bias(x, W, b, q, at, increments="softplus"),
        lambda q: oracle.sandwich_bias(4, 16, q, at),
    ):
        np.testing.assert_array_equal(bias(row), bias(at)[..., -1:, :])


def test_a_row_that_sees_nothing_weighs_nothing(rng: np.random.Generator) -> None:
    at = np.arange(4)
    keep = np.array([[False, True, True, True], [True, True, True, False]])
    seen = oracle.visible_pairs(at, at, keep=keep)
    weights = oracle.masked_softmax(rng.normal(size=(2, 3, 4, 4)), seen)
    assert weights[0, :, 0].tolist() == [[0.0] * 4] * 3
    np.testing.assert_allclose(weights.sum(-1)[1], 1.0)
    assert (weights[1, :, :, 3] == 0).all()
