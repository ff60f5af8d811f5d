"""A shell completes the names of encodings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEADSCAPE = Path(sys.executable).with_name("headscape")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("train --encoding kerp", ["kerple", "kerple-power", "kerple-weight"]),
        ("figures --encodings alib", ["alibi"]),
        ("check fir", ["fire"]),
    ],
)
def test_a_shell_completes_the_names_of_encodings(words: str, found: list[str]) -> None:
    typed = f"headscape {words}"
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run(
        [HEADSCAPE],
        env=os.environ | asked | {"_HEADSCAPE_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == found, done.stderr
