"""A mask read as a rule hides what transformers' own mask hides, for every kind it composes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headscape.errors import InputError
from headscape.huggingface.attend.mask_rule import MaskRule, is_packed, rule_mask

transformers = pytest.importorskip("transformers")
masking = pytest.importorskip("transformers.masking_utils")

LEFT = torch.tensor([[0] * 4 + [1] * 9, [1] * 13])
RIGHT = torch.tensor([[1] * 9 + [0] * 4, [1] * 13])
PACKED = torch.tensor([[0] * 4 + [1] * 6 + [2] * 3, [0] * 13])


def kinds(padding: torch.Tensor | None) -> dict[str, Callable[..., Any]]:
    left = torch.zeros(2, dtype=torch.long)
    if padding is not None:
        left = (padding.cumsum(-1) == 0).sum(-1)
    return {
        "causal": masking.causal_mask_function,
        "bidirectional": masking.bidirectional_mask_function,
        "window": masking.sliding_window_causal_mask_function(5),
        "two-sided window": masking.sliding_window_bidirectional_mask_function(3),
        "chunks": masking.chunked_causal_mask_function(4, left),
        "packed": masking.and_masks(
            masking.causal_mask_function, masking.packed_sequence_mask_function(PACKED)
        ),
        "packed window": masking.and_masks(
            masking.sliding_window_causal_mask_function(3),
            masking.packed_sequence_mask_function(PACKED),
        ),
        "packed chunks": masking.and_masks(
            masking.chunked_causal_mask_function(4, left),
            masking.packed_sequence_mask_function(PACKED),
        ),
    }


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("kind", kinds(None))
@pytest.mark.parametrize("first", [0, 6])
def test_a_rule_hides_what_the_mask_hides(kind: str, side: str, first: int) -> None:
    padding = {"none": None, "left": LEFT.bool(), "right": RIGHT.bool()}[side]
    predicate = kinds(padding)[kind]
    given = {
        "batch_size": 2, "q_length": 13 - first, "kv_length": 13, "q_offset": first, "kv_offset": 0,
        "mask_function": predicate, "attention_mask": padding,
    }  # fmt: skip
    packed = rule_mask(**given)
    assert is_packed(packed)
    assert packed.numel() <= 2 * (8 + 4 * 13)
    rule = MaskRule.unpack(packed)
    dense = masking.sdpa_mask(**given, allow_is_causal_skip=False)
    assert torch.equal(rule.visible.dense(rule.positions).expand_as(dense), dense)


def test_a_static_cache_and_a_windowed_one() -> None:
    for given in (
        {"q_length": 3, "kv_length": 40, "q_offset": torch.tensor(10), "kv_offset": 0},
        {"q_length": 1, "kv_length": 5, "q_offset": 17, "kv_offset": 13},
    ):
        arguments = {
            **given, "batch_size": 2,
            "mask_function": masking.sliding_window_causal_mask_function(5),
            "attention_mask": torch.ones(2, int(given["q_offset"]) + given["q_length"]).bool(),
        }  # fmt: skip
        rule = MaskRule.unpack(rule_mask(**arguments))
        dense = masking.sdpa_mask(**arguments, allow_is_causal_skip=False)
        assert torch.equal(rule.visible.dense(rule.positions).expand_as(dense), dense)
        low, high = rule.positions.bounds
        distance = rule.positions.distance()
        assert (low, high) == (int(distance.min()), int(distance.max()))


def test_a_mask_that_is_no_rule_is_refused() -> None:
    predicate = masking.or_masks(
        masking.causal_mask_function, masking.blockwise_overlay(torch.zeros(1, 4))
    )
    with pytest.raises(InputError, match="this model's mask contains 'or_masks'"):
        rule_mask(batch_size=1, q_length=4, kv_length=4, mask_function=predicate)
