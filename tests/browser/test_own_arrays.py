"""Weights from another tool in the page: their values, and nothing that was not given."""

import numpy as np
import pytest

import headscape as hs
from browser.conftest import Open

pytestmark = pytest.mark.browser
LENGTH = 40


def weights() -> np.ndarray:
    """Causal weights [layers h t s] with zeros among the visible ones."""
    scores = np.random.default_rng(0).normal(size=(2, 3, LENGTH, LENGTH)) * 3
    seen = np.tri(LENGTH, dtype=bool) & (np.abs(scores) < 6) | np.eye(LENGTH, dtype=bool)
    powers = np.where(seen, np.exp(scores), 0.0)
    found: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return found


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_every_weight_is_the_one_given(precision: str, open_page: Open) -> None:
    given = weights()
    capture = hs.Capture.from_arrays(given, tokens=[f" {n}" for n in range(LENGTH)])
    opened = open_page(
        [capture.pack()], {"screen": "head", "layer": 1, "head": 2}, precision=precision
    )
    opened.settle()
    pairs = opened.shown()
    assert len(pairs) == LENGTH * (LENGTH + 1) // 2
    assert max(abs(value - given[1, 2][at]) for at, value in pairs.items()) < 1e-6


def test_scores_that_were_not_given_cannot_be_chosen(open_page: Open) -> None:
    capture = hs.Capture.from_arrays(weights())
    opened = open_page([capture.pack()], {"screen": "head"})
    opened.settle()
    page = opened.page
    disabled = page.eval_on_selector_all(
        "input[value=bias], input[value=final]", "all => all.map(x => x.disabled)"
    )
    assert disabled == [True, True]
    page.keyboard.press("2")
    opened.settle()
    assert opened.state().get("quantity", "weights") == "weights"
    page.mouse.move(*opened.cell(10, 4))
    opened.settle()
    values = opened.readout()
    assert values["weights"] is not None
    assert values["content"] is values["bias"] is values["final"] is None


def test_words_read_as_text_and_weights_alone_have_no_text_beside(open_page: Open) -> None:
    words = ("the cat sat on the mat " * 7).split()[:LENGTH]
    capture = hs.Capture.from_arrays(weights(), tokens=words)
    opened = open_page([capture.pack()], {"screen": "reading"})
    opened.settle()
    text = opened.page.locator(".reading .text").first.inner_text()
    assert text == " ".join(words)
    assert " in “" not in opened.page.locator(".reading .lists").first.inner_text()
    beside = opened.page.get_by_label("Beside it")
    assert beside.count() == 1
    assert beside.is_hidden()
