"""Captures for the hosts' tests, and a stand-in for the viewer's module."""

import numpy as np
import pytest

from headscape.captures.bias_factors import SlopeFactor, ToeplitzFactor
from headscape.captures.factors import LayerFactors
from headscape.captures.pack import Pack, make_pack
from headscape.captures.row_pass import log_sum_exp

MODULE = (
    "const a={render(){}};function b(el){el.textContent='open'}\n"
    "export{a as default,b as openPage};\n"
)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the built module, so that a host's own work is tested alone."""
    for name in ("page", "serve", "widget"):
        monkeypatch.setattr(f"headscape.viewer.{name}.static_text", lambda _: MODULE)


def made(
    length: int = 60,
    heads: int = 3,
    dims: int = 8,
    *,
    kind: str = "toeplitz",
    layers: int = 1,
    seed: int = 0,
    lse: bool = True,
    **header: object,
) -> Pack:
    """Random factors."""
    random = np.random.default_rng(seed)
    made: dict[int, LayerFactors] = {}
    for layer in range(layers):
        q, k = random.standard_normal((2, heads, length, dims)).astype(np.float32)
        bias: SlopeFactor | ToeplitzFactor
        if kind == "slope":
            total = -np.cumsum(random.gamma(0.3, 0.2, (heads, length)), axis=1)
            bias = SlopeFactor(random.gamma(2.0, 0.5, (heads, length)), total, total)
        else:
            table = -0.1 * np.arange(length, dtype=np.float32) * np.arange(1, heads + 1)[:, None]
            bias = ToeplitzFactor(table.astype(np.float32), 0)
        factors = LayerFactors(q=q, k=k, scale=dims**-0.5, bias=bias)
        norms = log_sum_exp(factors) if lse else None
        made[layer] = LayerFactors(q=q, k=k, scale=dims**-0.5, bias=bias, lse=norms)
    pieces = [f"t{number} " for number in range(length)]
    known = {"encoding": "alibi", "heads": list(range(heads)), "title": "ALiBi", "pieces": pieces}
    return make_pack(made, **{**known, **header})


def quantities(pack: Pack, layer: int, head: int) -> dict[str, np.ndarray]:
    """Whole maps by numpy alone; NaN where hidden."""
    factors = pack.layer(layer)
    length = factors.length
    content = factors.scale * factors.q[head].astype(np.float64) @ factors.k[head].T
    at = np.arange(length)
    if isinstance(factors.bias, ToeplitzFactor):
        bias = factors.bias.table[head].astype(np.float64)[np.maximum(at[:, None] - at, 0)]
    else:
        assert isinstance(factors.bias, SlopeFactor)
        row, col = factors.bias.row[head], factors.bias.col[head]
        bias = (row[:, None] - col) * (
            1.0 if factors.bias.weight is None else factors.bias.weight[head][:, None]
        )
    final = content + bias
    seen = at <= at[:, None]
    weights = np.where(seen, np.exp(final - np.where(seen, final, -np.inf).max(1)[:, None]), 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    every = {"content": content, "bias": bias, "final": final, "weights": weights}
    return {name: np.where(seen, value, np.nan) for name, value in every.items()}
