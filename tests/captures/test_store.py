import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from headscape.captures.capture_file import Capture, load
from headscape.errors import InputError
from plots.synthetic import alibi, capture


@pytest.fixture
def saved(tmp_path):
    made = capture(alibi(4, 24), layers=(1, 3))
    made.save(tmp_path / "a.safetensors")
    return made, tmp_path / "a.safetensors"


def test_round_trip_keeps_every_field_and_every_bit(saved):
    made, path = saved
    back = load(path)
    for name in ("encoding", "conventions", "claims", "model", "layers", "heads", "length"):
        assert getattr(back, name) == getattr(made, name)
    for name in ("resolution", "causal", "sequence", "provenance", "trained", "quantities"):
        assert getattr(back, name) == getattr(made, name)
    assert back.maps.keys() == made.maps.keys()
    for name, values in made.maps.items():
        assert back.maps[name].tobytes() == values.tobytes()
    np.testing.assert_array_equal(back.tokens, made.tokens)
    np.testing.assert_array_equal(back.positions, made.positions)


def test_two_saves_give_the_same_bytes(saved, tmp_path):
    made, path = saved
    made.save(tmp_path / "b.safetensors")
    assert path.read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_part_of_a_capture(saved):
    made, path = saved
    part = load(path, layers=[3], quantities=["bias", "weights"])
    assert set(part.maps) == {"layer.3.bias", "layer.3.weights"}
    assert part.layers == (3,)
    np.testing.assert_array_equal(part.map("bias", 3, 2), made.maps["layer.3.bias"][2])


def test_weights_are_zero_in_the_file_and_blank_to_the_eye(saved):
    made, _ = saved
    ahead = ~np.tri(24, dtype=bool)
    assert (made.map("weights", 1)[:, ahead] == 0).all()
    seen = made.visible("weights", 1, made.heads)
    assert np.isnan(seen[:, ahead]).all()
    assert np.isfinite(seen[:, ~ahead]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.map("bias", 2), "layer 2 is not in this capture, which contains layer 1, 3"),
        (
            lambda c: c.map("speed", 1),
            "speed .* contains content, bias, final, weights",
        ),
        (lambda c: c.map("bias", 1, 9), "head 9 .* contains head 0, 1, 2, 3"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(saved, call, message):
    with pytest.raises(InputError, match=message):
        call(saved[0])


def test_loading_what_is_not_there(saved):
    with pytest.raises(InputError, match=r"layer 5 .* contains 1, 3"):
        load(saved[1], layers=[5])
    with pytest.raises(InputError, match="quantity speed"):
        load(saved[1], quantities=["speed"])


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, 0.99])
def test_truncated(saved, keep):
    _, path = saved
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(InputError, match="not a whole safetensors file") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def _with_metadata(path, change):
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = json.loads(file.metadata()["headscape"])
    change(described)
    save_file(tensors, path, metadata={"headscape": json.dumps(described)})


def test_newer_format(saved):
    _with_metadata(saved[1], lambda described: described.update(format=99))
    with pytest.raises(InputError, match=r"format 99 .* upgrade"):
        load(saved[1])


def test_other_kinds_of_file(saved, tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        load(tmp_path / "none")
    save_file({"x": np.zeros(3)}, tmp_path / "plain")
    with pytest.raises(InputError, match="not a headscape capture"):
        load(tmp_path / "plain")
    _with_metadata(saved[1], lambda described: described.update(kind="checkpoint"))
    with pytest.raises(InputError, match="is a headscape 'checkpoint'"):
        load(saved[1])


def test_missing_description(saved):
    _with_metadata(saved[1], lambda described: described.pop("claims"))
    with pytest.raises(InputError, match="has no claims"):
        load(saved[1])


def test_reduced_capture_and_its_window(saved, tmp_path):
    made, _ = saved
    fields = {
        name: getattr(made, name) for name, each in made.__dataclass_fields__.items() if each.init
    }
    maps = {f"layer.1.bias.{name}": np.full((4, 3, 3), i, np.float32) for i, name in
            enumerate(("mean", "min", "max"))}  # fmt: skip
    maps["layer.1.bias.exact"] = np.ones((4, 2, 5), np.float32)
    edges, window = np.array([0, 8, 16, 24]), np.array([4, 6, 0, 5])
    fields |= {"maps": maps, "layers": (1,), "resolution": 3, "edges": edges, "window": window}
    Capture(**fields).save(tmp_path / "long")
    back = load(tmp_path / "long")
    assert back.resolution == 3
    np.testing.assert_array_equal(back.edges, edges)
    np.testing.assert_array_equal(back.window, window)
    assert (back.map("bias", 1) == 0).all()
    assert (back.map("bias", 1, reduction="max") == 2).all()
    assert back.map("bias", 1, reduction="exact").shape == (4, 2, 5)
    with pytest.raises(InputError, match="reduction median"):
        back.map("bias", 1, reduction="median")
