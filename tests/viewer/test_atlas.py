"""The atlas: its files, what the page contains, and that it is safe to open."""

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

import headscape as hs
from headscape.errors import InputError
from headscape.measures.measures import Measures
from headscape.viewer.atlas_page import atlas_page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("atlas")
    model = hs.load(hs.GPT2.from_preset("nano", encoding="rope", vocabulary=257), tokenizer="bytes")
    text = "".join(f"{n} cats sat on {n % 7} mats\n" for n in range(60))
    hs.atlas(model, out, text, length=64, sequences=3, effects=1, viewer=True)
    return out


def data_of(page: str) -> dict:
    [found] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(found)


def test_the_folder_has_a_page_a_table_and_json(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "atlas.html", "heads.csv", "heads.json", "viewer.html",
    ]  # fmt: skip
    found = Measures.from_json((folder / "heads.json").read_text())
    assert len((folder / "heads.csv").read_text().splitlines()) == 1 + len(found.rows())


def test_the_page_shows_every_head_with_its_kernel_and_measures(folder: Path) -> None:
    found = Measures.from_json((folder / "heads.json").read_text())
    data = data_of((folder / "atlas.html").read_text())
    assert [(head["layer"], head["head"]) for head in data["heads"]] == [
        (layer, head) for layer in range(2) for head in range(12)
    ]
    one = data["heads"][17]
    assert one["values"]["sink_score"][0] == pytest.approx(found.row(1, 5)["sink_score"], rel=1e-3)
    for place, distance in enumerate(data["distances"]):
        expected = found.kernel[1, 5, distance + 63]
        assert one["kernel"][place] == pytest.approx(expected, rel=1e-3)
    assert len(base64.b64decode(one["map"])) == data["side"] ** 2
    assert one["link"].startswith("viewer.html#")
    assert data["importance"] == "effect_removed"


def test_the_page_says_what_was_recognised_and_defines_every_measure(folder: Path) -> None:
    page = (folder / "atlas.html").read_text()
    assert "layer 1-2: rope  pairing=&#x27;interleaved&#x27;" in page
    for measure in data_of(page)["measures"]:
        assert measure["reference"]
        assert f'<th scope="row">{measure["label"]}</th>' in page


def test_the_policy_allows_this_script_and_style_and_no_other(folder: Path) -> None:
    page = (folder / "atlas.html").read_text()
    [policy] = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    [script] = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for text in (script, style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy
    assert "http://www.w3.org/2000/svg" in script  # a name, not an address that is asked for
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)


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
    assert "<img" not in page
    assert "</pre><b>" not in page
    assert "<i>" not in page


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="atlas takes a model or its folder, got int"):
        hs.atlas(3, tmp_path)  # type: ignore[arg-type]
