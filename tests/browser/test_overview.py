"""The overview: all heads on one screen, one legend, a heat map, a scatter, a ranking, a poster."""

import base64
import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from benchmarks.viewer import random_capture
from PIL import Image

import headscape as hs
from browser.acting import names, numbers, pick, press, violations
from browser.captures import HEADS, LENGTH, capture, definition
from browser.conftest import Open, Opened
from headscape.captures.pack import Pack
from headscape.plots.colour import scales
from headscape.viewer.page import with_measures

pytestmark = pytest.mark.browser

PLACES = [(layer, head) for layer in range(2) for head in range(HEADS)]


def overview(open_page: Open, packs: list[Pack] | None = None, **state: Any) -> Opened:
    opened = open_page(packs or [capture("cable")], {"overview": state} if state else None)
    opened.settle()
    return opened


def of_biases(*ranges: tuple[float, float]) -> Pack:
    """A capture with a head per range, whose bias has this least and greatest value."""
    length = 32
    noise = np.random.default_rng(0).uniform(0, 1, (len(ranges), length, length))
    noise[:, 20, 3], noise[:, 21, 4] = 0, 1
    bias = np.stack(
        [low + (high - low) * map_ for (low, high), map_ in zip(ranges, noise, strict=True)]
    )
    q, k = np.random.default_rng(1).standard_normal((2, len(ranges), length, 8))
    return hs.Capture.from_arrays(q=q, k=k, bias=bias).pack()


def choose(opened: Opened, label: str, value: str) -> None:
    """Choose an option of the overview's own controls."""
    named = opened.page.get_by_text(label, exact=True)
    field = opened.page.locator(".heads-settings label.field").filter(has=named)
    field.locator("select").select_option(value)


def focused(opened: Opened) -> str:
    text: str = opened.page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''")
    return text


def spoken(opened: Opened) -> str:
    text: str = opened.page.locator(".overview .count").inner_text()
    return text


# Layout


def test_few_heads_are_large_cards_that_fill_the_screen(open_page: Open) -> None:
    opened = open_page([capture("cable", layers=3)], width=1400, height=900)
    opened.settle()
    assert opened.page.locator(".grid").get_attribute("data-layout") == "cards"
    boxes = [card.bounding_box() for card in opened.page.locator(".card").all()]
    assert len(boxes) == 12
    assert max(box["y"] + box["height"] for box in boxes) <= 900
    assert sum(box["width"] * box["height"] for box in boxes) > 0.5 * 1400 * 900
    assert opened.page.evaluate("document.documentElement.scrollHeight") <= 900
    # Layers stand side by side, each under its own title.
    layers = [row.bounding_box() for row in opened.page.locator(".grid .row").all()]
    assert all(a["x"] + a["width"] < b["x"] for a, b in pairwise(layers))
    assert max(box["x"] + box["width"] for box in layers) <= 1400
    titles = [each.inner_text() for each in opened.page.locator(".grid .row h3").all()]
    assert titles == ["Layer 1", "Layer 2", "Layer 3"]


def test_a_phone_shows_twelve_heads_as_large_as_it_can(open_page: Open) -> None:
    opened = open_page([random_capture(1, 12, 64).pack()], width=390, height=844)
    opened.settle()
    boxes = [card.bounding_box() for card in opened.page.locator(".card").all()]
    assert len(boxes) == 12
    assert min(box["width"] for box in boxes) >= 90
    assert max(box["y"] + box["height"] for box in boxes) <= 844
    drawn = opened.pixels(".grid .picture")
    assert (drawn[..., 3] > 0).mean() > 0.4


def test_a_long_number_widens_no_card(open_page: Open) -> None:
    opened = overview(open_page)
    opened.page.locator(".card .value").first.evaluate("e => { e.textContent = '9'.repeat(90); }")
    widths = {round(card.bounding_box()["width"]) for card in opened.page.locator(".card").all()}
    assert len(widths) == 1


def test_cards_leave_no_half_of_the_screen_empty(open_page: Open) -> None:
    """Where few cards are limited by the height, the head pointed at is drawn large beside them."""
    packs = [capture("cable"), capture("alibi")]
    state = {"compare": "side", "other": "p1", "overview": {"view": "maps"}}
    opened = open_page(packs, state, width=1280, height=720)
    opened.settle()
    card = opened.page.locator('.card[data-layer="1"][data-head="2"]')
    card.hover()
    opened.page.wait_for_timeout(100)
    preview = opened.page.locator(".preview").bounding_box()
    cards = [each.bounding_box() for each in opened.page.locator(".card").all()]
    right = max(box["x"] + box["width"] for box in cards)
    assert preview["x"] >= right
    assert preview["x"] + preview["width"] <= 1280
    assert preview["y"] + preview["height"] <= 720
    assert preview["width"] > 0.6 * (1268 - right)
    assert np.array_equal(
        opened.pixels(".preview"), opened.pixels(".card[data-layer='1'][data-head='2'] canvas")
    )


