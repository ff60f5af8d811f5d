"""What the README says runs: its Python, its commands and its make targets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headscape.cli.app import app
from headscape.encodings.catalogue import END, START, markdown
from headscape.training import train

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ROOTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
DOCS = [*(ROOT / name for name in ROOTS), *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^ *(?:\.venv/bin/)?headscape ([a-z]+)(.*?)(?:  .*)?$", re.MULTILINE)
INLINE = re.compile(r"`headscape ([a-z]+)([^`]*)`")
"""A command in a sentence, which may go on in the next line."""


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} cats sat on {n % 7} mats\n" for n in range(500)))
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    train(
        "nano", encoding="cable", corpus=str(text), tokenizer="bytes", context_length=32,
        batch_size=2, steps=1, quiet=True, out=tmp_path / "runs" / "nano-cable-seed0",
    )  # fmt: skip
    # A block below the mark reads real weights: tests/pretrained runs it.
    blocks = re.findall(r"(?<!<!-- real weights -->\n)```python\n(.*?)```", README, re.DOTALL)
    code = "\n".join(f"exec({block!r}, {{}})" for block in blocks)  # no block sees another's names
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_command_and_option_exists(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    helps: dict[str, str] = {}
    text = path.read_text()
    for name, rest in COMMAND.findall(text) + INLINE.findall(text):
        if name not in helps:
            result = CliRunner().invoke(app, [name, "--help"])
            assert result.exit_code == 0, f"{path.name}: headscape {name}"
            helps[name] = result.output
        for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
            assert option in helps[name], f"{path.name}: headscape {name} {option}"


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in DOCS:
        for target in re.findall(r"`?\bmake ([a-z-]+)`", path.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{path.name}: make {target}"
    for module in re.findall(r"-m (benchmarks\.\w+)", makefile):
        assert (ROOT / f"{module.replace('.', os.sep)}.py").is_file(), module


def test_commands_are_found() -> None:
    assert INLINE.findall("`headscape evaluate A\n  --extend yarn` and `headscape`") == [
        ("evaluate", " A\n  --extend yarn")
    ]
    assert {"view", "atlas", "diagnose", "train"} <= {name for name, _ in COMMAND.findall(README)}


def test_the_table_of_encodings_is_that_of_the_classes() -> None:
    page = (ROOT / "docs/encodings.md").read_text()
    table = page.split(START)[1].split(END)[0].strip()
    assert table == markdown(), "run headscape.encodings.catalogue.write_table('docs/encodings.md')"
