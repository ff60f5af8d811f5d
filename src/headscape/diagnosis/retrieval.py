"""Questions whose answer stands somewhere in a long text, at a depth and a length.

    needle      one fact about a city, asked for at the end (data/tasks/retrieval.py)
    several     four facts about four cities; one of them, at the depth, is asked for
    variables   a number is given to X1, X1 to X2, X2 to X3; X3 is asked for
    copy        24 random tokens of the text, of which the first 8 are repeated at the end

Intervals are over questions. The last length that holds is the one before the first whose share of
right answers is below HOLDS times that at L, by its interval where there are 6 questions or more.

An answer's mark is its mean loss in nats per token and whether every token of it is the likeliest.
`copy` needs no tokenizer. Its questions also say which heads retrieve: the weight that the query
which predicts a token of the answer gives to that token's place in the passage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float64, Int64

from headscape.call.definition import AttentionCall, scores
from headscape.data.tasks.retrieval import CITIES, RETRIEVAL, Encode
from headscape.diagnosis.heads import watching
from headscape.diagnosis.loss_by_position import numbers
from headscape.measures.interval import estimate
from headscape.models.changed import Change, ChangedModel
from headscape.models.gpt2_model import GPT2Model
from headscape.models.transformers.published_model import PublishedModel

KINDS: Final = ("needle", "several", "variables", "copy")
PASSAGE: Final = 24
CUE: Final = 8
COPY_DEPTH: Final = 0.3
"""Where the passage stands whose copying is measured by head: in the first half of a text, so that
a gap in the middle lies between passage and answer."""
SHORTEST: Final = 192
"""Tokens from which every kind of question fits, whatever the tokenizer."""

HOLDS: Final = 0.8
"""A length holds if its share of right answers is not shown to be below this times that at L."""

Tokens = Int64[np.ndarray, " n"]
Cell = tuple[dict[str, Any], list[list[float]]]
"""A kind, length and depth with their mean marks, and the marks of every question."""
Answers = dict[str, dict[str, list[float | None]]]
"""By kind of question: loss and share of right answers, each with mean, low and high."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DepthQuestion:
    """A text that ends with a question, and the answer."""

    text: Tokens
    answer: Tokens
    at: int | None = None
    """Where the answer begins in the text of a question of the kind `copy`."""

    def first(self, token: int | None) -> "DepthQuestion":
        """Return the question whose text begins with a token; None leaves it as it is."""
        if token is None:
            return self
        text = self.text.copy()
        text[0] = token
        return replace(self, text=text)


def question(
    kind: str, index: int, length: int, depth: float, pool: Tokens, encode: Encode | None
) -> DepthQuestion | None:
    """Return question number `index`; None without a tokenizer where it needs one.

    Text and answer together have `length` + 1 tokens or fewer, since the last is only a target.
    """
    random = np.random.default_rng([KINDS.index(kind), index, length, round(depth * 1e6)])
    if kind == "copy":
        return _copy(random, length, depth, pool)
    if encode is None:
        return None
    if kind == "needle":
        text, answer = RETRIEVAL["needle"].tokens_at(index, 0, length - 8, depth, encode)
        return DepthQuestion(text=text, answer=answer[:8])
    facts, ask, expected = (_several if kind == "several" else _variables)(random)
    return _among(random, facts, ask, expected, length, depth, encode)


def _copy(random: np.random.Generator, length: int, depth: float, pool: Tokens) -> DepthQuestion:
    kinds = np.unique(pool)
    passage = random.choice(kinds, PASSAGE, replace=len(kinds) < PASSAGE).astype(np.int64)
    room = length + 1 - PASSAGE - PASSAGE
    start = int(random.integers(max(1, len(pool) - room)))
    hay = np.resize(pool[start : start + room], room)
    before = round(depth * room)
    text = np.concatenate([hay[:before], passage, hay[before:], passage[:CUE]])
    return DepthQuestion(text=text, answer=passage[CUE:], at=before + CUE)


def _several(random: np.random.Generator) -> tuple[list[str], str, str]:
    cities = random.choice(CITIES, 4, replace=False)
    values = random.integers(100, 1000, size=4)
    facts = [f" The number of {c} is {v}. " for c, v in zip(cities, values, strict=True)]
    return facts, f" The number of {cities[0]} is", f" {values[0]}"


def _variables(random: np.random.Generator) -> tuple[list[str], str, str]:
    value = int(random.integers(10_000, 100_000))
    return [f" X1 = {value}. ", " X2 = X1. ", " X3 = X2. "], " X3 =", f" {value}"