def test_a_phone_shows_heads_before_the_settings(open_page: Open) -> None:
    opened = open_page([capture("cable", layers=3)], width=390, height=844)
    opened.settle()
    assert opened.page.locator(".card").first.bounding_box()["y"] < 0.45 * 844
    labels = ("Show", "Measure", "Order", "Scale", "Poster", "Filter")
    settings = opened.page.locator(".heads-settings")
    for label in labels:
        assert settings.get_by_text(label).first.is_hidden()
    opened.page.locator("summary", has_text="Settings").click()
    for label in labels:
        assert settings.get_by_text(label).first.is_visible()
    choose(opened, "Show", "measure")
    opened.settle()
    assert opened.page.locator(".body").get_attribute("data-view") == "measure"


# Colours


def test_limits_of_each_head_are_offered_where_they_differ(open_page: Open) -> None:
    opened = overview(open_page)
    limits = opened.page.locator(".heads-settings label.field", has_text="Limits")
    assert limits.is_hidden()  # weights have the same in all heads
    choose(opened, "Scale", "linear")
    opened.settle()
    assert limits.is_visible()
    choose(opened, "Scale", "auto")
    press(opened, "2")
    opened.settle()
    assert limits.is_visible()


def test_colours_are_those_of_the_figures(open_page: Open) -> None:
    ranges = [(-1.0, 9.0), (-0.5, 3.0)]
    for several in (ranges, [(-2.0, 8.0), (-3.0, 3.0)], [(-2.0, 8.0), (-1.0, 9.0)]):
        pack = of_biases(*several)
        opened = open_page([pack], {"quantity": "bias", "pooling": "mean"})
        opened.settle()
        expected = scales(several)
        for head, scale in enumerate(expected):
            pixels = opened.pixels(f'.card[data-head="{head}"] canvas')
            every = slice(0, pack.length)
            values = pack.layer(0).tile("bias", [head], every, every)[0]
            assert pixels.shape[:2] == values.shape
            seen = np.isfinite(values)
            wanted = 255 * scale.colormap(scale.norm(values[seen]))[:, :3]
            assert np.abs(pixels[seen][:, :3] - wanted).max() <= 4


def test_one_legend_with_unit_and_shared_limits(open_page: Open) -> None:
    opened = overview(open_page)
    legend = opened.page.locator(".overview .legend")
    assert "Attention weight (share of a query's attention)" in legend.inner_text()
    assert legend.locator(".limits span").all_inner_texts() == ["0.0001", "0.01", "1"]
    press(opened, "2")
    opened.settle()
    assert legend.locator(".limits span").first.inner_text() == "least of the head"
    choose(opened, "Limits", "shared")
    opened.settle()
    opened.page.wait_for_timeout(200)
    biases = [definition("cable", *place)["bias"] for place in PLACES]
    least, _, greatest = legend.locator(".limits span").all_inner_texts()
    assert float(least.replace("−", "-")) == pytest.approx(np.nanmin(biases), rel=5e-3)
    assert float(greatest.replace("−", "-")) == pytest.approx(np.nanmax(biases), abs=5e-3)
    seen = set()
    for scale in ("linear", "symlog"):
        choose(opened, "Scale", scale)
        opened.page.wait_for_timeout(200)
        seen.add(opened.pixels(".card canvas").tobytes())
    assert len(seen) == 2


# Measures


def test_the_chosen_measure_is_explained_and_named_on_cards(open_page: Open) -> None:
    pack = with_measures(capture("cable"))
    opened = open_page([pack])
    opened.settle()
    for name in ("position_share", "sink_score", "previous token"):
        choose(opened, "Measure", name)
        opened.page.wait_for_function(
            "() => ![...document.querySelectorAll('.card .value')].some(e => e.innerText === '…')"
        )
        of_python = {each["name"]: each for each in pack.header["measures"]}.get(name)
        # The page is drawn a frame after the choice.
        start = of_python["label"] if of_python else "Weight on the previous token"
        shown = opened.page.locator(".overview .meaning", has_text=f"{start}: ")
        meaning = shown.inner_text(timeout=10_000)
        if of_python:
            assert meaning == f"{start}: {of_python['text']}"
        assert len(meaning) > 40
        card = opened.page.locator(".card").nth(1)
        said = card.locator(".measure").inner_text(), card.locator(".value").inner_text()
        assert said[0] == (of_python["label"].split(" (")[0] if of_python else name)
        assert " ".join(said) in card.get_attribute("aria-label")
    # A long name is cut, its number is not.
    cut = opened.page.locator(".card .measure").first
    cut.evaluate("e => { e.textContent = 'long '.repeat(30); }")
    value = opened.page.locator(".card .value").first
    assert value.evaluate("e => e.scrollWidth <= e.clientWidth")
    # Measures that need no theory come first.
    options = opened.page.locator("label.field", has_text="Measure").locator("option")
    assert options.all_inner_texts()[:3] == [
        "Weight on the previous token",
        "Weight on the first token",
        "sink",
    ]


