"""The atlas: its files, what the page contains, and that it is safe to open."""

import base64
import hashlib
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscape as hs
from captures.test_packs import read_bytes
from headscape.errors import InputError
from headscape.measures.measures import Measures
from headscape.viewer.atlas import atlas_arrays, atlas_page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("atlas")
    model = hs.load(hs.GPT2.from_preset("nano", encoding="rope", vocabulary=257), tokenizer="bytes")
    text = "".join(f"{n} cats sat on {n % 7} mats\n" for n in range(60))
    page = hs.atlas(model, out, text, length=64, sequences=3, effects=1, viewer=True)
    assert page == out / "atlas.html"
    return out


def data_of(page: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and arrays in the page."""
    [found] = re.findall(r'data-atlas="p0"[^>]*>(.*?)</script>', page)
    return read_bytes(zlib.decompress(base64.b64decode(found), -15))


def test_the_folder_has_a_page_a_table_and_json(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "atlas.html", "heads.csv", "heads.json", "viewer.html",
    ]  # fmt: skip
    found = Measures.load(folder / "heads.json")
    assert len((folder / "heads.csv").read_text().splitlines()) == 1 + len(found.rows())


def test_the_page_shows_every_head_with_its_kernel_and_measures(folder: Path) -> None:
    found = Measures.load(folder / "heads.json")
    header, arrays = data_of((folder / "atlas.html").read_text())
    assert (header["layers"], header["heads"]) == ([0, 1], list(range(12)))
    [sink] = [each for each in header["measures"] if each["name"] == "sink_score"]
    assert sink["values"][1][5] == pytest.approx(found.row(1, 5)["sink_score"], rel=1e-5)
    assert sink["low"][1][5] is None  # three sequences are too few for an interval
    for place, distance in enumerate(header["distances"]):
        expected = found.kernel[1, 5, distance + 63]
        assert arrays["layer.1.kernel"][5, place] == pytest.approx(expected, rel=1e-5)
    assert header["viewer"] == "viewer.html"
    assert header["importance"] == "effect_removed"
    assert header["kinds"][1][5] == found.row(1, 5)["kinds"]


@pytest.mark.parametrize("length", [64, 50])
def test_a_map_has_the_mean_weight_of_the_pairs_in_each_cell(length: int) -> None:
    model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
    arrays = atlas_arrays(model.measures(list(range(200)), length=length, sequences=2))
    edges, means = arrays["edges"], arrays["layer.1.overview.weights.mean"].astype(np.float64)
    assert (edges[0], edges[-1], len(edges)) == (0, length, means.shape[-1] + 1)
    seen = np.tri(length)
    pairs = np.add.reduceat(np.add.reduceat(seen, edges[:-1], axis=0), edges[:-1], axis=1)
    assert (np.isnan(means) == (pairs == 0)).all()
    # Every query gives all its weight away, so a row of cells has as much weight as queries.
    weight = np.nansum(means * pairs, axis=-1)
    np.testing.assert_allclose(weight, np.tile(np.diff(edges), (len(means), 1)), rtol=2e-3)


def test_the_page_says_what_was_recognised_and_defines_every_measure(folder: Path) -> None:
    header, _ = data_of((folder / "atlas.html").read_text())
    assert any("layer 1-2: rope  pairing='interleaved'" in line for line in header["recognised"])
    assert not any("False" in line for line in header["recognised"])
    for measure in header["measures"]:
        assert measure["text"]
        assert measure["reference"]
        assert measure["label"]


def test_the_policy_allows_this_script_and_no_other(folder: Path) -> None:
    page = (folder / "atlas.html").read_text()
    [policy] = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    [script] = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}' 'wasm-unsafe-eval'" in policy
    assert "unsafe-inline" not in policy
    assert "<style" not in page
    viewer = (folder / "viewer.html").read_text()
    assert re.findall(r'Content-Security-Policy" content="(.*?)"', viewer) == [policy]


def test_a_name_from_outside_is_text() -> None:
    found = Measures(
        about={
            "model": "<img src=x onerror=alert(1)>", "recognised": ["</pre><b>"], "layers": 1,
            "heads": 1, "causal": True, "text": "<i>", "sequences": 1, "length": 16, "effects": 0,
        },
        layers=(0,),
        heads=(0,),
        values={"position_share": np.full((3, 1, 1), 0.5)},
        kernel=np.zeros((1, 1, 31)),
        drift={},
    )  # fmt: skip
    page = atlas_page(found)
    page = page.partition('<script type="module">')[0]
    assert "<img" not in page
    assert "</pre><b>" not in page
    assert "<i>" not in page


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="atlas takes a model or its folder, got int"):
        hs.atlas(3, tmp_path)  # type: ignore[arg-type]
