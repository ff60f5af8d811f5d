"""What an attention layer with one of our encodings computes; set_encoding.py puts it there.

Its keys come from the cache without position, so all of them are rotated in every pass. The layer's
input and the cache arrive as keyword arguments, which a hook on the layer adds.

A cache layer keeps what an encoding read off earlier tokens (Stream) as an attribute: running sums,
vectors, angles and transitions. Beam search reorders a layer's batch; the layer's methods that do
are wrapped once, so that the stream follows. Which tokens are valid is said by the mask's first
query, so cropping and resetting need nothing.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscape.call.definition import AttentionCall, shared
from headscape.encodings import Encoding, LayerInput, Stream
from headscape.errors import InputError
from headscape.huggingface.attend.biased_families import NAMES
from headscape.huggingface.attend.mask_rule import MaskRule
from headscape.kernels.assemble import assemble
from headscape.models.transformers.observed_call import ENCODING

INPUT, CACHE = "headscape_input", "headscape_cache"
"""Keyword arguments of the attention function."""


def argument_names(module: nn.Module) -> list[str]:
    """Return the names of the arguments of a module's forward, the input first."""
    parameters = inspect.signature(type(module).forward).parameters.values()
    return [item.name for item in parameters if item.kind is not item.VAR_KEYWORD][1:]


@dataclass(frozen=True)
class InjectionHook:
    """A hook before an attention module: takes its own position away, adds input and cache."""

    names: list[str]
    layer: int
    heads: int

    def __call__(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        """Return the changed arguments."""
        if module.config._attn_implementation not in NAMES:  # noqa: SLF001
            raise InputError(
                f"the model has {getattr(module, ENCODING).title} in place of its own position, "
                f"which attn_implementation={module.config._attn_implementation!r} would drop: "  # noqa: SLF001
                f"call headscape.huggingface.set_attention(model)."
            )
        arguments = {**dict(zip(self.names, args, strict=False)), **kwargs}
        hidden = arguments[self.names[0]]
        cache = arguments.get("past_key_values", arguments.get("layer_past"))
        cache = getattr(cache, "self_attention_cache", cache)
        arguments[INPUT] = hidden
        arguments[CACHE] = None if cache is None else _cache_layer(cache, self.layer)
        rotation = arguments.get("position_embeddings")
        if rotation is not None:
            cos, sin = rotation
            arguments["position_embeddings"] = torch.ones_like(cos), torch.zeros_like(sin)
        if "position_bias" in self.names:
            arguments["position_bias"] = hidden.new_zeros(1, self.heads, 1, 1)
        return (), arguments


def _cache_layer(cache: Any, layer: int) -> Any:
    """Return a layer of a cache, which a lazy one appends when it is first used."""
    while len(cache.layers) <= layer:
        cache.layers.append(cache.layer_class_to_replicate())
    return cache.layers[layer]


def encoding_of(module: nn.Module) -> Encoding | None:
    """Return the encoding that was put into an attention module, or None."""
    child: Any = module._modules.get(ENCODING)  # noqa: SLF001 - fast for a missing child
    if child is not None and not isinstance(child, Encoding):
        # PEFT's modules_to_save wraps the module and trains a copy.
        child = child.modules_to_save[child.active_adapters[0]] if child.active_adapters else None
    assert child is None or isinstance(child, Encoding)
    return child


def check_loaded(module: Any) -> None:
    """Raise InputError if the config names an encoding that the model was loaded without."""
    # Not getattr: for a missing name a config runs Python, here in every layer for every token.
    records = vars(module.config).get(ENCODING) if "config" in vars(module) else None
    if not records:
        return
    name, layer = type(module).__name__, getattr(module, "layer_idx", None)
    crosses = "Cross" in name or getattr(module, "is_cross_attention", False)
    crosses = crosses or (getattr(module, "is_decoder", False) and not module.is_causal)
    for record in [] if crosses else records:
        if record["layers"] is None or layer in record["layers"]:
            raise InputError(
                f"this model was saved with the encoding {record['encoding']!r}, which {name} "
                f"lacks: load it with headscape.huggingface.load."
            )


def encoded_inputs(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: MaskRule,
    scale: float,
    arguments: dict[str, Any],
    *,
    softcap: float | None,
    sink: Tensor | None,
    observed: bool = False,
) -> AttentionCall:
    """Return what the attention of one layer is a function of; `observed` as in `assemble`."""
    positions, visible = rule.positions, rule.visible
    if encoding.shape.causal != visible.causal and positions.q.shape[1] > 1:
        kind = "causal" if encoding.shape.causal else "bidirectional"
        raise InputError(
            f"{encoding.title} was built for {kind} attention, but the model's mask is not: set "
            f"the encoding again after changing the config."
        )
    learns = encoding.streams or any(True for _ in encoding.parameters())
    if encoding.rotates and learns and k.shape[1] < q.shape[1]:
        # What is learned per query head (PoPE's phases) makes the keys of a group differ.
        k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
    starts = visible.starts(q.shape[2])
    asking, asked = streams(
        encoding, arguments[INPUT], starts, arguments[CACHE], rule.first_query, rule.first_key
    )
    return assemble(
        encoding, q, k, v, positions, visible, streams=(asking, asked), model_scale=scale,
        softcap=softcap, sink=sink, observed=observed,
    )  # fmt: skip


AT_INPUT = "headscape_positions"
"""The first layer's child."""


class PositionTable(nn.Module):
    """What an encoding adds to the embeddings; zeros unless it acts at the input."""

    def __init__(self, encoding: Encoding, tokens: nn.Embedding) -> None:
        super().__init__()
        self.encoding = encoding
        self.tokens = (tokens,)  # a tuple, so that its weight is not listed twice

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the vectors to add, in the dtype of the token embeddings."""
        weight = self.tokens[0].weight
        nothing = torch.zeros(
            *position_ids.shape, weight.shape[1], dtype=weight.dtype, device=weight.device
        )
        return self.encoding.embed(nothing, position_ids)


@dataclass(frozen=True)
class Embed:
    """A hook before a model's first layer: adds positions to its input."""

    names: list[str]

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        """Return the changed arguments."""
        arguments = {**dict(zip(self.names, args, strict=False)), **kwargs}
        encoding = getattr(module, AT_INPUT)
        at = MaskRule.unpack(arguments["attention_mask"]).positions.q
        arguments[self.names[0]] = encoding.embed(arguments[self.names[0]], at)
        return (), arguments


def add_before(layer: nn.Module, encoding: Encoding) -> None:
    """Add an encoding's positions to the input of a model's first layer."""
    if not hasattr(layer, AT_INPUT):
        layer.register_forward_pre_hook(Embed(argument_names(layer)), with_kwargs=True)
    setattr(layer, AT_INPUT, encoding)


STREAM = "headscape_stream"
PER_KEY = ("total", "backward", "key", "angle")
"""What of a stream belongs to keys, and is kept for every token."""
TRANSITIONS = ("reflections", "decay")
"""What changes keys on the way to a query; also kept for every token."""
FOLLOWS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "reorder_cache": lambda x, rows: x.index_select(0, rows),
    "batch_select_indices": lambda x, rows: x[rows],
    "batch_repeat_interleave": lambda x, times: x.repeat_interleave(times, dim=0),
}
"""What happens to a stream when a cache layer's method changes its batch."""


