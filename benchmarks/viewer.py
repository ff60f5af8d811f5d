"""The viewer: sizes of pages, times to the first picture, panning, tiles, and one million tokens.

    python -m benchmarks.viewer pages      Chromium and Playwright; about 3 minutes
    python -m benchmarks.viewer hover      the reading view of 2,048 tokens
    python -m benchmarks.viewer tiles      an exact 256 x 256 tile of weights, by encoding
    python -m benchmarks.viewer million    one head at 1,048,576 tokens; 0.6 GB of disk

Factors are random (CABLE-like, 64 dims), which is the worst case for a page's size.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np

import headscape as hs
from headscape.captures.capture_file import Capture, open_pack
from headscape.captures.overview_file import OverviewJob
from headscape.captures.pooling import REDUCTIONS, weight_cells
from headscape.captures.saved_call import SavedCall
from headscape.viewer.page import write_page
from headscape.viewer.tiles import MapRequest, Tiles

PAGES = {
    "12 x 512": (1, 12, 512),
    "144 x 512": (12, 12, 512),
    "1,024 x 256": (32, 32, 256),
    "12 x 16,384": (1, 12, 16_384),
}
ENCODINGS = ("alibi", "cable", "rope", "fire", "cope", "dapev2+kerple")
PAN = """async () => {
  const times = [];
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
  for (let n = 0; n < 6; n++) { press("e"); await frame(); }
  for (let n = 0; n < 60; n++) {
    const start = performance.now();
    press(n % 4 < 2 ? "d" : "s");
    await frame();
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b);
}"""

HOVER = """async () => {
  const text = document.querySelector(".reading .text"), times = [];
  const reading = document.querySelector(".reading");
  const wait = (start) => new Promise((done) => start(done));
  for (let n = 0; n < 22; n++) {
    const at = 1000 + 47 * n, start = performance.now();
    text.querySelector(`[data-token="${at}"]`)
      .dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
    do await wait(requestAnimationFrame); while (reading.dataset.token !== String(at));
    await wait((done) => setTimeout(done, 0));
    times.push(performance.now() - start);
  }
  return times;
}"""

FINISHED = """() => [...document.querySelectorAll(".card")].every(
  (card) => card.dataset.complete === "true")"""
MEASURED = """() => document.querySelector(".headscape").dataset.pending === "0"
  && [...document.querySelectorAll(".card .value")].every((each) => each.textContent !== "…")"""

DESCRIBED = {
    **dict.fromkeys(("softcap", "positions", "mixing", "weighting", "transition", "turn")),
    "scale": 0.125,
    "bias": {"kind": "Slope"},
    "visible": {"kind": "Visible", "causal": True, "window": None, "chunk": None},
}


def random_capture(layers: int, heads: int, length: int) -> Capture:
    """A capture with a random layer and no log-sum-exp."""
    random = np.random.default_rng(0)
    calls = {}
    for layer in range(layers):
        q, k = random.standard_normal((2, heads, length, 64), dtype=np.float32)
        total = -np.cumsum(random.gamma(0.3, 0.02, (heads, length)), axis=1)
        weight = random.gamma(2.0, 0.5, (heads, length))
        arrays = {"bias.row": total, "bias.col": total, "bias.weight": weight}
        calls[layer] = SavedCall(DESCRIBED, {"q": q, "k": k, **arrays})
    return Capture(
        encoding="cable",
        conventions={},
        claims={},
        model={"name": "CABLE"},
        layers=tuple(calls),
        heads=tuple(range(heads)),
        length=length,
        sequence={"pieces": [f" word{n % 5000}" for n in range(length)]},
        trained=False,
        tokens=np.zeros(length, dtype=np.int64),
        positions=np.arange(length, dtype=np.int64),
        calls=calls,
    )


def pages(folder: Path) -> None:
    """Sizes of single files, and what Chromium makes of them."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        for name, shape in PAGES.items():
            path = folder / f"{name}.html"
            if not path.is_file():
                write_page(path, [random_capture(*shape).pack()], precision="float16")
            size = path.stat().st_size
            browser = playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox"]
            )
            seconds = {}
            for screen, part in (("overview", ".card"), ("head", ".panel")):
                page = browser.new_page(viewport={"width": 1280, "height": 1080})
                start = time.perf_counter()
                page.goto(f"{path.as_uri()}#{quote(json.dumps({'screen': screen}))}")
                page.wait_for_selector(f"{part}[data-complete=true]", timeout=300_000)
                seconds[screen] = round(time.perf_counter() - start, 2)
                if screen == "overview":
                    page.wait_for_function(FINISHED, timeout=300_000)
                    seconds["last head of the overview"] = round(time.perf_counter() - start, 2)
                    page.wait_for_function(MEASURED, timeout=300_000)
                    seconds["last measure"] = round(time.perf_counter() - start, 2)
            frames = page.evaluate(PAN)
            told = {"MB": round(size / 1e6, 1), "first_picture_s": seconds}
            told["pan_frame_ms"] = {
                "median": round(frames[30], 1), "slowest": round(frames[-1], 1),
                "panel": page.evaluate("document.querySelector('.stage').clientWidth"),
            }  # fmt: skip
            print(json.dumps({"page": name, **told}), flush=True)
            browser.close()


