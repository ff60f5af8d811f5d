"""An encoding in a file of one's own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headscape.encodings import ENCODINGS, WRAPPERS, build, load_plugin, title
from headscape.errors import InputError

SHAPE = {"heads": 2, "head_dim": 4, "width": 8, "train_length": 16}
PLUGIN = """
from dataclasses import dataclass

from headscape.call.bias import Toeplitz
from headscape.encodings.alibi import ALiBi
from headscape.encodings.base import Encoding
from headscape.encodings.base import Config


@dataclass(frozen=True, kw_only=True)
class FlatConfig(Config):
    height: float = 1.0


class Flat(Encoding):
    title = "A flat line"
    adds_bias = True
    config_type = FlatConfig

    def bias(self, layer):
        distance, zero = self.distances(layer.positions, layer.positions.q.device)
        flat = self.config.height + 0.0 * distance.double()
        return Toeplitz(flat.expand(self.shape.heads, -1), zero)


class Steep(ALiBi):
    name = "very-steep"


class _Helper(Encoding):
    pass
"""


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    """Put the tables and modules back after a test."""
    before = dict(ENCODINGS), dict(WRAPPERS), set(sys.modules)
    yield
    for table, old in ((ENCODINGS, before[0]), (WRAPPERS, before[1])):
        table.clear()
        table.update(old)
    for name in set(sys.modules) - before[2]:
        if name.startswith("headscape_plugin_"):
            del sys.modules[name]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my encoding.py"
    path.write_text(PLUGIN)
    return path


def test_the_encodings_of_a_file_are_registered(plugin: Path) -> None:
    assert load_plugin(plugin) == ["flat", "very-steep"]
    made = build("dapev2+flat", **SHAPE, height=3.0)
    assert made.base.config.height == 3.0
    assert title("flat") == "A flat line"
    assert title("very-steep") == "Steep"


def test_a_file_can_be_edited_and_loaded_again(plugin: Path) -> None:
    load_plugin(plugin)
    plugin.write_text(PLUGIN.replace("height: float = 1.0", "height: float = 2.0"))
    assert load_plugin(str(plugin)) == ["flat", "very-steep"]
    assert build("flat", **SHAPE).config.height == 2.0
    plugin.write_text(PLUGIN.replace('name = "very-steep"', 'name = "steeper"'))
    assert load_plugin(plugin) == ["flat", "steeper"]
    assert "very-steep" not in ENCODINGS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def f(:\n", r"has a syntax error in line 1: .+\.$"),
        ("import no_such_module\n", r"cannot be imported: ModuleNotFoundError: .*no_such_module"),
        ("1 / 0\n", r"cannot be imported: ZeroDivisionError: division by zero\.$"),
        ("x = 1\n", "defines no encoding: derive a class from headscape.Encoding"),
        ("from headscape.encodings.alibi import ALiBi\n", "defines no encoding"),
        (PLUGIN.replace("class Flat(", "class Kerple("), "already an encoding named 'kerple'"),
        (PLUGIN.replace("very-steep", "Very Steep"), "lower-case letters, .* got 'Very Steep'"),
    ],
)
def test_a_file_that_cannot_be_used(plugin: Path, text: str, sentence: str) -> None:
    table = dict(ENCODINGS)
    plugin.write_text(text)
    with pytest.raises(InputError, match=sentence) as error:
        load_plugin(plugin)
    assert str(plugin) in str(error.value)
    assert "\n" not in str(error.value)
    assert table == ENCODINGS
    assert not [name for name in sys.modules if name.startswith("headscape_plugin_")]


def test_a_failed_reload_keeps_what_was_there(plugin: Path) -> None:
    load_plugin(plugin)
    table = dict(ENCODINGS)
    for text in ("x = 1\n", "1 / 0\n", PLUGIN.replace("class Flat(", "class Kerple(")):
        plugin.write_text(text)
        with pytest.raises(InputError):
            load_plugin(plugin)
        assert table == ENCODINGS


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.py", tmp_path):
        with pytest.raises(InputError, match="does not exist: pass the path of a Python file"):
            load_plugin(path)
