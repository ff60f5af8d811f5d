"""Reading a model, and the check that the reading is right.

A short random sequence, of tokens or of noise, runs through the model's own forward. In every layer
the attention result is computed again from what was read: content, position, mask, softmax, times
v. A difference that rounding does not explain stops the loading, so a wrong picture cannot come
from a wrong reading.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headscape.call import definition
from headscape.encodings import Encoding
from headscape.errors import InputError
from headscape.models.transformers.attention_call import ObservedCall
from headscape.models.transformers.attention_watch import AttentionWatch
from headscape.models.transformers.input_reader import InputWatch, read_input
from headscape.models.transformers.layer_reading import (
    LayerReading,
    read_layer,
    shape_of,
    trained_length,
)
from headscape.models.transformers.rounding import allowance, output_rounding

LENGTH = 24
"""Tokens of the sequence; more than any exact range of T5's buckets."""


class ModelReading:
    """Every layer of a model as it was read, and its call on the check's sequence."""

    def __init__(
        self,
        layers: list[LayerReading],
        calls: list[ObservedCall],
        at_input: Encoding | None,
        *,
        convolves: bool,
    ) -> None:
        """`convolves` is True if a convolution adds position to the input."""
        self.layers, self.calls, self.at_input = layers, calls, at_input
        self.convolves = convolves


@torch.no_grad()
def read_model(
    name: str, body: nn.Module, config: Any, run: Callable[[Tensor], object], given: Tensor
) -> ModelReading | None:
    """Read every layer of a model and check it; `run` is the forward pass of `body` on `given`.

    None for a family whose attention goes neither through the interface nor has a reader.
    """
    calls: dict[int, ObservedCall] = {}
    results: dict[int, Tensor] = {}
    table = InputWatch(body)
    try:
        with AttentionWatch(body, calls.__setitem__, results.__setitem__, examine=True):
            run(given)
    finally:
        table.close()
    if not calls:
        _need_heads(name, body, config)
        return None
    at_input = read_input(table, config, shape_of(calls[0], config))
    layers = []
    for layer, call in sorted(calls.items()):
        if call.heads != calls[0].heads:
            raise InputError(
                f"{name} has {calls[0].heads} heads in layer 0 and {call.heads} in layer {layer}: "
                f"only models with equal heads in every layer can be read."
            )
        reading = read_layer(call, body, config, layer, at_input)
        check_layer(name, layer, reading, call, results[layer])
        layers.append(reading)
    every = [calls[layer] for layer in sorted(calls)]
    return ModelReading(layers, every, at_input, convolves=table.convolves)


def _need_heads(name: str, body: nn.Module, config: Any) -> None:
    """Raise InputError for a model without attention heads: Mamba, RWKV, FNet."""
    # RWKV calls its time mixing attention, and FNet's config may contain a number of heads.
    attends = any("ttention" in type(module).__name__ for module in body.modules())
    if not attends or getattr(config, "num_attention_heads", None) is None:
        raise InputError(
            f"{name} is a {config.model_type!r} model, which has no attention heads: Headscape "
            f"reads models with attention."
        )


def check_layer(
    name: str, layer: int, reading: LayerReading, call: ObservedCall, result: Tensor
) -> None:
    """Raise InputError if the layer computed from what was read is not the model's own."""
    if not bool(result.isfinite().all()):
        raise InputError(
            f"{name} computes values that are not finite: in layer {layer} (counted from 0) its "
            f"attention has NaN or infinity on a short random sequence, so its weights or its "
            f"config are wrong."
        )
    inputs = reading.inputs(call, layer)
    differs = (definition.run(inputs) - result).abs()
    allowed = allowance(result.dtype) * output_rounding(inputs)
    if not bool((differs <= allowed).all()):
        worst = int((differs / allowed).nan_to_num(torch.inf).argmax())
        found, explained = float(differs.flatten()[worst]), float(allowed.flatten()[worst])
        raise InputError(
            f"{name} is not read correctly: in layer {layer} (counted from 0) its attention "
            f"differs by {found:.2g} from what was read, and rounding explains {explained:.2g}."
        )


def check_tokens(config: Any, device: torch.device) -> Tensor:
    """A short random sequence without the padding token."""
    longest = trained_length(config)
    length = LENGTH if longest is None else max(2, min(LENGTH, longest - 2))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (1, length), generator=generator)
    padding = getattr(config, "pad_token_id", None)
    if padding is not None:
        tokens[tokens == padding] = (padding + 1) % config.vocab_size
    return tokens.to(device)
