import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from training.ngram import KneserNey, bigram_loss, fivegram_loss


def slow_loss(train, held, vocabulary, order):
    """Kneser-Ney with dictionaries, from the formula, one token at a time."""
    counts = {}
    for k in range(1, order + 1):
        if k == order:
            counts[k] = Counter(tuple(train[i : i + k]) for i in range(len(train) - k + 1))
        else:
            longer = {tuple(train[i : i + k + 1]) for i in range(len(train) - k)}
            counts[k] = Counter(gram[1:] for gram in longer)
    totals, kinds, discount = {}, {}, {}
    for k, table in counts.items():
        totals[k], kinds[k] = defaultdict(int), defaultdict(int)
        for gram, count in table.items():
            totals[k][gram[:-1]] += count
            kinds[k][gram[:-1]] += 1
        of = Counter(table.values())
        discount[k] = of[1] / (of[1] + 2 * of[2]) if of[1] else 0.5

    def p(token, context):
        k = len(context) + 1
        lower = p(token, context[1:]) if context else 1 / vocabulary
        total = totals[k][context]
        if total == 0:
            return lower
        first = max(counts[k][(*context, token)] - discount[k], 0)
        return (first + discount[k] * kinds[k][context] * lower) / total

    held = held.tolist()
    logs = [
        math.log(p(held[i], tuple(held[max(0, i - order + 1) : i]))) for i in range(1, len(held))
    ]
    return -sum(logs) / len(logs)


def stream(seed, size, vocabulary):
    generator = np.random.default_rng(seed)
    noise = generator.zipf(1.5, size) % vocabulary
    tokens = noise.copy()
    for i in range(2, size):
        if generator.random() < 0.6:
            tokens[i] = (tokens[i - 1] * 3 + tokens[i - 2]) % vocabulary
    return tokens.astype(np.uint16)


@pytest.mark.parametrize("vocabulary", [7, 40, 50257])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_against_dictionaries(vocabulary, order):
    train, held = stream(0, 1500, min(vocabulary, 60)), stream(1, 300, min(vocabulary, 70))
    expected = slow_loss(train.tolist(), held, vocabulary, order)
    assert KneserNey(train, vocabulary, order).loss(held) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 5])
def test_probabilities_sum_to_one(order):
    vocabulary = 30
    train = stream(2, 800, 25)
    model = KneserNey(train, vocabulary, order)
    contexts = [train[50:54], train[-4:], np.array([29, 29, 1, 2]), np.array([3]), train[:4]]
    for context in contexts:
        total = sum(
            model.probabilities(np.array([*context, token]))[-1] for token in range(vocabulary)
        )
        assert total == pytest.approx(1, abs=1e-12)


def test_more_context_helps_where_there_is_some():
    train, held = stream(3, 20_000, 20), stream(4, 2000, 20)
    unigram = KneserNey(train, 20, 1).loss(held)
    bigram, fivegram = bigram_loss(train, held, 20), fivegram_loss(train, held, 20)
    assert fivegram < bigram - 0.1
    assert bigram < unigram


def test_uniform_noise_cannot_be_predicted():
    generator = np.random.default_rng(5)
    train, held = generator.integers(0, 16, (2, 20_000), dtype=np.uint16)
    assert bigram_loss(train, held, 16) == pytest.approx(math.log(16), abs=0.02)


def test_tiny_streams():
    train = np.array([1, 2, 3], np.uint16)
    assert math.isfinite(fivegram_loss(train, np.array([4, 4], np.uint16), 5))
    assert math.isfinite(fivegram_loss(np.zeros(100, np.uint16), np.array([1, 0], np.uint16), 5))
