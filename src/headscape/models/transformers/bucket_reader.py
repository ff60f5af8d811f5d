"""T5-type buckets in published models: the learned table and the rule that assigns distances.

T5 and mT5 have one table in the first layer, umT5 one in every layer, MPNet and
LayoutLMv3 one in their encoder.
"""

from typing import Any

from torch import Tensor, nn

from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, Shape, make
from headscape.errors import InputError
from headscape.models.transformers.attention_call import ObservedCall
from headscape.models.transformers.rounding import allowance, bias_agrees

TABLE = "relative_attention_bias"
TRANSPOSED = "rel_pos_bias"
"""LayoutLMv3's table, a linear layer of one-hot buckets."""


def read_buckets(call: ObservedCall, body: nn.Module, config: Any, shape: Shape) -> Encoding | None:
    """T5's encoding around the model's own table if it gives this layer's bias, or None."""
    table = _table(call.module, body)
    if table is None or table.shape[1] != shape.heads:
        return None
    longest = getattr(
        config, "relative_attention_max_distance", getattr(config, "max_rel_pos", 128)
    )
    for multiplier in ("one", "inverse_sqrt_head_dim"):
        fields = {"buckets": table.shape[0], "max_distance": longest, "multiplier": multiplier}
        found = _try(call, table, shape, fields)
        if found is not None:
            return found
    return None


def _try(
    call: ObservedCall, table: Tensor, shape: Shape, fields: dict[str, object]
) -> Encoding | None:
    try:
        encoding = make("t5", shape, fields)
    except InputError:
        return None
    encoding.table.weight = nn.Parameter(table.detach(), requires_grad=False)  # type: ignore[union-attr]
    positions = Positions.span(call.q.shape[2], call.k.shape[2], on=call.q.device)
    bias = encoding.bias(LayerContext(positions))
    assert bias is not None
    assert call.bias is not None
    within = allowance(call.q.dtype)
    same = bias_agrees(dense(bias, positions), call.bias, call.seen(), within=within)
    return encoding if same else None


def _table(module: nn.Module, body: nn.Module) -> Tensor | None:
    """The table of this layer, or else the first one of the model."""
    own = getattr(module, TABLE, None)
    if isinstance(own, nn.Embedding):
        return own.weight
    for name, part in body.named_modules():
        if name.endswith(TABLE) and isinstance(part, nn.Embedding):
            return part.weight
        if name.endswith(TRANSPOSED) and isinstance(part, nn.Linear):
            return part.weight.T
    return None
