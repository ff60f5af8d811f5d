"""Arrays from other tools: what comes back, what is measured, what is refused."""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.viewer.viewer_answers import Answers

LENGTH = 12
SEEN = np.tri(LENGTH, dtype=bool)


def softmax(scores, *, causal=True):
    scores = np.where(SEEN, scores, -np.inf) if causal else scores
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


WEIGHTS = softmax(2 * normal(2, 3, LENGTH, LENGTH))


@pytest.mark.parametrize(
    ("given", "layers", "heads"),
    [
        (WEIGHTS, 2, 3),
        (WEIGHTS[0], 1, 3),
        (WEIGHTS[0, 0], 1, 1),
        (torch.from_numpy(WEIGHTS), 2, 3),
        ([torch.from_numpy(layer)[None] for layer in WEIGHTS], 2, 3),
        (tuple(WEIGHTS), 2, 3),
        (WEIGHTS.tolist(), 2, 3),
        (torch.from_numpy(WEIGHTS).requires_grad_(), 2, 3),
    ],
    ids=["layers", "heads", "one map", "torch", "attentions", "list", "nested lists", "gradient"],
)
def test_weights_come_back(given, layers, heads):
    cap = hs.Capture.from_arrays(given)
    assert (cap.layers, cap.heads) == (tuple(range(layers)), tuple(range(heads)))
    assert cap.causal
    want = WEIGHTS.reshape(2, 3, LENGTH, LENGTH)[:layers, :heads]
    got = np.stack([cap.weights(layer) for layer in cap.layers])
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=0)


def test_bidirectional_weights_are_recognised():
    given = softmax(normal(2, LENGTH, LENGTH), causal=False)
    cap = hs.Capture.from_arrays(given)
    assert not cap.causal
    np.testing.assert_allclose(cap.weights(), given, rtol=2e-6)


def test_zeros_and_rows_of_any_sum_come_back():
    given = WEIGHTS[0] * np.linspace(0, 3, LENGTH)[:, None]
    given[1, 5, 2] = 0
    cap = hs.Capture.from_arrays(given, normalized=False)
    np.testing.assert_allclose(cap.weights(), given, rtol=2e-6, atol=0)


def test_half_precision_is_close_enough_to_one():
    given = torch.from_numpy(WEIGHTS).bfloat16()
    cap = hs.Capture.from_arrays(given)
    np.testing.assert_allclose(cap.weights(0), given[0].float().numpy(), rtol=2e-6)


def test_hidden_entries_are_ignored():
    plain = hs.Capture.from_arrays(WEIGHTS)
    holes = hs.Capture.from_arrays(np.where(SEEN, WEIGHTS, np.nan))
    assert holes.causal
    np.testing.assert_array_equal(holes.weights(), plain.weights())
    assert holes.measures() == plain.measures()
    assert min(row["reach_mean"] for row in plain.measures().rows()) > 0.5


def test_q_k_and_bias_follow_the_definition(tmp_path):
    q, k = normal(2, 4, LENGTH, 8), normal(2, 2, LENGTH, 8, seed=1)
    bias = -np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    content = q @ np.repeat(k, 2, axis=1).swapaxes(2, 3) * 0.5
    cap = hs.Capture.from_arrays(
        q=q, k=k, bias=np.where(SEEN, bias, -np.inf), scale=0.5, tokens=["a"] * LENGTH
    )
    saved = hs.Capture.load(cap.save(tmp_path / "own.safetensors"))
    for one in (cap, saved):
        assert one.causal
        assert one.sequence["pieces"] == ["a", *[" a"] * (LENGTH - 1)]
        assert one.model["shows"] == "bias"
        np.testing.assert_allclose(one.content(1)[:, SEEN], content[1][:, SEEN], atol=1e-6)
        np.testing.assert_array_equal(one.bias(1)[:, SEEN], np.broadcast_to(bias[SEEN], (4, 78)))
        np.testing.assert_allclose(one.weights(1), softmax(content[1] + bias), atol=1e-6)


