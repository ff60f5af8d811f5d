"""Calls saved in a file: what is written is what headscape.call has, and old files still open."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from captures.test_blocks import HEADS, LENGTH, made
from headscape.call.bias import Pairwise
from headscape.call.definition import annotated, axes_of
from headscape.call.positions import Positions, Turn, Visible
from headscape.call.quantities import QUANTITIES
from headscape.captures.call_blocks import CLASSES, save_call
from headscape.captures.capture_file import load, open_pack
from headscape.captures.file_checks import digest, digest_of
from headscape.captures.pack import make_pack, pack_bytes
from headscape.captures.saved_call import KINDS, SavedCall
from headscape.errors import InputError
from pack_files import write

DATA = Path(__file__).parent / "data"
ONLY_CHECKS = {"Perceptron": {"at"}, "BiasSum": {"positions"}, "Positions": {"bounds"}}
"""Fields that only the check of a call reads."""


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "Turn"])
def test_a_kind_is_its_class(kind: str) -> None:
    """The axes that a file is checked by are those of the dataclass."""
    cls = CLASSES[kind]
    names = {name.partition(".")[0] for name in KINDS[kind]}
    assert names == {each.name for each in fields(cls)} - ONLY_CHECKS.get(kind, set())
    kinds = dict(annotated(cls))
    for name, axes in KINDS[kind].items():
        if isinstance(axes, str) and "." not in name and name != "column":
            own = [axis for axis in axes_of(kinds[name]) if axis not in ("b", "#b")]
            assert axes.rstrip("?").split() == own, name


def test_a_turn_has_the_pairings_of_its_class() -> None:
    check: Any = KINDS["Turn"]["pairing"]
    assert check("halves")
    assert check("interleaved")
    assert Turn(torch.ones(1), torch.zeros(1), "halves").pairing == "halves"


@pytest.mark.parametrize("read", [load, open_pack])
def test_a_file_of_format_4_gives_its_maps(read: Callable[[Path], Any]) -> None:
    expected = np.load(DATA / "format4_maps.npz")
    found = read(DATA / "format4.safetensors")
    for name in expected.files:
        layer, quantity = name.split(".")
        call = found.calls[int(layer)] if read is load else found.layer(int(layer))
        size = max(1.0, np.nanmax(np.abs(expected[name])))
        np.testing.assert_allclose(
            call.whole(quantity, [0, 1]), expected[name], rtol=0, atol=2e-7 * size, err_msg=name
        )


def test_a_file_of_format_4_is_written_anew(tmp_path: Path) -> None:
    old = load(DATA / "format4.safetensors")
    path = old.save(tmp_path / "new.safetensors")
    assert path == tmp_path / "new.safetensors"
    new = load(path)
    for quantity in QUANTITIES:
        for layer in old.layers:
            np.testing.assert_array_equal(new.map(quantity, layer), old.map(quantity, layer))
    assert pack_bytes(new.pack())[12:] == pack_bytes(old.pack())[12:]


def forge(path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], object]) -> None:
    """Change the description and arrays of a file, with right checksums."""
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = json.loads(file.metadata()["headscape"])
    change(text, arrays)
    text["sha256"] = {name: digest(value) for name, value in arrays.items()}
    text["sha256"]["description"] = digest_of(text)
    save_file(arrays, path, metadata={"headscape": json.dumps(text)})


def described(**change: Any) -> Callable[[dict[str, Any], dict[str, np.ndarray]], object]:
    return lambda text, _: text["calls"]["0"].update(change)


def reshaped(name: str, *shape: int) -> Callable[[dict[str, Any], dict[str, np.ndarray]], object]:
    return lambda _, arrays: arrays.update({f"call.0.{name}": np.ones(shape, np.float32)})


def recast(name: str, dtype: Any, value: float = 1) -> Any:
    def change(_: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        arrays[f"call.0.{name}"] = np.full(arrays[f"call.0.{name}"].shape, value, dtype)

    return change


def without(name: str) -> Any:
    return lambda _, arrays: arrays.pop(f"call.0.{name}")


WRONG = r"the description of layer 0 \(counted from 0\) is wrong"
UNFIT = r"arrays of layer 0 \(counted from 0\) do not fit its description"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("alibi", described(scale=True), WRONG),
        ("alibi", described(scale=1e300), WRONG),
        ("alibi", described(softcap=-1), WRONG),
        ("alibi", described(bias={"kind": "Pairwise"}), WRONG),
        ("alibi", described(bias={"kind": "Toeplitz"}), WRONG),
        ("alibi", described(bias={"kind": "Toeplitz", "zero": 0, "more": 1}), WRONG),
        ("alibi", described(bias={"kind": "BiasSum", "parts": []}), WRONG),
        ("alibi", described(bias=None), UNFIT),
        ("alibi", described(more=1), WRONG),
        ("alibi", described(turn={"kind": "Turn", "pairing": "halves"}), UNFIT),
        ("alibi", described(positions={"kind": "Positions"}), UNFIT),
        ("alibi", reshaped("q", 4, 75, 9), UNFIT),
        ("alibi", reshaped("k", 3, 75, 8), UNFIT),
        ("alibi", reshaped("bias.table", 4, 0), UNFIT),
        ("alibi", reshaped("more", 4), UNFIT),
        ("alibi", without("k"), UNFIT),
        ("alibi", recast("q", np.float16), r"q of layer 0 \(counted from 0\) is float16"),
        ("alibi", recast("q", np.int64), UNFIT),
        ("rope", reshaped("turn.k", 2, 75, 5), UNFIT),
        ("rope", without("turn.q"), UNFIT),
        ("pope", without("unrotated.1"), UNFIT),
        ("t5+cable", reshaped("bias.parts.1.row", 4, 74), UNFIT),
        ("deberta", without("bias.key.1"), UNFIT),
        ("deberta", recast("bias.column", np.int64, 10**6), UNFIT),
        ("dapev2+kerple", reshaped("mixing.in_weight", 8, 7, 3), UNFIT),
        ("cope", reshaped("mixing.table", 9, 8), UNFIT),
        ("path", recast("transition.w", np.float32, np.nan), UNFIT),
        ("wall", reshaped("transition.gate", 4, 74, 8), UNFIT),
        ("stick-breaking", described(weighting={"kind": "Sticks", "takes_own": 1}), WRONG),
    ],
    ids=lambda value: value if isinstance(value, str) else "forged",
)
def test_forged_calls_are_told(name: str, change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    pack = make_pack({0: save_call(made(name))}, encoding=name, heads=list(range(HEADS)))
    write(pack, path)
    forge(path, change)
    for read in (load, open_pack):
        with pytest.raises(InputError, match=message):
            read(path)


def same(saved: SavedCall, path: Path) -> None:
    """Compare a call with what a file gives back."""
    write(make_pack({0: saved}, encoding="x", heads=list(range(saved.heads))), path)
    back, every = open_pack(path).layer(0), slice(0, LENGTH)
    for quantity in QUANTITIES:
        np.testing.assert_array_equal(
            back.tile(quantity, [1, 0], every, every), saved.tile(quantity, [1, 0], every, every)
        )


def test_groups_positions_and_functions_are_saved(tmp_path: Path) -> None:
    call = made("alibi")
    group = torch.tensor([-1] * 5 + [0] * 40 + [1] * 30)[None]
    same(save_call(replace(call, visible=Visible(True, group, group))), tmp_path / "a")
    at = torch.arange(LENGTH)[None] // 2
    spread = save_call(replace(call, positions=Positions(at, at)))
    assert "positions.q" in spread.arrays
    same(spread, tmp_path / "b")
    values = torch.randn(1, HEADS, LENGTH, LENGTH)
    fn = Pairwise(lambda rows, cols: values[:, :, rows, cols])
    same(save_call(replace(call, bias=fn)), tmp_path / "c")


def test_one_head_is_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = save_call(made("alibi"))
    asked: list[list[int]] = []
    blocks = saved.calculator.blocks

    def counted(quantity: str, heads: Any, *rest: Any, **more: Any) -> np.ndarray:
        asked.append(list(heads))
        return blocks(quantity, heads, *rest, **more)

    monkeypatch.setattr(saved.calculator, "blocks", counted)
    saved.whole("bias", [2])
    assert asked == [[2]]
