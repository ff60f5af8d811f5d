"""Encodings made of encodings, written with a plus.

A Combined is several in one layer: rope+fox, rope+alibi, path+fox.

    q, k       turned by the one that rotates
    bias       the sum of all biases
    mixing     that of the one that mixes, with the sum as its bias
    weighting  that of the one that does not use the softmax

Two encodings cannot be combined if both rotate, both mix scores, both make weights, both read the
same thing off the layer's input, or one acts on the embeddings. The fields of every config (window,
sink, temperature ...) belong to the combination; a part has only its own.

A Wrapper, the base of DAPE and DAPEv2, mixes the scores and the bias of its base (dapev2+kerple);
everything else is the base's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.call.bias import Bias, total
from headscape.call.mixing import Mixing
from headscape.call.positions import Turn
from headscape.call.weighting import Weighting
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext, LayerInput, Side, Stream
from headscape.errors import InputError

CLASHES: dict[str, Callable[[Encoding], bool]] = {
    "rotate queries and keys": lambda part: part.rotates,
    "mix scores": lambda part: part.mixes,
    "make their own weights": lambda part: part.weighs,
    "prescribe the factor of q.k": lambda part: part.content_scale is not None,
}
"""What at most one part may do."""
READ = {
    "total": "keep a running sum",
    "weight": "keep a running sum",
    "backward": "keep a running sum",
    "query": "read a vector per query",
    "key": "read a vector per key",
    "angle": "rotate queries and keys",
    "reflections": "change keys on their way to a query",
    "decay": "change keys on their way to a query",
}
"""The fields of a stream in words; two parts must not share one."""


class Combined(Encoding):
    """The sum of what several encodings do."""

    title = "Combined"

    def __init__(self, shape: Shape, config: Config, parts: Sequence[Encoding]) -> None:
        self._check(parts)
        # What the checks of the base class read.
        self.title = "+".join(part.title for part in parts)
        self.mixes = any(part.mixes for part in parts)
        self.weighs = any(part.weighs for part in parts)
        super().__init__(shape, config)
        self.parts = nn.ModuleList(parts)
        readers = [part for part in parts if part.streams]
        self.reader = parts.index(readers[0]) if len(readers) == 1 else None
        """The index of the only part that reads the layer's input; None if several do."""
        self.formula = "; ".join(part.formula for part in parts)
        self.paper = "; ".join(dict.fromkeys(part.paper for part in parts))
        self.adds_bias = any(part.adds_bias for part in parts)
        self.rotates = any(part.rotates for part in parts)
        self.widens = any(part.widens for part in parts)
        self.streams = any(part.streams for part in parts)
        self.cacheable_keys = all(part.cacheable_keys for part in parts)
        self.shift_invariant = all(part.shift_invariant for part in parts)
        self.toeplitz = all(part.toeplitz for part in parts)
        self.pointwise = all(part.pointwise for part in parts)
        self.context_dependent = any(part.context_dependent for part in parts)
        self.shows = "weights" if self.weighs else "bias" if self.toeplitz else "final"
        reasons = [part.no_bidirectional_form for part in parts if part.no_bidirectional_form]
        self.no_bidirectional_form = reasons[0] if reasons else ""

    @property
    def members(self) -> list[Encoding]:
        """The parts, in the order of the name."""
        return cast("list[Encoding]", list(self.parts))

    def _check(self, parts: Sequence[Encoding]) -> None:
        """Refuse parts that cannot be combined, by name."""
        for part in parts:
            if part.at_input:
                raise InputError(
                    f"{part.title} acts on the token embeddings, not in attention, so it cannot be "
                    f"combined: leave it out."
                )
        does: dict[str, str] = {}
        for part in parts:
            mine = [what for what, test in CLASHES.items() if test(part)]
            stream = self._probe(part)
            mine += [] if stream is None else [READ[name] for name in stream.parts]
            for what in dict.fromkeys(mine):
                if what in does:
                    raise InputError(
                        f"{does[what]} and {part.title} both {what}, so they cannot be combined: "
                        f"choose one of them."
                    )
                does[what] = part.title

    @staticmethod
    @torch.no_grad()
    def _probe(part: Encoding) -> Stream | None:
        """Return the stream of one token, to see what the part reads."""
        if not part.streams:
            return None
        like = next(part.parameters())
        return part.stream(LayerInput(like.new_zeros(1, 1, part.shape.width)))

    def turn(self, side: Side) -> Turn | None:
        """Return the rotation of the part that has one."""
        turns = [part.turn(side) for part in self.members]
        return next((turn for turn in turns if turn is not None), None)

    def rotate(self, x: Float[Tensor, "b h t e"], side: Side) -> Float[Tensor, "b h t wide"]:
        """Return the queries or keys, rotated by the part that rotates."""
        for part in self.members:
            x = part.rotate(x, side)
        return x

    def stream(self, read: LayerInput) -> Stream | None:
        """Return what all parts read; if several do, the carry has an entry per part."""
        if self.reader is not None:
            alone = self.members[self.reader]
            return alone.stream(read)
        carries = read.carry or (None,) * len(self.members)
        streams = [
            part.stream(LayerInput(read.x, carry, read.starts))
            for part, carry in zip(self.members, carries, strict=True)
        ]
        if all(stream is None for stream in streams):
            return None
        fields = {
            name: getattr(stream, name)
            for stream in streams
            if stream is not None
            for name in stream.parts
        }
        ahead = tuple(None if stream is None else stream.carry_after() for stream in streams)
        return Stream(**fields, carry=ahead)

    def bias(self, layer: LayerContext) -> Bias | None:
        """Return the sum of the parts' biases."""
        return total([part.bias(layer) for part in self.members], layer.positions)

    def mixing(self, layer: LayerContext) -> Mixing | None:
        """Return the mixing of the part that has one."""
        mixings = [part.mixing(layer) for part in self.members]
        return next((mixing for mixing in mixings if mixing is not None), None)

    @property
    def weighting(self) -> Weighting | None:
        """The weights of the part that makes its own; None is the softmax."""
        return next((part.weighting for part in self.members if part.weighs), None)

    @property
    def content_scale(self) -> float | None:
        """The factor of q.k of the part that prescribes one."""
        scales = (part.content_scale for part in self.members)
        return next((scale for scale in scales if scale is not None), None)

    def temperature(
        self, at: Int[Tensor, "#b t"], seen: Int[Tensor, "#b t"] | None = None
    ) -> Float[Tensor, "#b #h t"] | None:
        """Return the temperature of the config times that of the parts."""
        factor = super().temperature(at, seen)
        for part in self.members:
            own = part.temperature(at, seen)
            if own is not None:
                factor = own if factor is None else factor * own
        return factor

    def load_published(self, tensors: Mapping[str, Tensor], **named: str) -> None:
        """Copy the authors' tensors into every part that learns any."""
        for part in self.members:
            if next(part.parameters(), None) is not None:
                part.load_published(tensors, **named)

    def initialise(self) -> None:
        """Set every part's initial values."""
        for part in self.members:
            part.initialise()

    def conventions(self) -> dict[str, object]:
        """Return the fields of all parts and those of every config."""
        shared, merged = super().conventions(), dict[str, object]()
        for part in self.members:
            for name, value in part.conventions().items():
                if name not in shared:
                    same = merged.get(name, value) == value
                    merged[name if same else f"{part.title}.{name}"] = value
        return merged | shared


