"""The package against the oracle: every encoding and convention, any head count, any offset.

Scores are compared raw, for queries behind a cache, for texts that start far from 0 and for texts
longer than the training length, in float64 to 1e-9.
"""

import numpy as np
import pytest
import torch

from headscape.call import definition
from headscape.call.positions import Positions
from headscape.encodings import Shape, Side, build
from headscape.errors import InputError
from headscape.kernels.assemble import prepare
from headscape.properties.cases import factory
from headscape.properties.probe import TRAINED, draw, randomise, require_same
from properties import formulas
from properties.subjects import HEADS, SHAPED, SUBJECTS

CONVENTIONS: list[tuple[str, dict[str, object]]] = [
    ("alibi", {"slopes": "fairseq"}),
    ("alibi", {"slopes": "mpt"}),
    ("alibi", {"slopes": "falcon", "divisor": "sqrt_head_dim"}),
    ("t5", {"multiplier": "sqrt_head_dim"}),
    ("t5", {"multiplier": "inverse_sqrt_head_dim"}),
    ("t5", {"buckets": 64, "max_distance": 256}),
    ("t5-clipped", {"max_distance": 3}),
    ("fire", {"activation": "leaky_relu", "mlp_width": 5, "length": 9.0}),
    ("cable", {"increments": "softplus"}),
    ("cable-nw", {"increments": "relu"}),
    ("k-cable", {"increments": "relu", "weights": "outside"}),
    ("k-cable", {"weights": "inside"}),
    ("fox", {"gate_bias": 5.0}),
    ("cope", {"divide": "sum", "positions": 3}),
    ("sandwich", {"dims": 128, "first": 0, "centre": "none"}),
    ("sandwich", {"base": 500.0}),
    ("xpos", {"pairing": "halves", "scale_base": 64.0}),
    ("sinusoidal", {"layout": "halves", "scale": 1.0}),
    ("sinusoidal", {"learned_scale": True, "base": 100.0}),
    ("sinusoidal", {"layout": "halves", "offset": 2}),
    ("learned", {"offset": 2}),
    ("rope", {"pairing": "halves"}),
    ("rope", {"rotary_fraction": 0.5}),
    ("rope", {"rotary_fraction": 0.5, "pairing": "halves", "base": 500.0}),
    *(
        ("rope", {"scaling": scaling, "factor": 4.0, "pairing": pairing})
        for scaling in ("linear", "ntk", "yarn", "llama3")
        for pairing in ("halves", "interleaved")
    ),
    ("selective-rope", {"kernel": 1, "rank": 3, "pairing": "interleaved"}),
    ("selective-rope", {"base": 100.0}),
    ("carope", {"first_power": 0, "own": "left-out", "pairing": "halves"}),
    ("repo", {"base": 100.0, "hidden": 5, "pairing": "interleaved"}),
    ("grape-m", {"per_head": True, "increments": "softplus"}),
    ("grape-m", {"phase": "index", "base": 50.0}),
    ("path", {"kernel": 1, "rank": 2, "gate": True}),
    ("stick-breaking", {"current": "attended"}),
    ("stick-breaking", {"remainder": "dropped"}),
    ("rope", {"chunk": 4}),
    ("dape+kerple", {"base_bias": "channel-only", "hidden": 3}),
    ("dape+fire", {}),
    ("dape+cable", {}),
    ("dape+t5", {}),
    ("dapev2+kerple", {"kernel": 5, "hidden": 7}),
    ("dapev2+fox", {"kernel": 1}),
    ("dapev2+nope", {"kernel": 7}),
    ("dapev2+xpos", {}),
    ("dapev2+k-cable", {"boundary": "released"}),
    ("shaw", {"left": 3, "right": 5}),
    ("transformer-xl", {"layout": "interleaved", "base": 100.0}),
    ("deberta", {"terms": "c2p", "buckets": 12, "max_distance": 9}),
    ("deberta", {"norm": True}),
    ("deberta", {"bucketing": "none", "buckets": 9}),
    ("inkling", {"qk_scale": "model", "projection_bias": True, "extent": 300}),
    ("grape", {"gate": "path", "path_dim": 6}),
    ("dape+inkling", {}),
    ("dapev2+deberta", {}),
    ("dapev2+shaw", {}),
]
ONE_WAY = (
    "fire",
    "cope",
    "xpos",
    "dapev2+fire",
    "inkling",
    "grape",
    "path",
    "stick-breaking",
    "wall",
)
TWO_WAYS = [
    name
    for name in (*SUBJECTS, "dapev2+fox")
    if name not in SHAPED
    and name.partition(":")[0] not in ONE_WAY
    and not set(name.split("+")) & set(ONE_WAY)
]


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("heads", HEADS)
def test_scores_of_every_encoding(name: str, heads: int) -> None:
    make = factory(name)
    formulas.formula(make, heads, 1)
    formulas.formula(make, heads, 2 * TRAINED + 5)
    formulas.formula(make, heads, 3, past=17, start=40)


