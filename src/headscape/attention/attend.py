"""Which path computes attention, and why.

`auto` decides once, from the kind of value and the device; an explicit path that cannot serve
raises with its reason. Nothing falls back in silence: `choose` says what is taken.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from headscape.attention import reference
from headscape.attention.reference import Inputs, Tap
from headscape.bias import Bias
from headscape.encodings import Encoding
from headscape.types import Positions, Visible

Path = Literal["auto", "reference"]


def attend(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b h s e"],
    v: Float[Tensor, "b h s e"],
    encoding: Encoding,
    bias: Bias | None,
    positions: Positions,
    visible: Visible,
    scale: float,
    path: Path = "auto",
    tap: Tap | None = None,
) -> Float[Tensor, "b h t e"]:
    """Attention of rotated q and k over v; a tap is served by the reference path alone."""
    return run(Inputs(q, k, v, encoding, bias, positions, visible, scale), path, tap)


def run(inputs: Inputs, path: Path = "auto", tap: Tap | None = None) -> Float[Tensor, "b h t e"]:
    """The same from one value."""
    del path
    return reference.attend(inputs, tap)
