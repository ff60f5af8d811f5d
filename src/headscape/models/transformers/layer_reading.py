"""What one layer of a published model does with position and what it hides, in our terms.

A mask of transformers is boolean, True where a key is seen, or it is added to the scores, with a
very negative number where a key is hidden. Some families put their bias into it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscape.call.bias import Bias, Pairwise, Slope, dense
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Turn, Visible
from headscape.encodings import Encoding, Shape, Side, kinds, make
from headscape.encodings.rope import RoPE
from headscape.encodings.sinusoidal import Sinusoidal
from headscape.errors import InputError
from headscape.models.model import LayerSpec
from headscape.models.transformers.families import family_of
from headscape.models.transformers.observed_call import (
    ENCODING_NAME,
    ObservedCall,
    allowance,
    bias_agrees,
    rotation_agrees,
)

UNKNOWN = "unknown"


class Unrecognised(Encoding):
    """Position enters in a way that matches none of our encodings; scores and weights are right."""

    title = "position not recognised"
    formula = "S as the model computes it"
    shows = "final"
    shift_invariant = toeplitz = False


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerReading:
    """The encoding of a layer and how its attention inputs are made."""

    name: str
    """Name in the table of encodings, or `unknown`."""
    encoding: Encoding
    """What acts in this layer's attention: NoPE where position enters at the input."""
    at_input: Encoding | None = None
    """What is added to the token embeddings, in a model whose layers use nothing else."""

    def inputs(
        self,
        call: ObservedCall,
        layer: int,
        real: Tensor | None = None,
        at: Tensor | None = None,
    ) -> AttentionCall:
        """The attention inputs of a call of this layer; `real` and `at` as in `observe`."""
        if call.injected is not None:
            return call.injected
        # The layers of one model may be on several devices.
        real, at = (None if x is None else x.to(call.q.device) for x in (real, at))
        positions = call.positions()
        sections = at is not None and at.ndim == 3
        if at is not None and not sections:
            positions = Positions(at, at)
        factor = self.encoding.temperature(positions.q)
        # Position 0 rotates nothing, so a sequence of one token is equal before and after.
        turned = self.encoding.rotates or rotates(call)
        q, unrotated = call.q, call.unrotated if turned else None
        if factor is not None:
            # The model's queries contain the factor; here it is part of position, so divide it out.
            shrink = (1 / factor)[..., None].to(q.dtype)
            q = q * shrink
            unrotated = None if unrotated is None else (unrotated[0] * shrink, unrotated[1])
        turns = None
        if unrotated is not None and sections:
            turns = self._own_turns(call, unrotated, layer)
        elif unrotated is not None:
            turns = self.encoding.turns(Side(positions.q, "query"), Side(positions.k, "key"))
        return AttentionCall(
            q,
            call.k,
            call.v,
            self._bias(call, positions),
            positions,
            read_visible(call, positions, layer, real),
            call.scale,
            unrotated,
            turns=turns,
            temperature=factor,
            softcap=call.softcap,
            sink=call.sink,
        )

    def _own_turns(
        self, call: ObservedCall, unrotated: tuple[Tensor, Tensor], layer: int
    ) -> tuple[Turn, Turn]:
        """Return the rotation that the model handed to its attention: M-RoPE by three positions."""
        if isinstance(self.encoding, RoPE) and call.rotation is not None:
            # Every angle stands there once, or twice: in the other half, or side by side (GLM-4V).
            for dims in (slice(self.encoding.dims // 2), slice(0, self.encoding.dims, 2)):
                cos, sin = (each[:, None, :, dims].double() for each in call.rotation)
                turn = Turn(cos, sin, self.encoding.config.pairing, by_tokens=True)
                if 2 * cos.shape[-1] == self.encoding.dims and all(
                    rotation_agrees(turn.apply(ours), theirs)
                    for ours, theirs in zip(unrotated, (call.q, call.k), strict=True)
                ):
                    return turn, turn
        raise InputError(
            f"the rotation of layer {layer} (counted from 0) by several positions per token cannot "
            f"be read: give one position per token."
        )

    def _bias(self, call: ObservedCall, positions: Positions) -> Bias | None:
        if call.bias is None:
            return None
        if isinstance(self.encoding, Unrecognised):
            every = call.bias.expand(-1, call.heads, call.q.shape[2], -1)
            return Pairwise(lambda rows, cols: every[:, :, rows, cols], positions)
        if family_of(call.module).rounds_bias:
            # 0 at distance 0.
            own = -call.bias[:, :, 0].double()
            return Slope(None, own[..., -call.q.shape[2] :], own)
        return call.bias_of(self.encoding, positions)

    def spec(self, call: ObservedCall) -> LayerSpec:
        """The layer as data: conventions, score scale, and what differs from plain attention."""
        described = self.at_input or self.encoding
        unknown = isinstance(described, Unrecognised)
        conventions: dict[str, object] = {**described.conventions(), "scale": _scale(call)}
        if call.k.shape[1] != call.heads:
            conventions["key_heads"] = call.k.shape[1]
        shaped = {
            "window": call.window,
            "chunk": call.chunk,
            "softcap": call.softcap,
            "sink": call.sink is not None,
            "values": family_of(call.module).values(call.module),
        }
        conventions |= {name: value for name, value in shaped.items() if value}
        claims = {} if unknown else described.claims()
        return LayerSpec(
            encoding=self.name,
            conventions=conventions,
            claims=claims,
            shows=described.shows or "final",
        )


def read_layer(
    call: ObservedCall,
    body: nn.Module,
    config: Any,
    layer: int,
    at_input: Encoding | None,
) -> LayerReading:
    """Recognise what a layer does with position."""
    if call.encoding is not None:
        name = getattr(call.module, ENCODING_NAME)
        acts_there = any(kind.at_input for kind in kinds(name).parts)
        return LayerReading(
            name=name, encoding=call.encoding, at_input=at_input if acts_there else None
        )
    shape = shape_of(call, config)
    temperature = temperature_fields(call, config)
    found: Encoding | None
    if call.relative is not None:
        found, name = read_relative(call, body, config, shape), call.relative.name
    elif call.bias is not None:
        found, name = read_buckets(call, body, config, shape), "t5"
        if found is None:
            found, name = read_alibi(call, shape), "alibi"
    elif rotates(call):
        found, name = read_rotary(call, body, config, layer, shape, temperature), "rope"
    else:
        found, name = make("nope", shape, temperature), "nope"
    if found is not None and temperature.get("temperature") == "affine":
        rate, offset = _affine(call)
        found.log_rate, found.log_offset = (
            nn.Parameter(each.detach(), requires_grad=False) for each in (rate, offset)
        )
    if found is None or not same_growth(call, found):
        unknown = Unrecognised(shape, Unrecognised.config_type())
        return LayerReading(name=UNKNOWN, encoding=unknown)
    if name == "nope" and at_input is not None:
        name = "sinusoidal" if isinstance(at_input, Sinusoidal) else "learned"
        return LayerReading(name=name, encoding=found, at_input=at_input)
    return LayerReading(name=name, encoding=found)


def injected_input(body: nn.Module) -> Encoding | None:
    """Return the encoding that `set_encoding` put at a model's input, if it acts there."""
    every = (child for child in body.modules() if isinstance(child, Encoding))
    return next((encoding for encoding in every if encoding.at_input), None)


def shape_of(call: ObservedCall, config: Any) -> Shape:
    """The sizes that an encoding of this layer is built for."""
    return Shape(
        heads=call.heads,
        head_dim=call.q.shape[-1],
        width=config.hidden_size,
        train_length=trained_length(config) or 1,
        causal=is_causal(call),
    )


def trained_length(config: Any) -> int | None:
    """The context length in training, under the names that configs use."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        length = getattr(config, name, None)
        if isinstance(length, int) and length > 0:
            return length
    return None


def original_length(config: Any) -> int | None:
    """The context length in training before RoPE was stretched, where the config declares one.

    That is the length to trust if the scaling turns out not to act.
    """
    longest = trained_length(config)
    parameters = getattr(config, "rope_parameters", None) or {}
    sets = [each for each in parameters.values() if isinstance(each, dict)] or [parameters]
    found = [each.get("original_max_position_embeddings") for each in sets]
    lengths = [length for length in (*found, longest) if isinstance(length, int) and length > 0]
    return min(lengths, default=None)


def _scale(call: ObservedCall) -> str | float:
    """The score scale by its name in our models' config, or as a number."""
    named = {"one": 1.0, "head_dim": call.q.shape[-1] ** -0.5}
    return next((name for name, value in named.items() if abs(value - call.scale) < 1e-9),
                call.scale)  # fmt: skip


def temperature_fields(call: ObservedCall, config: Any) -> dict[str, Any]:
    """Return the fields of the temperature that the config states for a layer, or none."""
    module: Any = call.module
    if getattr(module, "attn_temperature_tuning", None) and not getattr(module, "use_rope", True):
        return _fields("llama4", module.attn_scale, module.floor_scale)
    if family_of(module).affine is not None:
        rate, offset = _affine(call)
        return {"temperature": "affine"} if rate.any() or (offset != 1).any() else {}
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("llama_4_scaling_beta"):
        start = parameters["original_max_position_embeddings"]
        return _fields("ministral", parameters["llama_4_scaling_beta"], start)
    return {}


def _affine(call: ObservedCall) -> tuple[Tensor, Tensor]:
    """Return a and b of every head, whose queries are multiplied by a log(i + 1) + b."""
    scaling: Any = call.module.get_submodule(str(family_of(call.module).affine))
    return scaling.scale, scaling.bias


def same_growth(call: ObservedCall, encoding: Encoding) -> bool:
    """Return whether the model's queries grow with position as the encoding's temperature does."""
    if call.growth is None:
        return call.shares_position
    positions = Positions.span(call.growth.shape[1], on=call.growth.device)
    factor = encoding.temperature(positions.q)
    expected = torch.ones_like(call.growth) if factor is None else factor[0] / factor[0, :, :1]
    within = max(1e-4, allowance(call.q.dtype))
    same = (call.growth - expected).abs().amax() <= within * expected.amax()
    return call.shares_position and bool(same)


def _fields(kind: str, rate: float, start: float) -> dict[str, Any]:
    return {"temperature": kind, "temperature_rate": float(rate), "temperature_start": int(start)}


ROWS = 256
"""Queries compared at a time, so that memory is of order length."""


def read_visible(
    call: ObservedCall, positions: Positions, layer: int, real: Tensor | None = None
) -> Visible:
    """Return the mask of a call as a rule: causal or not, within a window, or within chunks.

    A mask that follows none of them is recorded as it is. Padding, where `real` is False, is a
    group of its own.
    """
    group = None if real is None else torch.where(real, 0, -1)
    if call.mask is None:
        return Visible(call.causal, group, group, call.window if call.flash else None)
    # What padding sees has no meaning: some families let it see everything.
    mask = call.mask if real is None else call.mask & real[:, None, :, None]
    ahead, behind = _reach(mask, positions)
    # One token has nothing ahead of it, so the mask does not say.
    causal = ahead == 0 and (positions.bounds[0] < 0 or call.causal)
    rules = [Visible(causal, group, group, window) for window in (None, max(ahead, behind) + 1)]
    if real is None:
        # The config's length of a chunk, or the number of tokens that see the first.
        chunk = call.chunk or max(1, int(call.mask[0, 0, :, 0].sum()))
        rules.append(Visible(causal, chunk=chunk))
    for visible in rules:
        if _follows(mask, visible, positions):
            return visible
    if mask.shape[1] > 1 and not bool((mask == mask[:, :1]).all()):
        raise InputError(
            f"layer {layer} (counted from 0) shows different keys to different heads, by a "
            f"pattern that is neither causal nor bidirectional, a sliding window or chunks."
        )
    return Visible(causal, group, group, recorded=mask[:, 0])


def is_causal(call: ObservedCall) -> bool:
    """Return whether no query sees a later key."""
    if call.mask is None:
        return call.causal
    return _reach(call.mask, call.positions())[0] == 0


def _reach(mask: Tensor, positions: Positions) -> tuple[int, int]:
    """Return how many tokens ahead and back the farthest seen keys are."""
    ahead = behind = 0
    for start in range(0, mask.shape[2], ROWS):
        rows = slice(start, start + ROWS)
        distance = positions.block(rows).distance()[:, None] * mask[:, :, rows]
        ahead, behind = max(ahead, -int(distance.min())), max(behind, int(distance.max()))
    return ahead, behind


def _follows(mask: Tensor, visible: Visible, positions: Positions) -> bool:
    for start in range(0, mask.shape[2], ROWS):
        rows = slice(start, start + ROWS)
        seen = visible.block(rows).dense(positions.block(rows))
        if bool((seen != mask[:, :, rows]).any()):
            return False
    return True


SCALINGS = ("linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
"""Scalings that transformers and we call the same; none is its "default"."""
NUMBERS = (
    "factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "truncate", "mscale",
    "mscale_all_dim",
)  # fmt: skip
LISTS = ("short_factor", "long_factor")
NTK = "headscape_ntk"
"""Entry of the RoPE parameters of a model that models/stretched.py gave a larger base."""


def rotates(call: ObservedCall) -> bool:
    """Whether the model changes q by position; False in a layer without position."""
    if call.unrotated is None:
        return False
    # A rotation changes a pair of dims by the size of its angle. A product of matrices of a
    # different batch size, as q is when a model is loaded, differs by roundings.
    gap = (call.q - call.unrotated[0]).abs().amax()
    return bool(gap > 64 * torch.finfo(call.q.dtype).eps * call.q.abs().amax())


def read_rotary(
    call: ObservedCall,
    body: nn.Module,
    config: Any,
    layer: int,
    shape: Shape,
    temperature: dict[str, Any],
) -> Encoding | None:
    """RoPE with the conventions that reproduce this layer's rotation, or None.

    `temperature` contains the fields of the layer's temperature.
    """
    # In a model that mixes attention with other layers, the module knows its place among them.
    place = getattr(call.module, "layer_idx", None)
    parameters = rope_parameters(config, layer if place is None else place)
    named = parameters.get(str(getattr(call.module, "rope_layer_type", "")))
    parameters = parameters if named is None else dict(named)
    kind = str(parameters.get("rope_type", "default"))
    if kind not in ("default", *SCALINGS) or call.unrotated is None:
        return None
    scaling = "none" if kind == "default" else kind
    fields: dict[str, Any] = {
        name: bool(parameters[name]) if name == "truncate" else _number(parameters, name)
        for name in NUMBERS
        if scaling != "none" and parameters.get(name) is not None
    }
    fields |= {name: tuple(parameters[name]) for name in LISTS if scaling == "longrope"}
    fields |= {
        "scaling": scaling,
        "base": _number(parameters, "rope_theta", 10_000.0),
        **temperature,
    }
    original = parameters.get("original_max_position_embeddings")
    if scaling != "none" and original:
        fields["trained_length"] = int(_number(parameters, "original_max_position_embeddings"))
    if scaling == "longrope" and "factor" not in fields and original:
        fields["factor"] = config.max_position_embeddings / original
    fields |= {"scaling": "ntk", **parameters[NTK]} if NTK in parameters else {}
    learned = {
        published: value
        for path, value in body.named_buffers()
        for published in RoPE.published[0]
        if path.endswith(published) and bool(value.any())
    }
    fields |= {"learned_frequencies": True} if learned else {}
    for fraction in _fractions(call, config, parameters):
        for pairing in ("halves", "interleaved"):
            for direction in ("forward", "backward"):
                tried = {"rotary_fraction": fraction, "pairing": pairing, "direction": direction}
                found = _try(call, shape, {**fields, **tried}, learned)
                if found is not None:
                    return found
    return None


def rope_parameters(config: Any, layer: int) -> dict[str, Any]:
    """The RoPE settings of one layer, from a config that may have one set per layer type."""
    found = dict(getattr(config, "rope_parameters", None) or {})
    types = getattr(config, "layer_types", None)
    if types is not None and isinstance(found.get(types[layer]), dict):
        found = dict(found[types[layer]])
    return found


def _number(parameters: dict[str, Any], name: str, default: float | None = None) -> float:
    value = default if parameters.get(name) is None else parameters[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} in the config's rope_parameters must be a number, got {value!r}.")
    return float(value)


def _try(
    call: ObservedCall, shape: Shape, fields: dict[str, Any], learned: dict[str, Tensor]
) -> Encoding | None:
    try:
        encoding = make("rope", shape, _with_factor(call, shape, fields)).to(call.q.device)
        if learned:
            encoding.load_published(learned)
    except InputError:
        return None
    encoding.requires_grad_(requires_grad=False)
    positions = call.positions()
    assert call.unrotated is not None
    q, k = call.unrotated
    asking, asked = Side(positions.q, "query"), Side(positions.k, "key")
    same = rotation_agrees(encoding.rotate(q, asking), call.q)
    same = same and rotation_agrees(encoding.rotate(k, asked), call.k)
    return encoding if same else None


def _with_factor(call: ObservedCall, shape: Shape, fields: dict[str, Any]) -> dict[str, Any]:
    """Add the factor on cos and sin where it is not the default: cos is that factor at angle 0."""
    if call.rotation is None or not isinstance(call.rotation[0], Tensor):
        return fields
    factor = float(call.rotation[0].flatten(0, -3)[0, 0].max())
    default = make("rope", shape, fields).attention_factor()  # type: ignore[operator]
    return fields if abs(factor - default) < 1e-6 else {**fields, "attention_factor": factor}


def _fractions(call: ObservedCall, config: Any, parameters: dict[str, Any]) -> list[float]:
    """The shares of the head dim that may be rotated, likeliest first."""
    head_dim = call.q.shape[-1]
    found: list[float] = []
    if parameters.get("rope_type") == "proportional":
        # The whole head is rotated, most of its pairs by the angle 0.
        return [(_number(parameters, "partial_rotary_factor", 1.0) or 1.0)]
    if call.rotation is not None:
        width = call.rotation[0].shape[-1]
        found += [width / head_dim, 2 * width / head_dim]
    if getattr(config, "qk_rope_head_dim", None):
        found.append(config.qk_rope_head_dim / head_dim)
    if getattr(config, "rotary_dim", None):
        found.append(config.rotary_dim / head_dim)
    found += [(_number(parameters, "partial_rotary_factor", 1.0) or 1.0), 1.0]
    return [share for share in dict.fromkeys(found) if 0 < share <= 1]


def read_alibi(call: ObservedCall, shape: Shape) -> Encoding | None:
    """Return ALiBi with the slopes that reproduce this layer's bias, or None."""
    family = family_of(call.module)
    rounding = torch.finfo(torch.bfloat16).eps if family.rounds_bias else 0.0
    every = (make("alibi", shape, dict(fields)) for fields in family.alibi)
    return next((found for found in every if _agrees(call, found, rounding)), None)


def read_buckets(call: ObservedCall, body: nn.Module, config: Any, shape: Shape) -> Encoding | None:
    """Return T5's encoding around the model's own table if it gives this layer's bias, or None."""
    table = _bucket_table(call.module, body)
    if table is None or table.shape[1] != shape.heads:
        return None
    longest = getattr(
        config, "relative_attention_max_distance", getattr(config, "max_rel_pos", 128)
    )
    for multiplier in ("one", "inverse_sqrt_head_dim"):
        fields = {"buckets": table.shape[0], "max_distance": longest, "multiplier": multiplier}
        try:
            encoding = make("t5", shape, fields)
        except InputError:
            return None
        encoding.table.weight = nn.Parameter(table.detach(), requires_grad=False)  # type: ignore[union-attr]
        if _agrees(call, encoding):
            return encoding
    return None


def read_relative(
    call: ObservedCall, body: nn.Module, config: Any, shape: Shape
) -> Encoding | None:
    """Return the encoding around the layer's parameters if it gives the layer's bias, or None."""
    assert call.relative is not None
    fields, tensors = dict(call.relative.fields), dict(call.relative.tensors)
    if (shared := call.relative.shared) is not None:
        every = body.named_parameters()
        tensors[shared] = next(value for path, value in every if path.endswith(shared))
    if getattr(config, "clamp_len", -1) > 0:
        fields["clamp"] = config.clamp_len
    try:
        encoding = make(call.relative.name, shape, fields).to(call.q)
    except InputError:
        return None
    encoding.load_published(tensors)
    encoding.requires_grad_(requires_grad=False)
    return encoding if _agrees(call, encoding) else None


def _agrees(call: ObservedCall, encoding: Encoding, rounding: float = 0.0) -> bool:
    """Return whether an encoding gives the bias of a call; `rounding` is a family's own."""
    assert call.bias is not None
    positions = call.positions()
    bias = call.bias_of(encoding, positions)
    assert bias is not None
    within = max(rounding, allowance(call.q.dtype))
    return bias_agrees(dense(bias, positions), call.bias, call.seen(), within=within)


def _bucket_table(module: nn.Module, body: nn.Module) -> Tensor | None:
    """Return the table of this layer, or else the first one of the model."""
    name = family_of(module).bucket_table
    own = getattr(module, name, None)
    parts = [] if own is None else [own]
    parts += [part for path, part in body.named_modules() if path.endswith(name)]
    for part in parts:
        if isinstance(part, nn.Embedding):
            return part.weight
        if isinstance(part, nn.Linear):
            return part.weight.T
    return None
