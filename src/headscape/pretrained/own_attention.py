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

from headscape.pretrained.attention_call import AttentionCall, Relative
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


def xglm(module: Any, given: dict[str, Any]) -> AttentionCall:
    """XGLM: plain attention; its positions are sinusoids at the input."""
    q, k, v = (
        _split(project(given["hidden_states"]), module.head_dim)
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    call = _call(module, q, k, v, given["attention_mask"], module.scaling, None)
    return replace(call, causal=module.is_decoder)


def longt5_local(module: Any, given: dict[str, Any]) -> AttentionCall:
    """LongT5's local attention: T5's buckets within a window, computed in blocks of its length."""
    hidden, size = given["hidden_states"], module.block_len
    q, k, v = (
        _split(project(hidden), module.key_value_proj_dim)
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
    call = _call(module, q, k, v, seen, 1.0, dense(bias).masked_fill(~seen, 0.0))
    return replace(call, window=size)


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


def deberta_v2(module: Any, given: dict[str, Any]) -> AttentionCall:
    """DeBERTa v2 and v3: content to position and position to content, over buckets."""
    size, terms = module.attention_head_size, module.pos_att_type
    asks = given.get("query_states")
    asks = given["hidden_states"] if asks is None else asks
    q = _split(module.query_proj(asks), size)
    k, v = (
        _split(part(given["hidden_states"]), size) for part in (module.key_proj, module.value_proj)
    )
    count = 1 + len({"c2p", "p2c"} & set(terms))
    # The model takes this root in float32.
    scale = 1 / float(torch.tensor(float(size * count)).sqrt())
    mask = given["attention_mask"].bool()
    call = _call(module, q, k, v, mask, scale, None)
    if not (module.relative_attention and count > 1):
        return call
    rows = given["rel_embeddings"]
    added = module.disentangled_attention_bias(
        q.flatten(0, 1), k.flatten(0, 1), given.get("relative_pos"), rows, count
    )
    learned = {"rel_embeddings.weight": rows[: 2 * module.pos_ebd_size]}
    for side in ("pos_key_proj", "pos_query_proj"):
        if hasattr(module, side):
            own = getattr(module, side).state_dict()
            learned |= {f"{side}.{name}": value for name, value in own.items()}
    fields = {
        "buckets": module.position_buckets, "max_distance": module.max_relative_positions,
        "terms": "both" if count == 3 else terms[0], "share_att_key": module.share_att_key,
    }  # fmt: skip

    def project(some: Tensor) -> tuple[Tensor, Tensor]:
        both = (_split(part(some)[None], size)[0] for part in (module.query_proj, module.key_proj))
        q_rows, k_rows = both
        return q_rows, k_rows

    relative = Relative(name="deberta", fields=fields, tensors=learned, project=project)
    return replace(call, bias=added.unflatten(0, q.shape[:2]), relative=relative)


def xlnet(
    module: Any, q: Tensor, k: Tensor, v: Tensor, r: Tensor, segments: Tensor | None, mask: Any
) -> AttentionCall:
    """XLNet: projected sinusoids; tokens come first, and a mask is above 0 where hidden."""
    position = torch.einsum("ibnd,jbnd->bnij", q + module.r_r_bias, r)
    bias = module.rel_shift_bnij(position, klen=k.shape[0])
    bias = bias + torch.einsum("nd,jbnd->bnj", module.r_w_bias, k)[:, :, None]
    if segments is not None:
        each = torch.einsum("ibnd,snd->ibns", q + module.r_s_bias, module.seg_embed)
        bias = bias + torch.einsum("ijbs,ibns->bnij", segments, each)
    seen = None if mask is None else (mask <= 0).permute(2, 3, 0, 1)
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    learned = {name: getattr(module, name) for name in ("r_w_bias", "r_r_bias", "r")}
    relative = Relative(name="transformer-xl", fields={}, tensors=learned)
    call = _call(module, q, k, v, seen, module.scale, module.scale * bias)
    return replace(call, relative=relative)


OWN: dict[str, Callable[[Any, dict[str, Any]], AttentionCall]] = {
    "BloomAttention": bloom,
    "MptAttention": mpt,
    "FalconAttention": falcon,
    "MPNetSelfAttention": mpnet,
    "RoFormerSelfAttention": roformer,
    "XGLMAttention": xglm,
    "LongT5LocalAttention": longt5_local,
    "DebertaV2SelfAttention": deberta_v2,
}
RESULT: dict[str, str | None] = {
    "BloomAttention": "dense",
    "MptAttention": "out_proj",
    "FalconAttention": "dense",
    "MPNetSelfAttention": "o",
    "RoFormerSelfAttention": None,
    "XGLMAttention": "out_proj",
    "LongT5LocalAttention": "o",
    "DebertaV2SelfAttention": None,
}


def kind_of(module: Any) -> str:
    """The class of a module; DeBERTa v1 and v2 have different ones of the same name."""
    kind = type(module)
    if kind.__name__ == "DisentangledSelfAttention" and ".deberta_v2." in kind.__module__:
        return "DebertaV2SelfAttention"
    return kind.__name__


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
