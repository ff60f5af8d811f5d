"""What is known of each family of transformers models, one record per family.

A family needs no record if its attention goes through the attention interface of transformers: it
is read by what it hands over there, and its rotations, biases and masks are recognised by trying
our encodings on its own numbers. A record says what that cannot show: attention written into a
forward or a method, a bias with parts that belong to the queries, a rounding, a refusal. What
depends on a module's class stands in its record alone; the readers look it up with `family_of`.
What shows by a module's attributes (latent attention's dims, Llama 4's chunks) is in
attention_watch.py and layer_reading.py.
To add a family, add a record to FAMILIES and a test like tests/pretrained/test_adding_a_family.py.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.models.transformers.observed_call import (
    ObservedCall,
    Relative,
    custom_attention,
    split_heads,
    split_mask,
)

Given = dict[str, Any]
"""The arguments of a forward or a method, by name."""
Finish = Callable[[Tensor], Any]
"""Takes the attention's result [b h t e], changed or not, and returns what the method returns."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method that computes attention, in a family that does not use the interface."""

    name: str
    run: Callable[[Any, Callable[..., Any], Given], tuple[Tensor, Finish]]
    """Runs a module's method with its arguments; returns its result [b h t e] and how to go on."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What is special about one family; the defaults are those of a family without a record."""

    attention: tuple[str, ...] = ()
    """Its attention classes as package.Class, for example bloom.BloomAttention."""
    refused: str | None = None
    """Why it is not read, in one sentence."""
    read: Callable[[Any, Given], ObservedCall] | None = None
    """Takes a module and the arguments of its forward, or of `method`; returns the call."""
    result: str | None = None
    """With attention in the forward, the child that projects its result; None: it is returned."""
    method: Method | None = None
    """The method that computes attention; with `read` None it takes q, k, v and a mask."""
    adjust: Callable[[ObservedCall, Given], ObservedCall] | None = None
    """Separates position from a call that was seen at the interface; takes the forward's arguments
    too."""
    key_convolution: str | None = None
    """The config's field with the length of a short convolution over keys, whose zeros before the
    text are no position."""
    still: Callable[[Any, Given], Given | None] | None = None
    """Returns arguments that rotate by nothing, where angles are not in `position_embeddings`."""
    alibi: tuple[Mapping[str, str], ...] = tuple(
        {"slopes": rule} for rule in ("fairseq", "mpt", "geometric")
    )
    """Fields of ALiBi that may be its; where heads are a power of two the rules agree."""
    rounds_bias: bool = False
    """Whether slope times position is rounded to bfloat16: its own numbers are then the bias."""
    bucket_table: str = "relative_attention_bias"
    """The child with T5's table of buckets, an Embedding, or a Linear of one-hot buckets."""
    bias_by_distance: bool = False
    """Whether `compute_bias` gives T5's bias, one number per head and distance."""
    affine: str | None = None
    """The child with `scale` a and `bias` b per head: its queries grow by a log(i + 1) + b."""
    longest: str | None = None
    """The config's field with the most tokens it reads, where its code fails on more."""
    values: Callable[[Any], str | None] = lambda _: None
    """Returns what position does to a module's values, if it acts on them too."""
    bias_by_key: bool = False
    """Whether its forward takes ALiBi as one number per head and key, as our attention can."""


def family_of(module: nn.Module) -> Family:
    """Return the record of an attention module's family; the defaults if it has none."""
    kind = type(module)
    name = ".".join([*kind.__module__.split(".")[:-1][-1:], kind.__name__])
    return next((family for family in FAMILIES if name in family.attention), PLAIN)


def projected(module: Any, hidden: Tensor, names: str, head_dim: int) -> tuple[Tensor, ...]:
    """Return what some of a module's projections make of its input, as [b h t e] each."""
    return tuple(split_heads(getattr(module, name)(hidden), head_dim) for name in names.split())


def _plain(names: str, hidden: str = "hidden_states") -> Callable[[Any, Given], ObservedCall]:
    """Return a reader of attention without position, written into a forward; `names` project."""

    def read(module: Any, given: Given) -> ObservedCall:
        size = getattr(module, "attention_head_size", None) or module.head_dim
        q, k, v = projected(module, given[hidden], names, size)
        mask = given.get("attention_mask", given.get("mask"))
        if mask is not None and mask.ndim < 4:
            # XLM's mask is 1 where a key is seen, by key or by query and key.
            mask = (mask[:, None, None] if mask.ndim == 2 else mask[:, None]) != 0
        return custom_attention(module, q, k, v, mask, 1 / math.sqrt(size), None)

    return read


