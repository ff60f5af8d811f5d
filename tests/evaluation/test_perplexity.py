"""Losses by every protocol against one pass per token, and everything around them."""

import json
import math

import numpy as np
import pytest
import torch

from evaluation.models import Subject, loss_after, stream, tiny
from headscape.evaluation.perplexity import HeldOut, TextJob, batches
from headscape.evaluation.protocols import parse, plan
from headscape.gpt2 import Cache
from headscape.measures.interval import estimate, tails
from headscape.models.losses import BLOCK

PROTOCOLS = ["nonoverlap", "last-5", "sliding-4", "sliding-1", "per-position"]


def measure(subject, text, name, length, longest=None, **options):
    return TextJob.of(subject, text, parse(name), length, longest).run(**options)


def run(model, tokens, name, length, longest=None, **options):
    text = HeldOut(tokens=tokens, corpus="random")
    return measure(Subject(model), text, name, length, longest, **options)


def direct(model, tokens, name, length, longest=None):
    """The loss of each scored token, from its own context alone."""
    windows = plan(parse(name), len(tokens), length, longest)
    return {
        (start, index): loss_after(
            model, tokens[start : start + index + 1], tokens[start + index + 1]
        )
        for start, first in zip(windows.start.tolist(), windows.first.tolist(), strict=True)
        for index in range(first, length)
    }


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("encoding", ["alibi", "rope", "cable", "fire", "sinusoidal"])
def test_every_protocol_equals_a_direct_computation(name, encoding):
    model, tokens = tiny(encoding), stream(60)
    found = run(model, tokens, name, 12, batch_tokens=40)
    expected = direct(model, tokens, name, 12)
    assert found.tokens == len(expected)
    assert found.loss == pytest.approx(math.fsum(expected.values()) / len(expected), abs=1e-12)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_same_tokens_at_another_length(name):
    model, tokens = tiny(), stream(60)
    found = run(model, tokens, name, 7, longest=24)
    expected = direct(model, tokens, name, 7, 24)
    assert found.longest == 24
    assert found.loss == pytest.approx(np.mean(list(expected.values())), abs=1e-12)


@pytest.mark.parametrize("encoding", ["alibi", "rope", "cable", "kerple"])
def test_stride_one_equals_decoding_token_by_token(encoding):
    model, tokens, length = tiny(encoding), stream(30), 10
    losses = []
    for target in range(1, len(tokens)):
        cache = Cache(capacity=length)
        with torch.no_grad():
            for token in tokens[max(0, target - length) : target].tolist():
                logits = model(torch.tensor([[token]]), cache=cache)[0, -1]
        losses.append(-float(logits.log_softmax(-1)[int(tokens[target])]))
    found = run(model, tokens, "sliding-1", length)
    assert found.tokens == len(losses)
    assert found.loss == pytest.approx(np.mean(losses), abs=1e-11)


@pytest.mark.parametrize("longest", [None, 20])
def test_loss_by_position_in_the_window(longest):
    model, tokens = tiny(), stream(61)
    found = run(model, tokens, "per-position", 8, longest=longest)
    expected = direct(model, tokens, "per-position", 8, longest)
    assert len(found.by_position) == 8
    for position, loss in enumerate(found.by_position):
        here = [value for (_, index), value in expected.items() if index == position]
        assert loss == pytest.approx(np.mean(here), abs=1e-12)


def test_the_output_matrix_never_meets_more_than_a_block(monkeypatch):
    model, tokens = tiny(), stream(3 * BLOCK + 1)
    seen = []
    logits = model.logits
    monkeypatch.setattr(
        model, "logits", lambda hidden: (seen.append(len(hidden)), logits(hidden))[1]
    )
    run(model, tokens, "nonoverlap", 3 * BLOCK // 2)
    assert sum(seen) == 3 * BLOCK
    assert max(seen) <= BLOCK


def test_unscored_positions_never_meet_it(monkeypatch):
    model, tokens = tiny(), stream(65)
    seen = []
    logits = model.logits
    monkeypatch.setattr(
        model, "logits", lambda hidden: (seen.append(len(hidden)), logits(hidden))[1]
    )
    run(model, tokens, "last-2", 16)
    assert sum(seen) == 8


def test_a_batch_holds_windows_scored_alike():
    windows = plan(parse("sliding-3"), 100, 8, 31)
    cut = list(batches(windows, 32))
    assert [item for part in cut for item in range(part.start, part.stop)] == list(
        range(len(windows))
    )
    assert all(len(set(windows.first[part].tolist())) == 1 for part in cut)
    assert max(part.stop - part.start for part in cut) == 4


def test_the_interval_is_the_expanded_percentile_interval_over_windows():
    model, text = tiny(), HeldOut(tokens=stream(8 * 9 + 1), corpus="random")
    found = measure(Subject(model), text, "nonoverlap", 8)
    losses = direct(model, text.tokens, "nonoverlap", 8)
    sums = np.add.reduceat(list(losses.values()), range(0, 72, 8))
    random = np.random.default_rng(5)
    means = [sums[random.integers(9, size=9)].sum() / 72 for _ in range(20_000)]
    low, high = np.percentile(means, tails(9))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))
    plain_low, plain_high = np.percentile(means, [2.5, 97.5])
    assert found.high - found.low > 1.05 * (plain_high - plain_low)


