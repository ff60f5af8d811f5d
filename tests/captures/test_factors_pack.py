"""Packs on disk and as bytes: what is read back is what was written; damage is told."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from safetensors import safe_open
from safetensors.numpy import save_file

from captures.test_factors import DIM, HEADS, LENGTH, SUBJECTS, made
from headscape.captures.capture_checks import digest_of
from headscape.captures.capture_file import load
from headscape.captures.factors import QUANTITIES
from headscape.captures.factors_of import factors_of
from headscape.captures.file_array import FileArray, OpenFile
from headscape.captures.pack import Pack, make_pack, open_pack
from headscape.captures.pack_bytes import Precision, pack_bytes
from headscape.errors import InputError
from pack_files import write


def packed(name: str = "alibi") -> Pack:
    return make_pack(
        {3: factors_of(made(name))},
        encoding=name,
        heads=list(range(HEADS)),
        title="<script>",
        pieces=["</script>"] * LENGTH,
    )


@pytest.mark.parametrize("name", SUBJECTS)
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


@pytest.mark.parametrize("name", SUBJECTS)
def test_large_arrays_stay_in_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscape.captures.pack.LAZY_BYTES", 0)
    pack, path = packed(name), tmp_path / "a.safetensors"
    write(pack, path)
    read = open_pack(path)
    assert isinstance(read.layer(3).q, FileArray)
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
    np.testing.assert_array_equal(np.asarray(read.layer(3).k), pack.layer(3).k)


def test_a_tile_reads_its_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscape.captures.pack.LAZY_BYTES", 0)
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
    monkeypatch.setattr("headscape.captures.pack.LAZY_BYTES", 0)
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
    assert set(arrays) == set(pack.arrays)
    for key, value in pack.arrays.items():
        np.testing.assert_array_equal(arrays[key], value)


@pytest.mark.parametrize("name", ["cable", "rope", "dapev2+kerple"])
def test_float16_rows_still_sum_to_one(name: str) -> None:
    pack = packed(name)
    header, arrays = read_bytes(pack_bytes(pack, "float16"))
    assert header["precision"] == "float16"
    assert arrays["layer.3.q"].dtype == np.float16
    half = Pack(header, arrays).layer(3)
    every = slice(0, LENGTH)
    weights = half.tile("weights", range(HEADS), every, every)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    exact = pack.layer(3).tile("weights", range(HEADS), every, every)
    error = np.abs(weights - exact).max()
    assert 0 < error < 3e-3


def test_float16_has_a_range() -> None:
    pack = packed()
    pack.arrays["layer.3.q"][0, 0, 0] = 1e5
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
        ({"format": 99}, "format 99 and this version reads 4: capture it again, or upgrade"),
        ({"factors": {}}, "keeps maps instead of factors"),
        ({"length": 74}, "has 74 tokens and 75 pieces"),
        ({"length": "x"}, "its length cannot be 'x'"),
        ({"heads": [0, 1]}, "do not fit its description"),
        (
            {"layers": [4], "factors": {"4": {"scale": 1, "bias": None}}},
            "the description of layer 4 is wrong",
        ),
        ({"factors": {"3": 5}}, "its factors cannot be"),
        ({"model": 5}, "its model cannot be 5"),
        ({"causal": "left out"}, "has no causal"),
    ],
)
def test_a_wrong_header_is_told(header: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    changed(path, **header)
    with pytest.raises(InputError, match=message):
        open_pack(path)


@pytest.mark.parametrize("name", ["factors.3.q", "factors.3.lse"])
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
    monkeypatch.setattr("headscape.captures.pack.LAZY_BYTES", 0)
    lazy = open_pack(tmp_path / "a.safetensors")
    assert isinstance(lazy.arrays["layer.3.q"], FileArray)
    assert pack_bytes(lazy, precision) == expected


def test_half_of_a_surrogate_pair_survives() -> None:
    pack = packed()
    odd = Pack({**pack.header, "pieces": ["\ud800", "é"], "title": "\udfff"}, pack.arrays)
    header, _ = read_bytes(pack_bytes(odd))
    assert header["pieces"] == ["\ud800", "é"]