def _among(
    random: np.random.Generator,
    facts: Sequence[str],
    ask: str,
    answer: str,
    length: int,
    depth: float,
    encode: Encode,
) -> DepthQuestion:
    """Return filler with the first fact at the depth and the others evenly after it."""
    parts = [np.asarray(encode(fact), dtype=np.int64) for fact in facts]
    end, expected = (np.asarray(encode(text), dtype=np.int64) for text in (ask, answer))
    room = length + 1 - sum(map(len, parts)) - len(end) - len(expected)
    hay: list[Tokens] = []
    sentences = RETRIEVAL["needle"].filler(random)
    while sum(map(len, hay)) < room:
        hay += [np.asarray(encode(text), dtype=np.int64) for text in islice(sentences, 64)]
    filler = np.concatenate(hay)[:room]
    places = [round(room * (depth + (1 - depth) * n / len(parts))) for n in range(len(parts))]
    pieces: list[Tokens] = []
    last = 0
    for place, fact in zip(places, parts, strict=True):
        pieces += [filler[last:place], fact]
        last = place
    return DepthQuestion(text=np.concatenate([*pieces, filler[last:], end]), answer=expected)


def marks(
    model: ChangedModel,
    kind: str,
    length: int,
    depth: float,
    count: int,
    pool: Tokens,
    first: int | None = None,
) -> list[list[float]] | None:
    """Return the loss and the correctness of each answer; None if it cannot be asked.

    Args:
        model: What is asked.
        kind: One of KINDS.
        length: Tokens of a question with its answer.
        depth: Where the fact stands, from 0 to 1.
        count: Number of questions.
        pool: Tokens of the text, for passages and filler.
        first: Token that every question begins with; None leaves its own.
    """
    encode = None if model.tokenizer is None else model.tokenizer.encode
    found = []
    for index in range(count):
        asked = question(kind, index, length, depth, pool, encode)
        if asked is None:
            return None
        found.append(_mark(model, asked.first(first)))
    return found


def _mark(model: ChangedModel, asked: DepthQuestion) -> list[float]:
    tokens = torch.from_numpy(np.concatenate([asked.text, asked.answer]))[None]
    at = torch.arange(len(asked.text) - 1, tokens.shape[1] - 1)
    nats, right = model.marked_at(tokens, at)
    return [float(nats.mean()), float(right.all())]


def copying_heads(
    base: GPT2Model | PublishedModel,
    length: int,
    count: int,
    pool: Tokens,
    *,
    first: int | None = None,
    changes: Sequence[Change] = (),
) -> tuple[list[list[float]], Float64[np.ndarray, "layers h"]]:
    """Return the marks of questions of the kind `copy`, and every head's retrieval, in one pass.

    Args:
        base: What is asked.
        length: Tokens of a question with its answer.
        count: Number of questions.
        pool: Tokens of the text.
        first: Token that every question begins with; None leaves its own.
        changes: What is done to every call, by question; () changes nothing.
    """
    layers, heads = len(base.spec.layers), base.spec.heads
    weight = np.zeros((layers, heads))
    found = []
    for index in range(count):
        asked = question("copy", index, length, COPY_DEPTH, pool, None)
        assert asked is not None
        asked = asked.first(first)
        assert asked.at is not None
        start, number, keys = len(asked.text) - 1, len(asked.answer), asked.at

        def watch(
            layer: int,
            call: AttentionCall,
            start: int = start,
            number: int = number,
            at: int = keys,
        ) -> None:
            rows = scores(call, slice(start, start + number)).weights[0]
            own = rows[:, :, at : at + number].diagonal(dim1=1, dim2=2)
            weight[layer] += own.double().mean(dim=1).cpu().numpy() / count

        with watching(base, watch, changes[index] if changes else None) as model:
            found.append(_mark(model, asked))
    return found, weight


def by_kind(answers: Sequence[tuple[str, list[list[float]]]]) -> Answers:
    """Return the estimates of kinds of questions from the marks of their answers."""
    marked: dict[str, list[list[float]]] = {}
    for kind, found in answers:
        marked.setdefault(kind, []).extend(found)
    return {
        kind: {
            name: numbers(estimate(np.array([mark[column] for mark in found])))
            for column, name in enumerate(("loss", "right"))
        }
        for kind, found in marked.items()
        if found
    }


def by_length(cells: Sequence[Cell], trained: int) -> dict[str, dict[str, Any]]:
    """Return, by kind, the estimates over all depths at each length and the last that holds.

    It is None where no question was asked past the trained length, or none answered at it.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(row["kind"] for row, _ in cells):
        some = [(row["length"], marked) for row, marked in cells if row["kind"] == kind]
        lengths = {
            length: by_kind([(kind, marked) for at, marked in some if at == length])[kind]
            for length in dict.fromkeys(length for length, _ in some)
        }
        found[kind] = {
            "holds_to": _holds_to({n: each["right"] for n, each in lengths.items()}, trained),
            "lengths": [{"length": length, **each} for length, each in lengths.items()],
        }
    return found


def _holds_to(right: Mapping[int, Sequence[float | None]], trained: int) -> int | None:
    least = HOLDS * (right.get(trained, [0.0])[0] or 0.0)
    if least == 0 or max(right) <= trained:
        return None
    last = trained
    for length, (mean, _, high) in right.items():
        if length > trained and (mean if high is None else high) < least:  # type: ignore[operator]
            break
        last = max(last, length)
    return last
