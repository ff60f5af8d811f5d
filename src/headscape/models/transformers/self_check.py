"""Reading a model, and the check that the reading is right.

A short random sequence, of tokens or of noise, runs through the model's own forward. In every layer
the attention result is computed again from what was read: content, position, mask, softmax, times
v. A difference that rounding does not explain stops the loading, so a wrong picture cannot come
from a wrong reading.

Positions added to the token embeddings, learned tables and sinusoids, are found by what they add. A
module that looks like a table of positions is watched while the model runs. The rows it returns for
positions 0, 1, 2 ... say which of its rows is position 0: 0 in GPT-2 and BERT, 2 in OPT and
RoBERTa. Sinusoids are compared with those of Vaswani et al. and of fairseq (XGLM, M2M100). wav2vec2
and WavLM add a convolution of the frames instead; only whether it runs is recorded.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscape.call import definition
from headscape.encodings import Encoding, Shape, make
from headscape.errors import InputError
from headscape.models.transformers.attention_watch import AttentionWatch
from headscape.models.transformers.layer_reading import (
    LayerReading,
    injected_input,
    read_layer,
    shape_of,
    trained_length,
)
from headscape.models.transformers.observed_call import ObservedCall
from headscape.models.transformers.rounding import allowance, output_rounding

NAME = re.compile(r"(wpe|embed_positions|position_embeddings?|positions_embed|pos_emb)$")


class InputWatch:
    """What the position table of a model returned during one forward pass."""

    def __init__(self, body: nn.Module) -> None:
        self.table: Tensor | None = None
        self.rows: Tensor | None = None
        self.convolves = False
        self.remove: list[Callable[[], None]] = []
        for name, module in body.named_modules():
            weight = _table(module)
            if NAME.search(name) and isinstance(weight, Tensor) and weight.ndim == 2:
                self.remove.append(module.register_forward_hook(self._see).remove)
            if type(module).__name__.endswith("PositionalConvEmbedding"):
                self.remove.append(module.register_forward_hook(self._convolve).remove)

    def _convolve(self, *_: Any) -> None:
        self.convolves = True

    def _see(self, module: Any, given: Any, rows: Any) -> None:
        if isinstance(rows, Tensor) and self.rows is None:
            # fairseq's sinusoids grow with the longest text, so they are read after the call.
            table = _table(module)
            assert table is not None
            self.table, self.rows = table.detach(), rows.detach()

    def close(self) -> None:
        """Remove the hooks."""
        for remove in self.remove:
            remove()


def read_input(watch: InputWatch, config: Any, shape: Shape) -> Encoding | None:
    """The encoding whose `embed` adds what the model's table returned, or None."""
    if watch.table is None or watch.rows is None:
        return None
    rows = watch.rows.reshape(-1, watch.rows.shape[-1])[: watch.rows.shape[-2]]
    width = rows.shape[-1]
    if width not in {shape.width, getattr(config, "embedding_size", None)}:
        return None  # a table of angles, as RoFormer's
    if width == shape.width:
        found = _sinusoid(rows, shape)
        if found is not None:
            return found
    for offset in range(min(4, len(watch.table) - len(rows) + 1)):
        if torch.equal(watch.table[offset : offset + len(rows)], rows):
            fields = {"length": len(watch.table) - offset, "offset": offset}
            sized = Shape(
                heads=shape.heads, head_dim=shape.head_dim, width=width,
                train_length=shape.train_length, causal=shape.causal,
            )  # fmt: skip
            encoding = make("learned", sized, fields)
            weight = nn.Parameter(watch.table, requires_grad=False)
            encoding.table.weight = weight  # type: ignore[union-attr]
            return encoding
    return None


def _table(module: nn.Module) -> Tensor | None:
    """Return the rows of a table, which fairseq's sinusoids call `weights`."""
    found = getattr(module, "weight", None)
    found = getattr(module, "weights", None) if found is None else found
    return found if isinstance(found, Tensor) else None


def _sinusoid(rows: Tensor, shape: Shape) -> Encoding | None:
    """The sinusoid that equals these rows, or None."""
    if shape.width % 2:
        return None
    at = torch.arange(len(rows), device=rows.device)[None]
    half = shape.width // 2
    fairseq = {"layout": "halves", "offset": 2, "base": 1e4 ** (half / max(half - 1, 1))}
    for fields in ({"layout": "interleaved"}, {"layout": "halves"}, fairseq):
        encoding = make("sinusoidal", shape, {**fields, "scale": 1.0})
        wave = encoding.embed(torch.zeros_like(rows)[None], at)[0]
        if (wave - rows).abs().amax() < 1e-4:
            return encoding
    return None


LENGTH = 24
"""Tokens of the sequence; more than any exact range of T5's buckets."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelReading:
    """Every layer of a model as it was read, and its call on the check's sequence."""

    layers: list[LayerReading]
    calls: list[ObservedCall]
    at_input: Encoding | None
    """What is added to the token embeddings."""
    convolves: bool
    """Whether a convolution adds position to the input."""


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
    at_input = injected_input(body) or read_input(table, config, shape_of(calls[0], config))
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
    return ModelReading(layers=layers, calls=every, at_input=at_input, convolves=table.convolves)


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