def _read_longformer(module: Any, given: Given) -> ObservedCall:
    """Longformer and LED: a window to both sides; padding to whole blocks is left out."""
    if given["is_global_attn"]:
        raise InputError(
            "Longformer's global tokens have queries and keys of their own, which cannot be read "
            "as one map per head: leave global_attention_mask out."
        )
    hidden, size = given["hidden_states"], module.head_dim
    real = int((~given["is_index_masked"]).sum(dim=1).max())
    q, k, v = projected(module, hidden[:, :real], "query key value", size)
    at = torch.arange(real, device=hidden.device)
    near = (at[:, None] - at).abs() <= module.one_sided_attn_window_size
    seen = near & ~given["is_index_masked"][:, None, None, :real]
    call = custom_attention(module, q, k, v, seen, 1 / math.sqrt(size), None)
    return replace(call, window=module.one_sided_attn_window_size + 1)


FULL_UP_TO = "headscape_full_up_to"
"""The attribute of full attention that stands in for block-sparse attention: its most tokens."""


def _read_bigbird(module: Any, given: Given) -> ObservedCall:
    """BigBird and BigBird-Pegasus: plain attention, which stands in for sparse on short texts."""
    length, longest = given["hidden_states"].shape[1], getattr(module, FULL_UP_TO, None)
    if longest is not None and length > longest:
        raise InputError(
            f"BigBird with attention_type 'block_sparse' shows random blocks of keys to every head "
            f"of a text of more than {longest} tokens, got {length}: read a shorter one."
        )
    return _plain("query key value")(module, given)


def _read_openai(module: Any, given: Given) -> ObservedCall:
    """The first GPT: one projection, and a triangle of ones beside the mask."""
    q, k, v = (
        module.split_heads(part)
        for part in module.c_attn(given["x"]).split(module.split_size, dim=2)
    )
    length = q.shape[2]
    seen = module.bias[:, :, :length, :length] > 0
    own, _ = split_mask(given.get("attention_mask"), length, length)
    scale = 1 / math.sqrt(v.shape[-1]) if module.scale else 1.0
    return custom_attention(module, q, k, v, seen if own is None else seen & own, scale, None)


def _read_mvp(module: Any, given: Given) -> ObservedCall:
    """MVP: plain attention, unless learned keys come before the tokens."""
    if given.get("attn_prompt") is not None:
        raise InputError(
            "MVP with use_prompt puts learned keys before those of the tokens, which cannot be "
            "read as one map per head: set use_prompt to false."
        )
    return _plain("q_proj k_proj v_proj")(module, given)


def _read_bloom(module: Any, given: Given) -> ObservedCall:
    """BLOOM: one projection for q, k and v; the bias is m_h j."""
    q, k, v = module._reshape(module.query_key_value(given["hidden_states"]))
    bias = given["alibi"].unflatten(0, (q.shape[0], q.shape[1]))
    mask, scale = given["attention_mask"], module.inv_norm_factor
    return custom_attention(module, q, k, v, mask, scale, bias)


def _read_mpt(module: Any, given: Given) -> ObservedCall:
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
    return custom_attention(module, q, k, v, seen, module.softmax_scale, bias)


def _read_falcon(module: Any, given: Given) -> ObservedCall:
    """Falcon: ALiBi divided by sqrt(head dim) like the scores, or RoPE."""
    parts = module._split_heads(module.query_key_value(given["hidden_states"]))
    q, k, v = (part.transpose(1, 2) for part in parts)
    mask, alibi, scale = given["attention_mask"], given.get("alibi"), module.inv_norm_factor
    if alibi is not None:
        bias = alibi.view(q.shape[0], q.shape[1], 1, -1).to(q.dtype) * scale
        if mask is not None and mask.dtype != torch.bool:
            # The mask contains the bias already, and eager attention adds it a second time.
            mask, added = split_mask(mask, q.shape[2], k.shape[2])
            if module.config._attn_implementation != "sdpa" and added is not None:
                bias = bias + added
        return custom_attention(module, q, k, v, mask, scale, bias)
    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
    rotation = given["position_embeddings"]
    rotated_q, rotated_k = rotate(q, k, *rotation)
    return custom_attention(module, rotated_q, rotated_k, v, mask, scale, None, (q, k), rotation)


