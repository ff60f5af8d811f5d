"""The files of the viewer's pictures: their colours survive."""

import io

import matplotlib as mpl
import numpy as np
from PIL import Image

from docs.site import film


def noise(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 90, (height, width, 3), np.uint8)


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def test_a_picture_that_is_small_keeps_all_its_colours() -> None:
    bar = mpl.colormaps["viridis"](np.linspace(0, 1, 400), bytes=True)[None, :, :3]
    shown = Image.fromarray(np.repeat(bar, 40, axis=0))
    assert len(np.unique(decoded(film.encoded(shown)).reshape(-1, 3), axis=0)) > 200


def test_a_large_picture_keeps_the_ends_of_its_colour_bars() -> None:
    pixels = noise(1200, 800)
    viridis = mpl.colormaps["viridis"](np.linspace(0, 1, 400), bytes=True)[:, :3]
    pixels[8:16, :400] = viridis
    pixels[16:24, :400] = 255
    data = film.encoded(Image.fromarray(pixels), most=400_000)
    assert Image.open(io.BytesIO(data)).mode == "P"
    found = decoded(data)
    expected = viridis[np.linspace(1, 398, 298).astype(int)].astype(int)
    assert np.abs(found[9, 1:299] - expected).max() < 16
    assert (found[15, 1:299] == 255).all()


def test_frames_of_a_scene_share_their_colours() -> None:
    first = Image.fromarray(noise(200, 100))
    second = first.copy()
    second.paste("red", (10, 10, 20, 20))
    one, two = (np.asarray(each.convert("RGB")) for each in film.reduced([first, second], 255))
    same = np.ones((100, 200), bool)
    same[10:20, 10:20] = False
    assert (one[same] == two[same]).all()


def test_names_of_pictures_differ_and_all_exist() -> None:
    names = [shot.name for shot in film.SHOTS]
    assert len({*names}) == len(names)
    assert {shot.page for shot in film.SHOTS} == set(film.PAGES)
    pictures = film.Path(__file__).parents[2] / "docs/images"
    kept = {path.stem for path in pictures.glob("viewer*.png")}
    assert {*names, "viewer-notebook"} == kept
