"""Weights over heads, layers and sequences are the sums that their names say."""

from pathlib import Path

import numpy as np
import pytest

import headscape as hs
from captures.test_inputs import published

TEXT = "a cat sat on mat"


def test_heads_as_one() -> None:
    cap = published().capture(TEXT, layers="all")
    for how in ("mean", "sum"):
        one = cap.over_heads(how)
        assert (one.layers, one.heads, one.length) == ((0, 1), (0,), 5)
        for layer in cap.layers:
            expected = getattr(cap.weights(layer=layer), how)(axis=0)
            np.testing.assert_allclose(one.weights(layer=layer, head=0), expected, atol=1e-6)
    assert one.sequence["pieces"] == TEXT.split()


def test_one_layer_keeps_its_number() -> None:
    cap = published().capture(TEXT, layers=[1])
    assert cap.over_heads().layers == (1,)
    assert cap.over_heads().weights(layer=1).shape == (1, 5, 5)


def test_rollout_is_the_product_of_the_layers() -> None:
    cap = published().capture(TEXT, layers="all")
    steps = [(cap.weights(layer=layer).mean(axis=0) + np.eye(5)) / 2 for layer in (0, 1)]
    found = cap.rollout()
    np.testing.assert_allclose(found.weights(layer=0)[0], steps[0], atol=1e-6)
    np.testing.assert_allclose(found.weights(layer=1)[0], steps[1] @ steps[0], atol=1e-6)
    np.testing.assert_allclose(found.weights(layer=1)[0].sum(axis=-1), 1, atol=1e-6)


def test_sequences_as_one() -> None:
    every = published().captures([TEXT, "mat on a cat sat"], layers="all")
    mean = hs.Capture.mean(every)
    for layer in (0, 1):
        expected = (every[0].weights(layer=layer) + every[1].weights(layer=layer)) / 2
        np.testing.assert_allclose(mean.weights(layer=layer), expected, atol=1e-6)
    assert mean.sequence["pieces"] == []
    some = published().captures([TEXT, TEXT], heads=[3, 1])
    mean = hs.Capture.mean(some)
    assert mean.heads == (3, 1)
    np.testing.assert_allclose(mean.weights(head=3), some[0].weights(head=3), atol=1e-6)


def test_a_summary_is_saved_and_drawn(tmp_path: Path) -> None:
    found = published().capture(TEXT, layers="all").rollout()
    path = found.save(tmp_path / "rollout.safetensors")
    again = hs.Capture.load(path)
    np.testing.assert_allclose(again.weights(layer=1), found.weights(layer=1), atol=1e-7)
    again.grid("weights").save(tmp_path / "rollout.png")
    again.view(html=tmp_path / "rollout.html")
    assert (tmp_path / "rollout.html").stat().st_size > 1000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.capture(TEXT).rollout(), "from the first on"),
        (lambda m: m.capture(TEXT, layers="all", heads=[1]).rollout(), "over all heads"),
        (lambda m: m.capture(TEXT).over_heads("max"), "by mean or sum, not 'max'"),
        (lambda m: hs.Capture.mean(m.captures([TEXT, "a cat"])), "agree in length, got 5 and 2"),
        (lambda _: hs.Capture.mean([]), "at least one capture"),
    ],
)
def test_a_mistake_is_one_sentence(call, message: str) -> None:
    with pytest.raises(hs.InputError, match=message):
        call(published())
