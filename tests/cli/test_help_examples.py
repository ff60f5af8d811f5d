"""Every command's help ends with examples, and they run as printed, on small things."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.test_cli import PLUGIN
from headscape.cli.command import COMMANDS
from headscape.encodings import ENCODINGS

SMALLER = {
    "figures": "--length 16 --format png --processes 1",
    "train": "--corpus text.txt --tokenizer bytes --context-length 16 --batch-size 2 --steps 1",
    "generate": "--length 3",
    "atlas": "--sequences 1 --length 16 --effects 1",
    "evaluate": "--limit 200",
    "adapt": "--steps 2 --batch 1",
    "diagnose": "--length 48 --windows 1 --questions 0 --effects 0",
}
"""Options that make an example small; a later option wins."""
LENGTHS = "512,1024,2048,4096"
STAND_INS = {LENGTHS: "8,16", "hf:smollm2": "runs/cable", "hf:Qwen/Qwen3-0.6B": "config.json"}
"""Words of examples and what the test writes for them: short lengths, models that are here."""
LEFT_OUT = {
    "headscape figures --quick": "trains eight models",
    'headscape view runs/cable --prompt "The cat sat on the mat"': "serves until Ctrl-C",
}


def examples(name: str) -> list[str]:
    return COMMANDS[name].examples  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_of_itself(name: str, call) -> None:
    assert examples(name)
    shown = call(name, "--help").output
    for line in examples(name):
        assert line.startswith(f"headscape {name}")
        assert f"\n  {line}\n" in shown


@pytest.fixture
def place(tmp_path: Path, small_run: Path, call, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with everything that the examples name."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_run, tmp_path / "runs/cable")
    (tmp_path / "text.txt").write_text("".join(f"{n} cats sat\n" for n in range(200)))
    (tmp_path / "my_encoding.py").write_text(PLUGIN)
    for name, length in (("config.json", 128), ("longer/config.json", 256)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(
            f'{{"model_type": "gpt2", "n_layer": 2, "n_positions": {length}}}'
        )
    call("capture", "runs/cable", "--prompt", "The cat", "--out", "cat.safetensors")
    yield
    ENCODINGS.pop("half-alibi", None)  # of my_encoding.py; other tests count encodings and modules
    for name in [name for name in sys.modules if name.startswith("headscape_plugin_my_encoding")]:
        del sys.modules[name]


RUN = [line for name in COMMANDS for line in examples(name) if line not in LEFT_OUT]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("line", RUN)
def test_an_example_runs(line: str, call) -> None:
    _, name, *rest = shlex.split(line)
    if name == "compare":
        for one in rest:
            call("evaluate", "runs/cable", "--lengths", "8", "--limit", "200", "--out", one)
    for made, where in (("capture", "cat.safetensors"), ("train", "runs")):
        if name == made:
            Path(where).rename("earlier")
    rest = [STAND_INS.get(word, word) for word in rest]
    done = call(name, *rest, *SMALLER.get(name, "").split())
    assert done.exit_code == 0, done.output
