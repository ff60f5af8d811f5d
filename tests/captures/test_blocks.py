"""Blocks of a call equal the same part of its dense scores, for every encoding."""

from dataclasses import replace

import pytest
import torch

from headscape.call.bias import Pairwise
from headscape.call.definition import AttentionCall, block, scores
from headscape.call.positions import Positions, Visible
from headscape.call.quantities import QUANTITIES
from headscape.encodings import ENCODINGS, build
from headscape.errors import InputError
from headscape.kernels.assemble import prepare
from headscape.properties.cases import FIELDS
from headscape.properties.probe import draw, randomise
from properties.subjects import WRAPPED

LENGTH, HEADS, DIM = 75, 4, 8
VARIANTS: list[tuple[str, dict[str, object]]] = [
    ("rope", {"pairing": "halves"}),
    ("rope", {"rotary_fraction": 0.5, "pairing": "halves"}),
    ("rope", {"scaling": "yarn", "factor": 4.0}),
    ("rope", {"rotary_fraction": 0.25}),
    ("dapev2+kerple", {"boundary": "released"}),
    ("dapev2+kerple", {"kernel": 5}),
    ("dapev2+kerple", {"kernel": 1}),
    ("dape+kerple", {"base_bias": "channel-only"}),
    ("cope", {"divide": "sum"}),
    ("rope+alibi", {}),
    ("rope+cable", {}),
    ("path+alibi", {}),
    ("k-cable", {"weights": "inside"}),
]
BENT: dict[str, tuple[str, dict[str, object]]] = {
    "window": ("alibi", {"window": 9}),
    "window, rope": ("rope", {"window": 30}),
    "chunk": ("alibi", {"chunk": 16}),
    "softcap": ("cable", {"softcap": 2.0}),
    "softcap, rope": ("rope", {"softcap": 30.0}),
    "temperature": ("fire", {"temperature": "llama4", "temperature_start": 5}),
    "ssmax": ("nope", {"temperature": "ssmax", "window": 20}),
    "sink": ("kerple", {"sink": True}),
    "mixed in a window": ("cope", {"window": 9}),
    "all": ("rope", {"window": 17, "softcap": 5.0, "temperature": "inkling", "sink": True}),
}
"""What acts on the scores of any encoding."""
BIDIRECTIONAL = (
    "nope",
    "rope",
    "alibi",
    "t5",
    "kerple",
    "cable",
    "k-cable",
    "fox",
    "dapev2+kerple",
)
CASES: list[tuple[str, dict[str, object], bool]] = [
    *((name, {}, True) for name in (*ENCODINGS, *WRAPPED)),
    *((name, fields, True) for name, fields in VARIANTS),
    *((name, {}, False) for name in BIDIRECTIONAL),
    ("alibi", {"window": 9}, False),
    *((name, fields, True) for name, fields in BENT.values()),
]
PARTS = [(0, LENGTH, 0, LENGTH), (40, 61, 3, 44), (70, 75, 60, 75), (3, 9, 40, 60), (0, 1, 0, 1)]


def made(
    name: str, fields: dict[str, object] | None = None, *, causal: bool = True, length: int = LENGTH
) -> AttentionCall:
    """One layer's call with random weights."""
    options = {**FIELDS.get(name.rpartition("+")[2], {}), **(fields or {})}
    encoding = build(
        name,
        heads=HEADS,
        head_dim=DIM,
        width=HEADS * DIM,
        train_length=16,
        causal=causal,
        **options,
    )
    randomise(encoding)
    q, k, v = (draw(1, HEADS, length, DIM, seed=seed).float() for seed in (1, 2, 3))
    x = draw(1, length, HEADS * DIM, seed=4).float()
    with torch.no_grad():
        return prepare(encoding, q, k, v, x, Positions.span(length))


def same(call: AttentionCall, atol: float = 3e-6) -> None:
    """Compare blocks of two heads with the dense scores."""
    dense = scores(call)
    heads = [2, 0]
    seen = dense.visible.expand(1, 1, *dense.final.shape[2:])[:, 0]
    final = dense.final.masked_fill(~seen[:, None], -torch.inf)
    if call.sink is not None:
        sink = call.sink[None, :, None, None].expand(*final.shape[:3], 1)
        final = torch.cat([final, sink.to(final)], -1)
    norms = final.logsumexp(-1)[0]
    t, s = dense.final.shape[2:]
    for quantity in QUANTITIES:
        want = getattr(dense, quantity)
        size = max(1.0, float(want[seen[:, None].expand_as(want)].abs().max()))
        for top, bottom, left, right in PARTS:
            rows, cols = slice(top, min(bottom, t)), slice(left, min(right, s))
            listed = torch.arange(rows.start, rows.stop)[::2]
            for some in (rows, listed):
                for lse in (None, norms[heads][:, some]):
                    got = block(call, quantity, heads, some, cols, lse=lse)
                    part = want[:, heads][:, :, some][..., cols]
                    shown = seen[:, None, some][..., cols].expand_as(part)
                    hidden = 0.0 if quantity != "weights" else got
                    torch.testing.assert_close(
                        got.where(shown, torch.as_tensor(hidden)),
                        part.where(shown, torch.tensor(0.0)),
                        rtol=0,
                        atol=atol * size,
                    )


@pytest.mark.parametrize(("name", "fields", "causal"), CASES, ids=str)
def test_blocks_are_parts_of_the_scores(name: str, fields: dict[str, object], causal: bool) -> None:
    with torch.no_grad():
        same(made(name, fields, causal=causal))


@pytest.mark.parametrize("name", ["alibi", "cope", "dapev2+kerple", "cable", "stick-breaking"])
def test_blocks_of_groups(name: str) -> None:
    call = made(name)
    group = torch.tensor([-1] * 5 + [0] * 30 + [1] * 25 + [0] * 15)[None]
    with torch.no_grad():
        same(replace(call, visible=Visible(call.visible.causal, group, group)))


def test_blocks_of_a_function_and_of_shared_keys() -> None:
    call = made("rope")
    values = draw(1, HEADS, LENGTH, LENGTH, seed=9).float()
    call = replace(call, bias=Pairwise(lambda rows, cols: values[:, :, rows, cols]))
    with torch.no_grad():
        same(call)
        assert call.unrotated is not None
        raw = (call.unrotated[0], call.unrotated[1][:, ::2])
        same(replace(call, k=call.k[:, ::2], v=call.v[:, ::2], unrotated=raw))


def test_an_unknown_quantity_is_told() -> None:
    with pytest.raises(InputError, match="unknown quantity 'scores'"):
        block(made("alibi"), "scores")