class Wrapper(Encoding):
    """Mixes the scores and bias of a base encoding."""

    toeplitz = False
    context_dependent = True

    def __init__(self, shape: Shape, config: Config, base: Encoding) -> None:
        super().__init__(shape, config)
        if base.mixes or base.at_input or base.weighs:
            reason = "acts on the embeddings" if base.at_input else "makes its own weights"
            reason = "mixes scores itself" if base.mixes else reason
            raise InputError(f"{self.title} cannot wrap {base.title}, which {reason}.")
        self.base = base
        self.adds_bias = base.adds_bias
        self.rotates = base.rotates
        self.widens = base.widens
        self.streams = base.streams
        self.no_bidirectional_form = base.no_bidirectional_form
        self.cacheable_keys = base.cacheable_keys
        self.shift_invariant = base.shift_invariant

    def turn(self, side: Side) -> Turn | None:
        """Return the base's rotation."""
        return self.base.turn(side)

    def rotate(self, x: Float[Tensor, "b h t e"], side: Side) -> Float[Tensor, "b h t wide"]:
        """Return the queries or keys as the base rotates them."""
        return self.base.rotate(x, side)

    def stream(self, read: LayerInput) -> Stream | None:
        """Return the base's stream."""
        return self.base.stream(read)

    def bias(self, layer: LayerContext) -> Bias | None:
        """Return the base's bias."""
        return self.base.bias(layer)

    @property
    def content_scale(self) -> float | None:
        """The base's factor of q.k."""
        return self.base.content_scale

    def load_published(self, tensors: Mapping[str, Tensor], **named: str) -> None:
        """Copy the authors' tensors of the wrapper and of its base, if that learns any."""
        super().load_published(tensors, **named)
        if next(self.base.parameters(), None) is not None:
            self.base.load_published(tensors, **named)

    def initialise(self) -> None:
        """Set the base's initial values."""
        self.base.initialise()

    def conventions(self) -> dict[str, object]:
        """Return the wrapper's fields and the base's."""
        return self.base.conventions() | super().conventions()
