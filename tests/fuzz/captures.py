"""Forged captures with right checksums, measured, drawn and viewed: only results or sentences.

    python -m fuzz.captures --inputs 2000 [--first 0]      (from the tests folder)

Every seed is one file: a whole capture in which one to three things are changed. A field of the
description, at any depth, becomes a value of a different type, size, depth or sign; a tensor
changes its shape, dtype or numbers, gets a different name or is left out. Exits with 1 if a command
raised anything but InputError, said more than one line or took longer than 20 s.
"""

import contextlib
import copy
import io
import os
import random
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from typer.main import get_command

from fuzz.loop import main
from fuzz.readers import CAPTURED, DESCRIBED, KIND, MAPS, write_checked
from headscape.cli.app import app
from headscape.errors import InputError

Arrays = dict[str, np.ndarray]
SLOW = 20.0
"""Seconds that a command may take."""
DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
ESCAPE = "\x1b]0;title\x07\x1b[31m\r\n|\\$x^$=1<b>\u202e"
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 0.5, -0.5, 1e308, 10**18, -(10**18), 2**64, 10**400,
    float("nan"), float("inf"), -float("inf"), "", "a", "bias", "weights", "0", "-1", "\ud800",
    "\0", ESCAPE, "$\\frac{", "x" * 20_000, [], [[]], [0], [1], [-1], [0, 0], [1.5], [None],
    list(range(20_000)), ["a"] * 3, [0] * 3, {}, {"": {}}, {"0": {}}, {"1": None},
    {"kind": "slope"}, {"step": "x"}, {"name": []}, {"a": {"b": {"c": {"d": {"e": 1}}}}}, DEEP,
)  # fmt: skip
DTYPES = (np.float64, np.float16, np.int64, np.int32, np.uint8, np.bool_)
NUMBERS = (np.nan, np.inf, -np.inf, 1e38, -1e38, 0.0, 1e-38, -1.0)
NAMES = ("layer.9.bias", "layer.x.bias", "layer.0.nothing", "layer.", "factors.1.mix.table", "a")
COMMANDS = (
    ["measure", "IN"],
    ["measure", "IN", "--out", "a.json"],
    ["measure", "IN", "IN", "--quantity", "final", "--csv"],
    ["view", "IN", "--html", "a.html"],
    ["draw", "IN", "--out", "a.png"],
    ["draw", "IN", "--as", "curves", "--out", "a.svg"],
    ["draw", "IN", "--as", "row", "--out", "a.png"],
    ["draw", "IN", "--as", "overview", "--out", "a.png"],
    ["draw", "IN", "IN", "--as", "difference"],
    ["draw", "IN", "IN", "--as", "compare", "--quantity", "weights", "--width", "3"],
    ["draw", "IN", "--as", "training"],
)


def bases() -> list[tuple[dict[str, Any], Arrays]]:
    """Return whole captures: factors, maps, both, reduced maps, layers that differ."""
    about: dict[str, Any] = {
        **DESCRIBED, "conventions": {"slopes": "powers", "window": None},
        "model": {"name": "ALiBi", "shows": "bias", "preset": "nano", "layers": 2, "heads": 2,
                  "width": 8, "train_length": 8},
        "sequence": {"corpus": "c", "document": 0, "offset": 2, "seed": 1, "pieces": list("abc")},
        "provenance": {"headscape": "0", "run": "r", "step": 4},
    }  # fmt: skip
    plain = {name: value for name, value in CAPTURED.items() if not name.startswith("layer.")}
    factors = about | {"layers": [1], "factors": {"1": KIND}}
    slope = {
        **KIND, "pairing": None, "bias": {"kind": "slope", "weighted": False}, "window": None,
    }  # fmt: skip
    sums = {"bias.row": np.arange(6.0).reshape(2, 3), "bias.col": np.arange(6.0).reshape(2, 3)}
    kept = ("tokens", "positions", "factors.1.q", "factors.1.k", "factors.1.lse")
    sloped = {name: plain[name] for name in kept} | {f"factors.1.{k}": v for k, v in sums.items()}
    maps = about | {"layers": [0], "factors": {}}
    layer = {"title": "RoPE", "shows": "final", "claims": {"toeplitz": False}}
    mixed = about | {
        "conventions": {"0": {"encoding": "nope"}, "1": {"encoding": "rope", "window": 2}},
        "model": about["model"] | {"schedule": {"0": layer | {"title": "NoPE"}, "1": layer}},
    }
    reduced = maps | {"resolution": 2}
    cells = {f"{name}.{part}": np.ones((2, 2, 2), np.float32)
             for name in MAPS for part in ("mean", "min", "max")}  # fmt: skip
    cells |= {f"{name}.exact": np.ones((2, 1, 2), np.float32) for name in MAPS}
    places = {"edges": np.array([0, 1, 3]), "window": np.array([0, 1, 1, 3])}
    two = {"tokens": CAPTURED["tokens"], "positions": CAPTURED["positions"]}
    return [
        (factors, plain), (factors | {"factors": {"1": slope}}, sloped), (maps, {**two, **MAPS}),
        (mixed, CAPTURED), (reduced, {**two, **cells, **places}),
    ]  # fmt: skip