def test_a_bias_alone_is_the_scores():
    scores = normal(3, LENGTH, LENGTH)
    cap = hs.Capture.from_arrays(bias=scores)
    assert not cap.causal
    assert not cap.content().any()
    np.testing.assert_allclose(cap.weights(), softmax(scores, causal=False), atol=1e-6)


def test_q_and_k_alone_are_causal_and_show_final_scores():
    cap = hs.Capture.from_arrays(q=normal(LENGTH, 4), k=normal(LENGTH, 4, seed=1))
    assert cap.causal
    assert cap.model["shows"] == "final"


def test_weights_survive_a_file_to_the_bit(tmp_path):
    cap = hs.Capture.from_arrays(WEIGHTS, tokens=range(LENGTH), name="theirs")
    again = hs.Capture.load(cap.save(tmp_path / "own.safetensors"))
    np.testing.assert_array_equal(again.weights(0), cap.weights(0))
    np.testing.assert_array_equal(again.tokens, np.arange(LENGTH))
    assert again.grid().stem == "theirs-layer2-weights-grid"
    assert hs.view(again, html=tmp_path / "own.html").is_file()


def test_only_weights_are_drawn_and_measured():
    cap = hs.Capture.from_arrays(WEIGHTS)
    assert cap.quantities == ("weights",)
    for view in (cap.grid(), cap.curves(), cap.row(), cap.overview()):
        assert view.draw().axes
    row = cap.measures().rows()[0]
    assert row["entropy"] > 0
    assert "half_life" not in row
    with pytest.raises(hs.InputError, match="which contains weights"):
        cap.bias()


def test_a_host_serves_weights_and_refuses_scores():
    answers = Answers.of([hs.Capture.from_arrays(WEIGHTS).pack()])
    ask = {"type": "values", "id": "p0", "layer": 1, "head": 2, "minus": "nothing",
           "queries": [0, LENGTH], "keys": [0, LENGTH]}  # fmt: skip
    _, (found,) = answers.answer({**ask, "quantity": "weights"})
    values = np.frombuffer(found).reshape(LENGTH, LENGTH)
    np.testing.assert_allclose(values[SEEN], WEIGHTS[1, 2][SEEN], rtol=2e-6)
    said, _ = answers.answer({**ask, "quantity": "bias"})
    assert said["message"].startswith("this layer has no bias: its attention weights were given")


def test_the_array_is_copied():
    given = WEIGHTS.astype(np.float32)
    cap = hs.Capture.from_arrays(given)
    before = cap.weights().copy()
    given[:] = 0
    np.testing.assert_array_equal(hs.Capture.from_arrays(WEIGHTS).weights(), before)
    np.testing.assert_array_equal(cap.weights(), before)


