"""Models small enough to compute everything twice."""

import json
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import torch

from headscape.data.dataset import Dataset
from headscape.encodings import Side
from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig
from headscape.models.loaded import BLOCK, digest, losses_in_blocks
from headscape.models.model import LayerSpec, Spec


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


NAMES = {"alibi": "ALiBi", "learned": "Learnable", "rope": "RoPE"}


class Subject:
    """A GPT2 as a `Model`."""

    def __init__(self, model, *, data=None, tokenizer=None, **spec):
        config = model.config
        self.model, self.dataset, self.tokenizer = model.eval(), data, tokenizer
        layer = LayerSpec(encoding=config.encoding, conventions={}, claims={})
        self.spec = Spec(
            **{
                "name": NAMES.get(config.encoding, config.encoding),
                "layers": (layer,) * config.layers,
                "heads": config.heads,
                "head_dim": config.head_dim,
                "width": config.width,
                "vocabulary": config.vocabulary,
                "train_length": config.train_length,
                "causal": True,
            }
            | spec
        )

    @cached_property
    def fingerprint(self):
        return digest(json.dumps(self.model.config.to_json()), self.model.tensors())

    def for_length(self, _length):
        return self

    def length_error(self, length):
        weight, shape = self.model.tokens.weight, self.model.config
        at = torch.full((1, 1), length - 1)
        try:
            self.model.position.embed(weight.new_zeros(1, 1, shape.width), at)
            q = weight.new_zeros(1, shape.heads, 1, shape.head_dim)
            self.model.encoding().rotate(q, Side(at, "query"))
        except InputError as error:
            return str(error)
        return None

    def cost(self, length):
        shape = self.model.config
        layer = 12 * shape.width**2 + length * shape.width
        return float(length * (shape.layers * layer + shape.vocabulary * shape.width))

    @torch.inference_mode()
    def losses(self, windows, first):
        hidden = self.model.hidden(windows[:, :-1], path="auto")[:, first:]
        return losses_in_blocks(hidden, windows[:, 1 + first :], self.model.logits)

    @torch.inference_mode()
    def predictions(self, tokens, where):
        hidden = self.model.hidden(tokens)[where]
        return torch.cat([self.model.logits(rows).argmax(-1) for rows in hidden.split(BLOCK)])


class Stretched(Subject):
    """A RoPE model that is stretched linearly to the length that it reads."""

    def __init__(self, model, kind="linear", **options):
        self.kind, self.built = kind, []
        self.options = {"name": f"RoPE, {kind}"} | options
        super().__init__(model, **self.options)

    def for_length(self, length):
        self.built.append(length)
        config = self.model.config
        changes = {"scaling": self.kind, "factor": max(1.0, length / config.train_length)}
        fields = {**config.encoding_fields, **changes}
        with torch.device("meta"):
            twin = GPT2(replace(config, encoding_fields=fields))
        twin.load_state_dict(self.model.state_dict(), assign=True)
        return Subject(twin, **self.options)
