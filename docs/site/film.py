"""The viewer's pictures: screenshots of a page in Chromium, and a film of its use.

    headscape view hf:smollm2 --text story.txt --html smollm2.html
    python -m docs.site.film smollm2.html docs/images
    python -m docs.site.film atlas/atlas.html docs/images --one viewer-atlas
    python -m docs.site.film smollm2.html docs/images --one viewer-phone --phone

Needs playwright and Debian's chromium. Every picture is one state of the viewer, which its address
holds, and where the pointer is.
"""

import argparse
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image, ImageDraw
from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT, SHOWN = 1280, 800, 960
COLOURS = 48
HEAD = {"layer": 16, "head": 0}
"""SmolLM2's clearest previous-token head, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One frame: a state of the viewer, and where the pointer is."""

    state: dict[str, Any]
    caption: str
    seconds: float = 5.0
    hover: tuple[str, int] | None = None
    """Elements by selector, and the number of the one that the pointer is on."""
    name: str | None = None
    """Kept as a picture of its own under this name."""
    wait: float = 1.5


def head(**state: Any) -> dict[str, Any]:
    """A state that shows the head."""
    return {"screen": "head", **HEAD, **state}


def reading(**state: Any) -> dict[str, Any]:
    """A state that shows the text as the head reads it."""
    return {"screen": "reading", **HEAD, **state}


OFF = {"scale": 0, "only": None}
PAIR = {"query": 31, "key": 30}
READING = {"side": "to", "marks": "shading", "heads": [], "beside": True}
SHOTS = (
    Shot(state={}, caption="Every head of SmolLM2", name="viewer-overview", wait=12),
    Shot(state={"quantity": "bias"}, caption="What position adds in each", wait=6),
    Shot(state=head(locked=PAIR), caption="One head looks at the token before", name="viewer-head"),
    Shot(
        state=head(four=True, locked=PAIR),
        caption="Content + position = score, softmax, weight",
        name="viewer-equation",
        wait=4,
    ),
    Shot(
        state=head(locked=PAIR, position={"scale": 0.5, "only": None}),
        caption="Position turned down to a half",
    ),
    Shot(state=head(locked=PAIR, position=OFF), caption="Position turned off"),
    Shot(
        state=reading(reading={**READING, "token": 12}),
        caption="The text as this head reads it; on the right, without position",
        name="viewer-reading",
    ),
    Shot(state=reading(reading={**READING, "token": 31}), caption="Another word"),
    Shot(
        state=reading(reading={**READING, "token": 31, "marks": "arcs"}),
        caption="The same as arcs",
    ),
    Shot(state=head(locked=PAIR, theme="dark"), caption="In the dark", name="viewer-dark"),
)


def take(page: Page, address: str, shot: Shot) -> Image.Image:
    """Return the picture of one state."""
    page.goto(f"{address}#{quote(json.dumps(shot.state))}")
    page.wait_for_timeout(1000 * shot.wait)
    if page.get_by_role("button", name="Got it").is_visible():
        page.get_by_role("button", name="Got it").click()
        page.wait_for_timeout(500)
    if shot.hover:
        page.locator(shot.hover[0]).nth(shot.hover[1]).hover()
        page.wait_for_timeout(300)
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def keep(picture: Image.Image, path: Path) -> None:
    """Write a picture at three quarters of its size, in few colours."""
    small = picture.resize(
        (picture.width * 3 // 4, picture.height * 3 // 4), Image.Resampling.LANCZOS
    )
    small.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def captioned(picture: Image.Image, caption: str) -> Image.Image:
    """Return a frame of the film: the picture with a line of text below it."""
    small = picture.resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS)
    frame = Image.new("RGB", (SHOWN, small.height + 34), "white")
    frame.paste(small)
    ImageDraw.Draw(frame).text((14, small.height + 7), caption, fill="black", font_size=18)
    return frame


@dataclass
class Film:
    """Frames and how long each is shown."""

    frames: list[Image.Image] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write an animated GIF of few colours."""
        few = [frame.quantize(COLOURS, dither=Image.Dither.NONE) for frame in self.frames]
        durations = [int(1000 * one) for one in self.seconds]
        few[0].save(
            path, save_all=True, append_images=few[1:], duration=durations, loop=0, optimize=True
        )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--one", help="take one picture of the page as it opens, with this name")
    parser.add_argument("--phone", action="store_true", help="in a window of 390 x 844")
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    film = Film()
    size = {"width": 390, "height": 844} if options.phone else {"width": WIDTH, "height": HEIGHT}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=size, color_scheme="dark" if options.dark else "light")
        one = (Shot(state={}, caption="", name=options.one, wait=20),)
        for shot in one if options.one else SHOTS:
            picture = take(page, options.page.absolute().as_uri(), shot)
            if shot.name:
                keep(picture, options.out / f"{shot.name}.png")
            film.frames.append(captioned(picture, shot.caption))
            film.seconds.append(shot.seconds)
        browser.close()
    if not options.one:
        film.save(options.out / "viewer.gif")


if __name__ == "__main__":
    main()