def spoiled(place, value):
    found = WEIGHTS.copy()
    found[place] = value
    return found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs weights, or q and k, or a bias"),
        ({"weights": "theirs.npy"}, "weights must be real numbers"),
        ({"weights": [[1.0], [0.5, 0.5]]}, "weights must be an array of numbers, got list"),
        ({"weights": WEIGHTS * 1j}, "must be real numbers, got complex128"),
        ({"weights": np.ones(3)}, r"must have shape .* got \[3\]"),
        ({"weights": np.ones((0, 3, 3))}, r"got \[0, 3, 3\]"),
        ({"weights": WEIGHTS[..., :4]}, r"12 of both, but weights has shape \[3, 12, 4\]"),
        ({"weights": [x[None].repeat(2, 0) for x in WEIGHTS]}, "a batch of 2 sequences"),
        ({"weights": [WEIGHTS[0], WEIGHTS[0, :2]]}, r"different shapes, such as \[2, 12, 12\]"),
        ({"weights": WEIGHTS / 2}, "layer 0, head 0, query 0 .* sum to 0.5 instead of 1"),
        ({"weights": spoiled((1, 2, 5, 3), np.nan)}, "nan at layer 1, head 2, query 5, key 3"),
        ({"weights": spoiled((1, 2, 5, 3), np.inf)}, "inf at layer 1, head 2, query 5, key 3"),
        ({"weights": spoiled((1, 2, 5, 3), -0.1)}, "negative at layer 1, head 2, query 5, key 3"),
        ({"weights": softmax(normal(LENGTH, LENGTH), causal=False), "causal": True}, "not causal"),
        ({"weights": WEIGHTS, "bias": WEIGHTS}, "give weights or bias, not both"),
        ({"q": normal(LENGTH, 4)}, "q and k belong together, got q alone"),
        ({"q": normal(LENGTH, 4), "k": normal(9, 4)}, "one sequence, 12 of both"),
        ({"q": normal(LENGTH, 4), "k": normal(LENGTH, 5)}, "q has 4 dims per head, but k has 5"),
        ({"q": normal(4, 9, 2), "k": normal(3, 9, 2)}, "k has 3 heads, which do not divide 4"),
        ({"q": normal(2, 4, 9, 2), "k": normal(4, 9, 2)}, "same number of layers: one has 2, k 1"),
        ({"bias": spoiled((1, 2, 5, 3), -np.inf), "causal": True}, "bias is -inf at layer 1"),
        ({"weights": WEIGHTS, "scale": 0.5}, "scale is a positive factor of q.k, got 0.5"),
        ({"weights": WEIGHTS, "tokens": "one text"}, "one text per token"),
        ({"weights": WEIGHTS, "tokens": ["a"]}, "tokens has length 1, but the arrays have 12"),
        ({"weights": WEIGHTS, "tokens": [0.5] * LENGTH}, "tokens must be texts, or the numbers"),
        ({"weights": WEIGHTS, "name": 7}, "name must be a text"),
    ],
    ids=str,
)
def test_wrong_arrays_are_refused_in_a_sentence(given, message):
    with pytest.raises(hs.InputError, match=message):
        hs.Capture.from_arrays(**given)


def test_arrays_are_viewed(tmp_path):
    words = [f"w{n}" for n in range(LENGTH)]
    page = hs.view(WEIGHTS, tokens=words, html=tmp_path / "weights.html")
    assert "own arrays" in page.read_text()
    q, k = normal(2, 3, LENGTH, 4)
    assert hs.view(q=q, k=k, bias=WEIGHTS[0], html=tmp_path / "q.html").is_file()


@pytest.mark.parametrize(
    ("given", "pieces"),
    [
        (["The", "cat", "sat"], ["The", " cat", " sat"]),
        (["The", "Ġcat", "ĠĠsat", "."], ["The", " cat", "  sat", "."]),
        (["▁The", "▁cat", "s", "▁"], [" The", " cat", "s", " "]),
        (["[CLS]", "play", "##ing", "cats"], ["[CLS]", " play", "ing", " cats"]),
        (["The", " cat", "s", "##", "##x"], ["The", " cat", "s", "##", "##x"]),
        (["a", "##", "b"], ["a", " ##", " b"]),
        (["The\n", "cat"], ["The\n", "cat"]),
        (["cat"], ["cat"]),
    ],
    ids=str,
)
def test_tokens_read_as_text(given, pieces):
    """Words get spaces between them, and a tokenizer's marks become what they stand for."""
    capture = hs.Capture.from_arrays(np.tri(len(given)) / np.c_[1 : len(given) + 1], tokens=given)
    assert capture.sequence["pieces"] == pieces


def test_capture_names_the_way_for_arrays():
    with pytest.raises(hs.InputError, match=r"got ndarray: hs.Capture.from_arrays takes arrays"):
        hs.capture(WEIGHTS)


def test_a_weight_of_a_visible_key_that_is_not_finite_is_not_measured():
    """Maps of a file may contain anything; a hole must not count as 0."""
    from dataclasses import replace

    from plots.synthetic import alibi, capture

    whole = capture(alibi(2, LENGTH))
    weights = whole.maps["layer.0.weights"].copy()
    weights[1, 6, 3] = np.nan
    holed = replace(whole, maps={**whole.maps, "layer.0.weights": weights})
    with pytest.raises(hs.InputError, match="weight of a visible key is not finite"):
        holed.measures()
