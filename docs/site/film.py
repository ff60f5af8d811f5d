"""The viewer's pictures: screenshots in Chromium, and a film of its use.

    python -m docs.site.film docs/images                       all of them
    python -m docs.site.film docs/images --only viewer-144 viewer.gif
    python -m docs.site.film docs/images --atlas smollm2/atlas.html --only atlas-smollm2

The command captures what it shows: SmolLM2 (`headscape fetch smollm2`), GPT-2 Small and nano models
as initialised, and random heads. Needs playwright, jupyterlab and Debian's chromium. A picture is
one state of the viewer, which its address holds. The film is what a pointer does that moves over
the page, clicks and drags.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import torch
from PIL import Image, ImageDraw

import headscape as hs
from docs.site.pictures import MOST_BYTES, palette, png, with_palette

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT, SHOWN = 1280, 800, 880
PHONE = (390, 844)
MOST_FILM = 3_000_000
STORY = (
    "The old lighthouse keeper said that the storm would pass before morning. His daughter did not "
    "believe him, because the barometer that hung beside the door had fallen all day. She carried "
    "the lamp up the stairs, and when the wind shook the glass she thought of the ships that were "
    "still at sea. At dawn the sea was calm. The keeper said nothing, but his daughter smiled, "
    "because she knew that the old man had been right.\n"
)
HEAD = {"layer": 16, "head": 0}
"""SmolLM2's clearest previous-token head, counted from 0."""


def smollm2(out: Path) -> None:
    """SmolLM2 reads a story: 270 heads."""
    hs.load("hf:smollm2").capture(STORY, layers="all").view(html=out)


def untrained(preset: str, encoding: str, layers: Any) -> hs.Capture:
    """A capture of a model as initialised."""
    torch.manual_seed(0)
    gpt2 = hs.GPT2.from_preset(preset, encoding=encoding)
    return hs.load(gpt2, tokenizer="gpt2").capture(STORY, layers=layers)


def twelve(out: Path) -> None:
    """One layer of a nano model."""
    untrained("nano", "cable", -1).view(html=out)


def small(out: Path) -> None:
    """GPT-2 Small with RoPE: 144 heads."""
    untrained("small", "rope", "all").view(html=out)


def thousand(out: Path) -> None:
    """1,024 heads of random queries and keys."""
    from benchmarks.viewer import random_capture

    random_capture(32, 32, 256).view(html=out)


def pair(out: Path) -> None:
    """Two encodings on one text."""
    hs.view(untrained("nano", "cable", "all"), untrained("nano", "alibi", "all"), html=out)


def atlas(out: Path) -> None:
    """A quick atlas of SmolLM2."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    hs.atlas("hf:smollm2", out.parent / "atlas", text, length=128, sequences=6).rename(out)


PAGES: dict[str, Callable[[Path], None]] = {
    "smollm2": smollm2, "twelve": twelve, "small": small, "thousand": thousand, "pair": pair,
    "atlas": atlas,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One picture: a page in a state."""

    name: str
    page: str = "smollm2"
    state: dict[str, Any] = field(default_factory=dict)
    size: tuple[int, int] = (WIDTH, HEIGHT)
    over: str = ""
    """What the pointer is over, as a CSS selector."""


def head(**state: Any) -> dict[str, Any]:
    """A state that shows the head."""
    return {"screen": "head", **HEAD, **state}


PAIR = {"query": 31, "key": 30}
READING = {"side": "to", "marks": "shading", "heads": [], "beside": True, "token": 12}
TEXT = {"screen": "reading", **HEAD, "reading": READING}
SHOTS = (
    Shot(name="viewer-overview"),
    Shot(name="viewer-overview-dark", state={"theme": "dark"}),
    Shot(name="viewer-phone", size=PHONE),
    Shot(name="viewer-head", state=head(locked=PAIR)),
    Shot(name="viewer-dark", state=head(locked=PAIR, theme="dark")),
    Shot(name="viewer-equation", state=head(four=True, locked=PAIR), size=(WIDTH, 1150)),
    Shot(name="viewer-reading", state=TEXT),
    Shot(name="viewer-reading-dark", state=TEXT | {"theme": "dark"}),
    Shot(name="viewer-12", page="twelve"),
    Shot(name="viewer-144", page="small"),
    Shot(name="viewer-1024", page="thousand", over=".card >> nth=530"),
    Shot(
        name="viewer-compare",
        page="pair",
        state={"screen": "head", "layer": 1, "head": 3, "quantity": "bias", "other": "p1"}
        | {"compare": "triangles"},
    ),
    Shot(name="viewer-atlas", page="atlas", size=(1400, HEIGHT)),
)
OTHERS = ("viewer-notebook", "viewer.gif")
"""What is no single state of a page."""
SETTLED = """() => {
  const root = document.querySelector(".headscape");
  if (!root || !root.dataset.screen) return !!document.querySelector(".card");
  const parts = [...root.querySelectorAll(
    { head: ".panel", reading: ".reading", overview: ".card" }[root.dataset.screen])];
  return root.dataset.pending === "0" && parts.every((each) => each.dataset.complete === "true");
}"""