def forged(seed: int) -> tuple[dict[str, Any], Arrays]:
    """Return the description and arrays of a seed; seeds below the number of bases are whole."""
    draw = random.Random(seed)  # noqa: S311 - mutations, not secrets
    whole = bases()
    if seed < len(whole):
        return whole[seed]
    described, arrays = copy.deepcopy(whole[seed % len(whole)])
    for _ in range(draw.choice((1, 1, 2, 3))):
        if draw.random() < 0.7:
            _change_field(draw, described)
        else:
            _change_array(draw, arrays)
    return described, arrays


def _change_field(draw: random.Random, described: dict[str, Any]) -> None:
    """Replace, remove or add one value, at any depth but for what says that it is a capture."""
    inside: Any = described
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        keys = [key for key in keys if key not in ("format", "kind")] or keys
        if not keys:
            return
        key = draw.choice(keys)
        if not isinstance(inside[key], dict | list) or draw.random() < 0.4:
            break
        inside = inside[key]
    change = draw.random()
    if change < 0.1:
        del inside[key]
    elif change < 0.2 and isinstance(inside, dict):
        inside[draw.choice(["0", "1", "x", ESCAPE])] = draw.choice(VALUES)
    else:
        inside[key] = draw.choice(VALUES)


def _change_array(draw: random.Random, arrays: Arrays) -> None:
    name = draw.choice(list(arrays))
    value = arrays[name]
    change = draw.randrange(5)
    if change == 0:
        del arrays[name]
    elif change == 1:
        arrays[draw.choice(NAMES)] = value
    elif change == 2:
        with np.errstate(all="ignore"):
            arrays[name] = value.astype(draw.choice(DTYPES))
    elif change == 3:
        sizes = [draw.randint(0, 5) for _ in range(draw.randint(0, 4))]
        arrays[name] = np.ones(sizes, value.dtype)
    elif value.size and value.dtype.kind == "f":
        flat = value.copy().reshape(-1)
        flat[draw.sample(range(flat.size), draw.randint(1, flat.size))] = draw.choice(NUMBERS)
        arrays[name] = flat.reshape(value.shape)
    elif value.size:
        arrays[name] = value * draw.choice((-1, 10**6, 2**40))


def one(seed: int, folder: Path) -> str:
    """Use the file of a seed: "result" or "sentence"; raise what a command must not raise."""
    described, arrays = forged(seed)
    path = folder / "in.safetensors"
    write_checked(path, described, arrays)
    draw = random.Random(~seed)  # noqa: S311
    outcome = "sentence"
    for words in (COMMANDS[draw.randrange(4)], COMMANDS[4 + draw.randrange(7)]):
        started = time.monotonic()
        try:
            _call([str(path) if word == "IN" else word for word in words], folder)
            outcome = "result"
        except InputError as error:
            if len(str(error).splitlines()) > 1:
                raise AssertionError("more than one line") from error
        if time.monotonic() - started > SLOW:
            raise AssertionError(f"{' '.join(words)} took over {SLOW:.0f} s")
    return outcome


def _call(words: list[str], folder: Path) -> None:
    before = Path.cwd()
    os.chdir(folder)
    said = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(said):
            warnings.simplefilter("ignore")
            get_command(app).main(words, standalone_mode=False)
    finally:
        os.chdir(before)


def check(seed: int) -> str:
    """Use the file of a seed in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return one(seed, Path(folder))


if __name__ == "__main__":
    main(__doc__, {"captures": check})