@pytest.mark.parametrize(("name", "fields"), CONVENTIONS)
def test_every_convention(name: str, fields: dict[str, object]) -> None:
    make = factory(name, **fields)
    for heads in (1, 6):
        formulas.formula(make, heads, 2 * TRAINED + 5)
        if fields.get("boundary") != "released":
            formulas.formula(make, heads, 1, past=30, start=11)


def test_dynamic_frequencies_follow_the_longest_position() -> None:
    make = factory("rope", scaling="dynamic", factor=2.0)
    for length in (TRAINED - 1, TRAINED, 3 * TRAINED):
        formulas.formula(make, 3, length)
        formulas.formula(make, 3, 1, past=length)


@pytest.mark.parametrize("name", TWO_WAYS)
def test_both_directions(name: str) -> None:
    heads, length = 6, 30
    shape = Shape(heads=heads, head_dim=4, width=24, train_length=16, causal=False)
    encoding = factory(name)(shape).double()
    randomise(encoding)
    x, at = draw(2, length, 24, seed=1), torch.arange(7, 7 + length)[None]
    if encoding.at_input:
        ours = encoding.embed(x, at)
        theirs = formulas.expected_embedding(encoding, x.numpy(), at[0].numpy())
        require_same(ours.detach(), torch.from_numpy(theirs), "embeddings")
        return
    q, k, v = (draw(2, heads, length, 4, seed=seed) for seed in (2, 3, 4))
    with torch.no_grad():
        found = definition.scores(prepare(encoding, q, k, v, x, Positions(at, at)))
    assert found.visible.all()
    where = at[0].numpy()
    theirs = formulas.expected(encoding, q.numpy(), k.numpy(), x.numpy(), where, where)
    assert not np.isnan(theirs).any()
    require_same(found.final, torch.from_numpy(theirs), "scores and their formula")


@pytest.mark.parametrize("name", [*ONE_WAY, "dape+xpos"])
def test_no_bidirectional_form_says_why(name: str) -> None:
    with pytest.raises(InputError, match=r"has no bidirectional form: \w.+\.$"):
        build(name, heads=2, head_dim=4, width=8, train_length=16, causal=False)


def test_kerple_clamps_the_authors_values_as_their_code_does() -> None:
    p, a = torch.tensor([[[0.001]], [[3.0]], [[1.5]]]), torch.tensor([0.5, -1.0, 0.25])
    log = build("kerple", heads=3, head_dim=4, width=12, train_length=8).double()
    power = build("kerple-power", heads=3, head_dim=4, width=12, train_length=8).double()
    for kernel, exponent in ((log, 3.0), (power, 2.0)):
        kernel.load_published({"bias_p": p, "bias_a": a})
        assert kernel.p().tolist() == pytest.approx([0.01, exponent, 1.5], rel=1e-6)
        assert kernel.a().tolist() == pytest.approx([0.5, 0.01, 0.25], rel=1e-6)


def test_far_xpos_positions_are_refused_before_they_overflow() -> None:
    encoding = build("xpos", heads=1, head_dim=4, width=4, train_length=16)
    x = torch.ones(1, 1, 1, 4)
    assert torch.isfinite(encoding.rotate(x, Side(torch.tensor([[34_000]]), "key"))).all()
    with pytest.raises(InputError, match="99999"):
        encoding.rotate(x, Side(torch.tensor([[99_999]]), "key"))
    assert torch.isfinite(encoding.rotate(x.double(), Side(torch.tensor([[99_999]]), "key"))).all()
