"""A layer with its positional part scaled, against content, scores and sink of the definition."""

import numpy as np
import pytest
import torch

from browser.captures import inputs_of
from captures.test_blocks import BENT
from headscape.call.definition import scores, softmax
from headscape.captures.call_blocks import save_call
from headscape.captures.pack import fixed_position
from headscape.captures.scaled_position import ScaledPosition
from headscape.errors import InputError

QUANTITIES = ("content", "bias", "final", "weights")
LENGTH = 48


def scaled(
    name: str, position: float, layer: int, head: int, length: int, **fields: object
) -> dict[str, np.ndarray]:
    """The four maps of a head, NaN where hidden."""
    call = inputs_of(name, seed=layer, length=length, **fields)
    with torch.no_grad():
        every = scores(call)
        content, final = every.content.double(), every.final.double()
        bias = position * (final - content)
        weights = softmax(content + bias, every.visible, call.sink)
    seen = every.visible[0, 0].numpy()
    maps = {"content": content, "bias": bias, "final": content + bias, "weights": weights}
    return {name: np.where(seen, each[0, head].numpy(), np.nan) for name, each in maps.items()}


@pytest.mark.parametrize("position", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((name, {}) for name in ("alibi", "cable", "rope", "fire", "cope", "kerple", "path")),
        *((name, {}) for name in ("dape+kerple", "dapev2+kerple", "pope", "wall", "shaw")),
        *BENT.values(),
    ],
    ids=str,
)
def test_maps_are_the_definitions(name: str, fields: dict[str, object], position: float) -> None:
    layer = save_call(inputs_of(name, seed=0, length=LENGTH, **fields))
    if fixed_position(layer) is not None:
        with pytest.raises(InputError, match="cannot be scaled"):
            ScaledPosition.of(layer, position)
        return
    part = ScaledPosition.of(layer, position)
    rows, cols = slice(5, 40), slice(0, 33)
    expected = scaled(name, position, 0, 2, LENGTH, **fields)
    for quantity in QUANTITIES:
        want = expected[quantity][rows, cols]
        found = part.block(quantity, 2, rows, cols)
        seen = np.isfinite(want)
        size = max(1.0, np.abs(want[seen]).max())
        np.testing.assert_allclose(found[seen], want[seen], atol=1e-5 * size)
        if quantity == "weights":
            assert (found[~seen] == 0).all()


def test_wrong_factors_are_refused() -> None:
    layer = save_call(inputs_of("alibi", length=LENGTH))
    for factor in (-0.5, 2.5, float("nan")):
        with pytest.raises(InputError, match="from 0 to 2"):
            ScaledPosition.of(layer, factor)
