"""Families whose attention is written into their forward: how to get q, k, v, mask and bias.

Each function takes the attention module and the arguments of its forward. RESULT names the
projection that reads the attention's result; None means that the module returns it.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headscape.errors import InputError
from headscape.models.transformers.attention_call import ObservedCall
from headscape.models.transformers.disentangled_attention import deberta_v1, deberta_v2
from headscape.models.transformers.mask_reader import split_mask
from headscape.models.transformers.own_call import own_call, split_heads


def bloom(module: Any, given: dict[str, Any]) -> ObservedCall:
    """BLOOM: one projection for q, k and v; the bias is m_h j."""
    q, k, v = module._reshape(module.query_key_value(given["hidden_states"]))
    bias = given["alibi"].unflatten(0, (q.shape[0], q.shape[1]))
    return own_call(module, q, k, v, given["attention_mask"], module.inv_norm_factor, bias)


def mpt(module: Any, given: dict[str, Any]) -> ObservedCall:
    """MPT: the last columns of a table of m_h (j - longest); its mask is True where hidden."""
    qkv = module.Wqkv(given["hidden_states"])
    if module.clip_qkv:
        qkv = qkv.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (split_heads(part, module.head_dim) for part in qkv.chunk(3, dim=2))
    bias = given["position_bias"]
    if bias is not None:
        bias = bias[None, :, :, -k.shape[2] :]
    mask = given["attention_mask"]
    seen = None if mask is None else ~mask
    return own_call(module, q, k, v, seen, module.softmax_scale, bias)


def falcon(module: Any, given: dict[str, Any]) -> ObservedCall:
    """Falcon: ALiBi divided by sqrt(head dim) like the scores, or RoPE."""
    parts = module._split_heads(module.query_key_value(given["hidden_states"]))
    q, k, v = (part.transpose(1, 2) for part in parts)
    mask, alibi = given["attention_mask"], given.get("alibi")
    if alibi is not None:
        bias = alibi.view(q.shape[0], q.shape[1], 1, -1).to(q.dtype) * module.inv_norm_factor
        if mask is not None and mask.dtype != torch.bool:
            # The mask contains the bias already, and eager attention adds it a second time.
            mask, added = split_mask(mask, q.shape[2], k.shape[2])
            if module.config._attn_implementation != "sdpa" and added is not None:
                bias = bias + added
        return own_call(module, q, k, v, mask, module.inv_norm_factor, bias)
    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
    rotation = given["position_embeddings"]
    rotated_q, rotated_k = rotate(q, k, *rotation)
    scale = module.inv_norm_factor
    return own_call(module, rotated_q, rotated_k, v, mask, scale, None, (q, k), rotation)


def mpnet(module: Any, given: dict[str, Any]) -> ObservedCall:
    """MPNet: a bias by buckets, computed once for all layers."""
    q, k, v = (
        split_heads(project(given["hidden_states"]), module.attention_head_size)
        for project in (module.q, module.k, module.v)
    )
    scale = 1 / math.sqrt(module.attention_head_size)
    return own_call(module, q, k, v, given["attention_mask"], scale, given["position_bias"])


def xglm(module: Any, given: dict[str, Any]) -> ObservedCall:
    """XGLM: plain attention; its positions are sinusoids at the input."""
    q, k, v = (
        split_heads(project(given["hidden_states"]), module.head_dim)
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    call = own_call(module, q, k, v, given["attention_mask"], module.scaling, None)
    return replace(call, causal=module.is_decoder)


def longt5_local(module: Any, given: dict[str, Any]) -> ObservedCall:
    """LongT5's local attention: T5's buckets within a window, computed in blocks of its length."""
    hidden, size = given["hidden_states"], module.block_len
    q, k, v = (
        split_heads(project(hidden), module.key_value_proj_dim)
        for project in (module.q, module.k, module.v)
    )
    bias, mask = given.get("position_bias"), given["mask"].transpose(1, 2) > 0
    if bias is None:
        bias = module.compute_bias(size)
    at = torch.arange(hidden.shape[1], device=hidden.device)[:, None]
    # A block of queries sees three blocks of keys: the one before its own, its own, the one after.
    column = at.T - (at // size - 1) * size
    near = (column >= 0) & (column < 3 * size)
    column = column.clamp(0, 3 * size - 1)

    def dense(blocks: Tensor) -> Tensor:
        each = blocks.expand(-1, mask.shape[1], -1, -1, -1)
        return each[:, at // size, :, at % size, column].permute(2, 3, 0, 1)

    seen = near & dense(mask)
    call = own_call(module, q, k, v, seen, 1.0, dense(bias).masked_fill(~seen, 0.0))
    return replace(call, window=size)


def roformer(module: Any, given: dict[str, Any]) -> ObservedCall:
    """RoFormer: q and k rotated, and v too where the config says so."""
    q, k, v = (
        split_heads(project(given["hidden_states"]), module.attention_head_size)
        for project in (module.query, module.key, module.value)
    )
    angles = given["sinusoidal_pos"]
    rotate = module.apply_rotary_position_embeddings
    if module.rotary_value:
        rotated_q, rotated_k, v = rotate(angles, q, k, v)
    else:
        rotated_q, rotated_k = rotate(angles, q, k)
    scale = 1 / math.sqrt(module.attention_head_size)
    mask = given["attention_mask"]
    return own_call(module, rotated_q, rotated_k, v, mask, scale, None, (q, k))


def layoutlmv3(module: Any, given: dict[str, Any]) -> ObservedCall:
    """LayoutLMv3: T5's buckets, divided by sqrt(head dim) like the scores."""
    if module.has_spatial_attention_bias:
        raise InputError(
            "LayoutLMv3 with has_spatial_attention_bias adds a bias by the boxes of words on a "
            "page: Headscape reads models with one position per token."
        )
    size = module.attention_head_size
    q, k, v = (
        split_heads(project(given["hidden_states"]), size)
        for project in (module.query, module.key, module.value)
    )
    bias = given["rel_pos"] / math.sqrt(size) if module.has_relative_attention_bias else None
    return own_call(module, q, k, v, given["attention_mask"], 1 / math.sqrt(size), bias)


