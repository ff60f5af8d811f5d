"""Between blocks of logits nothing is left in memory.

A small tensor that outlives its block lies above the logits in the heap, glibc cannot use their
memory for the next block as a whole, and a window of 16,384 tokens took up to 2 GB more.
"""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from headscape.gpt2 import GPT2
from headscape.models.load import load
from headscape.models.loaded import BLOCK, losses_in_blocks

TOKENS = 5 * BLOCK + 3


@pytest.fixture(autouse=True)
def _only_new_objects() -> Iterator[None]:
    """Exclude objects of earlier tests from garbage collection, which makes it far quicker."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(item), Tensor) for item in gc.get_objects())


def test_losses_keep_nothing_of_a_block() -> None:
    rows, target = torch.randn(1, TOKENS, 4), torch.randint(9, (1, TOKENS))
    weight, seen = torch.randn(9, 4), []

    def logits(block: Tensor) -> Tensor:
        seen.append(tensors())
        return block @ weight.T

    losses = losses_in_blocks(rows, target, logits)
    assert len(seen) == 6
    assert len(set(seen)) == 1
    exact = torch.nn.functional.cross_entropy((rows @ weight.T)[0].double(), target[0])
    torch.testing.assert_close(losses.mean(), exact, rtol=1e-6, atol=0)


def test_predictions_keep_nothing_of_a_block() -> None:
    gpt2 = GPT2.from_preset("nano", encoding="nope", vocabulary=9, layers=1, width=12)
    model, tokens, seen = load(gpt2), torch.randint(9, (1, TOKENS)), []
    own = gpt2.logits

    def logits(block: Tensor) -> Tensor:
        seen.append(tensors())
        return own(block)

    gpt2.logits = logits  # type: ignore[method-assign]
    found = model.predictions(tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert len(set(seen)) == 1
    with torch.no_grad():
        assert torch.equal(found, own(gpt2.hidden(tokens))[0].argmax(-1))
