"""The attention function that transformers calls, and its registration.

    register()
    model.set_attn_implementation("headscape")            or from_pretrained(attn_implementation=)
    model.set_attn_implementation("headscape-or-sdpa")    passes on what it cannot serve, and warns

A call that our kernels do not serve is refused by name. With "headscape-or-sdpa" it goes to sdpa
where that computes the same, and a warning says so once for every reason.
"""

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from headscape.call.bias import Bias, Slope, Toeplitz, dense
from headscape.call.definition import AttentionCall
from headscape.call.positions import ALL, Visible
from headscape.errors import InputError
from headscape.huggingface.attend.biased_families import (
    NAMES,
    join_interface,
    keep_tables,
    read_table,
)
from headscape.huggingface.attend.mask_rule import (
    MaskRule,
    check_interface,
    packed_rule,
    rule_mask,
    rule_mask_or_dense,
)
from headscape.huggingface.inject.injected_encoding import check_loaded, encoded_inputs, encoding_of
from headscape.kernels import attend
from headscape.kernels.assemble import check
from headscape.models.transformers.observed_call import listener

_WARNED: set[str] = set()


class _RefusedError(Exception):
    """A call that the kernels do not serve; the message is the reason."""


def register() -> None:
    """Make "headscape" and "headscape-or-sdpa" known to transformers as attention implementations.

    Example:
        >>> import headscape.huggingface
        >>> headscape.huggingface.register()
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    strict, lenient = NAMES
    # Compiled models leave the graph here: what a mask says is read from its integers.
    eager: Any = torch.compiler.disable
    AttentionInterface.register(strict, eager(attention))
    AttentionInterface.register(lenient, eager(attention_or_sdpa))
    AttentionMaskInterface.register(strict, eager(rule_mask))
    AttentionMaskInterface.register(lenient, eager(rule_mask_or_dense))
    keep_tables()
    join_interface(eager(attention))


def set_attention(model: Any, name: str = "headscape") -> None:
    """Register our attention and make a model use it, or raise InputError with the reason.

    Args:
        model: A transformers model.
        name: "headscape", or "headscape-or-sdpa" to pass on what our kernels do not serve.
    """
    register()
    if name not in NAMES:
        raise InputError(f"attention must be one of {', '.join(NAMES)}, got {name!r}.")
    check_interface(model.config)
    model.set_attn_implementation(name)


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    **given: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Return attention [b t h ev] and no weights, or raise InputError with the reason."""
    try:
        return _attend(module, query, key, value, attention_mask, **given), None
    except _RefusedError as reason:
        raise InputError(
            f"{type(module).__name__} cannot run on attn_implementation='headscape': {reason}."
        ) from None