def hover(folder: Path) -> None:
    """From a pointer over a token until both texts are painted, in milliseconds."""
    from playwright.sync_api import sync_playwright

    path = folder / "reading.html"
    write_page(path, [random_capture(1, 12, 2048).pack()])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1080})
        page.goto(f"{path.as_uri()}#{quote(json.dumps({'screen': 'reading'}))}")
        page.wait_for_selector(".reading[data-complete=true]", timeout=300_000)
        times = sorted(page.evaluate(HOVER)[1:])
        told = {"median": round(times[10], 1), "fastest": round(times[0], 1)}
        print(json.dumps({"reading view": "2,048 tokens", "hover_ms": told}), flush=True)
        browser.close()


def tiles(_: Path) -> None:
    """CPU time of an exact tile, the fastest of 5."""
    for encoding in ENCODINGS:
        gpt2 = hs.GPT2.from_preset("nano", encoding=encoding, vocabulary=257)
        found = hs.load(gpt2, tokenizer="bytes").capture(np.arange(512) % 256)
        served, times = Tiles(found.pack()), []
        weights = MapRequest(layer=found.layers[0], head=3, quantity="weights")
        for _turn in range(5):
            start = time.process_time()
            served.tile(weights, 0, 1, 0)
            times.append(time.process_time() - start)
        print(json.dumps({"tile of": encoding, "cpu_ms": round(1e3 * min(times), 1)}), flush=True)


def million(folder: Path) -> None:
    """Overviews of one head and one exact window; the exact overview of weights is not started."""
    length, path = 1 << 20, folder / "million.safetensors"
    random_capture(1, 1, length).save(path)
    OverviewJob.start = lambda _: None  # type: ignore[method-assign]
    served = Tiles(open_pack(path))

    def told(what: str, start: tuple[float, float], exact: object) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        wall, cpu = (round(now - then, 1) for now, then in zip(clocks(), start, strict=True))
        found = {"wall_s": wall, "cpu_s": cpu, "exact": exact, "GB": round(memory, 2)}
        print(json.dumps({"million": what, **found}), flush=True)

    def clocks() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    for quantity in ("bias", "content", "final", "weights"):
        asked, start = MapRequest(layer=0, head=0, quantity=quantity), clocks()
        for row in range(2):
            for column in range(row + 1):
                tile = served.tile(asked, 11, row, column)
        told(f"{quantity}, overview of 512 x 512 cells", start, tile.exact)
    start = clocks()
    for row in range(4):
        for column in range(4):
            tile = served.tile(asked, 0, 3000 + row, 2996 + column)
    told("weights, window of 1,024 x 1,024 pairs at token 768,000", start, tile.exact)
    rows, start = (100, 900), clocks()
    for row in rows:
        weight_cells(served.pack.layer(0), 0, 10, range(row, row + 1))
    share = sum(2 * row + 1 for row in rows) / (length >> 10) ** 2
    whole = round((time.process_time() - start[1]) / share)
    told(f"weights, rows of cells {rows}; all rows would take {whole} s of CPU", start, REDUCTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pages", "hover", "tiles", "million"))
    parser.add_argument("--folder", type=Path, help="where pages are kept for a second run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = {"pages": pages, "hover": hover, "tiles": tiles, "million": million}[options.what]
        run(options.folder or Path(folder))


if __name__ == "__main__":
    main()
