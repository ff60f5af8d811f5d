"""Captures for the hosts' tests, and a stand-in for the viewer's module."""

import numpy as np
import pytest

from headscape.call.bias import Bias
from headscape.captures.pack import Pack, make_pack
from headscape.captures.saved_call import SavedCall
from saved_calls import saved, slope, toeplitz

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
    table: np.ndarray | None = None,
    **header: object,
) -> Pack:
    """Random layers; a `table` of biases by distance is that of every head."""
    random = np.random.default_rng(seed)
    made: dict[int, SavedCall] = {}
    for layer in range(layers):
        q, k = random.standard_normal((2, heads, length, dims)).astype(np.float32)
        bias: Bias
        if kind == "slope":
            total = -np.cumsum(random.gamma(0.3, 0.2, (heads, length)), axis=1)
            bias = slope(random.gamma(2.0, 0.5, (heads, length)), total, total)
        else:
            falling = -0.1 * np.arange(length) * np.arange(1, heads + 1)[:, None]
            every = falling if table is None else np.tile(table, (heads, 1))
            bias = toeplitz(every.astype(np.float32))
        made[layer] = saved(q, k, bias, lse=lse)
    pieces = [f"t{number} " for number in range(length)]
    known = {"encoding": "alibi", "heads": list(range(heads)), "title": "ALiBi", "pieces": pieces}
    return make_pack(made, **{**known, **header})


def quantities(pack: Pack, layer: int, head: int) -> dict[str, np.ndarray]:
    """Whole maps by numpy alone; NaN where hidden."""
    saved = pack.layer(layer)
    arrays, length = saved.arrays, saved.length
    content = saved.described["scale"] * arrays["q"][head].astype(np.float64) @ arrays["k"][head].T
    at = np.arange(length)
    if "bias.table" in arrays:
        bias = arrays["bias.table"][head].astype(np.float64)[np.maximum(at[:, None] - at, 0)]
    else:
        row, col = arrays["bias.row"][head], arrays["bias.col"][head]
        bias = (row[:, None] - col) * arrays["bias.weight"][head][:, None]
    final = content + bias
    seen = at <= at[:, None]
    weights = np.where(seen, np.exp(final - np.where(seen, final, -np.inf).max(1)[:, None]), 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    every = {"content": content, "bias": bias, "final": final, "weights": weights}
    return {name: np.where(seen, value, np.nan) for name, value in every.items()}