OWN: dict[str, Callable[[Any, dict[str, Any]], ObservedCall]] = {
    "BloomAttention": bloom,
    "MptAttention": mpt,
    "FalconAttention": falcon,
    "MPNetSelfAttention": mpnet,
    "RoFormerSelfAttention": roformer,
    "XGLMAttention": xglm,
    "LongT5LocalAttention": longt5_local,
    "DebertaSelfAttention": deberta_v1,
    "DebertaV2SelfAttention": deberta_v2,
    "LayoutLMv3SelfAttention": layoutlmv3,
}
RESULT: dict[str, str | None] = {
    "BloomAttention": "dense",
    "MptAttention": "out_proj",
    "FalconAttention": "dense",
    "MPNetSelfAttention": "o",
    "RoFormerSelfAttention": None,
    "XGLMAttention": "out_proj",
    "LongT5LocalAttention": "o",
    "DebertaSelfAttention": None,
    "DebertaV2SelfAttention": None,
    "LayoutLMv3SelfAttention": None,
}
REFUSED: dict[str, str] = {
    "CpmAntAttention": "CPM-Ant puts learned prompt vectors before the tokens and lets every token "
    "see later ones, so its maps and losses are not those of the tokens alone: it cannot be read.",
}
"""Why a family is refused, by the class of its attention."""


def kind_of(module: Any) -> str:
    """The class of a module; DeBERTa v1 and v2 have different ones of one name, SEW-D has v2's."""
    kind = type(module)
    if kind.__name__ == "DisentangledSelfAttention":
        first = ".deberta." in kind.__module__
        return "DebertaSelfAttention" if first else "DebertaV2SelfAttention"
    return kind.__name__
