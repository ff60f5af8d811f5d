"""The config and the attention of an exported model, its cache, and where its tokens are.

The model itself is in exported_model.py: transformers looks for its attention interface in the file
of a model's class if that file has an attention class, and would refuse to set the implementation.

With eager, attention is the dense definition, which computes the weights. Otherwise no matrix of
queries x keys is built: with headscape installed, the package's own kernels compute it; the
self-contained file of an export has no kernels, and there `attend` is `attend_rows`. Attention
functions that ignore biases and masks (flash attention, vLLM, SGLang) are refused, because the
model would run without its positions.

A cache of transformers keeps, behind the key and bit by bit, as columns of the key's dtype:

    position    8 bytes
    beside      the running sum (CABLE, FoX), or the layer's input for encodings that read more off
                it: their stream is made again from all inputs, so nothing depends on earlier calls

So any cache that copies keys (reordered for beams, cropped, repeated, static) copies them too.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig

from headscape.call.definition import AttentionCall, scores
from headscape.call.positions import Positions, Visible
from headscape.encodings import Encoding, LayerInput, Side, Stream
from headscape.errors import InputError
from headscape.gpt2.qk_norm import HeadProjections, qk_norm, score_scale
from headscape.kernels.assemble import assemble, rotated
from headscape.kernels.attend import run

FIELDS: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "max_position_embeddings": 1024,
    "train_length": 1024,
    "score_scale": "head_dim",
    "layer_norm_eps": 1e-5,
    "qk_norm": "none",
    "qk_norm_over": "head",
    "qk_norm_weight": True,
    "qk_norm_layers": "all",
    "qk_norm_kind": "rms",
    "qk_norm_per_head": False,
    "qk_norm_scale": None,
    "qk_norm_limit": None,
    "initializer_range": 0.02,
    "use_cache": True,
}
"""The other fields, with what they are in a config.json that was written without them."""


class HeadscapeConfig(PreTrainedConfig):
    """Sizes and encodings of an exported model, as transformers reads them from config.json.

    `kinds` lists the different encodings of a model with every field written out, so a folder does
    not depend on the defaults of the version that reads it. `encodings` has the kind of each
    encoding that the model builds: first the one at the input, then those of the layers. `layers`
    has the encoding of each layer; layers that share one have the same number.
    """

    model_type = "headscape"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(
        self,
        kinds: list[dict[str, Any]] | None = None,
        encodings: list[int] | None = None,
        layers: list[int] | None = None,
        **given: Any,
    ) -> None:
        for name, default in FIELDS.items():
            setattr(self, name, given.pop(name, default))
        self.kinds = kinds or [{"name": "nope", "fields": {}}]
        self.encodings = [0, 0] if encodings is None else encodings
        self.layers = [1] * self.num_hidden_layers if layers is None else layers
        super().__init__(**{"tie_word_embeddings": True, **given})


SERVED = ("eager", "sdpa", "headscape")
"""Accepted values of attn_implementation. The model computes attention itself for all of them."""
ROWS = 128
"""Queries per block."""
BYTES = 8


@dataclass(frozen=True)
class TokenLayout:
    """Where the new tokens of a call are."""

    at: Int[Tensor, "#b t"]
    """Their positions."""
    group: Int[Tensor, "#b s"] | None
    """The groups of all tokens, the cached ones first; a negative group is padding."""
    old: int
    """Number of cached tokens."""

    def visible(self, window: int | None, chunk: int | None) -> Visible:
        """Return which tokens the new ones see."""
        new = None if self.group is None else self.group[:, self.old :]
        return Visible(True, new, self.group, window, chunk)


def lay_out(
    x: Float[Tensor, "b t d"],
    old: int,
    mask: Tensor | None,
    position_ids: Int[Tensor, "#b t"] | None,
) -> TokenLayout:
    """Return the new tokens' positions and the groups of all tokens.

    Positions count from the first token that is not padding. Without a mask and a cache, positions
    that start again begin a new document, which sees only itself.
    """
    new = x.shape[1]
    if mask is not None:
        if mask.ndim != 2 or mask.shape[1] != old + new:
            raise InputError(
                f"attention_mask must have shape batch x {old + new} (cached and new tokens), "
                f"got {tuple(mask.shape)}."
            )
        mask = None if bool(mask.all()) else mask.to(torch.int64)
    if position_ids is not None:
        at = position_ids
    elif mask is not None:
        at = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, old:]
    else:
        at = torch.arange(old, old + new, device=x.device)[None]
    if mask is not None:
        return TokenLayout(at, mask - 1, old)
    starts = at.diff(dim=1) != 1
    if old or not bool(starts.any()):
        return TokenLayout(at, None, old)
    return TokenLayout(at, F.pad(starts.to(torch.int64).cumsum(dim=1), (1, 0)), old)


def pack(
    k: Float[Tensor, "b h t e"], at: Int[Tensor, "#b t"], beside: Tensor | None
) -> Float[Tensor, "b h t wide"]:
    """Return keys with positions and what is kept beside them, [b h t] or [b h t c]."""
    parts = [k, _columns(at[:, None].expand(k.shape[:3]), k.dtype)]
    if beside is not None:
        parts.append(_columns(beside, k.dtype))
    return torch.cat(parts, dim=-1)


def unpack(
    packed: Float[Tensor, "b h s wide"], beside: Tensor | None
) -> tuple[Float[Tensor, "b h s e"], Int[Tensor, "#b s"], Tensor | None]:
    """Return what `pack` was given; `beside` is a value like the ones it was given."""
    columns = BYTES // packed.element_size()
    more = 0 if beside is None else _columns(beside[:, :, :1], packed.dtype).shape[-1]
    width = packed.shape[-1] - columns - more
    k, at, kept = torch.tensor_split(packed, (width, width + columns), dim=-1)
    positions = at[:, 0].contiguous().view(torch.int64)[..., 0]
    if bool((positions == positions[:1]).all()):
        positions = positions[:1]
    if beside is None:
        return k, positions, None
    values = kept.contiguous().view(beside.dtype)
    return k, positions, values[..., 0] if beside.ndim == 3 else values


def cached(past: Any, layer: int, beside: Tensor) -> Tensor | None:
    """Return what a layer's cache keeps beside its keys; None if it is empty."""
    length = int(past.get_seq_length(layer))
    return unpack(past.layers[layer].keys[:, :, :length], beside)[2] if length else None


