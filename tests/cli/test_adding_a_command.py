"""A command is one file in cli/: a function with its docstring."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from contributing import shown
from headscape import cli
from headscape.cli.app import make_app
from headscape.cli.command import COMMANDS


def test_a_file_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hello.py").write_text(shown("A command"))
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    monkeypatch.delitem(COMMANDS, "hello", raising=False)
    app = make_app()
    run = CliRunner().invoke
    assert run(app, ["hello", "3", "--loud", "--times", "2"]).output == "hello, head 3!\n" * 2
    assert "hello      Greet one head." in run(app, ["--help"]).output
    listed = " ".join(run(app, ["hello", "--help"]).output.split())
    assert "The head, counted from 1." in listed
    assert "--loud Shout." in listed
    assert "How often to greet it, on a line each. [default: 1]" in listed
    assert "--plugin FILE" in listed
    COMMANDS.pop("hello")
