"""Losses of single tokens, from any model, in bounded memory.

Only scored positions reach the output matrix, `BLOCK` of them at a time, so memory grows with
block x vocabulary and not with length x vocabulary. Logits are the model's; the log-sum-exp over
them and every sum after it are float64.
"""

import hashlib
import json
from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.attention import attend
from headscape.errors import InputError
from headscape.gpt2 import GPT2

BLOCK = 128


class Scorer(Protocol):
    """A model as an evaluation sees it."""

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal losses."""
        ...

    def cannot(self, length: int) -> str | None:
        """Why the model cannot read so many tokens, or None if it can."""
        ...

    def cost(self, length: int) -> float:
        """Work of a window of this length, in any fixed unit: for the time left."""
        ...

    def losses(self, window: Int[Tensor, "b t_plus_1"], first: int) -> Float[Tensor, "b scored"]:
        """Nats of predictions first, first + 1 ... of each window, in float64."""
        ...


class GPT2Scorer:
    """Our own models."""

    def __init__(self, model: GPT2, path: attend.Path = "auto") -> None:
        self.model = model.eval()
        self.path = path

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of config and weights."""
        return digest(json.dumps(self.model.config.to_json()), self.model.tensors())

    def cannot(self, length: int) -> str | None:
        """The encoding's own word on the last position."""
        weight, shape = self.model.tokens.weight, self.model.config
        at = torch.full((1, 1), length - 1, device=weight.device)
        try:
            self.model.position.embed(weight.new_zeros(1, 1, shape.width), at)
            q = weight.new_zeros(1, shape.heads, 1, shape.head_dim)
            self.model.encoding().rotate(q, at, "query")
        except InputError as error:
            return str(error)
        return None

    def cost(self, length: int) -> float:
        """Multiplications: projections and perceptrons, causal attention, output."""
        shape = self.model.config
        layer = 12 * shape.width**2 + length * shape.width
        return float(length * (shape.layers * layer + shape.vocabulary * shape.width))

    @torch.inference_mode()
    def losses(self, window: Int[Tensor, "b t_plus_1"], first: int) -> Float[Tensor, "b scored"]:
        """Nats of predictions first, first + 1 ... of each window, in float64."""
        window = window.to(self.model.tokens.weight.device)
        hidden = self.model.hidden(window[:, :-1], path=self.path)[:, first:]
        target = window[:, 1 + first :]
        return in_blocks(hidden, target, self.model.logits).cpu()


def in_blocks(
    rows: Float[Tensor, "b t n"], target: Int[Tensor, "b t"], logits: Callable[[Tensor], Tensor]
) -> Float[Tensor, "b t"]:
    """Nats of each target, `BLOCK` rows at a time through `logits`."""
    blocks = torch.split(rows.flatten(0, 1), BLOCK)
    truths = torch.split(target.flatten(), BLOCK)
    pairs = zip(blocks, truths, strict=True)
    parts = [cross_entropy(logits(block), truth) for block, truth in pairs]
    return torch.cat(parts).view(target.shape)


def cross_entropy(logits: Float[Tensor, "n v"], target: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Nats of each target, in float64."""
    exact = logits.double()
    return exact.logsumexp(dim=-1) - exact.gather(1, target[:, None])[:, 0]


def digest(config: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a config and of weights by name."""
    whole = hashlib.sha256(config.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        whole.update(value.flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()