def test_a_measure_is_a_heat_map_of_layers_and_heads(open_page: Open) -> None:
    opened = overview(open_page, view="measure", measure="mean distance")
    light = []
    for card in opened.page.locator(".card").all():
        pixel = card.locator("canvas").evaluate(
            "c => [...c.getContext('2d').getImageData(0, 0, 1, 1).data]"
        )
        light.append(sum(pixel[:3]))
    values = numbers(opened)
    assert list(np.argsort(values)) == list(np.argsort(light))
    legend = opened.page.locator(".legend").inner_text()
    assert legend.startswith("Mean distance attended to (tokens)")
    tops = [card.bounding_box()["y"] for card in opened.page.locator(".card").all()]
    assert len(set(tops[:HEADS])) == 1
    assert tops[0] < tops[HEADS]


@pytest.mark.parametrize(("layers", "heads", "written"), [(30, 9, True), (24, 32, False)])
def test_numbers_of_a_heat_map_stay_in_their_cells(
    layers: int, heads: int, written: bool, open_page: Open
) -> None:
    """Where the cells are too small for digits that can be read, none are written."""
    state = {"overview": {"view": "measure", "measure": "previous token"}}
    opened = open_page([random_capture(layers, heads, 64).pack()], state, width=1280, height=720)
    opened.settle()
    sizes = opened.page.evaluate(
        """() => [...document.querySelectorAll(".card .value")].map((value) => {
            const range = document.createRange();
            range.selectNodeContents(value);
            return [range.getBoundingClientRect().width, value.parentElement.clientWidth];
        })"""
    )
    assert len(sizes) == layers * heads
    assert all(text <= cell for text, cell in sizes)
    assert (min(text for text, _ in sizes) > 0) == written


def test_a_scatter_of_two_measures_names_and_opens_heads(open_page: Open) -> None:
    opened = overview(open_page, measure="mean distance")
    distances = dict(zip(PLACES, numbers(opened), strict=True))
    choose(opened, "Show", "scatter")
    choose(opened, "against", "same token")
    opened.page.wait_for_function("() => document.querySelectorAll('.point').length === 8")
    points = {
        (int(each.get_attribute("data-layer")), int(each.get_attribute("data-head"))): each
        for each in opened.page.locator(".point").all()
    }
    across = sorted(points, key=lambda at: float(points[at].get_attribute("cx")))
    assert across == sorted(distances, key=lambda at: distances[at])
    down = sorted(points, key=lambda at: -float(points[at].get_attribute("cy")))
    same = {at: np.diagonal(definition("cable", *at)["weights"]).mean() for at in PLACES}
    assert down == sorted(same, key=lambda at: same[at])
    # The heads farthest from the others carry their names, inside the picture.
    named = opened.page.locator(".scatter .label")
    assert 1 <= named.count() <= 5
    known = {f"layer {layer + 1}, head {head + 1}" for layer, head in PLACES}
    assert set(named.all_text_contents()) <= known
    box = opened.page.locator(".scatter svg").bounding_box()
    for each in named.all():
        text = each.bounding_box()
        assert box["x"] <= text["x"] <= box["x"] + box["width"] - text["width"]
    points[across[3]].hover()
    layer, head = across[3]
    tip = opened.page.locator(".scatter .named")
    assert tip.is_visible()
    assert tip.inner_text().startswith(f"Layer {layer + 1}, head {head + 1}: ")
    key = opened.page.locator(".scatter .key")
    assert key.inner_text().split() == ["layer", "1", "2"]
    gradient = key.locator(".bar").evaluate("e => getComputedStyle(e).backgroundImage")
    first, last = (points[at].get_attribute("fill") for at in ((0, 0), (1, 0)))
    assert [each.replace(",", "") for each in re.findall(r"rgb\([^)]+\)", gradient)][::4] == [
        first,
        last,
    ]
    points[across[3]].click()
    opened.settle()
    state = opened.state()
    assert (state.get("layer", 0), state.get("head", 0)) == (layer, head)
    assert state["screen"] == "head"


