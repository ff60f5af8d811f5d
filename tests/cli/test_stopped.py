"""What a command says when Ctrl-C stops it."""

import sys
import warnings

import pytest

import headscape
from headscape.cli import app as cli


def test_ctrl_c_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def figures(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(headscape, "paper_figures", figures)
    monkeypatch.setattr(sys, "argv", ["headscape", "figures"])
    # main() replaces both.
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 130
    assert capsys.readouterr().err == "stopped; repeat the command to go on.\n"
