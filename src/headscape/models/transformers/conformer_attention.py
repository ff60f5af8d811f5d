"""Relative attention of the Conformers: Transformer-XL's in one setting, Shaw's keys in another.

wav2vec2-Conformer, wav2vec2-BERT and SeamlessM4T hand their bias to the attention interface. In the
first setting they also add u to the queries; here u . k_j is part of the bias, as in our encoding.
"""

from dataclasses import replace
from typing import Any

from headscape.models.transformers.attention_call import ObservedCall, Relative


def as_conformer(call: ObservedCall) -> ObservedCall:
    """Return the call with the layer's own parameters, if it is relative attention of a Conformer.

    Any other call is returned as it is.
    """
    module: Any = call.module
    kind = getattr(module, "position_embeddings_type", None)
    if call.bias is None:
        return call
    if kind == "relative":
        u = module.pos_bias_u
        learned = {
            "pos_bias_u": u,
            "pos_bias_v": module.pos_bias_v,
            "linear_pos.weight": module.linear_pos.weight,
        }
        relative = Relative(
            name="transformer-xl", fields={"layout": "interleaved"}, tensors=learned
        )
        constant = call.scale * (call.k @ u[:, :, None]).mT
        q = call.q - u[:, None]
        return replace(call, q=q, bias=call.bias + constant, relative=relative)
    if kind == "relative_key":
        fields: dict[str, object] = {
            "left": module.left_max_position_embeddings,
            "right": module.right_max_position_embeddings,
        }
        table = {"distance_embedding.weight": module.distance_embedding.weight}
        return replace(call, relative=Relative(name="shaw", fields=fields, tensors=table))
    return call