def test_measures_say_that_the_dial_does_not_change_them(open_page: Open) -> None:
    for scale, said in ((0, True), (1, False)):
        position = {"scale": scale, "only": None}
        opened = open_page([capture("cable")], {"position": position})
        opened.settle()
        choose(opened, "Show", "ranking")
        title = opened.page.locator(".ranking p").inner_text()
        assert ("(with position × 1), greatest size first" in title) == said


def test_comparing_ranks_heads_by_their_difference(open_page: Open) -> None:
    opened = overview(open_page, [capture("cable"), capture("alibi")])
    pick(opened, "Compare with", "p1")
    choose(opened, "Show", "ranking")
    opened.page.wait_for_function("() => document.querySelectorAll('.ranking li').length === 8")
    assert opened.state().get("screen", "overview") == "overview"
    apart = {
        at: np.nanmean(
            np.abs(definition("cable", *at)["weights"] - definition("alibi", *at)["weights"])
        )
        for at in PLACES
    }
    rows = opened.page.locator(".ranking li")
    shown = [float(text) for text in rows.locator(".value").all_inner_texts()]
    assert shown == pytest.approx(sorted(apart.values(), reverse=True), rel=6e-3)
    layer, head = max(apart, key=lambda at: apart[at])
    assert rows.first.locator(".name").inner_text() == f"layer {layer + 1}, head {head + 1}"
    # The maps are differences, symmetric about 0 and not flat.
    choose(opened, "Show", "maps")
    opened.settle()
    assert "minus alibi" in spoken(opened)
    assert opened.page.locator(".legend .limits span").nth(1).inner_text() == "0"
    assert "; symlog)" in opened.page.locator(".legend").inner_text()
    pixels = opened.pixels(".card canvas").reshape(-1, 4)
    assert len(np.unique(pixels[pixels[:, 3] > 0], axis=0)) > 100
    # What a measure changes by is the difference of the two.
    choose(opened, "Measure", "change of mean distance")
    opened.page.wait_for_function(
        "() => !document.querySelector('.overview').innerText.includes('…')"
    )
    change = numbers(opened)[0]
    at = np.arange(LENGTH)
    mean = [
        (np.nan_to_num(definition(name, 0, 0)["weights"]) * (at[:, None] - at)).sum() / LENGTH
        for name in ("cable", "alibi")
    ]
    assert change == pytest.approx(mean[0] - mean[1], rel=0.01)
    choose(opened, "Show", "ranking")
    opened.page.locator(".ranking button").nth(2).click()
    opened.settle()
    assert opened.state()["screen"] == "head"


def test_few_heads_are_compared_as_maps_with_the_largest_difference_first(open_page: Open) -> None:
    opened = overview(open_page, [capture("cable"), capture("alibi")])
    pick(opened, "Compare with", "p1")
    opened.settle()
    opened.page.wait_for_function(
        "() => ![...document.querySelectorAll('.card .value')].some(e => e.innerText === '…')"
    )
    opened.page.wait_for_timeout(100)
    assert opened.page.locator(".body").get_attribute("data-view") == "maps"
    differences = numbers(opened)
    assert len(differences) == 8
    assert differences == sorted(differences, reverse=True)
    # By layer and head is one choice away.
    pick(opened, "Order", "model")
    opened.page.wait_for_timeout(200)
    assert names(opened)[0] == "layer 1, head 1"
    assert names(opened) == [f"layer {n + 1}, head {h + 1}" for n in range(2) for h in range(HEADS)]


def test_many_heads_are_ranked_in_the_height_there_is(open_page: Open) -> None:
    packs = [random_capture(12, 12, 64).pack(), random_capture(12, 12, 64).pack()]
    state = {"compare": "side", "other": "p1"}
    opened = open_page(packs, state, width=1400, height=1200)
    opened.page.wait_for_function("() => document.querySelectorAll('.ranking li').length > 60")
    opened.page.wait_for_function(
        """() => {
            const bars = [...document.querySelectorAll(".ranking li")];
            const end = Math.max(...bars.map((bar) => bar.getBoundingClientRect().bottom));
            return bars.length > 60 && end > 0.8 * innerHeight && end <= innerHeight;
        }"""
    )


# Keyboard


