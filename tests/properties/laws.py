"""What holds for every encoding; a law raises AssertionError where it does not.

A law takes a factory (Shape -> Encoding), the number of heads and a length. It puts the encoding
into a small float64 GPT-2 with random weights and looks at raw scores as well as at logits, since
softmax hides whatever shifts a whole row. Every pass but those of `no_memory` runs on a copy of the
model, so what a pass leaves behind on a module is that law's matter alone.

LAWS lists them all but `formula`, which needs an oracle's word on the encoding.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscape.attention import attend, reference
from headscape.attention.reference import AttentionInputs, Scores
from headscape.encodings import Encoding, Shape
from headscape.errors import InputError
from headscape.gpt2 import GPT2, Cache, ModelConfig
from headscape.types import Positions
from properties import formulas
from properties.layer import draw, layer, randomise

Factory = Callable[[Shape], Encoding]
Law = Callable[[Factory, int, int], None]

HEAD_DIM = 4
TRAINED = 24
FUSED_DIM = 16
"""A head dim that the fused kernels take."""
VOCABULARY = 23
TIGHT = 1e-9
"""Relative to the largest value compared; float64 rounding stays far below it."""


@dataclass(frozen=True)
class Seen:
    """What one pass gives: logits, and every layer's scores."""

    logits: Tensor
    scores: list[Scores]


def shape(heads: int, head_dim: int = HEAD_DIM) -> Shape:
    return Shape(heads=heads, head_dim=head_dim, width=heads * head_dim, train_length=TRAINED)


def model(factory: Factory, heads: int, layers: int = 2) -> GPT2:
    """A GPT-2 with the factory's encodings and random float64 weights."""
    made = GPT2(
        ModelConfig(
            layers=layers,
            heads=heads,
            width=heads * HEAD_DIM,
            vocabulary=VOCABULARY,
            train_length=TRAINED,
            encoding="nope",
        )
    )
    for block in made.blocks:
        encoding = factory(shape(heads))
        if encoding.at_input:
            made.position = encoding
        else:
            block.attention.encoding = encoding
    randomise(made)
    return made.double()


def tokens(batch: int, length: int, seed: int = 1) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, length), generator=random)


@torch.no_grad()
def look(
    subject: GPT2, text: Tensor, *, positions: Tensor | None = None, groups: Tensor | None = None
) -> Seen:
    """One pass over a copy of the model."""
    return _pass(copy.deepcopy(subject), text, positions, groups)


def _pass(
    subject: GPT2, text: Tensor, positions: Tensor | None = None, groups: Tensor | None = None
) -> Seen:
    scores: list[Scores] = []

    def watch(_: int, inputs: AttentionInputs) -> None:
        scores.append(reference.scores(inputs))

    return Seen(subject(text, positions=positions, groups=groups, watch=watch), scores)


def same(ours: Tensor, theirs: Tensor, what: str, tolerance: float = TIGHT) -> None:
    assert ours.shape == theirs.shape, f"{what}: {tuple(ours.shape)}, not {tuple(theirs.shape)}"
    if not ours.numel():
        return
    gap = (ours - theirs).abs().max().item()
    size = max(1.0, theirs.abs().max().item())
    assert gap <= tolerance * size, f"{what} differ by {gap:.3g}, their size being {size:.3g}"


def same_scores(ours: Seen, theirs: Seen, rows: slice, what: str, cut: slice = slice(None)) -> None:
    """Visible raw scores of some rows (and the columns `cut` of theirs) agree in every layer."""
    for mine, other in zip(ours.scores, theirs.scores, strict=True):
        seen = mine.visible[:, :, rows].expand_as(mine.final[:, :, rows])
        expected = other.final[:, :, cut, cut][:, :, rows]
        same(mine.final[:, :, rows][seen], expected[seen], f"raw scores {what}")


