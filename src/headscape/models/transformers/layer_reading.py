"""What one layer of a published model does with position, in our terms."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headscape.call.bias import Bias, Pairwise, Slope
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions
from headscape.encodings import Encoding, Shape, Side, make
from headscape.models.model import LayerSpec
from headscape.models.transformers.alibi_reader import read_alibi
from headscape.models.transformers.attention_call import ObservedCall
from headscape.models.transformers.bucket_reader import read_buckets
from headscape.models.transformers.mask_reader import is_causal, read_visible
from headscape.models.transformers.relative_reader import read_relative
from headscape.models.transformers.rotary_reader import read_rotary, rotates
from headscape.models.transformers.temperature_reader import same_growth, temperature_fields

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
        positions = Positions.span(call.q.shape[2], call.k.shape[2], on=call.q.device)
        if at is not None:
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
        sides = Side(positions.q, "query"), Side(positions.k, "key")
        return AttentionCall(
            q,
            call.k,
            call.v,
            self._bias(call, positions),
            positions,
            read_visible(call, positions, layer, real),
            call.scale,
            unrotated,
            turns=None if unrotated is None else self.encoding.turns(*sides),
            temperature=factor,
            softcap=call.softcap,
            sink=call.sink,
        )

    def _bias(self, call: ObservedCall, positions: Positions) -> Bias | None:
        if call.bias is None:
            return None
        if isinstance(self.encoding, Unrecognised):
            every = call.bias.expand(-1, call.heads, call.q.shape[2], -1)
            return Pairwise(lambda rows, cols: every[:, :, rows, cols], positions)
        if type(call.module).__name__ == "FalconAttention":
            # Falcon rounds m j to bfloat16: its own numbers are the bias, 0 at distance 0.
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
    shape = shape_of(call, config)
    heat = temperature_fields(call, config)
    found: Encoding | None
    if call.relative is not None:
        found, name = read_relative(call, body, config, shape), call.relative.name
    elif call.bias is not None:
        found = read_buckets(call, body, config, shape) or read_alibi(call, shape)
        name = "t5" if found is not None and found.title == "T5 buckets" else "alibi"
    elif rotates(call):
        found, name = read_rotary(call, config, layer, shape, heat), "rope"
    else:
        found, name = make("nope", shape, heat), "nope"
    if found is None or not same_growth(call, found):
        unknown = Unrecognised(shape, Unrecognised.config_type())
        return LayerReading(name=UNKNOWN, encoding=unknown)
    if name == "nope" and at_input is not None:
        name = "sinusoidal" if at_input.title == "Sinusoidal" else "learned"
        return LayerReading(name=name, encoding=found, at_input=at_input)
    return LayerReading(name=name, encoding=found)


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


def _scale(call: ObservedCall) -> str | float:
    """The score scale by its name in our models' config, or as a number."""
    named = {"one": 1.0, "head_dim": call.q.shape[-1] ** -0.5}
    return next((name for name, value in named.items() if abs(value - call.scale) < 1e-9),
                call.scale)  # fmt: skip
