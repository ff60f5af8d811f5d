"""Families whose bias reaches our attention as numbers by distance or by key.

The interface hands T5's `position_bias` on as [1, h, t, s]. The T5 families compute it from one
number per head and distance; while our attention is chosen they compute [1, h, 1, t + s - 1]
instead: the value of every k - q, ascending. For one query that is the row itself. Cross-attention,
which has no bias, gets [1, h, 1, 1] in place of zeros. A bias that a different family writes out is
read as a table if it is one.

BLOOM's attention does not go through the interface:

    scores_ij = q_i . k_j / sqrt(e) + slope j

If our attention is selected, its mask is a packed rule. BLOOM's attention module then calls our
attention function and passes its ALiBi term, one number per head and key. BLOOM's own code would
write out heads x queries x keys several times. Which families these are is in their records
(models/transformers/families.py).
"""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headscape.call.bias import Toeplitz
from headscape.errors import InputError
from headscape.huggingface.attend.mask_rule import MaskRule, is_packed
from headscape.models.transformers.families import FAMILIES, Family

NAMES = ("headscape", "headscape-or-sdpa")
"""What `attn_implementation` may be for our attention to run."""


def keep_tables() -> None:
    """Let the attention of the T5 families hand over tables while our attention is chosen."""
    for _, kind in _classes(lambda family: family.bias_by_distance):
        if not hasattr(kind.compute_bias, "__wrapped__"):
            kind.compute_bias = _by_distance(kind.compute_bias)
            if "position_bias" in inspect.signature(kind.forward).parameters:
                kind.forward = _without_zeros(kind.forward)


def _classes(chosen: Callable[[Family], bool]) -> Iterator[tuple[Any, Any]]:
    """Yield the module and the attention class of every family that is chosen by its record."""
    for name in (name for family in FAMILIES if chosen(family) for name in family.attention):
        package, _, kind = name.partition(".")
        module = import_module(f"transformers.models.{package}.modeling_{package}")
        yield module, getattr(module, kind)


def _ours(module: Any) -> bool:
    return module.config._attn_implementation in NAMES  # noqa: SLF001


def _by_distance(compute_bias: Any) -> Any:
    @wraps(compute_bias)
    def table(
        self: Any, query_length: int, key_length: int, device: Any = None, past_seen_tokens: Any = 0
    ) -> Tensor:
        if _ours(self):
            # One query at the last position sees every distance that any query does.
            past_seen_tokens = int(past_seen_tokens) + query_length - 1
            query_length, key_length = 1, query_length + key_length - 1
        found: Tensor = compute_bias(self, query_length, key_length, device, past_seen_tokens)
        return found

    return table


def _without_zeros(forward: Any) -> Any:
    @wraps(forward)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        bare = kwargs.get("position_bias") is None and not self.has_relative_attention_bias
        if _ours(self) and bare:
            kwargs["position_bias"] = self.q.weight.new_zeros(1, self.n_heads, 1, 1)
        return forward(self, *args, **kwargs)

    return run


def read_table(bias: Tensor, rule: MaskRule) -> Toeplitz | None:
    """Return a bias [1, h, t, s], or [1, h, 1, t + s - 1], as a table; None if it is not one.

    It may have more keys than the rule: those of a static cache that are not written yet.
    """
    t, s = rule.positions.q.shape[1], rule.positions.k.shape[1]
    rows, columns = bias.shape[2:]
    if bias.shape[0] != 1 or rows not in (1, t) or columns < (s + t - 1 if rows == 1 else s):
        return None
    if rows > 1:
        if not torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1]):
            return None
        bias = torch.cat([bias[..., :, 0].flip(-1), bias[..., 0, 1:]], -1)[:, :, None]
    # Column 0 is the key furthest after its query; distances ascend from there.
    return Toeplitz(bias[0, :, 0].flip(-1), rule.first_key + bias.shape[3] - t - rule.first_query)


def join_interface(attention: Callable[..., tuple[Tensor, None]]) -> None:
    """Let the attention of BLOOM call `attention` where the mask is a packed rule."""
    for module, kind in _classes(lambda family: family.bias_by_key):
        if not hasattr(kind.forward, "__wrapped__"):
            kind.forward = _through(kind.forward, attention)
            # This lets it select our attention; transformers still refuses sdpa and flash for it.
            base = getattr(module, kind.__name__.replace("Attention", "PreTrainedModel"))
            base._can_set_attn_implementation_cached_value = True  # noqa: SLF001


def _through(forward: Any, attention: Callable[..., tuple[Tensor, None]]) -> Any:
    @wraps(forward)
    def run(
        self: Any,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,  # noqa: FBT001, FBT002
        output_attentions: bool = False,  # noqa: FBT001, FBT002
        **more: Any,
    ) -> tuple[Tensor, Any]:
        if attention_mask is None or not is_packed(attention_mask):
            found: tuple[Tensor, Any] = forward(
                self, hidden_states, residual, alibi, attention_mask, layer_past, use_cache,
                output_attentions, **more,
            )  # fmt: skip
            return found
        if self.pretraining_tp > 1 and self.slow_but_exact:
            raise InputError("headscape's attention in BLOOM needs slow_but_exact=False.")
        q, k, v = self._reshape(self.query_key_value(hidden_states))
        if layer_past is not None:
            k, v = layer_past.update(k, v, self.layer_idx)
        mixed, _ = attention(
            self, q, k, v, attention_mask, scaling=self.inv_norm_factor,
            dropout=self.attention_dropout.p if self.training else 0.0,
            output_attentions=output_attentions,
            alibi=alibi.view(-1, self.num_heads, *alibi.shape[1:]),
        )  # fmt: skip
        out = F.dropout(self.dense(mixed.flatten(2)), self.hidden_dropout, self.training)
        return residual + out, None

    return run
