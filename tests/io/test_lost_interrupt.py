"""Ctrl-C inside a callback, whose exceptions Python ignores."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, time
from headscape.io.child_process import repeat_lost_interrupts

signal.signal(signal.SIGTERM, signal.default_int_handler)
if {number}:
    repeat_lost_interrupts(signal.Signals({number}))

class Cell:
    def __del__(self):
        {inside}

cell = Cell()
try:
    del cell
    time.sleep(1)
    print("went on")
except KeyboardInterrupt:
    print("stopped")
"""


def outcome(number: int, inside: str) -> tuple[str, str]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(number=number, inside=inside)],
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip(), ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_callback_stops_the_program(number: signal.Signals) -> None:
    assert outcome(number, f"signal.raise_signal({number:d})") == ("stopped", "")


def test_python_loses_it_otherwise() -> None:
    printed, complaint = outcome(0, "signal.raise_signal(signal.SIGINT)")
    assert printed == "went on"
    assert "Exception ignored" in complaint


def test_other_exceptions_are_shown_as_before() -> None:
    printed, complaint = outcome(2, "raise ValueError('kept')")
    assert printed == "went on"
    assert "kept" in complaint
