"""What counting alone can do: interpolated Kneser-Ney models of tokens (Kneser and Ney, 1995).

With a the counts of k-grams, h a context of k - 1 tokens and h' the same without its first token:

    p_k(w | h) = max(a(h w) - D, 0) / a(h .) + D N(h) / a(h .) p_{k-1}(w | h')
    p_0(w)     = 1 / vocabulary

where a is the number of occurrences at the highest order and, below it, the number of different
tokens seen before the k-gram; a(h .) is the sum over w, N(h) the number of different w, and
D = n1 / (n1 + 2 n2) from how many k-grams of the order have a = 1 and 2 (Chen and Goodman, 1999);
D is 1/2 where none has a = 1. A context that was never seen leaves p_{k-1} as it is. For every
context the probabilities of all tokens sum to one. End-of-text is a token like any other, as it is
for the transformers that these losses are compared with. Modified discounts (three for each order)
are deliberately absent.

A k-gram is numbered by its place among the sorted keys (number of its first k - 1 tokens) times
vocabulary plus its last token, so that no key outgrows 64 bits at any order.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int, Integer


@dataclass(frozen=True, kw_only=True)
class Order:
    """The k-grams of one k."""

    keys: Int[np.ndarray, " grams"]
    """Sorted; a k-gram's number is its place here."""
    counts: Int[np.ndarray, " grams"]
    """a, by k-gram."""
    totals: Int[np.ndarray, " contexts"]
    """a(h .), by the number of the context among the (k-1)-grams."""
    kinds: Int[np.ndarray, " contexts"]
    """N(h), by the same."""
    discount: float
    """D."""


class KneserNey:
    """A model of the order-th token given those before it."""

    def __init__(self, train: Integer[np.ndarray, " tokens"], vocabulary: int, order: int):
        self.vocabulary = vocabulary
        tokens = np.asarray(train).astype(np.int64)
        ids = np.zeros(len(tokens), np.int64)
        contexts = 1
        levels = []
        for k in range(1, min(order, len(tokens)) + 1):
            # ids[i] numbers the (k-1)-gram before tokens[k - 1 + i].
            keys, first, inverse, counts = np.unique(
                ids[: len(tokens) - k + 1] * vocabulary + tokens[k - 1 :],
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            levels.append((keys, first, inverse, counts, contexts))
            ids, contexts = inverse, len(keys)
        self.orders: list[Order] = []
        for (keys, _, inverse, _, below), (_, first, _, _, _) in pairwise(levels):
            # Each different longer gram adds one to the gram that it ends with.
            continued = np.bincount(inverse[first + 1], minlength=len(keys))
            self.orders.append(_order(keys, continued, below, vocabulary))
        keys, _, _, counts, below = levels[-1]
        self.orders.append(_order(keys, counts, below, vocabulary))

    def probabilities(
        self, tokens: Integer[np.ndarray, " tokens"]
    ) -> Float[np.ndarray, " tokens_minus_1"]:
        """Chance of each token but the first, given all that come before it."""
        ids = np.zeros(len(tokens), np.int64)
        stream = np.asarray(tokens).astype(np.int64)
        p = np.full(len(stream), 1 / self.vocabulary)
        for k, order in enumerate(self.orders, start=1):
            if k > len(stream):
                break
            # An unseen context has number -1; its tokens keep the p of the order below.
            before = ids[: len(stream) - k + 1]
            key = before * self.vocabulary + stream[k - 1 :]
            place = np.minimum(np.searchsorted(order.keys, key), len(order.keys) - 1)
            seen = (before >= 0) & (order.keys[place] == key)
            count = np.where(seen, order.counts[place], 0)
            total = np.where(before >= 0, order.totals[before], 0)
            kinds = np.where(before >= 0, order.kinds[before], 0)
            backed = np.maximum(count - order.discount, 0) + order.discount * kinds * p[k - 1 :]
            p[k - 1 :] = np.where(total > 0, backed / np.maximum(total, 1), p[k - 1 :])
            ids = np.where(seen, place, -1)
        return p[1:]

    def loss(self, tokens: Integer[np.ndarray, " tokens"]) -> float:
        """Mean of -log p over every token but the first, in nats."""
        return float(-np.log(self.probabilities(tokens)).mean())


def bigram_loss(
    train: Integer[np.ndarray, " train"], validation: Integer[np.ndarray, " held"], vocabulary: int
) -> float:
    """Nats per validation token of the interpolated bigram model."""
    return KneserNey(train, vocabulary, 2).loss(validation)


def fivegram_loss(
    train: Integer[np.ndarray, " train"], validation: Integer[np.ndarray, " held"], vocabulary: int
) -> float:
    """Nats per validation token of the 5-gram model with backoff."""
    return KneserNey(train, vocabulary, 5).loss(validation)


def _order(
    keys: Int[np.ndarray, " grams"],
    counts: Int[np.ndarray, " grams"],
    contexts: int,
    vocabulary: int,
) -> Order:
    context = keys // vocabulary
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return Order(
        keys=keys,
        counts=counts,
        totals=np.bincount(context, weights=counts, minlength=contexts).astype(np.int64),
        kinds=np.bincount(context[counts > 0], minlength=contexts),
        discount=once / (once + 2 * twice) if once else 0.5,
    )
