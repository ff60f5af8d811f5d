"""DAPEv2: a convolution over all heads' scores and biases (Zheng et al. 2024, arXiv:2410.04798).

    X = [A ; B], zero where a key is hidden       S = A + B + conv2(leaky(conv1(X)))

conv1 maps 2H maps to `hidden`, conv2 to H; both have width `kernel` along the keys, centred, and
1 along the queries; leaky is LeakyReLU(0.01). A key to the right of j, up to the query itself,
does influence S_ij; hidden keys enter as zeros, so nothing leaks from the future.

Boundary. In the released code the hidden maps are zero beyond the last key of the sequence, so the
last kernel//2 columns change when a token is appended, and decoding differs from the full pass
(boundary="released"). By default the hidden maps beyond the last key are computed from zeros, as
they are for every masked key of an earlier query (boundary="masked"): all other columns equal the
released ones, and decoding equals the full pass. Left of a document's first key the hidden maps are
zero in both.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from headscape.call.mixing import KeyConvolution
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.combined import Wrapper
from headscape.encodings.context import LayerContext
from headscape.errors import InputError, at_least


@dataclass(frozen=True, kw_only=True)
class DAPEv2Config(Config):
    """Options of DAPEv2."""

    kernel: int = 3
    """Kernel width along the keys, odd."""
    hidden: int = 32
    """Hidden channels."""
    boundary: Literal["masked", "released"] = "masked"
    """The hidden maps beyond the last key; see the top of dapev2.py."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise InputError(f"kernel must be odd and at least 1, got {self.kernel}.")
        at_least(1, hidden=self.hidden)


class DAPEv2(Wrapper):
    """A convolution across heads and neighbouring keys."""

    title = "DAPEv2"
    paper = "Zheng et al. 2024, arXiv:2410.04798"
    formula = "S = A + B + conv2(leaky(conv1([A;B])))"
    published = (
        {
            "mlp2.0.weight": "inner.weight",
            "mlp2.0.bias": "inner.bias",
            "mlp2.2.weight": "outer.weight",
            "mlp2.2.bias": "outer.bias",
        },
    )
    pointwise = False
    config: DAPEv2Config

    def __init__(self, shape: Shape, config: DAPEv2Config, base: Encoding) -> None:
        super().__init__(shape, config, base)
        channels = shape.heads * (2 if base.adds_bias else 1)
        size, padding = (1, config.kernel), (0, config.kernel // 2)
        self.inner = nn.Conv2d(channels, config.hidden, size, padding=padding)
        self.outer = nn.Conv2d(config.hidden, shape.heads, size, padding=padding)

    def mixing(self, layer: LayerContext) -> KeyConvolution:
        """Return the two convolutions."""
        inner, outer = self.inner, self.outer
        assert inner.bias is not None
        assert outer.bias is not None
        return KeyConvolution(
            inner.weight[:, :, 0],
            inner.bias,
            outer.weight[:, :, 0],
            outer.bias,
            self.config.boundary,
        )
