"""The viewer's pictures: screenshots of a page in Chromium, and a film of its use.

    headscape view hf:smollm2 --text story.txt --html smollm2.html
    python -m docs.site.film smollm2.html docs/images
    python -m docs.site.film atlas/atlas.html docs/images --one viewer-atlas
    python -m docs.site.film smollm2.html docs/images --one viewer-phone --phone

Needs playwright, jupyterlab and Debian's chromium. A picture is one state of the viewer, which its
address holds. The film is what a pointer does that moves over the page, clicks and drags.
"""

import argparse
import functools
import io
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Locator, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT, SHOWN = 1280, 800, 880
COLOURS = 128
HEAD = {"layer": 16, "head": 0}
"""SmolLM2's clearest previous-token head, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One picture: a state of the viewer."""

    name: str
    state: dict[str, Any]
    wait: float = 1.5


def head(**state: Any) -> dict[str, Any]:
    """A state that shows the head."""
    return {"screen": "head", **HEAD, **state}


PAIR = {"query": 31, "key": 30}
READING = {"side": "to", "marks": "shading", "heads": [], "beside": True, "token": 12}
SHOTS = (
    Shot(name="viewer-overview", state={}, wait=12),
    Shot(name="viewer-overview-dark", state={"theme": "dark"}, wait=12),
    Shot(name="viewer-head", state=head(locked=PAIR)),
    Shot(name="viewer-dark", state=head(locked=PAIR, theme="dark")),
    Shot(name="viewer-equation", state=head(four=True, locked=PAIR), wait=4),
    Shot(name="viewer-reading", state={"screen": "reading", **HEAD, "reading": READING}),
    Shot(
        name="viewer-reading-dark",
        state={"screen": "reading", **HEAD, "reading": READING, "theme": "dark"},
    ),
)


def opened(page: Page, address: str, shot: Shot) -> None:
    """Show one state."""
    page.goto(f"{address}#{quote(json.dumps(shot.state))}")
    page.wait_for_timeout(1000 * shot.wait)
    if page.get_by_role("button", name="Got it").is_visible():
        page.get_by_role("button", name="Got it").click()
        page.wait_for_timeout(500)


