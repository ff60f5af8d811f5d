"""Families whose attention is written into their forward: how to get q, k, v, mask and bias.

Each function takes the attention module and the arguments of its forward. RESULT names the
projection that reads the attention's result; None means that the module returns it.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headscape.pretrained.attention_call import AttentionCall
from headscape.pretrained.mask_reader import split_mask


def bloom(module: Any, given: dict[str, Any]) -> AttentionCall:
    """BLOOM: one projection for q, k and v; the bias is m_h j."""
    q, k, v = module._reshape(module.query_key_value(given["hidden_states"]))
    bias = given["alibi"].unflatten(0, (q.shape[0], q.shape[1]))
    return _call(module, q, k, v, given["attention_mask"], module.inv_norm_factor, bias)


def mpt(module: Any, given: dict[str, Any]) -> AttentionCall:
    """MPT: the last columns of a table of m_h (j - longest); its mask is True where hidden."""
    qkv = module.Wqkv(given["hidden_states"])
    if module.clip_qkv:
        qkv = qkv.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (_split(part, module.head_dim) for part in qkv.chunk(3, dim=2))
    bias = given["position_bias"]
    if bias is not None:
        bias = bias[None, :, :, -k.shape[2] :]
    mask = given["attention_mask"]
    seen = None if mask is None else ~mask
    return _call(module, q, k, v, seen, module.softmax_scale, bias)


def falcon(module: Any, given: dict[str, Any]) -> AttentionCall:
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
        return _call(module, q, k, v, mask, module.inv_norm_factor, bias)
    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
    rotation = given["position_embeddings"]
    rotated_q, rotated_k = rotate(q, k, *rotation)
    scale = module.inv_norm_factor
    return _call(module, rotated_q, rotated_k, v, mask, scale, None, (q, k), rotation)


def mpnet(module: Any, given: dict[str, Any]) -> AttentionCall:
    """MPNet: a bias by buckets, computed once for all layers."""
    q, k, v = (
        _split(project(given["hidden_states"]), module.attention_head_size)
        for project in (module.q, module.k, module.v)
    )
    scale = 1 / math.sqrt(module.attention_head_size)
    return _call(module, q, k, v, given["attention_mask"], scale, given["position_bias"])


def roformer(module: Any, given: dict[str, Any]) -> AttentionCall:
    """RoFormer: q and k rotated, and v too where the config says so."""
    q, k, v = (
        _split(project(given["hidden_states"]), module.attention_head_size)
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
    return _call(module, rotated_q, rotated_k, v, mask, scale, None, (q, k))


OWN: dict[str, Callable[[Any, dict[str, Any]], AttentionCall]] = {
    "BloomAttention": bloom,
    "MptAttention": mpt,
    "FalconAttention": falcon,
    "MPNetSelfAttention": mpnet,
    "RoFormerSelfAttention": roformer,
}
RESULT: dict[str, str | None] = {
    "BloomAttention": "dense",
    "MptAttention": "out_proj",
    "FalconAttention": "dense",
    "MPNetSelfAttention": "o",
    "RoFormerSelfAttention": None,
}


def _split(x: Tensor, head_dim: int) -> Tensor:
    return x.reshape(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def _call(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    bias: Tensor | None,
    unrotated: tuple[Tensor, Tensor] | None = None,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> AttentionCall:
    seen, _ = split_mask(mask, q.shape[2], k.shape[2])
    causal = bool(getattr(module, "is_causal", False))
    return AttentionCall(
        module=module, q=q, k=k, v=v, scale=scale, causal=causal, mask=seen, bias=bias,
        unrotated=unrotated, rotation=rotation,
    )  # fmt: skip