def test_windows_that_score_more_tokens_weigh_more_in_the_interval():
    random = np.random.default_rng(1)
    counts = np.where(np.arange(400) < 200, 5, 20)
    sums = counts * random.normal(3, 0.3, size=400)
    mean, low, high = estimate(sums, counts)
    assert mean == pytest.approx(sums.sum() / counts.sum())
    # The spread of a ratio: residuals about the mean loss, each of the size of its window.
    error = np.sqrt((((sums - counts * mean) / counts.mean()) ** 2).sum()) / 400
    assert (high - low) / 2 == pytest.approx(1.97 * error, rel=0.1)


def test_fewer_than_six_windows_have_no_interval():
    model = Subject(tiny())
    five, six = (HeldOut(tokens=stream(8 * n + 1), corpus="random") for n in (5, 6))
    row = measure(model, five, "nonoverlap", 8)
    assert (row.windows, row.low, row.high) == (5, None, None)
    row = measure(model, six, "nonoverlap", 8)
    assert row.low < row.loss < row.high


class Counting(Subject):
    """Counts batches and fails before the `limit`-th."""

    def __init__(self, model, limit=None):
        super().__init__(model)
        self.calls, self.limit = 0, limit

    def losses(self, windows, first):
        if self.calls == self.limit:
            raise KeyboardInterrupt
        self.calls += 1
        return super().losses(windows, first)


@pytest.mark.parametrize("name", ["nonoverlap", "sliding-3", "per-position"])
def test_an_interrupted_evaluation_resumes_and_gives_the_same_numbers(name, tmp_path):
    model = tiny().float()
    text = HeldOut(tokens=stream(120), corpus="random")

    def measured(subject, **options):
        return measure(subject, text, name, 8, 24, batch_tokens=16, **options)

    whole = Counting(model)
    expected = measured(whole)
    with pytest.raises(KeyboardInterrupt):
        measured(Counting(model, 4), journal=tmp_path)
    (journal,) = tmp_path.iterdir()
    with journal.open("a") as file:
        file.write('{"batch": 4, "losses": {"windo')
    rest = Counting(model)
    assert measured(rest, journal=tmp_path) == expected
    assert rest.calls == whole.calls - 4
    assert measured(Counting(model, 0), journal=tmp_path) == expected
    header, *lines = journal.read_text().splitlines()
    assert json.loads(header)
    assert all(json.loads(line.rpartition(" ")[0]) for line in lines)


def test_a_journal_belongs_to_one_model_text_protocol_and_length(tmp_path):
    text = HeldOut(tokens=stream(60), corpus="random")
    other = HeldOut(tokens=stream(60, seed=1), corpus="random")
    first, second = Subject(tiny()), Subject(tiny(seed=1))
    for subject, words, name, length in (
        (first, text, "nonoverlap", 8),
        (second, text, "nonoverlap", 8),
        (first, other, "nonoverlap", 8),
        (first, text, "last-8", 8),
        (first, text, "nonoverlap", 9),
    ):
        with_journal = measure(subject, words, name, length, journal=tmp_path)
        assert with_journal == measure(subject, words, name, length)
    assert len(list(tmp_path.iterdir())) == 5


def test_the_cost_of_all_batches_is_the_cost_of_the_job():
    text = HeldOut(tokens=stream(100), corpus="random")
    job = TextJob.of(Subject(tiny()), text, parse("sliding-3"), 8)
    spent = []
    job.run(batch_tokens=20, advance=spent.append)
    assert len(spent) > 3
    assert sum(spent) == job.cost
