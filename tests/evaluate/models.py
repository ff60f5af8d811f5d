"""Models small enough to compute everything twice."""

import numpy as np
import torch

from headscape.gpt2 import GPT2, ModelConfig


def tiny(encoding="alibi", *, vocabulary=40, train_length=16, seed=0, **fields):
    """A random float64 model with weights large enough that its losses vary."""
    torch.manual_seed(seed)
    config = ModelConfig(
        layers=2,
        heads=2,
        width=16,
        vocabulary=vocabulary,
        train_length=train_length,
        encoding=encoding,
        encoding_fields=fields,
    )
    model = GPT2(config).double()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.2 * torch.randn_like(value))
    return model.eval()


def stream(count, vocabulary=40, seed=0):
    return np.random.default_rng(seed).integers(vocabulary, size=count).astype(np.uint16)


def loss_after(model, context, target):
    """Nats of one token after a context, from a pass of its own."""
    with torch.no_grad():
        logits = model(torch.tensor(context.astype(np.int64))[None])[0, -1]
    shifted = logits - logits.max()
    return float(shifted.exp().sum().log() - shifted[int(target)])
