"""Packs on disk and as bytes: what is read back is what was written; damage is told."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from captures.test_blocks import BENT, DIM, HEADS, LENGTH, made
from headscape.call.positions import Visible
from headscape.call.quantities import QUANTITIES
from headscape.captures.call_blocks import save_call
from headscape.captures.capture_file import load, open_pack
from headscape.captures.file_array import FileArray, OpenFile
from headscape.captures.file_checks import digest_of
from headscape.captures.pack import (
    Pack,
    Precision,
    make_pack,
    pack_bytes,
    page_arrays,
    page_refuses,
)
from headscape.captures.saved_call import SavedCall
from headscape.encodings import ENCODINGS
from headscape.errors import InputError
from pack_files import write
from properties.subjects import WRAPPED

REFUSED = {
    "pope": "its rotation is not by position alone",
    "selective-rope": "its rotation is not by position alone",
    "carope": "its rotation is not by position alone",
    "repo": "its rotation is not by position alone",
    "grape-m": "its rotation is not by position alone",
    "path": "its keys change on the way to a query",
    "wall": "its keys change on the way to a query",
    "kerple-weight": "its scores are multiplied by a table",
    "stick-breaking": "its weights are not a softmax",
}
"""Encodings that a page cannot compute; the served viewer shows them."""
EVERY = (*ENCODINGS, *WRAPPED)
SUBJECTS = tuple(name for name in EVERY if name not in REFUSED)


def packed(name: str = "alibi") -> Pack:
    return make_pack(
        {3: save_call(made(name))},
        encoding=name,
        heads=list(range(HEADS)),
        title="<script>",
        pieces=["</script>"] * LENGTH,
    )


@pytest.mark.parametrize("name", EVERY)
def test_a_file_gives_the_same_tiles(name: str, tmp_path: Path) -> None:
    pack = packed(name)
    write(pack, tmp_path / "a.safetensors")
    read = open_pack(tmp_path / "a.safetensors")
    part = slice(20, 60)
    for quantity in QUANTITIES:
        np.testing.assert_array_equal(
            read.layer(3).tile(quantity, range(HEADS), part, part),
            pack.layer(3).tile(quantity, range(HEADS), part, part),
        )
    assert read.title == "<script>"
    assert read.described["source"] == "a.safetensors"
    assert "source" not in pack.described
    assert read.header["pieces"] == pack.header["pieces"]


@pytest.mark.parametrize("name", EVERY)
def test_large_arrays_stay_in_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscape.captures.capture_file.LAZY_BYTES", 0)
    pack, path = packed(name), tmp_path / "a.safetensors"
    write(pack, path)
    read = open_pack(path)
    assert isinstance(read.layer(3).arrays["q"], FileArray)
    rows, cols = slice(20, 60), slice(3, 41)
    for quantity in QUANTITIES:
        np.testing.assert_array_equal(
            read.layer(3).tile(quantity, [2, 1], rows, cols),
            pack.layer(3).tile(quantity, [2, 1], rows, cols),
        )
    some = np.array([3, 50, 71])
    np.testing.assert_array_equal(
        read.layer(3).block("final", 1, some, cols), pack.layer(3).block("final", 1, some, cols)
    )
    np.testing.assert_array_equal(np.asarray(read.layer(3).arrays["k"]), pack.layer(3).arrays["k"])


def test_a_tile_reads_its_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscape.captures.capture_file.LAZY_BYTES", 0)
    write(packed(), tmp_path / "a.safetensors")
    layer = open_pack(tmp_path / "a.safetensors").layer(3)
    sizes: list[int] = []
    read = OpenFile.read

    def counted(self: OpenFile, start: int, size: int) -> bytearray:
        sizes.append(size)
        return read(self, start, size)

    monkeypatch.setattr(OpenFile, "read", counted)
    layer.tile("content", [1], slice(10, 14), slice(2, 9))
    assert sizes == [4 * DIM * 4, 7 * DIM * 4]


def test_a_file_cut_short_while_open_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscape.captures.capture_file.LAZY_BYTES", 0)
    path = tmp_path / "a.safetensors"
    write(packed(), path)
    layer = open_pack(path).layer(3)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="became shorter while it was read"):
        layer.tile("final", [0], slice(0, 4), slice(0, 4))


def read_bytes(data: bytes) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """The header and arrays, read with safetensors' own reader."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["headscape"])
    arrays = safetensors.numpy.load(data)
    return header, arrays | {name: arrays[twin] for name, twin in header.pop("same", {}).items()}


@pytest.mark.parametrize("name", ["cable", "rope", "fire", "dapev2+kerple"])
def test_bytes_are_read_back(name: str) -> None:
    pack = packed(name)
    header, arrays = read_bytes(pack_bytes(pack))
    assert header["pieces"] == pack.header["pieces"]
    expected = page_arrays(pack.layer(3))
    assert set(arrays) == {f"layer.3.{key}" for key in expected}
    for key, value in expected.items():
        np.testing.assert_array_equal(arrays[f"layer.3.{key}"], value)


