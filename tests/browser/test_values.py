"""Numbers read back from the page against the dense definition, for every encoding."""

import numpy as np
import pytest

from arrays.test_factors import reduced
from browser.captures import LENGTH, capture, definition
from browser.conftest import Open
from headscape.arrays.cells import Grid
from headscape.encodings import ENCODINGS
from headscape.properties.cases import WRAPPED

pytestmark = pytest.mark.browser
QUANTITIES = ("content", "bias", "final", "weights")


@pytest.mark.parametrize("name", [*ENCODINGS, *WRAPPED])
def test_every_quantity_is_the_definition(name: str, open_page: Open) -> None:
    """Every pair from float64 arithmetic; zoomed out from the kernel, every cell."""
    expected = definition(name, 0, 2)
    opened = open_page([capture(name, layers=1)], {"screen": "head", "head": 2})
    cells = range(-(-LENGTH // 2))
    grid = Grid(LENGTH, 1, cells, cells)
    for number, quantity in enumerate(QUANTITIES, start=1):
        opened.page.keyboard.press(str(number))
        opened.page.keyboard.press("0")
        opened.settle()
        size = max(1.0, float(np.nanmax(np.abs(expected[quantity]))))
        pairs = opened.shown()
        assert len(pairs) == LENGTH * (LENGTH + 1) // 2
        worst = max(abs(value - expected[quantity][at]) for at, value in pairs.items())
        assert worst <= 4e-6 * size, quantity
        # A window of 60 pixels draws cells of 2 x 2 pairs.
        opened.page.evaluate("document.querySelector('.maps').style.maxWidth = '150px'")
        opened.page.set_viewport_size({"width": 1279, "height": 900})
        opened.page.wait_for_function(
            "() => document.querySelector('.panel').dataset.level === '1'"
        )
        opened.settle()
        found = opened.shown(2)
        how = "max" if quantity == "weights" else "mean"
        pooled = reduced(np.nan_to_num(expected[quantity]), grid, how)  # type: ignore[arg-type]
        worst = max(abs(value - pooled[q // 2, k // 2]) for (q, k), value in found.items())
        assert worst <= 1e-5 * size, quantity
        opened.page.evaluate("document.querySelector('.maps').style.maxWidth = ''")
        opened.page.set_viewport_size({"width": 1280, "height": 900})
        opened.page.wait_for_function(
            "() => document.querySelector('.panel').dataset.level === '0'"
        )


@pytest.mark.parametrize("name", ["cable", "rope", "dapev2+kerple"])
def test_float16_is_close_and_says_so(name: str, open_page: Open) -> None:
    expected = definition(name, 0, 1)["weights"]
    opened = open_page(
        [capture(name, layers=1)], {"screen": "head", "head": 1}, precision="float16"
    )
    opened.settle()
    worst = max(abs(value - expected[at]) for at, value in opened.shown().items())
    assert 0 < worst <= 3e-3
    assert "float16" in opened.page.locator(".readout").inner_text()


@pytest.mark.parametrize("how", ["mean", "least", "greatest"])
def test_cells_can_be_mean_least_or_greatest(how: str, open_page: Open) -> None:
    whole = definition("cable", 0, 0)["final"]
    opened = open_page(
        [capture("cable", layers=1)], {"screen": "head", "quantity": "final", "pooling": how}
    )
    opened.page.evaluate("document.querySelector('.maps').style.maxWidth = '150px'")
    opened.page.set_viewport_size({"width": 1279, "height": 900})
    opened.page.wait_for_function("() => document.querySelector('.panel').dataset.level === '1'")
    opened.settle()
    cells = range(-(-LENGTH // 2))
    name = {"mean": "mean", "least": "min", "greatest": "max"}[how]
    pooled = reduced(np.nan_to_num(whole), Grid(LENGTH, 1, cells, cells), name)  # type: ignore[arg-type]
    for (query, key), value in opened.shown(2).items():
        assert value == pytest.approx(pooled[query // 2, key // 2], abs=2e-5)


@pytest.mark.parametrize("minus", ["row", "distance"])
@pytest.mark.parametrize("name", ["cable", "dapev2+kerple"])
def test_what_is_taken_away(name: str, minus: str, open_page: Open) -> None:
    whole = definition(name, 0, 0)["final"]
    if minus == "row":
        whole = whole - np.nanmean(whole, axis=1, keepdims=True)
    else:
        means = np.array([np.nanmean(np.diagonal(whole, -d)) for d in range(LENGTH)])
        at = np.arange(LENGTH)
        whole = whole - means[np.maximum(at[:, None] - at, 0)]
    opened = open_page(
        [capture(name, layers=1)], {"screen": "head", "quantity": "final", "minus": minus}
    )
    opened.settle()
    for pair, value in opened.shown().items():
        assert value == pytest.approx(whole[pair], abs=4e-5)
