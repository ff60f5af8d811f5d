"""ALiBi in published models: which slopes give the bias that the model adds.

BLOOM adds m j, MPT m (j - longest), Falcon m j rounded to bfloat16 and divided by sqrt(head dim).
All equal -m (i - j) up to a constant per query, which the softmax ignores.
"""

import torch

from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, Shape, make
from headscape.models.transformers.attention_call import ObservedCall
from headscape.models.transformers.rounding import allowance, bias_agrees

RULES: dict[str, list[dict[str, str]]] = {
    "BloomAttention": [{"slopes": "fairseq"}],
    "MptAttention": [{"slopes": "mpt"}],
    "FalconAttention": [{"slopes": "falcon", "divisor": "sqrt_head_dim"}],
}
"""The rule of each family: where the number of heads is a power of two the rules agree."""
ANY = [{"slopes": rule} for rule in ("fairseq", "mpt", "geometric")]


def read_alibi(call: ObservedCall, shape: Shape) -> Encoding | None:
    """ALiBi with the slopes that reproduce this layer's bias, or None."""
    assert call.bias is not None
    positions = Positions.span(call.q.shape[2], call.k.shape[2], on=call.q.device)
    family = type(call.module).__name__
    # Falcon rounds m j itself to bfloat16, not only m.
    rounding = torch.finfo(torch.bfloat16).eps if family == "FalconAttention" else 0.0
    within = max(rounding, allowance(call.q.dtype))
    for fields in RULES.get(family, ANY):
        encoding = make("alibi", shape, fields)
        bias = encoding.bias(LayerContext(positions))
        assert bias is not None
        if bias_agrees(dense(bias, positions), call.bias, call.seen(), within=within):
            return encoding
    return None
