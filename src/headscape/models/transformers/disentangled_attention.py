"""DeBERTa's disentangled attention: queries read relative positions as keys, keys as queries."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headscape.errors import InputError
from headscape.models.transformers.attention_call import ObservedCall, Relative
from headscape.models.transformers.own_call import own_call, split_heads


def deberta_v1(module: Any, given: dict[str, Any]) -> ObservedCall:
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
    call = own_call(module, q, k, v, given["attention_mask"].bool(), scale, None)
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
    return replace(
        call, bias=added, relative=Relative(name="deberta", fields=fields, tensors=learned)
    )


def deberta_v2(module: Any, given: dict[str, Any]) -> ObservedCall:
    """DeBERTa v2 and v3: the rows are of buckets, or of distances if position_buckets is -1."""
    size, terms = module.attention_head_size, _terms(module)
    asks = given.get("query_states")
    asks = given["hidden_states"] if asks is None else asks
    q = split_heads(module.query_proj(asks), size)
    k, v = (
        split_heads(part(given["hidden_states"]), size)
        for part in (module.key_proj, module.value_proj)
    )
    count = {None: 1, "both": 3}.get(terms, 2)
    mask = given["attention_mask"].bool()
    call = own_call(module, q, k, v, mask, _inverse_root(size * count), None)
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
        parts = module.query_proj, module.key_proj
        q_rows, k_rows = (split_heads(part(some)[None], size)[0] for part in parts)
        return q_rows, k_rows

    relative = Relative(name="deberta", fields=fields, tensors=learned, project=project)
    return replace(call, bias=added.unflatten(0, q.shape[:2]), relative=relative)


def _terms(module: Any) -> str | None:
    """Return which terms a module computes, as our encoding calls them; None for none of them."""
    found = [name for name in ("c2p", "p2c") if name in module.pos_att_type]
    return "both" if len(found) == 2 else next(iter(found), None)


def _inverse_root(number: int) -> float:
    """Return 1/sqrt of a number, with the root in float32 as the models take it."""
    return 1 / float(torch.tensor(float(number)).sqrt())
