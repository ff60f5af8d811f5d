"""A GPT2 whose layers all get given queries, keys and values, to compare its wiring with a peer."""

import torch
from torch import Tensor, nn

from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.gpt2 import GPT2, Cache, ModelConfig


class Injected(nn.Module):
    """Gives the same queries, keys and values for the next tokens of any input."""

    def __init__(self, z: dict[str, Tensor]) -> None:
        super().__init__()
        self.qkv = torch.cat([z[name].transpose(1, 2).flatten(2) for name in "qkv"], dim=-1)
        self.start = 0

    def forward(self, x: Tensor) -> Tensor:
        """The projections of the tokens from `start` on."""
        return self.qkv[:, self.start : self.start + x.shape[1]].expand(x.shape[0], -1, -1)


def model(z: dict[str, Tensor], config: dict, encoding: str, **fields: object) -> GPT2:
    made = GPT2(
        ModelConfig(
            layers=config.get("layers", 1), heads=config["H"], width=config["H"] * config["D"],
            vocabulary=7, train_length=64, encoding=encoding, **fields,
        )
    ).double()  # fmt: skip
    for layer, block in enumerate(made.blocks):
        attention = block.attention
        attention.qkv = Injected(z)
        attention.scale = config.get("scaling", [config["D"] ** -0.5] * len(made.blocks))[layer]
        for role, norm in (("q", attention.q_norm), ("k", attention.k_norm)):
            if getattr(norm, "weight", None) is not None:
                weight = z.get(f"{role}_norm_weight", z.get(f"{role}_weight"))
                stored = weight + 1 if config.get("norm_weight") == "1+w" else weight
                norm.weight.data.copy_(stored.view(norm.weight.shape))
    return made


@torch.no_grad()
def calls(made: GPT2, tokens: int, cache: Cache | None = None) -> list[AttentionCall]:
    """What every layer's attention is a function of, for the next tokens."""
    found: list[AttentionCall] = []
    for block in made.blocks:
        block.attention.qkv.start = 0 if cache is None else cache.length
    text = torch.zeros(1, tokens, dtype=torch.long)
    made(text, cache=cache, watch=lambda _, inputs: found.append(inputs))
    return found


def heated(call: AttentionCall) -> Tensor:
    return call.q if call.temperature is None else call.q * call.temperature[..., None]


def final(call: AttentionCall) -> Tensor:
    found = definition.scores(call)
    return found.final.masked_fill(~found.visible, -torch.inf)
