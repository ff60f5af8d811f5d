"""Names of others in tables and on the terminal."""

import csv
import io
import sys
from io import StringIO

import pytest

from headscape.io.table_text import csv_text, latex_text, markdown_text
from headscape.io.terminal import printable, say


def test_latex_shows_every_character() -> None:
    found = latex_text("\\input{a}\n~^ 5% & $x_1$ #2")
    assert found == (
        r"\textbackslash{}input\{a\} \textasciitilde{}\textasciicircum{} 5\% \& \$x\_1\$ \#2"
    )


def test_markdown_stays_in_its_cell() -> None:
    assert markdown_text("a|b\\|c\nd <b>`*x*` [l](u)") == (r"a\|b\\\|c d \<b>\`\*x\*\` \[l\](u)")
    assert markdown_text("my_run_1 and _this_") == r"my_run_1 and \_this\_"


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", " =1", "\r=1"])
def test_no_cell_is_a_formula(text: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_text(["a"], [{"a": text}]), newline="")))
    assert rows[1] == ["'" + text.replace("\r", "\n")]


@pytest.mark.parametrize("value", [-1.5, 3, "-1.5", "+2", "-inf", "a=1", None, ""])
def test_numbers_and_other_text_stay_as_they_are(value: object) -> None:
    rows = list(csv.reader(io.StringIO(csv_text(["a", "b"], [{"a": value, "b": 1}]))))
    assert rows[1] == ["" if value is None else str(value), "1"]


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "\x1b]0;owned\x07\x9b31m\u202eabc\r\n\té"
    shown = "\\x1b]0;owned\\x07\\x9b31m\\u202eabc\\r\n\té"
    assert printable(name) == shown
    for stream in ("stdout", "stderr"):
        screen = Screen()
        monkeypatch.setattr(sys, stream, screen)
        say(name, err=stream == "stderr", nl=False)
        assert screen.getvalue() == shown


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say("\x07\r", nl=False)
    assert capsys.readouterr().out == "\x07\r"
