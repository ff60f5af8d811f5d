"""BLOOM's attention, which does not go through transformers' attention interface.

    scores_ij = q_i . k_j / sqrt(e) + slope j

If our attention is selected, the mask is a packed rule. BLOOM's attention module then calls our
attention function and passes its ALiBi term, one number per head and key. BLOOM's own code would
write out heads x queries x keys several times.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from headscape.errors import InputError
from headscape.huggingface.mask_rule import is_packed


def join_interface(attention: Callable[..., tuple[Tensor, None]]) -> None:
    """Let BLOOM's attention call `attention` where the mask is a packed rule."""
    from transformers.models.bloom import modeling_bloom

    kind = modeling_bloom.BloomAttention
    if not hasattr(kind.forward, "__wrapped__"):
        kind.forward = _through(kind.forward, attention)
        # This lets BLOOM select our attention; transformers still refuses sdpa and flash for it.
        base = modeling_bloom.BloomPreTrainedModel
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
