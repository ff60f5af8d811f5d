"""Cross-attention of an encoder-decoder model: what every target token reads of the source.

Queries are the target's tokens and keys the source's, so a map has as many rows as the one and as
many columns as the other. Content is the scaled q.k, and bias is whatever the model adds to it,
which in BART, T5 and Whisper is nothing: position reaches cross-attention only through the hidden
states. On every call the attention's result is computed again from what was read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import Matrix
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.call.quantities import QUANTITIES
from headscape.captures.record import indices
from headscape.captures.sequences import Text, choose_tokens
from headscape.errors import InputError
from headscape.models.loaded import LoadedModel, eval_mode
from headscape.models.transformers.attention_watch import AttentionWatch
from headscape.models.transformers.observed_call import ObservedCall, allowance, output_rounding
from headscape.models.transformers.published_model import PublishedModel

Maps = Float32[np.ndarray, "h t s"]


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossAttention:
    """What every head of some decoder layers reads of the source."""

    name: str
    layers: tuple[int, ...]
    """Decoder layers, counted from 0."""
    target: Int64[np.ndarray, " t"]
    """What the decoder reads: the rows of a map."""
    source: Int64[np.ndarray, " s"] | None
    """What the encoder reads: the columns of a map; None where it reads sound."""
    target_pieces: Sequence[str] = ()
    source_pieces: Sequence[str] = ()
    maps: dict[tuple[str, int], Maps] = field(default_factory=dict, repr=False)

    def content(self, layer: int = -1, head: int | None = None) -> np.ndarray:
        """Return the scaled q.k, [heads, target, source] or of one head.

        Args:
            layer: A decoder layer, counted from 0; -1 is the last captured.
            head: Counted from 0; None for all heads.
        """
        return self._map("content", layer, head)

    def bias(self, layer: int = -1, head: int | None = None) -> np.ndarray:
        """Return what the model adds to the content.

        Args:
            layer: A decoder layer, counted from 0; -1 is the last captured.
            head: Counted from 0; None for all heads.
        """
        return self._map("bias", layer, head)

    def final(self, layer: int = -1, head: int | None = None) -> np.ndarray:
        """Return the scores that go into the softmax; NaN where a key is hidden.

        Args:
            layer: A decoder layer, counted from 0; -1 is the last captured.
            head: Counted from 0; None for all heads.
        """
        return self._map("final", layer, head)

    def weights(self, layer: int = -1, head: int | None = None) -> np.ndarray:
        """Return the attention weights.

        Args:
            layer: A decoder layer, counted from 0; -1 is the last captured.
            head: Counted from 0; None for all heads.
        """
        return self._map("weights", layer, head)

    def _map(self, quantity: str, layer: int, head: int | None) -> np.ndarray:
        last = -len(self.layers) <= layer < 0
        number = self.layers[layer] if last else layer
        if number not in self.layers:
            raise InputError(f"no layer {layer}: there are {list(self.layers)}, counted from 0.")
        values = self.maps[quantity, number]
        return values if head is None else values[indices(head, len(values), "head")[0]]


@torch.no_grad()
def cross_attention(
    model: LoadedModel,
    source: "Text | Tensor",
    target: Text,
    *,
    layers: int | str | Sequence[int] = "all",
) -> CrossAttention:
    """Return what every target token reads of the source, in decoder layers of an encoder-decoder.

    Args:
        model: What `load` returned for an encoder-decoder model with its language-model head or
            without: BART, T5, Whisper.
        source: What the encoder reads: a text or tokens, or a spectrogram [1, features, frames].
        target: What the decoder reads: tokens, or a text, which the start token precedes.
        layers: Decoder layers, counted from 0 and -1 is the last.
    """
    theirs: Any = getattr(model, "model", None)
    if not isinstance(model, PublishedModel) or not theirs.config.is_encoder_decoder:
        raise InputError(f"{model.spec.name} has no encoder and decoder, so no cross-attention.")
    decoder = theirs.get_decoder()
    count = int(getattr(decoder.config, "decoder_layers", None)
                or getattr(decoder.config, "num_decoder_layers", None)
                or decoder.config.num_hidden_layers)  # fmt: skip
    chosen = indices(layers, count, "layer")
    reads, source_ids = _source(model, source)
    target_ids = choose_tokens(model, target).tokens
    configs = (theirs.config, getattr(theirs, "generation_config", None))
    named = (getattr(config, "decoder_start_token_id", None) for config in configs)
    start = next((number for number in named if number is not None), None)
    if isinstance(target, str) and start is not None:
        target_ids = np.concatenate([[start], target_ids]).astype(np.int64)
    maps: dict[tuple[str, int], Maps] = {}
    calls: dict[int, AttentionCall] = {}

    def on_call(layer: int, call: ObservedCall) -> None:
        calls[layer] = _call(call)
        some = definition.scores(calls[layer])
        hidden = ~some.visible[0, 0].cpu().numpy()
        for name in QUANTITIES:
            values = getattr(some, name)[0].float().cpu().numpy()
            maps[name, layer] = np.where(hidden, 0.0 if name == "weights" else np.nan, values)

    def on_result(layer: int, output: Tensor) -> None:
        if layer not in calls:
            return
        inputs = calls.pop(layer)
        gap = (definition.run(inputs) - output).abs()
        if not bool((gap <= allowance(output.dtype) * output_rounding(inputs)).all()):
            raise InputError(
                f"{model.spec.name} is not read correctly: the cross-attention of layer {layer} "
                f"(counted from 0) differs by {float(gap.max()):.2g} from what was read."
            )

    watch = AttentionWatch(decoder, on_call, on_result, layers=set(chosen), cross=True)
    with eval_mode(theirs), watch:
        ids = torch.from_numpy(target_ids)[None].to(theirs.device)
        theirs(**reads, decoder_input_ids=ids, use_cache=False)
    if {layer for _, layer in maps} != set(chosen):
        raise InputError(
            f"{model.spec.name} computes cross-attention outside of the attention interface of "
            f"transformers: it cannot be captured."
        )
    return CrossAttention(
        name=model.spec.name,
        layers=tuple(sorted(chosen)),
        target=target_ids,
        source=source_ids,
        target_pieces=_pieces(model, target_ids),
        source_pieces=_pieces(model, source_ids),
        maps=maps,
    )


def _source(model: PublishedModel, source: Any) -> tuple[dict[str, Tensor], np.ndarray | None]:
    """Return the encoder's arguments, and its tokens if it reads some."""
    if isinstance(source, Tensor) and source.is_floating_point():
        return {"input_features": source.to(model.model.device, model.model.dtype)}, None
    tokens = choose_tokens(model, source).tokens
    return {"input_ids": torch.from_numpy(tokens)[None].to(model.model.device)}, tokens


def _call(call: ObservedCall) -> AttentionCall:
    """Return the call as data: every query sees every key, unless the model masks it."""
    if call.mask is not None and not bool(call.mask.all()):
        raise InputError("cross-attention with padding is not read: give one source at a time.")
    rows, cols = (torch.arange(x.shape[2], device=x.device)[None] for x in (call.q, call.k))
    bias = None
    if call.bias is not None and bool(call.bias.any()):
        bias = Matrix(call.bias.expand(1, call.heads, call.q.shape[2], call.k.shape[2]))
    visible = Visible(causal=False)
    return AttentionCall(call.q, call.k, call.v, bias, Positions(rows, cols), visible, call.scale)


def _pieces(model: LoadedModel, tokens: np.ndarray | None) -> list[str]:
    if model.tokenizer is None or tokens is None:
        return []
    return [model.tokenizer.decode(tokens[at : at + 1]) for at in range(len(tokens))]