def picture(page: Page) -> Image.Image:
    """Return what the window shows."""
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def keep(shown: Image.Image, path: Path) -> None:
    """Write a picture at three quarters of its size, in few colours."""
    small = shown.resize((shown.width * 3 // 4, shown.height * 3 // 4), Image.Resampling.LANCZOS)
    small.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


@dataclass
class Film:
    """A pointer that uses the viewer, frame by frame."""

    page: Page
    caption: str = ""
    pointer: tuple[float, float] = (640, 500)
    frames: list[Image.Image] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def hold(self, seconds: float) -> None:
        """Add a frame of what is seen now."""
        small = picture(self.page).resize(
            (SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS
        )
        frame = Image.new("RGB", (SHOWN, small.height + 34), "white")
        frame.paste(small)
        pen = ImageDraw.Draw(frame)
        pen.text((14, small.height + 7), self.caption, fill="black", font_size=18)
        x, y = (SHOWN / WIDTH * at for at in self.pointer)
        arrow = [(0, 0), (0, 15), (4, 12), (7, 18), (9, 17), (6, 11), (11, 11)]
        pen.polygon([(x + dx, y + dy) for dx, dy in arrow], fill="white", outline="black")
        self.frames.append(frame)
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

    def click(self, part: Locator, stay: float = 1.0) -> None:
        """Move to an element and click it."""
        self.to(part, stay=0.3)
        self.page.mouse.click(*self.pointer)
        self.page.wait_for_timeout(1500)
        self.hold(stay)

    def save(self, path: Path) -> None:
        """Write an animated GIF of few colours."""
        # One palette for all, so that what stays the same is stored once.
        sheet = Image.new("RGB", (SHOWN // 4 * 8, self.frames[0].height // 4 * 16))
        for n, frame in enumerate(self.frames[:: len(self.frames) // 120 + 1]):
            sheet.paste(frame.reduce(4), (SHOWN // 4 * (n % 8), frame.height // 4 * (n // 8)))
        palette = sheet.quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
        few = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self.frames]
        durations = [int(1000 * one) for one in self.seconds]
        few[0].save(
            path, save_all=True, append_images=few[1:], duration=durations, loop=0, optimize=True
        )


def use(film: Film) -> None:
    """About a minute with SmolLM2, from all heads to the words of one."""
    page = film.page
    cards, stage, words = (page.locator(each) for each in (".card", ".stage", ".reading .text"))
    button = functools.partial(page.get_by_role, "button")
    film.caption = "Every head of SmolLM2-135M: 30 layers of 9"
    film.hold(3)
    for number in (4 * 9 + 3, 9 * 9 + 6, 13 * 9 + 2):
        film.to(cards.nth(number))
    film.caption = "This one looks at the token before"
    film.click(cards.nth(HEAD["layer"] * 9 + HEAD["head"]), stay=2)
    for share in (0.3, 0.5, 0.7):
        film.to(stage.first, share - 0.01, share, stay=1.4)
    page.mouse.click(*film.pointer)
    film.caption = "Content + position = score, softmax, weight"
    film.click(page.get_by_label("Equation: all four"), stay=4)
    film.click(page.get_by_label("Equation: all four"))
    film.caption = "Turn position down, and weights follow"
    dial = page.get_by_label("Position: factor of the positional part")
    film.to(dial, 0.5)
    page.mouse.down()
    for share in (0.4, 0.3, 0.2, 0.1, 0.0):
        film.to(dial, share, stay=0.8)
    page.mouse.up()
    film.caption = "Without position nothing is left of it"
    film.hold(2.5)
    film.click(button(name="× 1: position as the model has it"))
    film.caption = "The text as this head reads it; on the right without position"
    film.click(button(name="Text", exact=True), stay=2)
    for token in (5, 12, 20, 31, 44, 58):
        film.to(words.first.locator(f"[data-token='{token}']"), stay=1.6)
    film.caption = "The same as arcs"
    page.locator("label.field", has_text="Marks").locator("select").select_option("arcs")
    for token in (44, 31, 20):
        film.to(words.first.locator(f"[data-token='{token}']"), stay=1.6)
    film.caption = "In the dark"
    film.click(button(name="Theme"), stay=1)
    film.click(button(name="Theme"), stay=3)


def notebook(browser: Browser, out: Path) -> None:
    """Take the picture of the widget in a live JupyterLab, started as the browser tests do."""
    sys.path.insert(0, "tests")
    from browser.test_jupyterlab import SHOW, Lab, Notebook

    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder)) as lab:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        shown = Notebook(lab, page)
        shown.run(SHOW)
        shown.settle("overview", ".card")
        page.wait_for_timeout(1500)
        keep(picture(page), out / "viewer-notebook.png")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--one", help="take one picture of the page as it opens, with this name")
    parser.add_argument("--phone", action="store_true", help="in a window of 390 x 844")
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    size = {"width": 390, "height": 844} if options.phone else {"width": WIDTH, "height": HEIGHT}
    address = options.page.absolute().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=size, color_scheme="dark" if options.dark else "light")
        one = (Shot(name=options.one, state={}, wait=20),)
        for shot in one if options.one else SHOTS:
            opened(page, address, shot)
            keep(picture(page), options.out / f"{shot.name}.png")
        if not options.one:
            notebook(browser, options.out)
            opened(page, address, SHOTS[0])
            film = Film(page)
            use(film)
            film.save(options.out / "viewer.gif")
            print(f"{sum(film.seconds):.0f} s, {len(film.frames)} frames")
        browser.close()


if __name__ == "__main__":
    main()