@pytest.mark.parametrize("name", ["cable", "rope", "dapev2+kerple"])
def test_float16_rows_still_sum_to_one(name: str) -> None:
    pack = packed(name)
    header, arrays = read_bytes(pack_bytes(pack, "float16"))
    assert header["precision"] == "float16"
    assert arrays["layer.3.q"].dtype == np.float16
    own = pack.layer(3)
    names = {"mix.inner": "mixing.in_", "mix.outer": "mixing.out_"}
    back = {key.removeprefix("layer.3."): value for key, value in arrays.items()}
    for old, new in names.items():
        back = {key.replace(f"{old}.", new): value for key, value in back.items()}
    half = SavedCall(own.described, back)
    every = slice(0, LENGTH)
    weights = half.tile("weights", range(HEADS), every, every)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    exact = pack.layer(3).tile("weights", range(HEADS), every, every)
    error = np.abs(weights - exact).max()
    assert 0 < error < 3e-3


def test_float16_has_a_range() -> None:
    pack = packed()
    pack.layer(3).arrays["q"][0, 0, 0] = 1e5
    with pytest.raises(InputError, match="write the page in float32"):
        pack_bytes(pack, "float16")


def changed(path: Path, **header: object) -> None:
    """Rewrite a file with a changed description and its right checksum."""
    write(packed(), path)
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = json.loads(file.metadata()["headscape"]) | header
    text = {key: value for key, value in text.items() if value != "left out"}
    text["sha256"]["description"] = digest_of(text)
    save_file(arrays, path, metadata={"headscape": json.dumps(text)})


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"format": 99}, "format 99 and this version reads 4 and 5: capture it again, or upgrade"),
        ({"calls": {}}, "keeps maps instead of calls"),
        ({"length": 74}, "has 74 tokens and 75 pieces"),
        ({"length": "x"}, "its length cannot be 'x'"),
        ({"heads": [0, 1]}, "do not fit its description"),
        (
            {"layers": [4], "calls": {"4": {"scale": 1, "bias": None}}},
            r"the description of layer 4 \(counted from 0\) is wrong",
        ),
        ({"calls": {"3": 5}}, "its calls cannot be"),
        ({"model": 5}, "its model cannot be 5"),
        ({"causal": "left out"}, "has no causal"),
    ],
)
def test_a_wrong_header_is_told(header: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    changed(path, **header)
    with pytest.raises(InputError, match=message):
        open_pack(path)


@pytest.mark.parametrize("name", ["call.3.q", "call.3.lse"])
def test_a_changed_array_is_told(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(packed(), path)
    with safe_open(path, framework="numpy") as file:
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    arrays[name][0, 0] += 1
    save_file(arrays, path, metadata=metadata)
    for read in (open_pack, load):
        with pytest.raises(InputError, match=f"{name} does not match its checksum"):
            read(path)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_cut_file_is_told(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(packed(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        open_pack(path)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        open_pack(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="layer 0 is not in this capture, which contains 3"):
        packed().layer(0)
    with pytest.raises(InputError, match="head 9 is not in this capture"):
        packed().head_index(9)


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_arrays_that_stay_in_the_file_are_packed(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = packed("cable")
    write(pack, tmp_path / "a.safetensors")
    expected = pack_bytes(open_pack(tmp_path / "a.safetensors"), precision)
    monkeypatch.setattr("headscape.captures.capture_file.LAZY_BYTES", 0)
    lazy = open_pack(tmp_path / "a.safetensors")
    assert isinstance(lazy.layer(3).arrays["q"], FileArray)
    assert pack_bytes(lazy, precision) == expected


def test_half_of_a_surrogate_pair_survives() -> None:
    pack = packed()
    odd = Pack({**pack.header, "pieces": ["\ud800", "é"], "title": "\udfff"}, pack.layers)
    header, _ = read_bytes(pack_bytes(odd))
    assert header["pieces"] == ["\ud800", "é"]


@pytest.mark.parametrize("name", EVERY)
def test_what_a_page_cannot_compute(name: str) -> None:
    """The list of encodings that only the served viewer shows."""
    pack = packed(name)
    assert page_refuses(pack.layer(3)) == REFUSED.get(name)
    if name in REFUSED:
        assert pack.page_bytes is None
        layer = r"layer 3 \(counted from 0\)"
        message = f"cannot compute {layer} of <script>: {REFUSED[name]}; a served viewer can"
        with pytest.raises(InputError, match=message):
            pack_bytes(pack)
    else:
        assert pack_bytes(pack)[8:].startswith(b'{"__metadata__"')


@pytest.mark.parametrize(
    ("name", "fields", "causal", "reason"),
    [
        ("alibi", {"window": 9}, False, "its window has two sides"),
        ("alibi", {"chunk": 9}, True, "keys are seen in chunks"),
        ("cope", {"window": 9}, True, "its scores are mixed within a window"),
        *((name, fields, True, None) for name, fields in BENT.values()
          if name != "cope" and "chunk" not in fields),
    ],
)  # fmt: skip
def test_what_acts_on_scores_that_a_page_cannot_compute(
    name: str, fields: dict[str, object], causal: bool, reason: str | None
) -> None:
    assert page_refuses(save_call(made(name, fields, causal=causal))) == reason


def test_values_that_no_encoding_combines_are_refused_by_a_page() -> None:
    mixed, group = made("dape+kerple"), torch.zeros(1, LENGTH, dtype=torch.int64)
    seen = {
        "a temperature or a softcap acts on mixed scores": replace(mixed, softcap=9.0),
        "its bias is added to counted positions": replace(made("cope"), bias=made("alibi").bias),
        "tokens are in groups (padding or several documents)": replace(
            made("alibi"), visible=Visible(True, group, group)
        ),
    }
    for reason, call in seen.items():
        assert page_refuses(save_call(call)) == reason
