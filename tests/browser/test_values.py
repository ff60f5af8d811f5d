"""Numbers read back from the page against the dense definition, for every encoding."""

import numpy as np
import pytest

from browser.captures import LENGTH, capture, definition, inputs_of
from browser.conftest import Open
from captures.test_blocks import BENT
from captures.test_packs import SUBJECTS
from captures.test_pooling import reduced
from headscape.captures.call_blocks import save_call
from headscape.captures.pack import page_refuses
from headscape.captures.pooling import CellGrid
from headscape.errors import InputError

pytestmark = pytest.mark.browser
QUANTITIES = ("content", "bias", "final", "weights")


@pytest.mark.parametrize(
    ("name", "fields"), [*((name, {}) for name in SUBJECTS), *BENT.values()], ids=str
)
def test_every_pair_is_the_definition(
    name: str, fields: dict[str, object], open_page: Open
) -> None:
    """Every pair of every quantity, from float64 arithmetic on the stored factors."""
    refused = page_refuses(save_call(inputs_of(name, seed=0, length=LENGTH, **fields)))
    if refused is not None:
        with pytest.raises(InputError, match=refused):
            open_page([capture(name, layers=1, fields=fields)], {})
        return
    expected = definition(name, 0, 2, **fields)
    opened = open_page([capture(name, layers=1, fields=fields)], {"screen": "head", "head": 2})
    for number, quantity in enumerate(QUANTITIES, start=1):
        opened.page.keyboard.press(str(number))
        opened.settle()
        size = max(1.0, float(np.nanmax(np.abs(expected[quantity]))))
        pairs = opened.shown()
        assert len(pairs) == np.isfinite(expected[quantity]).sum()
        worst = max(abs(value - expected[quantity][at]) for at, value in pairs.items())
        assert worst <= 4e-6 * size, quantity


LONG = 1200


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((name, {}) for name in ("alibi", "cable", "rope", "fire", "k-cable", "cope")),
        *((name, {}) for name in ("dape+kerple", "dapev2+kerple")),
        ("rope", {"window": 300, "softcap": 5.0, "temperature": "inkling", "sink": True}),
    ],
    ids=str,
)
def test_every_cell_is_pooled_from_every_pair(
    name: str, fields: dict[str, object], open_page: Open
) -> None:
    """Zoomed out, from the kernel: cells of several pairs a side."""
    expected = definition(name, 0, 2, LONG, **fields)
    opened = open_page(
        [capture(name, layers=1, length=LONG, fields=fields)], {"screen": "head", "head": 2}
    )
    for number, quantity in enumerate(QUANTITIES, start=1):
        opened.page.keyboard.press(str(number))
        opened.settle()
        level = int(opened.page.locator(".panel").get_attribute("data-level"))
        assert level >= 1
        cells = range(-(-LONG // (1 << level)))
        how = "max" if quantity == "weights" else "mean"
        whole = np.nan_to_num(expected[quantity])
        grid = CellGrid(LONG, level, cells, cells, window=fields.get("window"))  # type: ignore[arg-type]
        pooled = reduced(whole, grid, how)  # type: ignore[arg-type]
        size = max(1.0, float(np.abs(whole).max()))
        shown = opened.shown(1 << level)
        assert len(shown) == np.isfinite(pooled).sum()
        worst = max(
            abs(value - pooled[query >> level, key >> level])
            for (query, key), value in shown.items()
        )
        assert worst <= 1e-5 * size, quantity


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
    whole = np.nan_to_num(definition("cable", 0, 0, LONG)["final"])
    opened = open_page(
        [capture("cable", layers=1, length=LONG)],
        {"screen": "head", "quantity": "final", "pooling": how},
    )
    opened.settle()
    level = int(opened.page.locator(".panel").get_attribute("data-level"))
    cells = range(-(-LONG // (1 << level)))
    name = {"mean": "mean", "least": "min", "greatest": "max"}[how]
    pooled = reduced(whole, CellGrid(LONG, level, cells, cells), name)  # type: ignore[arg-type]
    size = np.abs(whole).max()
    for (query, key), value in opened.shown(1 << level).items():
        assert value == pytest.approx(pooled[query >> level, key >> level], abs=1e-5 * size)


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
