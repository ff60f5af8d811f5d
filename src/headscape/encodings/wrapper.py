"""An encoding around another one: DAPE and DAPEv2.

A wrapper changes how scores and bias are mixed and hands everything else to its base.
"""

from jaxtyping import Float, Int
from torch import Tensor

from headscape.bias import Bias
from headscape.encodings.base import Config, Encoding, Role, Shape, Stream
from headscape.errors import InputError
from headscape.types import Positions


class Wrapper(Encoding):
    """Mixes the scores and bias of a base encoding."""

    mixes = True
    toeplitz = False
    context_dependent = True

    def __init__(self, shape: Shape, config: Config, base: Encoding) -> None:
        super().__init__(shape, config)
        if base.mixes or base.at_input:
            name, other = type(self).__name__, type(base).__name__
            reason = "mixes scores itself" if base.mixes else "acts on the embeddings"
            raise InputError(f"{name} cannot wrap {other}, which {reason}.")
        self.base = base
        self.adds_bias = base.adds_bias
        self.rotates = base.rotates
        self.cacheable_keys = base.cacheable_keys
        self.shift_invariant = base.shift_invariant

    def rotate(
        self, x: Float[Tensor, "b h t e"], at: Int[Tensor, "#b t"], role: Role
    ) -> Float[Tensor, "b h t e"]:
        """The base's rotation."""
        return self.base.rotate(x, at, role)

    def stream(
        self, x: Float[Tensor, "b t d"], carry: Float[Tensor, "b h"] | None = None
    ) -> Stream | None:
        """The base's stream."""
        return self.base.stream(x, carry)

    def bias(
        self, positions: Positions, queries: Stream | None = None, keys: Stream | None = None
    ) -> Bias | None:
        """The base's bias."""
        return self.base.bias(positions, queries, keys)

    def initialise(self) -> None:
        """The base's own starting values."""
        self.base.initialise()

    def conventions(self) -> dict[str, object]:
        """The wrapper's fields and its base's."""
        return super().conventions() | self.base.conventions()