class Studio:
    """A browser, and the pages that were written so far."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder = browser, folder

    def address(self, name: str) -> str:
        """The address of one of PAGES, written when it is first asked for."""
        path = self.folder / f"{name}.html"
        if not path.is_file():
            print(f"writing {name}", flush=True)
            PAGES[name](path)
        return path.as_uri()

    @contextmanager
    def window(self, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Iterator[Page]:
        """An empty window."""
        page = self.browser.new_page(viewport={"width": size[0], "height": size[1]})
        yield page
        page.close()

    def show(self, page: Page, name: str, state: dict[str, Any]) -> None:
        """Open a page in a state and wait for all of it."""
        page.goto("about:blank")
        page.goto(f"{self.address(name)}#{quote(json.dumps(state))}")
        page.wait_for_function(SETTLED, timeout=180_000)
        if page.get_by_role("button", name="Got it").is_visible():
            page.get_by_role("button", name="Got it").click()
        page.wait_for_timeout(1500)

    def shoot(self, shot: Shot) -> Image.Image:
        """Take a picture."""
        with self.window(shot.size) as page:
            self.show(page, shot.page, shot.state)
            if shot.over:
                page.locator(shot.over).hover()
                page.wait_for_timeout(1000)
            return picture(page)

    def ranked(self, address: str) -> Image.Image:
        """Return the part of an atlas that shows the heads at both ends."""
        with self.window((1400, HEIGHT)) as page:
            page.goto(address)
            page.wait_for_function(SETTLED)
            # The ten of either end stand in one row.
            page.locator("#most, #least").evaluate_all(
                "each => each.forEach((row) => (row.style.gridTemplateColumns = 'repeat(10, 1fr)'))"
            )
            page.wait_for_timeout(1500)
            title = page.locator("h2", has_text="matters most").bounding_box()
            last = page.locator("#least").bounding_box()
            assert title is not None
            assert last is not None
            height = last["y"] + last["height"] - title["y"] + 16
            clip = {"x": 0, "y": title["y"] - 8, "width": 1400, "height": height}
            return opened(page.screenshot(full_page=True, clip=clip))  # type: ignore[arg-type]


def opened(png: bytes) -> Image.Image:
    """Return a PNG without its opacity."""
    return Image.open(io.BytesIO(png)).convert("RGB")


def picture(page: Page) -> Image.Image:
    """Return what the window shows."""
    return opened(page.screenshot())


def encoded(shown: Image.Image, most: int = MOST_BYTES) -> bytes:
    """Return a picture at three quarters of its size as a PNG of at most so many bytes.

    It keeps all colours if they fit, and otherwise has 256 or fewer.
    """
    size = shown.width * 3 // 4, shown.height * 3 // 4
    return png(shown.resize(size, Image.Resampling.LANCZOS), most)


@dataclass
class Film:
    """A pointer that uses the viewer, frame by frame."""

    page: Page
    caption: str = ""
    pointer: tuple[float, float] = (640, 500)
    scenes: list[list[Image.Image]] = field(default_factory=list)
    """Frames in groups, each of which has a palette of its own."""
    seconds: list[float] = field(default_factory=list)

    def scene(self, caption: str = "") -> None:
        """Begin a group of frames."""
        self.scenes.append([])
        self.caption = caption

    def hold(self, seconds: float, shown: Image.Image | None = None) -> None:
        """Add a frame of what is seen now, or of a picture."""
        size = (SHOWN, SHOWN * HEIGHT // WIDTH)
        small = (shown or picture(self.page)).resize(size, Image.Resampling.LANCZOS)
        frame = Image.new("RGB", (SHOWN, small.height + 34), "white")
        frame.paste(small)
        pen = ImageDraw.Draw(frame)
        pen.text((14, small.height + 7), self.caption, fill="black", font_size=18)
        if shown is None:
            x, y = (SHOWN / WIDTH * at for at in self.pointer)
            arrow = [(0, 0), (0, 15), (4, 12), (7, 18), (9, 17), (6, 11), (11, 11)]
            pen.polygon([(x + dx, y + dy) for dx, dy in arrow], fill="white", outline="black")
        self.scenes[-1].append(frame)
        self.seconds.append(seconds)

    def move(self, x: float, y: float, steps: int = 4, stay: float = 1.0) -> None:
        """Move the pointer to a place of the window, and stay there."""
        x0, y0 = self.pointer
        for step in range(1, steps + 1):
            part = step / steps
            self.pointer = (x0 + part * (x - x0), y0 + part * (y - y0))
            self.page.mouse.move(*self.pointer)
            self.page.wait_for_timeout(250)
            if step < steps:
                self.hold(0.1)
        self.hold(stay)

    def to(self, part: Locator, x: float = 0.5, y: float = 0.5, stay: float = 1.0) -> None:
        """Move the pointer to a share of an element's width and height."""
        part.scroll_into_view_if_needed()
        box = part.bounding_box()
        assert box is not None
        self.move(box["x"] + x * box["width"], box["y"] + y * box["height"], stay=stay)

    def click(self, part: Locator, caption: str | None = None, stay: float = 1.0) -> None:
        """Move to an element and click it; what then is seen begins a scene with a caption."""
        self.to(part, stay=0.3)
        self.page.mouse.click(*self.pointer)
        self.page.wait_for_timeout(1500)
        if caption is not None:
            self.scene(caption)
        self.hold(stay)

    def choose(self, field: Locator, option: str, caption: str, stay: float = 2.0) -> None:
        """Move to a list and choose an option; what then is seen begins a scene."""
        self.to(field, stay=0.3)
        field.select_option(option)
        self.page.wait_for_timeout(1500)
        self.scene(caption)
        self.hold(stay)

    def save(self, path: Path) -> None:
        """Write an animated GIF with as many colours a scene as fit into MOST_FILM bytes."""
        for colours in (255, 180, 120, 90):
            data = self.encoded(colours)
            if len(data) <= MOST_FILM:
                break
        path.write_bytes(data)

    def encoded(self, colours: int) -> bytes:
        """Return the GIF with so many colours in each scene."""
        few = [frame for scene in self.scenes for frame in reduced(scene, colours)]
        durations, file = [int(1000 * one) for one in self.seconds], io.BytesIO()
        few[0].save(
            file, format="GIF", save_all=True, append_images=few[1:], duration=durations, loop=0,
            disposal=1,
        )  # fmt: skip
        return file.getvalue()