def causality(factory: Factory, heads: int, length: int) -> None:
    """Nothing up to token t depends on a token after t."""
    subject, text = model(factory, heads, layers=1), tokens(1, length)
    before = look(subject, text)
    for t in {length // 2, length - 2} & set(range(length - 1)):
        other = text.clone()
        other[:, t + 1 :] = (other[:, t + 1 :] + 1 + tokens(1, length - t - 1) // 2) % VOCABULARY
        after = look(subject, other)
        same(after.logits[:, : t + 1], before.logits[:, : t + 1], "logits before a change")
        same_scores(after, before, slice(t + 1), "before a change")


def prefix(factory: Factory, heads: int, length: int) -> None:
    """The first t tokens alone give what they give with others behind them."""
    subject, text = model(factory, heads, layers=1), tokens(1, length)
    whole = look(subject, text)
    for t in {length // 2, length - 1} & set(range(1, length)):
        part = look(subject, text[:, :t])
        same(part.logits, whole.logits[:, :t], "logits of a prefix")
        same_scores(part, whole, slice(None), "of a prefix", slice(t))


def decoding(
    factory: Factory, heads: int, length: int, chunks: Sequence[int] | None = None
) -> None:
    """A cache gives the logits of the whole pass: in the given chunks, or in two ways of ours."""
    subject, text = model(factory, heads), tokens(2, length)
    whole = look(subject, text).logits
    first, last = length // 3, min(length, 9)
    ways = [[length - last, *[1] * last], [first, 1, length - first - 1]]
    for sizes in ways if chunks is None else [chunks]:
        cache = Cache(capacity=3)
        with torch.no_grad():
            fresh = copy.deepcopy(subject)
            parts = [
                fresh(part, cache=cache) for part in text.split(list(sizes), dim=1) if part.numel()
            ]
        same(torch.cat(parts, dim=1), whole, f"logits decoded in {len(sizes)} chunks")
        assert cache.length == length


def no_memory(factory: Factory, heads: int, length: int) -> None:
    """A short pass after a long one equals a fresh one, raw scores included, bit for bit."""
    subject = model(factory, heads, layers=1)
    text, longer = tokens(1, length), tokens(1, length + 9, seed=2)
    with torch.no_grad():
        fresh = _pass(copy.deepcopy(subject), text)
        _pass(subject, longer)
        again = _pass(subject, text)
    same(again.logits, fresh.logits, "logits after a longer pass", 0.0)
    same_scores(again, fresh, slice(None), "after a longer pass")
    for mine, other in zip(again.scores, fresh.scores, strict=True):
        seen = mine.visible.expand_as(mine.final)
        same(mine.bias[seen], other.bias[seen], "biases after a longer pass", 0.0)


def rows(factory: Factory, heads: int, length: int) -> None:
    """A row of a batch does not depend on the others."""
    subject, text = model(factory, heads, layers=1), tokens(3, length)
    together = look(subject, text)
    for row in (0, 2):
        alone = look(subject, text[row : row + 1])
        same(alone.logits, together.logits[row : row + 1], "logits of a row alone")
        for mine, other in zip(alone.scores, together.scores, strict=True):
            seen = mine.visible.expand_as(mine.final)
            same(mine.final[seen], other.final[row : row + 1][seen], "raw scores of a row alone")


def packing(factory: Factory, heads: int, length: int, cut: int | None = None) -> None:
    """Two documents packed into one row give what each gives on its own."""
    subject, text = model(factory, heads), tokens(1, length)
    cut = length // 3 if cut is None else cut
    at = torch.cat([torch.arange(cut), torch.arange(length - cut)])[None]
    groups = (torch.arange(length) >= cut).long()[None]
    packed = look(subject, text, positions=at, groups=groups).logits
    for document in (slice(0, cut), slice(cut, length)):
        if text[:, document].numel():
            alone = look(subject, text[:, document]).logits
            same(packed[:, document], alone, "logits of a packed document")


def padding(factory: Factory, heads: int, length: int, pads: int = 3) -> None:
    """Padding to the left changes nothing."""
    subject, text = model(factory, heads), tokens(1, length)
    padded = torch.cat([tokens(1, pads, seed=5), text], dim=1)
    at = (torch.arange(length + pads) - pads)[None]
    groups = torch.where(at < 0, -1, 0)
    ours = look(subject, padded, positions=at.clamp(min=0), groups=groups).logits
    same(ours[:, pads:], look(subject, text).logits, "logits behind padding")


def learned_only(factory: Factory, heads: int, length: int) -> None:
    """A checkpoint holds what is learned, nothing else."""
    subject = model(factory, heads)
    stored, learned = set(subject.state_dict()), {name for name, _ in subject.named_parameters()}
    assert stored == learned, f"state_dict holds {sorted(stored ^ learned)}"
    buffers = [name for name, _ in subject.named_buffers()]
    assert not buffers, f"there are buffers: {buffers}"


def no_side_effects(factory: Factory, heads: int, length: int) -> None:
    """A forward pass changes no parameter."""
    subject = model(factory, heads)
    before = {name: value.clone() for name, value in subject.state_dict().items()}
    with torch.no_grad():
        subject(tokens(1, length))
    after = subject.state_dict()
    for name in before.keys() & after.keys():
        assert torch.equal(before[name], after[name]), f"forward changes {name}"


def claims(
    factory: Factory,
    heads: int,
    length: int,
    shift: int = 5,
    gaps: Sequence[int] | None = None,
) -> None:
    """What the encoding claims of itself holds; what it does not claim has a counterexample.

    Of a short text nothing can be refuted, so counterexamples are asked for from 7 tokens on.
    Positions far beyond the trained ones are among those tried, as some thresholds lie there.
    """
    subject = model(factory, heads, layers=1)
    encoding = subject.encoding()
    steps = torch.tensor(gaps if gaps is not None else [1 + (i % 3 == 2) for i in range(length)])
    at = (steps.cumsum(0) - steps[0])[None]
    here = look(subject, tokens(2, length), positions=at).scores[0]
    there = look(subject, tokens(2, length), positions=at + shift).scores[0]
    far = look(subject, tokens(2, length), positions=at + 3 * TRAINED).scores[0]
    others = look(subject, tokens(2, length, seed=9), positions=at).scores[0]
    seen = here.visible.expand_as(here.final)
    distance = Positions(at, at).distance()[0]
    holds = {
        "shift_invariant": _close(here.final[seen], there.final[seen])
        and _close(here.final[seen], far.final[seen]),
        "toeplitz": _by_distance(torch.cat([here.bias, far.bias]), distance),
        "pointwise": _pairs_alone(encoding, length),
        "context_dependent": not _close(here.bias[seen], others.bias[seen]),
    }
    for claim, claimed in encoding.claims().items():
        refuted = not holds[claim] if claim != "context_dependent" else holds[claim]
        denied = claimed if claim == "context_dependent" else not claimed
        if denied:
            assert refuted or length < 7, f"{claim}={claimed} has no counterexample"
        else:
            assert not refuted, f"{claim}={claimed} does not hold"


def _close(ours: Tensor, theirs: Tensor) -> bool:
    if not ours.numel():
        return True
    size = max(1.0, theirs.abs().max().item())
    return bool((ours - theirs).abs().max() <= TIGHT * size)


def _by_distance(value: Tensor, distance: Tensor) -> bool:
    """Whether visible values are one per head and distance."""
    seen = distance >= 0
    table = value.new_zeros(value.shape[1], int(distance.max()) + 1)
    table[:, distance[seen]] = value[0][:, seen]
    expected = table[:, distance[seen]].expand(value.shape[0], -1, -1)
    return _close(value[:, :, seen], expected)


@torch.no_grad()
def _pairs_alone(encoding: Encoding, length: int) -> bool:
    """Whether the mix of a pair depends on no other pair."""
    heads, seen = encoding.shape.heads, torch.ones(length, length).tril().bool()[None, None]
    content = draw(1, heads, length, length, seed=3)
    queries = draw(1, heads, length, HEAD_DIM, seed=4)
    bias = draw(1, heads, length, length, seed=5) if encoding.adds_bias else None
    before = encoding.mix(content, bias, seen, queries)
    touched = torch.zeros(length, length, dtype=torch.float64)
    touched[-1, length - 1 - length // 4 % 4] = 1.0
    moved = None if bias is None else bias - touched
    after = encoding.mix(content + touched, moved, seen, queries)
    elsewhere = (seen & (touched == 0)).expand_as(before)
    return _close(after[elsewhere], before[elsewhere])


def agreement(
    factory: Factory,
    heads: int,
    length: int,
    path: attend.Path = "reference",
    dtype: torch.dtype = torch.float64,
) -> None:
    """A path gives the reference's output and gradients, or refuses with a sentence.

    Its error against float64 may be twice that of the reference in the same dtype, and what eight
    more roundings of the largest score can do (content, bias, mix and softmax, there and back),
    since a path may order its sums differently. In float64, where there is nothing better to
    compare with, it may be 1e-12.
    """
    encoding = factory(shape(heads, FUSED_DIM))
    exact = _gradients(encoding, heads, length, "reference", torch.float64)
    plain = _gradients(encoding, heads, length, "reference", dtype)
    try:
        ours = _gradients(encoding, heads, length, path, dtype)
    except InputError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert path not in ("auto", "reference"), refusal
        assert refusal.endswith("."), refusal
        return
    error, budget = _error(ours, exact), 2 * _error(plain, exact)
    budget += max(1e-12, 8 * torch.finfo(dtype).eps * _largest_score(encoding, heads, length))
    assert error <= budget, f"{path} in {dtype} is off by {error:.3g}, not {budget:.3g}"


def _error(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest error of an output or a gradient, relative to that tensor's largest value."""
    worst = 0.0
    for mine, truth in zip(found, exact, strict=True):
        assert torch.isfinite(mine).all()
        size = max(1.0, truth.abs().max().item())
        worst = max(worst, (mine.double() - truth).abs().max().item() / size)
    return worst


def _inputs(
    encoding: Encoding, heads: int, length: int, dtype: torch.dtype
) -> tuple[AttentionInputs, list[Tensor]]:
    """One call of attention and the leaves it is a function of."""
    encoding = copy.deepcopy(encoding).double()
    randomise(encoding)
    encoding = encoding.to(dtype)
    q, k, v = (
        draw(2, heads, length, FUSED_DIM, seed=seed).to(dtype).requires_grad_()
        for seed in (1, 2, 3)
    )
    x = draw(2, length, heads * FUSED_DIM, seed=4).to(dtype).requires_grad_()
    inputs = layer(encoding, q, k, v, x, Positions.span(length))
    return inputs, [q, k, v, x, *encoding.parameters()]


def _gradients(
    encoding: Encoding, heads: int, length: int, path: attend.Path, dtype: torch.dtype
) -> list[Tensor]:
    """The output of a path and the gradients of everything it came from."""
    inputs, leaves = _inputs(encoding, heads, length, dtype)
    out = attend.run(inputs, path)
    loss = (out * draw(*out.shape, seed=5).to(dtype)).sum()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [out.detach(), *gradients]


def _largest_score(encoding: Encoding, heads: int, length: int) -> float:
    with torch.no_grad():
        found = reference.scores(_inputs(encoding, heads, length, torch.float64)[0])
    return 1 + found.final[found.visible.expand_as(found.final)].abs().max().item()


def formula(factory: Factory, heads: int, length: int, past: int = 0, start: int = 0) -> None:
    """The scores are the oracle's, for a text that starts anywhere, and behind `past` keys."""
    encoding = factory(shape(heads)).double()
    randomise(encoding)
    keys = past + length
    at = torch.arange(start, start + keys)[None]
    x = draw(2, keys, heads * HEAD_DIM, seed=1)
    where, rows_at = at[0].numpy(), at[0, past:].numpy()
    if encoding.at_input:
        ours = encoding.embed(x[:, past:], at[:, past:])
        theirs = formulas.expected_embedding(encoding, x[:, past:].numpy(), rows_at)
        same(ours.detach(), torch.from_numpy(theirs), "embeddings")
        return
    q = draw(2, heads, length, HEAD_DIM, seed=2)
    k, v = (draw(2, heads, keys, HEAD_DIM, seed=seed) for seed in (3, 4))
    with torch.no_grad():
        found = reference.scores(layer(encoding, q, k, v, x, Positions(at[:, past:], at)))
    theirs = formulas.expected(encoding, q.numpy(), k.numpy(), x.numpy(), rows_at, where)
    seen = found.visible.expand_as(found.final)
    assert not np.isnan(theirs[seen.numpy()]).any()
    same(found.final[seen], torch.from_numpy(theirs)[seen], "scores and their formula")


LAWS: dict[str, Law] = {
    law.__name__: law
    for law in (
        causality,
        prefix,
        decoding,
        no_memory,
        rows,
        packing,
        padding,
        learned_only,
        no_side_effects,
        claims,
        agreement,
    )
}