def attention_or_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    **given: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Return the same, from sdpa where our kernels do not serve the call."""
    try:
        return _attend(module, query, key, value, attention_mask, **given), None
    except _RefusedError as error:
        reason = str(error)
    if given.get("softcap") is not None or given.get("s_aux") is not None:
        raise InputError(
            f"{type(module).__name__} cannot run on attn_implementation='headscape-or-sdpa': "
            f"{reason}, and sdpa has no softcap and no sinks."
        )
    if reason not in _WARNED:
        _WARNED.add(reason)
        warnings.warn(f"headscape passes attention on to sdpa: {reason}.", stacklevel=2)
    return _sdpa(module, query, key, value, attention_mask, **given)


def _attend(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
    position_bias: Tensor | None = None, alibi: Tensor | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, **others: Any,
) -> Tensor:  # fmt: skip
    if dropout:
        raise _RefusedError(
            f"it has no attention dropout, got {dropout}; set it to 0 in the config"
        )
    if others.get("output_attentions"):
        raise _RefusedError("it never has the attention weights that output_attentions asks for")
    if others.get("cache") is not None:
        raise _RefusedError("it does not read a paged cache")
    whole = _rule(module, q, k, mask, is_causal=is_causal)
    scale = q.shape[-1] ** -0.5 if scaling is None else float(scaling)
    own = encoding_of(module)
    shaped = (own, position_bias, alibi, softcap, s_aux)
    tell = listener()
    if q.shape[2] == 1 and tell is None and all(part is None for part in shaped):
        check_loaded(module)
        if (found := attend_plain(q, k, v, whole, scale)) is not None:
            return found.transpose(1, 2)
    rule = whole.written()
    keys = rule.positions.k.shape[1]
    k, v = k[:, :, :keys], v[:, :, :keys]
    if own is not None:
        inputs = encoded_inputs(
            own, q, k, v, rule, scale, others,
            softcap=softcap, sink=s_aux, observed=tell is not None,
        )  # fmt: skip
    else:
        check_loaded(module)
        bias: Bias | None = None if position_bias is None else _bias(position_bias, rule)
        if alibi is not None:
            row = alibi.new_zeros(1, q.shape[1], q.shape[2])
            bias = Slope(None, row, -alibi[:, :, 0, :keys])
        inputs = AttentionCall(
            q, k, v, bias, rule.positions, rule.visible, scale, softcap=softcap, sink=s_aux
        )
        check(inputs)
        if (reason := attend.no_fused_kernel(inputs)) is not None:
            raise _RefusedError(reason)
    if tell is not None:
        tell(inputs, own)
    return attend_rule(inputs, rule).transpose(1, 2).contiguous()


def _rule(
    module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, *, is_causal: bool | None
) -> MaskRule:
    """Return which keys the queries see."""
    queries, keys = q.shape[2], k.shape[2]
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and queries > 1
        seen = queries if causal else keys
        return MaskRule.plain(queries, seen, causal=causal, device=q.device)
    rule = packed_rule(mask)
    if rule is not None:
        found = rule.positions.q.shape[1], rule.positions.k.shape[1]
        if found != (queries, keys):
            raise _RefusedError(
                f"its mask is for {found[0]} queries and {found[1]} keys, but it has {queries} and "
                f"{keys}"
            )
        return rule
    if mask.ndim == 4 and mask.shape[1:3] == (1, 1) and mask.shape[3] == keys and queries > 1:
        return _padded(queries, mask[:, 0, 0])
    raise _RefusedError(
        f"its mask is written out as a tensor of shape {tuple(mask.shape)}, not made by "
        f"transformers' mask functions"
    )


def _padded(queries: int, mask: Tensor) -> MaskRule:
    """Return the bidirectional rule of a mask by key, True or 0 where it is seen."""
    plain = MaskRule.plain(queries, mask.shape[1], causal=False, device=mask.device)
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 4
    if mask.dtype != torch.bool and bool(mask.masked_fill(~seen, 0).any()):
        raise _RefusedError("its mask adds values other than 0 and minus infinity")
    k_group = torch.where(seen, 0, -1)
    visible = Visible(False, torch.zeros_like(plain.positions.q).expand(len(seen), -1), k_group)  # noqa: FBT003
    return MaskRule(plain.positions, visible)


def _bias(bias: Tensor, rule: MaskRule) -> Toeplitz | None:
    if bias.shape[2:] == (1, 1) and rule.positions.k.shape[1] > 1:
        return None  # one number per head, which a softmax does not see
    found = read_table(bias, rule)
    if found is None:
        raise _RefusedError(
            f"its position_bias of shape {tuple(bias.shape)} is not a table by distance"
        )
    return found


def _sdpa(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **given: Any
) -> tuple[Tensor, None]:
    """Return sdpa's attention, with a packed rule written out."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rule = None if mask is None else packed_rule(mask)
    if rule is not None:
        bias = given.get("position_bias")
        if bias is not None and bias.shape[2] == 1:
            table = _bias(bias, rule)
            blocks = slice(None), slice(None)
            given["position_bias"] = None if table is None else table.block(rule.positions, *blocks)
        mask = rule.visible.dense(rule.positions)
    found: tuple[Tensor, None] = sdpa_attention_forward(module, q, k, v, mask, **given)
    return found


HIDDEN = -1e30
"""Added to the score of a hidden key; finite, because the kernel exponentiates it."""


def attend_rule(inputs: AttentionCall, rule: MaskRule) -> Tensor:
    """Return attention [b h t ev]."""
    beside = (inputs.mixing, inputs.weighting, inputs.transition, inputs.visible.chunk)
    whole = any(part is not None for part in beside)
    if inputs.q.shape[2] == 1 and not whole:
        backend = attend.row_backend(inputs.q, inputs.k, inputs.v)
        if backend is not None:
            return _one(inputs, rule, backend)
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
    backend = attend.row_backend(q, k, v)
    if backend is None:
        return None
    return backend.run_row(AttentionCall(q, k, v, None, rule.positions, rule.visible, scale), None)


def _stretch(rule: MaskRule, visible: Visible, keys: int) -> tuple[int, int]:
    """Return the range of keys that one query sees: the first, and the one after the last."""
    gap, first, last = rule.first_query - rule.first_key, 0, keys
    if visible.causal:
        last = min(last, gap + 1)
    if visible.window is not None:
        first, last = max(0, gap - visible.window + 1), min(last, gap + visible.window)
    return first, last


def _one(inputs: AttentionCall, rule: MaskRule, backend: attend.RowBackend) -> Tensor:
    """Return the attention of one query over the keys of its window."""
    visible = inputs.visible
    some = slice(*_stretch(rule, visible, inputs.k.shape[2]))
    row = None if inputs.bias is None else _row(inputs.bias, inputs, some)
    if visible.k_group is not None and visible.q_group is not None:
        hidden = visible.k_group[:, None, some] != visible.q_group[:, None]
        row = torch.where(hidden, HIDDEN, 0.0 if row is None else row)
        row = row.expand(-1, inputs.q.shape[1], -1)
    return backend.run_row(replace(inputs, k=inputs.k[:, :, some], v=inputs.v[:, :, some]), row)


def _row(bias: Bias, inputs: AttentionCall, some: slice) -> Tensor:
    """Return one query's bias for some of the keys, [#b h s]."""
    return dense(bias, inputs.positions, ALL, some)[:, :, 0]