def _read_mpnet(module: Any, given: Given) -> ObservedCall:
    """MPNet: a bias by buckets, computed once for all layers."""
    size = module.attention_head_size
    q, k, v = projected(module, given["hidden_states"], "q k v", size)
    mask, bias = given["attention_mask"], given["position_bias"]
    return custom_attention(module, q, k, v, mask, 1 / math.sqrt(size), bias)


def _read_xglm(module: Any, given: Given) -> ObservedCall:
    """XGLM: plain attention; its positions are sinusoids at the input."""
    q, k, v = projected(module, given["hidden_states"], "q_proj k_proj v_proj", module.head_dim)
    call = custom_attention(module, q, k, v, given["attention_mask"], module.scaling, None)
    return replace(call, causal=module.is_decoder)


def _read_longt5(module: Any, given: Given) -> ObservedCall:
    """LongT5's local attention: T5's buckets within a window, computed in blocks of its length."""
    hidden, size = given["hidden_states"], module.block_len
    q, k, v = projected(module, hidden, "q k v", module.key_value_proj_dim)
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
    call = custom_attention(module, q, k, v, seen, 1.0, dense(bias).masked_fill(~seen, 0.0))
    return replace(call, window=size)


def _read_roformer(module: Any, given: Given) -> ObservedCall:
    """RoFormer: q and k rotated, and v too where the config says so."""
    size, angles = module.attention_head_size, given["sinusoidal_pos"]
    q, k, v = projected(module, given["hidden_states"], "query key value", size)
    turned = (q, k, v) if module.rotary_value else (q, k)
    turned = module.apply_rotary_position_embeddings(angles, *turned)
    v = turned[2] if module.rotary_value else v
    mask, scale = given["attention_mask"], 1 / math.sqrt(size)
    return custom_attention(module, turned[0], turned[1], v, mask, scale, None, (q, k))


def _read_layoutlmv3(module: Any, given: Given) -> ObservedCall:
    """LayoutLMv3: T5's buckets, divided by sqrt(head dim) like the scores."""
    if module.has_spatial_attention_bias:
        raise InputError(
            "LayoutLMv3 with has_spatial_attention_bias adds a bias by the boxes of words on a "
            "page: Headscape reads models with one position per token."
        )
    size = module.attention_head_size
    q, k, v = projected(module, given["hidden_states"], "query key value", size)
    bias = given["rel_pos"] / math.sqrt(size) if module.has_relative_attention_bias else None
    return custom_attention(module, q, k, v, given["attention_mask"], 1 / math.sqrt(size), bias)


def _read_deberta_v1(module: Any, given: Given) -> ObservedCall:
    """DeBERTa v1: one row per distance; the keys and the rows that act as keys have no bias."""
    if module.talking_head:
        raise InputError(
            "DeBERTa with talking_head mixes the scores of different heads, which cannot be read "
            "as one map per head."
        )
    q, k, v = module.transpose_for_scores(module.in_proj(given["hidden_states"])).chunk(3, dim=-1)
    q, v = (
        x + module.transpose_for_scores(bias[None, None])
        for x, bias in ((q, module.q_bias), (v, module.v_bias))
    )
    factor = 1 + len(module.pos_att_type)
    scale = _inverse_root(module.attention_head_size * factor)
    call = custom_attention(module, q, k, v, given["attention_mask"].bool(), scale, None)
    rows, terms = given.get("rel_embeddings"), _terms(module)
    if rows is None or terms is None:
        return call
    positions = given["relative_pos"]
    added = module.disentangled_att_bias(q * scale, k, positions, rows, factor)
    learned = {"rel_embeddings.weight": rows}
    if terms != "p2c":
        weight = module.pos_proj.weight
        learned |= {
            "pos_key_proj.weight": weight,
            "pos_key_proj.bias": torch.zeros_like(weight[:, 0]),
        }
    if terms != "c2p":
        own = module.pos_q_proj.state_dict()
        learned |= {f"pos_query_proj.{name}": value for name, value in own.items()}
    fields = {"buckets": module.max_relative_positions, "bucketing": "none", "terms": terms}
    relative = Relative(name="deberta", fields=fields, tensors=learned)
    return replace(call, bias=added, relative=relative)