def test_two_keys_reach_the_heads_and_arrows_walk_through_them(open_page: Open) -> None:
    opened = overview(open_page)
    press(opened, "Tab", "Enter")
    assert focused(opened).startswith("layer 1, head 1 ")
    press(opened, "ArrowRight")
    assert focused(opened).startswith("layer 1, head 2 ")
    press(opened, "ArrowDown")
    assert focused(opened).startswith("layer 2, head 2 ")
    press(opened, "ArrowUp", "ArrowLeft", "End")
    assert focused(opened).startswith(f"layer 2, head {HEADS} ")
    press(opened, "Home", "ArrowRight", "Enter")
    opened.settle()
    assert (opened.state()["screen"], opened.state()["head"]) == ("head", 1)
    press(opened, "o")
    opened.settle()
    press(opened, "v")
    assert focused(opened).startswith("layer 1, head 2 ")
    # One stop for Tab, however many heads there are.
    press(opened, "Tab")
    assert not focused(opened).startswith("layer")


# Poster


@pytest.mark.parametrize("paper", ["light", "dark"])
def test_a_poster_of_every_head(paper: str, open_page: Open) -> None:
    saved = []
    for width in (1280, 700):
        opened = open_page([capture("cable")], width=width)
        opened.settle()
        opened.page.locator(".poster select").select_option(paper)
        with opened.page.expect_download() as waiting:
            opened.page.locator(".poster").get_by_role("button", name="PNG").click()
        assert waiting.value.suggested_filename == f"headscape-heads-weights-{paper}.png"
        saved.append(Path(waiting.value.path()).read_bytes())
    pixels = [np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in saved]
    assert np.array_equal(*pixels)
    assert (pixels[0][0, 0].mean() > 128) == (paper == "light")
    with opened.page.expect_download() as waiting:
        opened.page.locator(".poster").get_by_role("button", name="SVG").click()
    svg = Path(waiting.value.path()).read_text()
    assert "cable: every head" in svg
    assert "Attention weight (share of a query's attention)" in svg
    assert svg.count("<image") == 2  # all heads, and the legend


def test_a_poster_of_many_layers_is_no_tower(open_page: Open) -> None:
    """30 layers of 9 heads go on in blocks side by side, every head once and in order."""
    opened = open_page([random_capture(30, 9, 100).pack()], precision="float16")
    opened.settle()
    opened.page.wait_for_selector(".poster button:enabled")
    with opened.page.expect_download() as waiting:
        opened.page.locator(".poster").get_by_role("button", name="SVG").click()
    svg = ET.fromstring(Path(waiting.value.path()).read_text())  # noqa: S314
    width, height = (float(svg.attrib[side]) for side in ("width", "height"))
    assert 0.9 < width / height < 1.9
    texts = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    del texts[texts.index("Attention weight (share of a query's attention)") :]
    blocks = texts.count("head")
    assert blocks >= 2
    for number in range(10, 31):
        assert texts.count(str(number)) == 1
    for number in range(1, 10):  # layer and, in each block, head
        assert texts.count(str(number)) == 1 + blocks
    image = next(svg.iter("{http://www.w3.org/2000/svg}image"))
    assert width * height < 3 * float(image.attrib["width"]) * float(image.attrib["height"])
    # The first head of layer 16 is the first of the second block.
    data = base64.b64decode(image.attrib["href"].partition(",")[2])
    sheet = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    column = 2 * (9 * 52 + 30)  # two pixels a unit, and two a cell
    card = opened.pixels(".card[data-layer='15'][data-head='0'] canvas")
    assert card.shape[:2] == (50, 50)
    seen = card[..., 3] > 0
    drawn = sheet[0:100:2, column : column + 100 : 2]
    assert np.array_equal(drawn[seen], card[seen][:, :3])


# Looks


def test_labels_of_settings_are_of_one_size(open_page: Open) -> None:
    opened = overview(open_page)
    sizes = opened.page.evaluate(
        """() => [...document.querySelectorAll(".heads-settings span")]
            .map((each) => getComputedStyle(each).fontSize + getComputedStyle(each).color)"""
    )
    assert len(sizes) > 5
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", ["measure", "scatter", "ranking"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_view_fits_and_axe_finds_nothing(
    view: str, dark: bool, width: int, open_page: Open
) -> None:
    state = {"overview": {"view": view}, "compare": "side", "other": "p1"}
    opened = open_page([capture("cable"), capture("alibi")], state, dark=dark, width=width)
    opened.page.wait_for_function(
        "() => document.querySelector('.headscape').dataset.pending === '0'"
    )
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(opened.page) == []
    if view == "measure":
        assert len(names(opened)) == 8
