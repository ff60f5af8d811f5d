"""Which of our models an exported class does not compute, so that none is exported wrong."""

import torch

from headscape.encodings import Encoding
from headscape.errors import InputError
from headscape.gpt2 import GPT2


def refuse_unserved(gpt2: GPT2) -> None:
    """Raise InputError if the exported class lacks a part of this model."""
    if gpt2.config.qk_norm != "none":
        raise InputError(
            f"a model with qk_norm={gpt2.config.qk_norm!r} cannot be exported yet: save it with "
            f"save_pretrained()."
        )
    for layer in range(gpt2.config.layers):
        encoding = gpt2.encoding(layer)
        reason = unserved(encoding)
        if reason is not None:
            raise InputError(
                f"{encoding.title} cannot be exported yet, because {reason}: save the model with "
                f"save_pretrained()."
            )


@torch.no_grad()
def unserved(encoding: Encoding) -> str | None:
    """Return why the exported class does not compute an encoding, or None if it does."""
    if encoding.chunk is not None:
        return "keys are seen in chunks"
    if encoding.weighs:
        return "its weights are not a softmax"
    if encoding.reads_heads or encoding.content_scale is not None:
        return "its bias reads queries and keys, or it has its own factor of q.k"
    if not encoding.streams:
        return None
    weight = next(encoding.parameters())
    stream = encoding.stream(weight.new_zeros(1, 1, encoding.shape.width))
    if stream is None or (stream.total is not None and stream.carry is None):
        return None
    return "it reads more than running sums off a layer's input"
