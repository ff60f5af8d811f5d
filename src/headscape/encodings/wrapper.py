"""The base class of DAPE and DAPEv2, which wrap an encoding.

A wrapper mixes the scores and the bias of its base; everything else is the base's.
"""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from headscape.call.bias import Bias
from headscape.call.rotation import Turn
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext, LayerInput, Side, Stream
from headscape.errors import InputError


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

    def load_published(
        self,
        tensors: Mapping[str, Tensor],
        *,
        source: str = "the given tensors",
        prefix: str = "",
    ) -> None:
        """Copy the authors' tensors of the wrapper and of its base, if that learns any."""
        super().load_published(tensors, source=source, prefix=prefix)
        if next(self.base.parameters(), None) is not None:
            self.base.load_published(tensors, source=source, prefix=prefix)

    def initialise(self) -> None:
        """Set the base's initial values."""
        self.base.initialise()

    def conventions(self) -> dict[str, object]:
        """Return the wrapper's fields and the base's."""
        return self.base.conventions() | super().conventions()