def _read_deberta_v2(module: Any, given: Given) -> ObservedCall:
    """DeBERTa v2 and v3: the rows are of buckets, or of distances if position_buckets is -1."""
    size, terms = module.attention_head_size, _terms(module)
    asks = given.get("query_states")
    asks = given["hidden_states"] if asks is None else asks
    q = split_heads(module.query_proj(asks), size)
    k, v = projected(module, given["hidden_states"], "key_proj value_proj", size)
    count = {None: 1, "both": 3}.get(terms, 2)
    mask = given["attention_mask"].bool()
    call = custom_attention(module, q, k, v, mask, _inverse_root(size * count), None)
    if not module.relative_attention or terms is None:
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
    fields = {"buckets": module.pos_ebd_size, "terms": terms, "share_att_key": module.share_att_key}
    if module.position_buckets > 0:
        fields["max_distance"] = module.max_relative_positions
    else:
        fields["bucketing"] = "none"

    def project(some: Tensor) -> tuple[Tensor, Tensor]:
        q_rows, k_rows = projected(module, some[None], "query_proj key_proj", size)
        return q_rows[0], k_rows[0]

    relative = Relative(name="deberta", fields=fields, tensors=learned, project=project)
    return replace(call, bias=added.unflatten(0, q.shape[:2]), relative=relative)


def _terms(module: Any) -> str | None:
    """Return which terms a module computes, as our encoding calls them; None for none of them."""
    found = [name for name in ("c2p", "p2c") if name in module.pos_att_type]
    return "both" if len(found) == 2 else next(iter(found), None)


def _inverse_root(number: int) -> float:
    """Return 1/sqrt of a number, with the root in float32 as the models take it."""
    return 1 / float(torch.tensor(float(number)).sqrt())


def _read_xlnet(module: Any, given: Given) -> ObservedCall:
    """XLNet: projected sinusoids; tokens come first, and a mask is above 0 where hidden."""
    q, k, v, r = (given[name] for name in ("q_head", "k_head_h", "v_head_h", "k_head_r"))
    segments, mask = given.get("seg_mat"), given.get("attn_mask")
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
    call = custom_attention(module, q, k, v, seen, module.scale, module.scale * bias)
    return replace(call, relative=relative)


def _run_xlnet(_: Any, method: Callable[..., Any], given: Given) -> tuple[Tensor, Finish]:
    """Run XLNet's method; it is bidirectional, so nothing changes its result."""
    result = method(**given)
    mixed = result[0] if isinstance(result, tuple) else result
    return mixed.permute(1, 2, 0, 3), lambda _: result


def _read_wavlm(module: Any, given: Given) -> ObservedCall:
    """WavLM: T5's buckets times a gate; the table is in the first layer, the gates in every one."""
    hidden, mask, bias = (
        given["hidden_states"],
        given["attention_mask"],
        given["gated_position_bias"],
    )
    q, k, v = projected(module, hidden, "q_proj k_proj v_proj", module.head_dim)
    seen = None if mask is None else mask.bool()[:, None, None]
    names = ("gru_rel_pos_const", "gru_rel_pos_linear.weight", "gru_rel_pos_linear.bias")
    relative = Relative(
        name="wavlm",
        fields={"buckets": module.num_buckets, "max_distance": module.max_distance},
        tensors={name: module.get_parameter(name) for name in names},
        shared="rel_attn_embed.weight",
        hidden=hidden,
    )
    bias = bias.reshape(*q.shape[:3], -1)
    call = custom_attention(module, q, k, v, seen, module.scaling, bias)
    return replace(call, relative=relative)


def _run_wavlm(module: Any, method: Callable[..., Any], given: Given) -> tuple[Tensor, Finish]:
    """Run WavLM's method without its output projection, so that it returns its heads merged."""
    with _unprojected(module):
        merged, weights = method(**given)

    def finish(heads: Tensor) -> tuple[Tensor, Any]:
        return module.out_proj(heads.transpose(1, 2).flatten(2)), weights

    return split_heads(merged, module.head_dim), finish


@contextmanager
def _unprojected(module: Any) -> Iterator[None]:
    weight = module.out_proj.weight
    one = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    vars(module)["out_proj"] = SimpleNamespace(weight=one, bias=torch.zeros_like(weight[0]))
    try:
        yield
    finally:
        del vars(module)["out_proj"]


def _run_attn(_: Any, method: Callable[..., Any], given: Given) -> tuple[Tensor, Finish]:
    """Run a method `_attn(query, key, value, attention_mask)`."""
    result = method(**given)
    return result[0], lambda heads: (heads, *result[1:])


def _first_position(_: Any, given: Given) -> Given | None:
    """Some families compute angles from positions themselves: at position 0 they are 0."""
    positions = given.get("position_ids")
    return {"position_ids": torch.zeros_like(positions)} if isinstance(positions, Tensor) else None


