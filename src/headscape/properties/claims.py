"""The claims and flags of an encoding are true, and what it does not claim is false."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headscape.call import definition
from headscape.call.definition import softmax
from headscape.call.mixing import Rows
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, LayerInput, QueriesAndKeys, Side
from headscape.errors import InputError
from headscape.kernels.assemble import prepare
from headscape.properties.probe import (
    HEAD_DIM,
    TRAINED,
    Factory,
    close,
    draw,
    model,
    observe,
    randomise,
    require,
    shape,
    tokens,
)

FAR = 2**17
"""Positions that no table is likely to have been written for."""
SHORT = 7
"""Fewer tokens than this need not contain a counterexample."""


def claims(
    factory: Factory,
    heads: int,
    length: int,
    shift: int = 5,
    gaps: Sequence[int] | None = None,
) -> None:
    """Every claim holds, and for every claim not made there is a counterexample.

    The positions tried include some far beyond the trained ones, since some thresholds are there.
    """
    subject = model(factory, heads, layers=1)
    encoding = subject.encoding()
    steps = torch.tensor(gaps if gaps is not None else [1 + (i % 3 == 2) for i in range(length)])
    at = (steps.cumsum(0) - steps[0])[None]
    here = observe(subject, tokens(2, length), positions=at).scores[0]
    there = observe(subject, tokens(2, length), positions=at + shift).scores[0]
    far = observe(subject, tokens(2, length), positions=at + 3 * TRAINED).scores[0]
    others = observe(subject, tokens(2, length, seed=9), positions=at).scores[0]
    seen = here.visible.expand_as(here.final)
    distance = Positions(at, at).distance()[0]
    holds = {
        "shift_invariant": close(here.final[seen], there.final[seen])
        and close(here.final[seen], far.final[seen]),
        "toeplitz": _by_distance(torch.cat([here.bias, far.bias]), distance),
        "pointwise": _pairs_alone(encoding, length),
        "context_dependent": not close(here.bias[seen], others.bias[seen]),
    }
    for claim, claimed in encoding.claims().items():
        # Each claim is universal ("never depends on"), except that context_dependent denies one.
        universal = claimed != (claim == "context_dependent")
        refuted = holds[claim] == (claim == "context_dependent")
        if universal:
            require(not refuted, f"{claim}={claimed} does not hold")
        else:
            require(refuted or length < SHORT, f"{claim}={claimed} has no counterexample")


def _by_distance(value: Tensor, distance: Tensor) -> bool:
    """Return whether the visible values are one per head and distance."""
    seen = distance >= 0
    table = value.new_zeros(value.shape[1], int(distance.max()) + 1)
    table[:, distance[seen]] = value[0][:, seen]
    expected = table[:, distance[seen]].expand(value.shape[0], -1, -1)
    return close(value[:, :, seen], expected)


@torch.no_grad()
def _pairs_alone(encoding: Encoding, length: int) -> bool:
    """Return whether the mixed score of a pair depends on no other pair."""
    heads, seen = encoding.shape.heads, torch.ones(length, length).tril().bool()[None, None]
    content = draw(1, heads, length, length, seed=3)
    bias = draw(1, heads, length, length, seed=5) if encoding.adds_bias else None
    touched = torch.zeros(length, length, dtype=torch.float64)
    touched[-1, length - 1 - length // 4 % 4] = 1.0
    moved = None if bias is None else bias - touched
    before = _mixed(encoding, content, bias, seen)
    after = _mixed(encoding, content + touched, moved, seen)
    elsewhere = (seen & (touched == 0)).expand_as(before)
    return close(after[elsewhere], before[elsewhere])


def _mixed(encoding: Encoding, scores: Tensor, bias: Tensor | None, seen: Tensor) -> Tensor:
    """Return scores and bias as the encoding mixes them, or their sum."""
    heads, length = scores.shape[1:3]
    at = Positions.span(length)
    q = draw(1, heads, length, HEAD_DIM, seed=4)
    stream = encoding.stream(LayerInput(draw(1, length, heads * HEAD_DIM, seed=1)))
    layer = LayerContext(at, stream, stream, QueriesAndKeys(q, q, 1.0))
    rows, mixing = Rows(scores, bias, seen, q, at), encoding.mixing(layer)
    return rows.added if mixing is None else mixing.final(rows)


@torch.no_grad()
def flags(factory: Factory, heads: int, length: int) -> None:
    """Each flag, from at_input to weighs, says what the encoding does."""
    encoding = factory(shape(heads)).double()
    randomise(encoding)
    at = Positions.span(length)
    x, q = draw(1, length, heads * HEAD_DIM, seed=1), draw(1, heads, length, HEAD_DIM, seed=2)
    stream = encoding.stream(LayerInput(x))
    layer = LayerContext(at, stream, stream, QueriesAndKeys(q, draw(*q.shape, seed=5), 1.0))
    scores, bias = (draw(1, heads, length, length, seed=seed) for seed in (3, 4))
    added = bias if encoding.adds_bias else None
    seen = torch.ones(length, length).tril().bool()[None, None]
    expected = scores if added is None else scores + added
    given = encoding.weighting
    weights = softmax(scores, seen) if given is None else given.weights(scores, seen)
    done = {
        "at_input": not torch.equal(encoding.embed(x, at.q), x),
        "rotates": not torch.equal(encoding.rotate(q, Side(at.q, "query", stream)), q),
        "streams": stream is not None,
        "adds_bias": encoding.bias(layer) is not None,
        "mixes": not torch.equal(_mixed(encoding, scores, added, seen), expected),
        "weighs": not torch.equal(weights, softmax(scores, seen)),
    }
    for flag, does in done.items():
        said = bool(getattr(encoding, flag))
        # One token at position 0 is not rotated, gets all weight by any rule, and a table that
        # multiplies may be 1 at distance 0.
        unclear = length == 1 and flag in {"rotates", "mixes", "weighs"}
        if said != does and not unclear:
            require(holds=False, sentence=f"{flag} is {said}, but should be {does}")


@torch.no_grad()
def distant(factory: Factory, heads: int, length: int) -> None:
    """Positions farther apart than a table may have been written for are encoded or refused.

    A few tokens at either end need no long sequence, and two heads no large table. A refusal is an
    InputError of the encoding, such as that of a learned table. Scores of a `shift_invariant`
    encoding are the same far out.
    """
    heads, count = min(heads, 2), min(length, 3)
    encoding = factory(shape(heads)).double()
    randomise(encoding)
    near = torch.arange(count)[None]
    far, ends = near + FAR, torch.cat([near, near + FAR], dim=1)
    x = draw(1, 2 * count, heads * HEAD_DIM, seed=1)
    q, k = (draw(1, heads, 2 * count, HEAD_DIM, seed=seed) for seed in (2, 3))
    try:
        stream = encoding.stream(LayerInput(x))
        encoding.embed(x, ends)
        encoding.rotate(q, Side(ends, "query", stream))
        heads_of_layer = QueriesAndKeys(q, k, 1.0)
        encoding.bias(LayerContext(Positions(ends, ends), stream, stream, heads_of_layer))
    except InputError:
        return
    # Where the call is put together, it is checked that the bias has every distance.
    _final(encoding, q, k, x, ends)
    if encoding.claims()["shift_invariant"]:
        some = slice(count)
        first = q[:, :, some], k[:, :, some], x[:, some]
        ours, theirs = (_final(encoding, *first, at).tril() for at in (far, near))
        require(close(ours, theirs), f"shift_invariant=True does not hold at position {FAR:,}")


def _final(encoding: Encoding, q: Tensor, k: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """Return the scores of tokens at some positions."""
    return definition.scores(prepare(encoding, q, k, q, x, Positions(at, at))).final
