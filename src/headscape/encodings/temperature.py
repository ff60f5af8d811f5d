"""Temperatures that grow with the query's position; they multiply all scores of a query.

    llama4      1 + a ln(1 + floor((i + 1) / n0))          Llama 4, on its layers without RoPE
    ministral   1 + a ln(1 + floor(i / n0))                Ministral 3, Mistral 4, on every layer
    inkling     1 + a ln max((i + 1) / n0, 1)              Inkling, on its layers without a window
    ssmax       s_h ln n_i                                 Nakanishi 2025, arXiv:2501.19399

i counts from 0, so llama4 steps at i = n0 - 1 and ministral at i = n0. n_i is the number of keys
that query i sees: i + 1, or the window. s_h is learned and starts at 1; the first query has n = 1,
which makes its only score 0 and changes nothing. In a packed batch SSMax counts the keys of the
query's own document. The others take the positions handed in, so a packed document counts from its
own start; Llama 4 and Inkling count places in the cache instead, which differs for left padding
only.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

Grows = Callable[[Float[Tensor, "#b t"], float, int], Float[Tensor, "#b t"]]


def llama4(at: Float[Tensor, "#b t"], rate: float, start: int) -> Float[Tensor, "#b t"]:
    """Return 1 + rate ln(1 + floor((at + 1) / start))."""
    return 1 + rate * ((at + 1) / start).floor().log1p()


def ministral(at: Float[Tensor, "#b t"], rate: float, start: int) -> Float[Tensor, "#b t"]:
    """Return 1 + rate ln(1 + floor(at / start))."""
    return 1 + rate * (at / start).floor().log1p()


def inkling(at: Float[Tensor, "#b t"], rate: float, start: int) -> Float[Tensor, "#b t"]:
    """Return 1 + rate ln max((at + 1) / start, 1)."""
    return 1 + rate * ((at + 1) / start).clamp(min=1).log()


TEMPERATURES: dict[str, Grows] = {"llama4": llama4, "ministral": ministral, "inkling": inkling}