def _conformer_still(module: Any, given: Given) -> Given | None:
    """The Conformers rotate their hidden states, before the projections to q and k."""
    if module.position_embeddings_type != "rotary":
        return None
    cos, sin = given["relative_position_embeddings"]
    still = torch.stack([torch.ones_like(cos), torch.zeros_like(sin)])
    return {"relative_position_embeddings": still}


def _adjust_inkling(call: ObservedCall, given: Given) -> ObservedCall:
    """Inkling: its bias by the layer's input, and on full layers a temperature of both terms."""
    module: Any = call.module
    fields: dict[str, object] = {"rank": module.config.d_rel, "extent": module.rel_extent}
    bias, start = call.bias, module.config.log_scaling_n_floor
    if bias is not None and not module.is_sliding and start is not None:
        rate = module.config.log_scaling_alpha
        keys = bias.shape[-1]
        at = torch.arange(keys - bias.shape[-2], keys, device=bias.device)
        factor = 1.0 + rate * ((at + 1).float() / start).clamp(min=1.0).log()
        bias = (bias.float() / factor[:, None]).to(bias.dtype)
        fields |= {"temperature": "inkling", "temperature_rate": float(rate)}
        fields |= {"temperature_start": int(start)}
    tensors = {
        "r_proj.weight": module.r_proj.weight,
        "rel_logits_proj.proj": module.rel_logits_proj.proj,
    }
    relative = Relative(
        name="inkling", fields=fields, tensors=tensors, hidden=given["hidden_states"]
    )
    return replace(call, bias=bias, relative=relative)


def _adjust_conformer(call: ObservedCall, _: Given) -> ObservedCall:
    """The Conformers: Transformer-XL's bias in one setting, Shaw's keys in the other.

    In the first they add u to the queries; here u . k_j is part of the bias, as in our encoding.
    """
    module: Any = call.module
    kind = module.position_embeddings_type
    if call.bias is None or kind not in {"relative", "relative_key"}:
        return call
    if kind == "relative_key":
        fields: dict[str, object] = {
            "left": module.left_max_position_embeddings,
            "right": module.right_max_position_embeddings,
        }
        table = {"distance_embedding.weight": module.distance_embedding.weight}
        return replace(call, relative=Relative(name="shaw", fields=fields, tensors=table))
    u = module.pos_bias_u
    learned = {
        "pos_bias_u": u,
        "pos_bias_v": module.pos_bias_v,
        "linear_pos.weight": module.linear_pos.weight,
    }
    relative = Relative(name="transformer-xl", fields={"layout": "interleaved"}, tensors=learned)
    constant = call.scale * (call.k @ u[:, :, None]).mT
    return replace(call, q=call.q - u[:, None], bias=call.bias + constant, relative=relative)


