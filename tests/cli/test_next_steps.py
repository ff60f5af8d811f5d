"""Every command that writes something says on stderr what to do with it."""

import shlex
from pathlib import Path

import pytest

from headscape.cli.command import COMMANDS

CONFIG = '{"model_type": "gpt2", "n_layer": 2, "n_positions": 128}'
WRITES = {
    "train": (
        "train --corpus text.txt --tokenizer bytes --context-length 16 --steps 1 --out 'a run'",
        "look at it: headscape view 'a run'; score it: headscape evaluate 'a run'",
    ),
    "capture": (
        "capture run --prompt 'The cat' --out other.safetensors",
        "draw it: headscape draw other.safetensors; walk through it: headscape view other.safe",
    ),
    "draw": ("draw cat.safetensors", "walk through it: headscape view cat.safetensors"),
    "measure": (
        "measure run --length 16 --out m.csv",
        "as a page: headscape atlas run --out atlas",
    ),
    "measure captures": (
        "measure cat.safetensors --out m.csv",
        "look at them: headscape view cat.safetensors",
    ),
    "atlas": (
        "atlas run --sequences 1 --length 16 --out atlas",
        "open it in a browser; look at a head: headscape view run --prompt 'The cat sat on",
    ),
    "card": (
        "card hf:published --out card.html",
        "open it in a browser; with its weights: headscape atlas hf:published --out atlas",
    ),
    "card text": (
        "card hf:published --out card.md",
        "with its weights: headscape atlas hf:published --out atlas",
    ),
    "card of a config": ("card config.json --out card.html", "open it in a browser"),
    "view": ("view cat.safetensors --html cat.html", "open it in a browser"),
    "evaluate": (
        "evaluate run --lengths 8 --limit 200 --out e",
        "beside others: headscape compare e OTHER",
    ),
    "compare": ("compare first --out both", "in Python: hs.Table.read('both')"),
    "export": ("export run --out exported", "load it: AutoModelForCausalLM.from_pretrained("),
    "figures": (
        "figures --encodings alibi --untrained --length 16 --format png --processes 1 --out f",
        "open it in a browser",
    ),
}
"""Per command its line, and how a line of stderr begins."""
ELSEWHERE = {"adapt", "diagnose", "fetch"}
"""Commands that write and whose own tests look at what they print."""
PRINTS = {"encodings", "generate", "check", "doctor"}


def test_every_command_that_writes_is_here() -> None:
    assert {name.split()[0] for name in WRITES} | ELSEWHERE | PRINTS == set(COMMANDS)


@pytest.fixture
def place(tmp_path: Path, small_run: Path, call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").symlink_to(small_run)
    Path("text.txt").write_text("".join(f"{n} cats sat\n" for n in range(200)))
    Path("config.json").write_text(CONFIG)
    Path("published").mkdir()
    Path("published/config.json").write_text(CONFIG)
    call("capture", "run", "--prompt", "The cat", "--out", "cat.safetensors")
    call("evaluate", "run", "--lengths", "8", "--limit", "200", "--out", "first")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", WRITES)
def test_a_command_says_what_to_do_next(name: str, call) -> None:
    line, said = WRITES[name]
    done = call(*shlex.split(line))
    assert done.exit_code == 0, done.output
    assert [each for each in done.stderr.splitlines() if each.startswith(said)], done.stderr
    assert said not in done.stdout
    assert "atlas config.json" not in done.stderr
