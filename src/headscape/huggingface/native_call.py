"""One attention call of a transformers model, served by our kernels.

`attend_rule` takes what a layer's attention is a function of. One query without gradients, as in
generating, is one pass over the keys it sees, which are neither repeated for grouped heads nor
copied.
"""

from dataclasses import replace

import torch
from torch import Tensor

from headscape.call.bias import Bias, dense
from headscape.call.definition import AttentionCall
from headscape.call.positions import ALL, Visible
from headscape.huggingface.mask_rule import MaskRule
from headscape.kernels import attend, decode

HIDDEN = -1e30
"""Added to the score of a hidden key; finite, because the kernel exponentiates it."""


def attend_rule(inputs: AttentionCall, rule: MaskRule) -> Tensor:
    """Return attention [b h t ev]."""
    beside = (inputs.mixing, inputs.weighting, inputs.transition, inputs.visible.chunk)
    whole = any(part is not None for part in beside)
    if inputs.q.shape[2] == 1 and not whole and decode.native_serves(inputs):
        return _one(inputs, rule)
    return attend.run(inputs)


def attend_plain(q: Tensor, k: Tensor, v: Tensor, rule: MaskRule, scale: float) -> Tensor | None:
    """Return the attention of one query without a bias, or None if the call needs more.

    It runs as little Python as possible: between two layers a model's weights evict this code from
    the CPU caches.
    """
    if rule.visible.k_group is not None:
        return None
    first, last = _stretch(rule, rule.visible, k.shape[2])
    if last - first < k.shape[2]:
        k, v = k[:, :, first:last], v[:, :, first:last]
    inputs = AttentionCall(q, k, v, None, rule.positions, rule.visible, scale)
    return decode.native_run(inputs, None) if decode.native_serves(inputs) else None


def _stretch(rule: MaskRule, visible: Visible, keys: int) -> tuple[int, int]:
    """Return the range of keys that one query sees: the first, and the one after the last."""
    gap, first, last = rule.first_query - rule.first_key, 0, keys
    if visible.causal:
        last = min(last, gap + 1)
    if visible.window is not None:
        first, last = max(0, gap - visible.window + 1), min(last, gap + visible.window)
    return first, last


def _one(inputs: AttentionCall, rule: MaskRule) -> Tensor:
    """Return the attention of one query over the keys of its window."""
    visible = inputs.visible
    some = slice(*_stretch(rule, visible, inputs.k.shape[2]))
    row = None if inputs.bias is None else _row(inputs.bias, inputs, some)
    if visible.k_group is not None and visible.q_group is not None:
        hidden = visible.k_group[:, None, some] != visible.q_group[:, None]
        row = torch.where(hidden, HIDDEN, 0.0 if row is None else row)
        row = row.expand(-1, inputs.q.shape[1], -1)
    return decode.native_run(replace(inputs, k=inputs.k[:, :, some], v=inputs.v[:, :, some]), row)


def _row(bias: Bias, inputs: AttentionCall, some: slice) -> Tensor:
    """Return one query's bias for some of the keys, [#b h s]."""
    return dense(bias, inputs.positions, ALL, some)[:, :, 0]
