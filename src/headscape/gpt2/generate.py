"""Continue a text, token by token.

A temperature of 0 takes the likeliest token; otherwise logits are divided by it, cut to the
`top_k` likeliest and to the smallest set with `top_p` of the probability, and drawn from.
The same seed gives the same text.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.errors import InputError, at_least
from headscape.gpt2.cache import Cache
from headscape.gpt2.model import GPT2

LEAST = 1e-6
"""The lowest temperature above 0; logits divided by less overflow."""


def generate(
    model: GPT2, tokens: Int[Tensor, "b t"], *, length: int, **sampling: Any
) -> Int[Tensor, "b all"]:
    """The prompt and up to `length` more tokens; ends early once every row has met `stop`.

    `sampling` are the options of `sample`. A row that has met `stop` is filled up with it.
    """
    return torch.cat([tokens, *stream(model, tokens, length=length, **sampling)], dim=1)


def stream(
    model: GPT2, tokens: Int[Tensor, "b t"], *, length: int, **sampling: Any
) -> Iterator[Int[Tensor, "b 1"]]:
    """Continue `tokens` one token at a time; `sampling` are the options of `sample`."""
    cache = Cache(capacity=max(1, tokens.shape[1] + length))

    def next_logits(step: Int[Tensor, "b n"]) -> Float[Tensor, "b v"]:
        return model.logits(model.hidden(step, cache=cache)[:, -1])

    return sample(next_logits, tokens, length=length, **sampling)


def sample(
    next_logits: Callable[[Int[Tensor, "b n"]], Float[Tensor, "b v"]],
    tokens: Int[Tensor, "b t"],
    *,
    length: int,
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | int = 1.0,
    seed: int = 0,
    stop: int | None = None,
) -> Iterator[Int[Tensor, "b 1"]]:
    """Draw up to `length` tokens; bad options are refused before the first one.

    `next_logits` takes the tokens that are new since its last call and gives the scores of the
    token after them.
    """
    at_least(0, length=length)
    at_least(1, top_k=top_k)
    if temperature != 0 and not LEAST <= temperature < math.inf:
        raise InputError(f"temperature must be 0 or at least {LEAST:g}, got {temperature}.")
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be from 0 to 2^63 - 1, got {seed}.")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, got {top_p}.")

    def steps() -> Iterator[Int[Tensor, "b 1"]]:
        random = torch.Generator(device=tokens.device).manual_seed(seed)
        ended = torch.zeros(tokens.shape[0], 1, dtype=torch.bool, device=tokens.device)
        step = tokens
        for _ in range(length):
            with torch.no_grad():
                logits = next_logits(step)
            step = _draw(logits, temperature, top_k, top_p, random)
            if stop is not None:
                step = step.masked_fill(ended, stop)
                ended |= step == stop
            yield step
            if bool(ended.all()):
                return

    return steps()


def _draw(
    logits: Float[Tensor, "b v"],
    temperature: float | int,
    top_k: int | None,
    top_p: float | int,
    random: torch.Generator,
) -> Int[Tensor, "b 1"]:
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    ordered, index = (logits / temperature).sort(dim=-1, descending=True)
    if top_k is not None:
        ordered[:, top_k:] = -torch.inf
    share = ordered.softmax(dim=-1)
    # A token is kept while those before it add up to less than top_p, so the first always is.
    share = share.masked_fill(share.cumsum(dim=-1) - share >= top_p, 0.0)
    return index.gather(-1, torch.multinomial(share, 1, generator=random))
