"""The atlas in Chromium: sorted, filtered, opened, in light and dark."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscape as hs
from browser.acting import violations
from measures import handmade

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("atlas")
    hs.atlas(handmade.previous_token(), out, list(range(1, 24)) * 12, length=32, sequences=4)
    return out / "atlas.html"


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, chromium: Any, atlas: Path) -> Any:
    opened = chromium.new_page(color_scheme=request.param)
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(atlas.as_uri())
    yield opened
    opened.close()
    assert not complaints


def names(page: Any, place: str) -> list[str]:
    return page.locator(f"{place} .card .name").all_text_contents()


def choose(page: Any, label: str, option: str) -> None:
    named = page.get_by_text(label, exact=True)
    page.locator("label.field", has=named).locator("select").select_option(option)


def test_every_head_is_a_card_with_a_curve_and_a_picture(page: Any) -> None:
    assert names(page, "#all") == ["layer 1, head 1", "layer 1, head 2"]
    assert page.locator("#all canvas").count() == 2
    assert page.locator("#all .spark path.curve").count() == 2
    # At most a quarter of the heads is at either end of the ranking, and one at least. The scores
    # of head 2 are the same everywhere, so it has no share and is not ranked.
    assert names(page, "#most") == names(page, "#least") == ["layer 1, head 1"]


def test_curves_have_axes_and_colours_a_legend(page: Any) -> None:
    curve = page.locator("#all .spark").first
    numbers = [float(text.replace("−", "-")) for text in curve.locator("text").all_text_contents()]
    high, low, first, last = numbers
    assert high > low
    assert (first, last) == (0, 28)  # 7/8 of 32 tokens
    legend = page.locator(".legend")
    assert "Mean attention weight" in legend.text_content()
    assert legend.locator(".limits span").all_text_contents() == ["0.0001", "0.01", "1"]
    # The head looks at the token before, which is light; the far keys are dark.
    pixels = page.locator("#all canvas").first.evaluate(
        "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    )
    side = int((len(pixels) / 4) ** 0.5)
    light = np.array(pixels).reshape(side, side, 4)[..., :3].sum(-1)
    assert light[20, 19] > light[20, 2] + 200


def test_colours_are_explained_before_the_first_picture(page: Any) -> None:
    legend = page.locator(".legend").bounding_box()
    first = page.locator("canvas:not(.legend canvas)").first.bounding_box()
    assert legend["y"] + legend["height"] <= first["y"]


@pytest.mark.parametrize(
    ("width", "columns"), [(1400, 10), (1280, 10), (1000, 5), (700, 5), (390, 2)]
)
def test_ten_heads_are_in_rows_of_equal_length(
    width: int, columns: int, chromium: Any, tmp_path: Path
) -> None:
    model = hs.load(hs.GPT2.from_preset("nano", encoding="rope", vocabulary=64, layers=10, heads=4))
    hs.atlas(model, tmp_path, list(range(1, 24)) * 12, length=32, sequences=1)
    opened = chromium.new_page(viewport={"width": width, "height": 900})
    opened.goto((tmp_path / "atlas.html").as_uri())
    for place in ("#most", "#least"):
        boxes = [card.bounding_box() for card in opened.locator(f"{place} .card").all()]
        assert len(boxes) == 10
        rows = [box["y"] for box in boxes]
        assert {rows.count(y) for y in rows} == {columns}
        assert max(box["x"] + box["width"] for box in boxes) <= width
    opened.close()


def test_no_name_is_short_for_layer_and_head(page: Any) -> None:
    page.locator("#all .card").first.click()
    assert not re.search(r"\bL\d+ ?H\d+", page.locator("body").inner_text())


def test_heads_are_sorted_by_any_measure_and_filtered_by_kind(page: Any) -> None:
    choose(page, "Order", "falling")
    choose(page, "Measure", "entropy")
    assert names(page, "#all") == ["layer 1, head 2", "layer 1, head 1"]
    choose(page, "Order", "rising")
    assert names(page, "#all") == ["layer 1, head 1", "layer 1, head 2"]
    choose(page, "Kind", "previous token")
    assert names(page, "#all") == ["layer 1, head 1"]
    assert page.locator("#count").text_content() == "1 head"


def test_a_card_opens_all_measures_and_its_address_opens_it_again(page: Any) -> None:
    page.locator("#all .card").first.press("Enter")
    dialog = page.locator("dialog")
    assert "layer 1, head 1" in dialog.text_content()
    assert "previous token" in dialog.text_content()
    row = dialog.locator("tr", has_text="slash distance")
    assert row.locator("td").first.text_content() == "1"
    assert page.url.endswith("#layer-1-head-1")
    page.reload()
    assert dialog.is_visible()
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(width: int, page: Any) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []
    page.locator("#all .card").first.click()
    assert violations(page) == []