def streams(
    encoding: Encoding, x: Tensor, starts: Tensor | None, layer: Any, first_query: int, first: int
) -> tuple[Stream | None, Stream | None]:
    """Return the stream of the queries, whose input is `x`, and that of the keys from `first` on.

    `layer` is the cache's layer, or None without a cache; both numbers are indices of tokens.
    """
    if not encoding.streams:
        return None, None
    before: Stream | None = getattr(layer, STREAM, None) if first_query else None
    carry = None if before is None else _carry(before, first_query)
    new = encoding.stream(LayerInput(x, carry, starts))
    assert new is not None
    whole = new if before is None else _joined(before, new, first_query)
    if layer is not None:
        _follow(layer)
        setattr(layer, STREAM, _each(whole, Tensor.detach))
    return new, _each(whole, lambda part: part[:, :, first:], carry=False)


def _carry(before: Stream, count: int) -> Any:
    """Return what the stream goes on from after `count` tokens."""
    if before.carry is None:
        return before.carry_after(count)
    kept = before.tokens or (
        0 if before.transition is None else before.transition.tensors[0].shape[2]
    )
    if kept != count:
        raise InputError(
            f"the cache was cut from {kept} tokens to {count}, which an encoding whose stream "
            f"goes on from its last token cannot follow: start with a new cache."
        )
    return before.carry


def _joined(before: Stream, new: Stream, count: int) -> Stream:
    """Return the stream of the first `count` tokens and the new ones."""

    def join(old: Tensor | None, more: Tensor | None) -> Any:
        if old is None or more is None:
            return None
        batch = max(old.shape[0], more.shape[0])
        parts = (x.expand(batch, *x.shape[1:]) for x in (old[:, :, :count], more))
        return torch.cat(list(parts), 2)

    joined = {name: join(getattr(before, name), getattr(new, name)) for name in PER_KEY}
    for name in TRANSITIONS:
        old, more = getattr(before, name), getattr(new, name)
        if old is not None and more is not None:
            joined[name] = type(more)(*map(join, old.tensors, more.tensors))
    return Stream(**joined, carry=new.carry)


def _each(stream: Stream, change: Callable[[Tensor], Tensor], *, carry: bool = True) -> Stream:
    """Return a stream with every tensor changed; `carry` has no axis of tokens."""
    changed: dict[str, Any] = {}
    for item in fields(Stream):
        value = getattr(stream, item.name)
        if item.name == "carry":
            changed["carry"] = _map(value, change) if carry else value
        elif isinstance(value, Tensor):
            changed[item.name] = change(value)
    for name in TRANSITIONS:
        own = getattr(stream, name)
        if own is not None:
            changed[name] = type(own)(*map(change, own.tensors))
    return replace(stream, **changed)


def _map(carry: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a carry, whose form is the encoding's own, with every tensor changed."""
    if isinstance(carry, tuple):
        return tuple(_map(part, change) for part in carry)
    return change(carry) if isinstance(carry, Tensor) else carry


def _follow(layer: Any) -> None:
    if hasattr(layer, STREAM):
        return

    def wrap(name: str, change: Callable[[Tensor, Any], Tensor]) -> None:
        original = getattr(layer, name)

        def run(how: Any) -> Any:
            def one(x: Tensor) -> Tensor:
                return x if x.shape[0] == 1 else change(x, how)

            batch = layer.keys.shape[0]
            every = one if batch > 1 else (lambda x: change(x, how))
            setattr(layer, STREAM, _each(getattr(layer, STREAM), every))
            return original(how)

        setattr(layer, name, run)

    for name, change in FOLLOWS.items():
        if hasattr(layer, name):
            wrap(name, change)
