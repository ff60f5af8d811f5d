"""A field of the config is one line with its docstring: it is a setting, a flag and recorded.

The package is copied as links, except for the file that gets the new field.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import indent

import pytest

import headscape
from contributing import shown

SOURCE = Path(headscape.__file__).parent
CASES = {
    "training/config.py": "    seed: int = 0\n",
    "gpt2/model_config.py": "    causal: bool = True\n",
}
"""Where a field is added: before which line."""
FIELD = shown("A field")


SCRIPT = """
import json, sys
from typer.testing import CliRunner
from headscape.cli.app import app
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, ["train", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    print(result.output)
"""


def with_field(folder: Path, file: str) -> str:
    """Copy the package with one more field; return the field's name."""
    before = CASES[file]
    changed = SOURCE / file
    for path in SOURCE.rglob("*"):
        target = folder / "headscape" / path.relative_to(SOURCE)
        if path.is_file() and "__pycache__" not in path.parts:
            target.parent.mkdir(parents=True, exist_ok=True)
            if path == changed:
                text = path.read_text()
                assert text.count(before) == 1
                target.write_text(text.replace(before, indent(FIELD, "    ") + before))
            else:
                target.symlink_to(path)
    return FIELD.partition(":")[0]


@pytest.mark.parametrize("file", CASES)
def test_one_line_is_a_flag_a_line_of_the_file_and_recorded(
    file: str, text: Path, cache: Path, tmp_path: Path
) -> None:
    name = with_field(tmp_path, file)
    flag, out = f"--{name.replace('_', '-')}", tmp_path / "run"
    small = ["--tokenizer", "bytes", "--context-length", "32", "--batch-size", "2", "--layers", "1"]
    new = ["--corpus", str(text), *small, "--steps", "1", flag, "0.25", "--out", str(out)]
    again = ["--config", str(out / "config.toml"), "--out", str(tmp_path / "again")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([["--help"], new, again])],
        env=os.environ
        | {"PYTHONPATH": str(tmp_path), "HEADSCAPE_CACHE": str(cache), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{flag} <float>" in done.stdout
    assert "Share of every target spread over all tokens. [nano: 0.0]" in " ".join(
        done.stdout.split()
    )
    assert tomllib.loads((out / "config.toml").read_text())[name] == 0.25
    state = json.loads((out / "checkpoints" / "step-000001" / "state.json").read_text())
    assert state["made_with"]["config"][name] == 0.25
    if file.startswith("gpt2"):
        header = json.loads((out / "checkpoints" / "step-000001" / "headscape.json").read_text())
        assert header["model"][name] == 0.25
    assert (tmp_path / "again" / "config.toml").read_text() == (out / "config.toml").read_text()
