"""Models small enough to compute everything twice."""

from types import SimpleNamespace

import numpy as np
import torch

from headscape.data.dataset import Dataset
from headscape.gpt2 import GPT2, ModelConfig
from headscape.models.gpt2_model import GPT2Model
from headscape.models.stretched import StretchedModel, parse_extension


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


class Numbers:
    """A tokenizer that says nothing about bytes."""

    vocabulary, end_of_text, fingerprint = 40, 0, "numbers"

    def describe(self):
        return {"kind": "numbers"}


def dataset(tokens, tokenizer=None, corpus="random"):
    """Tokens as the held-out side of a corpus."""
    side = SimpleNamespace(tokens=tokens, offsets=np.array([0, len(tokens)]))
    return Dataset(
        corpus=corpus,
        fingerprint=f"{corpus} of {len(tokens)}",
        tokenizer=tokenizer or Numbers(),
        train_side=side,
        validation_side=side,
    )


class Subject(GPT2Model):
    """A GPT2 with a text at hand."""

    def __init__(self, gpt2, *, data=None, **options):
        super().__init__(gpt2, dataset=lambda: data, **options)


class Stretched(StretchedModel):
    """A RoPE model that is stretched linearly, and says for which lengths it was made."""

    def __init__(self, gpt2, **options):
        super().__init__(Subject(gpt2, **options), parse_extension("linear"))
        self.built = []

    def _made(self, length):
        self.built.append(length)
        return super()._made(length)
