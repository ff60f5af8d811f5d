"""JSON that cannot be read is one sentence."""

from pathlib import Path

import pytest

from headscape.errors import InputError
from headscape.io.files import read_json


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"1" * 10_000, "is not JSON"),
        (b"[1]", "must contain a JSON object, got list"),
    ],
    ids=["arrays", "objects", "cut", "not UTF-8", "digits", "list"],
)
def test_a_bad_file_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_json(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*none\.json: No such file"):
        read_json(tmp_path / "none.json")
