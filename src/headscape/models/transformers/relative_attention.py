"""XLNet and WavLM: families that add a bias inside a method of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from headscape.models.transformers.attention_call import ObservedCall, Relative
from headscape.models.transformers.own_call import own_call, split_heads


def xlnet(
    module: Any, q: Tensor, k: Tensor, v: Tensor, r: Tensor, segments: Tensor | None, mask: Any
) -> ObservedCall:
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
    call = own_call(module, q, k, v, seen, module.scale, module.scale * bias)
    return replace(call, relative=relative)


def wavlm(module: Any, hidden: Tensor, mask: Tensor | None, bias: Tensor) -> ObservedCall:
    """WavLM: T5's buckets times a gate; the table is in the first layer, the gates in every one."""
    q, k, v = (
        split_heads(project(hidden), module.head_dim)
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    seen = None if mask is None else mask.bool()[:, None, None]
    names = ("gru_rel_pos_const", "gru_rel_pos_linear.weight", "gru_rel_pos_linear.bias")
    relative = Relative(
        name="wavlm",
        fields={"buckets": module.num_buckets, "max_distance": module.max_distance},
        tensors={name: module.get_parameter(name) for name in names},
        shared="rel_attn_embed.weight",
        hidden=hidden,
    )
    call = own_call(module, q, k, v, seen, module.scaling, bias.reshape(*q.shape[:3], -1))
    return replace(call, relative=relative)


@contextmanager
def unprojected(module: Any) -> Iterator[None]:
    """Replace a module's output projection by the identity, so that it returns its heads merged."""
    weight = module.out_proj.weight
    one = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    vars(module)["out_proj"] = SimpleNamespace(weight=one, bias=torch.zeros_like(weight[0]))
    try:
        yield
    finally:
        del vars(module)["out_proj"]