def reduced(frames: list[Image.Image], colours: int) -> list[Image.Image]:
    """Return frames with one palette, so that what stays the same is stored once."""
    across, (width, height) = 4, frames[0].size if frames else (0, 0)
    chosen = frames[:: len(frames) // 16 + 1]
    # Pixels are left out, not mixed: a mean of two is a colour that no frame has.
    small = [frame.resize((width // 2, height // 2), Image.Resampling.NEAREST) for frame in chosen]
    sheet = Image.new("RGB", (across * (width // 2), -(-len(small) // across) * (height // 2)))
    for n, each in enumerate(small):
        sheet.paste(each, (n % across * (width // 2), n // across * (height // 2)))
    if not small:
        return []
    chosen = palette(sheet, colours)
    return [with_palette(frame, chosen) for frame in frames]


def use(film: Film, studio: Studio) -> None:
    """About a minute with SmolLM2, from all heads to the words of one, and with two encodings."""
    page = film.page
    cards, stage, words = (page.locator(each) for each in (".card", ".stage", ".reading .text"))
    button = functools.partial(page.get_by_role, "button", exact=True)
    studio.show(page, "smollm2", {})
    film.scene("Every head of SmolLM2-135M: 30 layers of 9")
    film.hold(2.5)
    for number in (4 * 9 + 3, 13 * 9 + 2):
        film.to(cards.nth(number))
    show = listed(page, "Show")
    film.choose(show, "measure", "One number a head: how much of its scores the distance explains")
    film.choose(show, "maps", "Every head on one sheet, as a poster", stay=0.5)
    with page.expect_download() as saved:
        film.click(page.locator(".poster").get_by_role("button", name="PNG"), stay=0.3)
    film.hold(3, fitted(Image.open(saved.value.path()).convert("RGB")))
    film.click(
        cards.nth(HEAD["layer"] * 9 + HEAD["head"]), "This one looks at the token before", stay=2
    )
    for share in (0.3, 0.6):
        film.to(stage.first, share - 0.01, share, stay=1.4)
    page.mouse.click(*film.pointer)
    four = page.get_by_label("Equation: all four")
    film.click(four, "Content + position = score, softmax, weight", stay=4)
    film.click(four, "Turn position down, and weights follow", stay=0.5)
    dial = page.get_by_label("Position: factor of the positional part")
    film.to(dial, 0.5)
    page.mouse.down()
    for share in (0.4, 0.3, 0.2, 0.1, 0.0):
        film.to(dial, share, stay=0.7)
    page.mouse.up()
    film.scene("Without position nothing is left of it")
    film.hold(2.5)
    film.click(button(name="× 1: position as the model has it"), "And on again", stay=1)
    film.click(
        button(name="Text"), "The text as this head reads it; on the right without position", stay=2
    )
    for token in (5, 12, 31, 58):
        film.to(words.first.locator(f"[data-token='{token}']"), stay=1.5)
    film.choose(listed(page, "Marks"), "arcs", "The same as arcs", stay=1)
    for token in (44, 31):
        film.to(words.first.locator(f"[data-token='{token}']"), stay=1.4)
    studio.show(page, "pair", SHOTS_BY_NAME["viewer-compare"].state)
    film.scene("Two encodings on one text: CABLE below the diagonal, ALiBi above")
    film.hold(2.5)
    for share in (0.3, 0.7):
        film.to(stage.first, 1 - share, share, stay=1.4)
    theme = page.get_by_role("button", name="Theme")
    film.click(theme, stay=0.1)
    film.click(theme, "In the dark", stay=3)


def listed(page: Page, label: str) -> Locator:
    """Return the list with this label."""
    named = page.locator("label.field").filter(has=page.get_by_text(label, exact=True))
    return named.filter(visible=True).locator("select")


def fitted(poster: Image.Image) -> Image.Image:
    """Return a picture in the middle of a window."""
    poster.thumbnail((WIDTH - 40, HEIGHT - 40), Image.Resampling.LANCZOS)
    window = Image.new("RGB", (WIDTH, HEIGHT), "#8a8f98")
    window.paste(poster, ((WIDTH - poster.width) // 2, (HEIGHT - poster.height) // 2))
    return window


def notebook(studio: Studio) -> Image.Image:
    """Return the widget in a live JupyterLab, started as the browser tests do."""
    sys.path.insert(0, "tests")
    from browser.test_jupyterlab import SHOW, Lab, Notebook

    (studio.folder / "lab").mkdir()
    with Lab(studio.folder / "lab") as lab, studio.window() as page:
        shown = Notebook(lab, page)
        shown.run(SHOW)
        shown.settle("overview", ".card")
        page.wait_for_timeout(1500)
        return picture(page)


SHOTS_BY_NAME = {shot.name: shot for shot in SHOTS}


def main() -> None:
    """Run from the command line."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=[*SHOTS_BY_NAME, *OTHERS], metavar="NAME")
    parser.add_argument("--atlas", type=Path, help="an atlas whose ranked heads are taken")
    options = parser.parse_args()
    out: Path = options.out
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        studio = Studio(browser, Path(folder))
        for name in options.only:
            print(name, flush=True)
            if name == "viewer.gif":
                with studio.window() as page:
                    film = Film(page)
                    use(film, studio)
                film.save(out / name)
                print(f"{sum(film.seconds):.0f} s, {len(film.seconds)} frames")
                continue
            if name == "viewer-notebook":
                shown = notebook(studio)
            elif name.startswith("atlas-"):
                shown = studio.ranked(options.atlas.absolute().as_uri())
            else:
                shown = studio.shoot(SHOTS_BY_NAME[name])
            (out / f"{name}.png").write_bytes(encoded(shown))
        browser.close()


if __name__ == "__main__":
    main()