PLAIN = Family()
FAMILIES: tuple[Family, ...] = (
    Family(
        attention=("bloom.BloomAttention",),
        read=_read_bloom,
        result="dense",
        alibi=({"slopes": "fairseq"},),
        bias_by_key=True,
    ),
    Family(
        attention=("mpt.MptAttention",),
        read=_read_mpt,
        result="out_proj",
        alibi=({"slopes": "mpt"},),
        longest="max_seq_len",
    ),
    Family(
        attention=("falcon.FalconAttention",),
        read=_read_falcon,
        result="dense",
        alibi=({"slopes": "falcon", "divisor": "sqrt_head_dim"},),
        rounds_bias=True,
    ),
    Family(
        attention=(
            "t5.T5Attention",
            "mt5.MT5Attention",
            "umt5.UMT5Attention",
            "switch_transformers.SwitchTransformersAttention",
            "pop2piano.Pop2PianoAttention",
        ),
        bias_by_distance=True,
    ),
    Family(attention=("longt5.LongT5LocalAttention",), read=_read_longt5, result="o"),
    Family(attention=("mpnet.MPNetSelfAttention",), read=_read_mpnet, result="o"),
    Family(
        attention=("layoutlmv3.LayoutLMv3SelfAttention",),
        read=_read_layoutlmv3,
        bucket_table="rel_pos_bias",
    ),
    Family(
        attention=("roformer.RoFormerSelfAttention",),
        read=_read_roformer,
        values=lambda module: "rotated" if module.rotary_value else None,
    ),
    Family(
        attention=("deepseek_v4.DeepseekV4Attention",),
        # Its values are its rotated keys, and the output is turned back by the query's position.
        values=lambda _: "rotated, output turned back",
    ),
    Family(
        attention=(
            "rembert.RemBertSelfAttention",
            "megatron_bert.MegatronBertSelfAttention",
            "git.GitSelfAttention",
            "tapas.TapasSelfAttention",
        ),
        read=_plain("query key value"),
    ),
    Family(
        attention=(
            "big_bird.BigBirdSelfAttention",
            "bigbird_pegasus.BigBirdPegasusSelfAttention",
        ),
        read=_read_bigbird,
    ),
    Family(
        attention=("luke.LukeSelfAttention",),
        read=_plain("query key value", hidden="word_hidden_states"),
    ),
    Family(
        attention=("xlm.MultiHeadAttention", "flaubert.MultiHeadAttention"),
        read=_plain("q_lin k_lin v_lin", hidden="input"),
        result="out_lin",
    ),
    Family(
        attention=("trocr.TrOCRAttention",),
        read=_plain("q_proj k_proj v_proj"),
        result="out_proj",
    ),
    Family(
        attention=("prophetnet.ProphetNetAttention",),
        read=_plain("query_proj key_proj value_proj"),
        result="out_proj",
    ),
    Family(attention=("mvp.MvpAttention",), read=_read_mvp, result="out_proj"),
    Family(
        attention=("longformer.LongformerSelfAttention", "led.LEDEncoderSelfAttention"),
        read=_read_longformer,
    ),
    Family(attention=("openai.Attention",), read=_read_openai, result="c_proj"),
    Family(attention=("xglm.XGLMAttention",), read=_read_xglm, result="out_proj"),
    Family(attention=("deberta.DisentangledSelfAttention",), read=_read_deberta_v1),
    Family(
        attention=("deberta_v2.DisentangledSelfAttention", "sew_d.DisentangledSelfAttention"),
        read=_read_deberta_v2,
    ),
    Family(
        attention=("xlnet.XLNetRelativeAttention",),
        read=_read_xlnet,
        method=Method(name="rel_attn_core", run=_run_xlnet),
    ),
    Family(
        attention=("wavlm.WavLMAttention",),
        read=_read_wavlm,
        method=Method(name="torch_multi_head_self_attention", run=_run_wavlm),
    ),
    Family(
        attention=("gptj.GPTJAttention", "codegen.CodeGenAttention"),
        method=Method(name="_attn", run=_run_attn),
        still=_first_position,
        longest="max_position_embeddings",
    ),
    Family(attention=("ctrl.MultiHeadAttention",), longest="n_positions"),
    Family(
        attention=("moshi.MoshiAttention", "recurrent_gemma.RecurrentGemmaAttention"),
        still=_first_position,
    ),
    Family(
        attention=("gpt_neo.GPTNeoSelfAttention", "gpt_neox_japanese.GPTNeoXJapaneseAttention"),
        method=Method(name="_attn", run=_run_attn),
    ),
    Family(
        attention=(
            "wav2vec2_conformer.Wav2Vec2ConformerSelfAttention",
            "wav2vec2_bert.Wav2Vec2BertSelfAttention",
            "seamless_m4t.SeamlessM4TConformerSelfAttention",
            "seamless_m4t_v2.SeamlessM4Tv2ConformerSelfAttention",
        ),
        still=_conformer_still,
        adjust=_adjust_conformer,
    ),
    Family(
        attention=("speecht5.SpeechT5Attention",),
        refused="SpeechT5 reads text or sound by networks before its encoder and decoder, which "
        "Headscape does not run: it cannot be read.",
    ),
    Family(
        attention=("inkling.InklingAttention",),
        adjust=_adjust_inkling,
        key_convolution="sconv_kernel_size",
    ),
    Family(
        attention=("inkling2.Inkling2SlidingAttention", "inkling2.Inkling2FullAttention"),
        refused="Inkling 2 computes the sink of its softmax for every token anew, which Headscape "
        "has no record for: it cannot be read.",
    ),
    Family(
        attention=("mistral_large4.MistralLarge4TextAttention",),
        affine="softmax_scaling",
    ),
    Family(
        attention=("blt.BltSelfAttention", "blt.BltCrossAttention"),
        refused="BLT joins bytes into patches, so its stacks read sequences of different lengths, "
        "which are not the layers of one model: it cannot be read.",
    ),
    Family(
        attention=("cpmant.CpmAntAttention",),
        refused="CPM-Ant puts learned prompt vectors before the tokens and lets every token see "
        "later ones, so its maps and losses are not those of the tokens alone: it cannot be read.",
    ),
)
"""The families that need a record."""
