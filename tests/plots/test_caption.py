from dataclasses import replace

import pytest

from headscape.measures.context import context_dependence
from headscape.measures.measures import Measures
from headscape.plots.gallery import caption
from plots.synthetic import alibi, cable, capture, scores


def _measured(made, maps, quantity="bias"):
    context = dict.fromkeys(made.layers, context_dependence(maps))
    return Measures.of(made, quantity, context=context)


def test_uniform_says_so_with_its_zero():
    made = capture(alibi(12, 32), layers=(0, 5), name="ALiBi")
    text = caption(made, 5, "bias", _measured(made, (alibi(12, 32) for _ in range(16))))
    for part in (
        "ALiBi: positional bias",
        "12 heads, final layer (6 of 6)",
        "nano model (untrained)",
        "One sequence of 32 tokens (corpus embedded, document 7, offset 0, seed 0)",
        "slopes geometric, scale 1/sqrt(e)",
        "Context-independent: the bias is uniform across tokens",
        "exactly 0 of the bias's variance over 16 sequences",
    ):
        assert part in text


def test_varying_says_so_with_its_number_and_interval():
    made = capture(cable(2, 32, 0), encoding="cable", trained=True, step=1200)
    found = _measured(made, (cable(2, 32, seed) for seed in range(18)))
    text = caption(made, 0, "bias", found)
    context = found.context[0]
    share, low, high = (100 * x for x in (context.overall, *context.interval))
    assert "trained for 1,200 steps at length 256" in text
    assert "layer 1 of 6" in text
    assert (
        f"Context-dependent: the bias varies across tokens; the input explains {share:.3g}%" in text
    )
    assert f"over 18 sequences (95% interval {low:.3g}% to {high:.3g}%)" in text


def test_rope_says_that_it_shows_final_scores():
    made = capture(scores(2, 16, 0), encoding="rope", name="RoPE")
    text = caption(made, 0, "final")
    assert "RoPE: final attention scores (pre-softmax)" in text
    assert "RoPE adds no bias: these are the final scores." in text
    assert "Context-independent" not in text


@pytest.mark.parametrize(
    ("encoding", "claim"), [("alibi", "does not depend on"), ("cable", "depends on")]
)
def test_an_unmeasured_claim_is_called_one(encoding, claim):
    text = caption(capture(alibi(2, 8), encoding=encoding), 0, "bias")
    assert f"By its formula the bias {claim} the context; not measured here." in text


def test_reduced_and_unknown():
    made = replace(capture(alibi(1, 8), encoding="dapev2+new"), resolution=4)
    text = caption(made, 0, "bias")
    assert text.startswith("dapev2+new: positional bias (final score minus scaled q·k) of 1 head,")
    assert "mean of its entries, 4 cells a side" in text