def keeps_input(encoding: Encoding, x: Float[Tensor, "b t d"]) -> bool:
    """Return whether an encoding reads more than one running sum off a layer's input."""
    stream = encoding.stream(LayerInput(x[:1, :1].detach()))
    if stream is None:
        return False
    more = (stream.query, stream.key, stream.angle, stream.transition, stream.carry)
    return stream.total is None or any(value is not None for value in more)


def check_cache(past: Any) -> None:
    """Refuse a cache that changes the bits of keys."""
    for layer in past.layers:
        if "Quantized" in type(layer).__name__:
            raise InputError(
                "a quantized cache rounds the positions that are stored behind the keys: "
                "use the default cache."
            )


def _columns(value: Tensor, dtype: torch.dtype) -> Tensor:
    value = value[..., None] if value.ndim == 3 else value
    return value.contiguous().view(dtype)


def attend(inputs: AttentionCall) -> Float[Tensor, "b h t ev"]:
    """Return attention by the fastest path that serves the call."""
    return run(inputs)


def attend_rows(inputs: AttentionCall) -> Float[Tensor, "b h t ev"]:
    """Return attention by the definition, in memory of order length x ROWS."""

    def block(rows: slice, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = scores(replace(inputs, q=q, k=k, v=v), rows).weights
        return found.to(v.dtype) @ v

    given, queries = (inputs.q, inputs.k, inputs.v), inputs.q.shape[2]
    if queries <= ROWS:
        return block(slice(0, queries), *given)
    parts = [slice(start, start + ROWS) for start in range(0, queries, ROWS)]
    if not torch.is_grad_enabled():
        return torch.cat([block(rows, *given) for rows in parts], dim=2)
    blocks = [
        checkpoint(block, rows, *given, use_reentrant=False, preserve_rng_state=False)
        for rows in parts
    ]
    return torch.cat(blocks, dim=2)


class HeadscapeAttention(HeadProjections):
    """Multi-head self-attention with a position encoding."""

    def __init__(self, config: HeadscapeConfig, layer_idx: int, *, rotates: bool) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads = config.num_attention_heads
        self.is_causal = True
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)
        head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = score_scale(
            config.score_scale, config.qk_norm_scale, head_dim=head_dim, width=config.hidden_size
        )
        self.q_norm, self.k_norm = (
            qk_norm(config, self.heads, head_dim, epsilon=config.layer_norm_eps, rotates=rotates)
            for _ in range(2)
        )

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        encoding: Encoding,
        layout: TokenLayout,
        past: Any,
        *,
        weights: bool,
    ) -> tuple[Float[Tensor, "b t d"], Tensor | None]:
        """Return what each token takes from those it sees, and the weights if asked for."""
        inputs = self._inputs(x, encoding, layout, past)
        shown = None
        if weights or self.config._attn_implementation == "eager":
            shown = scores(inputs).weights
        mixed = attend(inputs) if shown is None else shown @ inputs.v
        return self.out(mixed.transpose(1, 2).flatten(2)), shown if weights else None

    def _inputs(
        self,
        x: Float[Tensor, "b t d"],
        encoding: Encoding,
        layout: TokenLayout,
        past: Any,
    ) -> AttentionCall:
        at, end = layout.at, layout.old + x.shape[1]
        visible = layout.visible(encoding.window, encoding.chunk)
        q, k, v = self.split(x)
        norm = self.norm if self.config.qk_norm == "after" else None
        if norm is None:
            q, k = self.q_norm(q), self.k_norm(k)
        queries, keys, beside = self._streams(x, encoding, visible, past)
        k_at = at
        if past is not None:
            if encoding.cacheable_keys:
                k = rotated(encoding, k, Side(at, "key", queries), norm)
            packed, v = past.update(pack(k, at, beside), v, self.layer_idx)
            # A static cache has more places than tokens.
            k, k_at, _ = unpack(packed[:, :, :end], beside)
            v = v[:, :, :end]
        return assemble(
            encoding, q, k, v, Positions(at, k_at), visible, streams=(queries, keys),
            model_scale=self.scaling, norm=norm, cached=past is not None, project=self.project,
        )  # fmt: skip

    def _streams(
        self, x: Float[Tensor, "b t d"], encoding: Encoding, visible: Visible, past: Any
    ) -> tuple[Stream | None, Stream | None, Tensor | None]:
        """Return the streams of new and of all tokens, and what a cache keeps of the new ones."""
        if not encoding.streams:
            return None, None, None
        new = x.shape[1]
        if keeps_input(encoding, x):
            beside = x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)
            old = None if past is None else cached(past, self.layer_idx, beside)
            if old is not None:
                x = torch.cat([old.transpose(1, 2).flatten(2), x], dim=1)
            whole = encoding.stream(LayerInput(x, None, visible.starts(x.shape[1])))
            return None if whole is None else whole.last(new), whole, beside
        like = x.new_empty(x.shape[0], self.heads, 1, dtype=torch.float64)
        old = None if past is None else cached(past, self.layer_idx, like)
        carry = None if old is None else old[:, :, -1]
        stream = encoding.stream(LayerInput(x, carry, visible.starts(new)))
        if stream is None or stream.total is None:
            return stream, stream, None
        total = stream.total
        return stream, Stream(total if old is None else torch.cat([old, total], dim=2)), total


def refuse_backend(name: str | None) -> None:
    """Refuse an attention implementation that would drop the positions."""
    if name not in SERVED:
        raise InputError(
            f"attention implementation {name!r} is not known to keep the bias and the mask of this "
            f"model, which would run without its positions: use attn_implementation='sdpa' or "
            f"'eager'."
        )
