"""Random calls of the native kernels against the definition, every seed a call of its own.

    python -m fuzz.kernels --inputs 10000 [--first 0]      (from the tests folder)

Shapes around tile borders, positions, packed groups, padding, windows, grouped heads, temperature,
softcap, sinks, every bias and mixing encoding, one to five threads: attention with its gradients,
one query against a cache, scores reduced to cells. Exits with 1 if any differs from the definition.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.functional import leaky_relu

from fuzz.loop import main
from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions
from headscape.encodings import Encoding, build
from headscape.kernels import decode
from headscape.kernels.assemble import prepare
from headscape.kernels.native import adapter, score_cells
from headscape.properties.probe import draw as numbers
from headscape.properties.probe import randomise
from kernels.calls import LENGTHS, agree, random_call
from kernels.test_cells import check as check_cells
from kernels.test_decode import exact, one_query

MIXED = ("dape", "dapev2")
KINK = 1e-6
"""Rounding may move a hidden unit that is closer to 0 than this across its kink."""
BASES = ("alibi", "kerple", "cable", "fire", "t5", "fox")


def attention(seed: int) -> None:
    """Output and every gradient."""
    agree(random_call(seed), adapter.run)


def decoding(seed: int) -> None:
    """One query against a cache."""
    inputs = one_query(seed)
    with torch.no_grad():
        torch.testing.assert_close(decode.run(inputs).double(), exact(inputs), rtol=4e-5, atol=8e-6)


def cells(seed: int) -> None:
    """Scores of a sequence reduced to cells with random edges."""
    draw = random.Random(seed)  # noqa: S311
    # Calls that cells are not for (batches, groups, other positions) are drawn again.
    for again in itertools.count():
        call = random_call(seed + (again << 32))
        inputs = call.inputs({name: x.float() for name, x in call.leaves.items()})
        if score_cells.refuses(inputs) is None:
            break
    length = inputs.q.shape[2]
    inner = draw.sample(range(1, length), draw.randint(0, min(length - 1, 12)))
    check_cells(inputs, np.array([0, *sorted(inner), length], dtype=np.int64))


def mixing(seed: int) -> None:
    """DAPE and DAPEv2 over a bias: output and gradients of q, k, v and all parameters.

    Gradients are not compared if rounding may move a hidden unit across its kink, which changes the
    gradient of the unit's pair of tokens in every head.
    """
    draw = random.Random(seed)  # noqa: S311
    torch.manual_seed(seed)
    kind, base = draw.choice(MIXED), draw.choice(BASES)
    heads, dim, length = draw.choice([1, 2, 3, 6]), draw.choice([8, 16, 40]), draw.choice(LENGTHS)
    fields = {} if kind == "dape" else {"kernel": draw.choice([1, 3, 5, 11])}
    if kind == "dapev2":
        fields["boundary"] = draw.choice(["masked", "released"])
    causal = draw.random() < 0.8 or base in ("cable", "fox", "fire")
    encoding = build(
        f"{kind}+{base}", heads=heads, head_dim=dim, width=8, train_length=64, causal=causal,
        **fields,
    )  # fmt: skip
    randomise(encoding)
    given = [numbers(1, heads, length, dim, seed=seed + n) for n in range(4)]
    x = numbers(1, length, 8, seed=seed + 4)
    with _recorded_units() as closest:
        wanted = _outcome(definition.run, encoding.double(), given, x.double())
    compared = 1 if min(closest) < KINK else len(wanted)
    rough = _outcome(definition.run, encoding.float(), given, x.float())
    found = _outcome(adapter.run, encoding.float(), given, x.float())
    eps = torch.finfo(torch.float32).eps
    largest = max(float(each.abs().max()) for each in wanted)
    for one, two, three in list(zip(wanted, rough, found, strict=True))[:compared]:
        budget = 2 * float((two - one).abs().max()) + 8 * eps * largest * (1 + length**0.5)
        error = float((three - one).abs().max())
        if not error <= budget:
            raise AssertionError((kind, base, fields, heads, dim, length, error, budget))


def _outcome(
    path: Callable[[AttentionCall], torch.Tensor],
    encoding: Encoding,
    given: list[torch.Tensor],
    x: torch.Tensor,
) -> list[torch.Tensor]:
    q, k, v, upstream = (each.to(x.dtype) for each in given)
    leaves = [each.requires_grad_() for each in (q, k, v)]
    leaves += [each for each in encoding.parameters() if each.requires_grad]
    inputs = prepare(encoding, q, k, v, x, Positions.span(q.shape[2]))
    out = path(inputs)
    grads = torch.autograd.grad(out, leaves, upstream, allow_unused=True)
    return [out.detach(), *(grad for grad in grads if grad is not None)]


@contextmanager
def _recorded_units() -> Iterator[list[float]]:
    """Collect the distance from 0 of the closest hidden unit of every perceptron."""
    closest = [torch.inf]

    def recording(x: torch.Tensor, *args: object) -> torch.Tensor:
        distance = x.detach().abs()
        closest.append(float(distance[distance > 0].min()))  # a hidden pair's units may be 0
        return leaky_relu(x, *args)

    with patch.object(torch.nn.functional, "leaky_relu", recording):
        yield closest


CHECKS = {"attention": attention, "decoding": decoding, "cells": cells, "mixing": mixing}


def one(seed: int) -> str:
    """Check the call of a seed; the name of what was checked."""
    name = list(CHECKS)[seed % len(CHECKS)]
    with _threads(1 + seed // len(CHECKS) % 5):
        CHECKS[name](seed)
    return name


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    main(__doc__, {"kernels": one}, inputs=10_000)
