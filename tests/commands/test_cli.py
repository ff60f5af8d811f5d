"""The command line: what it prints, what it writes, and how it refuses."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headscape.arrays import capture_file
from headscape.encodings import ENCODINGS

COMMANDS = (
    "encodings", "figures", "train", "generate", "capture", "draw", "evaluate", "compare", "doctor",
)  # fmt: skip
HEADSCAPE = Path(sys.executable).with_name("headscape")


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.argv = ['headscape', '--help']\n"
    code += "from headscape.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\n"
    code += "heavy = {'torch', 'numpy', 'matplotlib', 'tokenizers'} & set(sys.modules)\n"
    code += "assert not heavy, heavy\n"
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    for command in COMMANDS:
        assert command in result.stdout


def test_every_option_says_what_it_does(call) -> None:
    for command in COMMANDS:
        text = call(command, "--help").output
        options = re.findall(r"│ +(?:\* +)?(--[a-z-]+)(.*)", text)
        assert options, command
        for name, rest in options:
            assert re.search(r"[a-z]{3}", rest.replace("<", "")), f"{command} {name}"


def test_the_table_names_every_encoding(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = call("encodings").output
    for name in [*ENCODINGS, "dape+kerple", "dapev2+kerple"]:
        assert re.search(rf"^{re.escape(name)} ", text, re.MULTILINE), name


def test_one_encoding_lists_its_fields(call) -> None:
    text = call("encodings", "dapev2+alibi").output
    for word in ("boundary", "'masked'", "slopes", "'geometric'", "kernel = 3"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["encodings", "albi"], "unknown encoding 'albi': there are alibi"),
        (["encodings", "dapv2+kerple"], "unknown wrapper 'dapv2': there are dapev2"),
        (["encodings", "dape"], "write 'dape+kerple'"),
        (["train", "--preset", "nanoo", "--out", "x"], "did you mean 'nano'"),
        (["train", "--encoding", "alibi", "--field", "slope=mpt", "--out", "x"], "'slope'"),
        (["train", "--encoding", "alibi", "--field", "slopes", "--out", "x"], "NAME=VALUE"),
        (["train", "--corpus", "nowhere.txt", "--out", "x"], "nowhere.txt"),
        (["train", "--context-length", "0", "--out", "x"], "length must be at least 1, got 0"),
        (["train", "--encoding", "fire", "--field", "heads=3", "--out", "x"], "'heads'"),
        (["capture", "nowhere"], "nowhere is not a run"),
        (["draw", "a", "b", "--as", "grid"], "draws one capture, not 2"),
        (["draw", "a", "--as", "curves", "--colormap", "viridis"], "has no colour map"),
        (["evaluate", "nowhere"], "nowhere is not a run"),
        (["compare", "nowhere"], "nowhere"),
        (["figures", "--encodings", "alibi", "--format", "bmp"], "'bmp' is not a figure format"),
        (["generate", "nowhere"], "nowhere is not a run"),
        (["draw", "nowhere.safetensors"], "nowhere.safetensors is not there"),
        (["figures", "--encodings", "albi"], "unknown encoding 'albi'"),
        (["figures", "--encodings", "alibi", "--run", "cable"], "ENCODING=FOLDER"),
        (["figures", "--encodings", "alibi", "--run", "cable=x"], "not being drawn"),
        (["figures", "--encodings", "learned"], "acts on the embeddings"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Callable[[str], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["headscape", *words])
    refuses(message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["draw", "nowhere.safetensors"],
        ["train", "--encoding", "t5", "--field", "buckets=many", "--out", "x"],
        ["train", "--encoding", "xpos", "--field", "gamma=0", "--out", "x"],
    ],
)
def test_a_mistake_shows_no_traceback_to_a_shell(words: list[str], tmp_path: Path) -> None:
    result = subprocess.run(
        [HEADSCAPE, *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_a_run_is_captured_and_drawn(call, small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.safetensors"
    words = ["capture", small_run, "--layers", "all", "--heads", "1,4-5", "--length", 40]
    result = call(*words, "--out", out)
    assert result.exit_code == 0, result.output
    held = capture_file.load(out)
    assert held.layers == (0, 1)
    assert held.heads == (0, 3, 4)
    assert held.values(1, "bias").shape == (3, 40, 40)
    assert held.provenance["step"] == 8
    for kind in ("grid", "curves", "row", "overview"):
        result = call("draw", out, "--as", kind, "--format", "png,svg")
        assert result.exit_code == 0, result.output
        assert (tmp_path / f"a-{kind}.png").is_file()
        assert (tmp_path / f"a-{kind}.svg").is_file()


def test_the_change_over_training_is_drawn(call, small_run: Path, tmp_path: Path) -> None:
    for step in (4, 8):
        out = tmp_path / f"{step}.safetensors"
        call("capture", small_run, "--step", step, "--heads", "1,2", "--out", out)
    files = [tmp_path / f"{step}.safetensors" for step in (4, 8)]
    result = call("draw", *files, "--as", "training", "--format", "png", "--out", tmp_path / "t")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "t.gif").read_bytes().startswith(b"GIF")
    result = call("draw", *files, "--as", "compare", "--head", 2, "--out", tmp_path / "c")
    assert result.exit_code == 0, result.output
    result = call("draw", *files, "--as", "compare", "--head", 3)
    assert "head 3 is not in this capture, which holds 1, 2" in str(result.exception)
    result = call("draw", files[0], files[0], "--as", "training")
    assert "two captures are of step 4" in str(result.exception)


def test_a_text_file_and_a_document_are_captured(call, small_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "note.txt"
    text.write_text("what every head does with this sentence")
    out = tmp_path / "n.safetensors"
    result = call("capture", small_run, "--text", text, "--length", 20, "--out", out)
    assert result.exit_code == 0, result.output
    assert "".join(capture_file.load(out).sequence["pieces"]) == "what every head does"
    result = call("capture", small_run, "--document", 0, "--length", 20, "--out", out)
    assert capture_file.load(out).sequence["document"] == 0
    assert result.exit_code == 0, result.output


def test_a_long_capture_is_reduced(call, small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "long.safetensors"
    words = ["capture", small_run, "--length", 300, "--resolution", 10, "--window", "280:290,0:50"]
    result = call(*words, "--out", out)
    assert result.exit_code == 0, result.output
    held = capture_file.load(out)
    assert held.values(1, "final", "max").shape == (12, 10, 10)
    assert held.values(1, "final", "exact").shape == (12, 10, 50)
    result = call("draw", out, "--format", "png")
    assert result.exit_code == 0, result.output


def test_a_path_that_is_not_one_is_refused(call, small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.safetensors"
    result = call("capture", small_run, "--path", "fles", "--out", out)
    assert "unknown attention path 'fles'" in str(result.exception)
    assert not out.exists()


def test_runs_are_evaluated_and_compared(call, small_run: Path, tmp_path: Path) -> None:
    words = ["evaluate", small_run, "--lengths", 32, 64, "--out", tmp_path / "a"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "| 64 |" in result.output
    result = call("compare", tmp_path / "a", "--out", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "b").glob("*.tex"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "100000"], "a length of 100000 needs 100001 tokens and the text has"),
        (["--lengths", "64", "0"], "a length must be at least 1, got 0"),
        (["--lengths", "64", "--protocol", "first-3"], "unknown protocol 'first-3': there are"),
        (["--lengths", "64", "--extend", "yarn"], "'yarn' stretches RoPE, and"),
        (["--lengths", "64", "--quantity", "ppl"], "unknown quantity 'ppl'"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused_in_a_sentence(
    words: list[str], message: str, small_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = subprocess.run(
        [HEADSCAPE, "evaluate", small_run, *words, "--out", out],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not out.exists()


def test_the_doctor_names_a_path_for_every_encoding(call) -> None:
    result = call("doctor", "--length", 16)
    assert result.exit_code == 0, result.output
    text = result.output
    for name in ENCODINGS:
        assert re.search(
            rf"^{re.escape(name)} +(native|torch|reference) +decode", text, re.MULTILINE
        ), name


def test_a_damaged_checkpoint_is_passed_over_with_a_sentence(
    small_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(small_run, tmp_path / "run")
    bad = run / "checkpoints" / "step-000008" / "model.safetensors"
    bad.write_bytes(bad.read_bytes()[:-1])
    words = [HEADSCAPE, "generate", run, "--length", "1"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stderr
    assert said.startswith(f"warning: {bad} is truncated")
    assert said.endswith(f"Reading {bad.parent.with_name('step-000004')} instead.\n")
    assert len(said.splitlines()) == 1


def test_a_model_writes(call, small_run: Path) -> None:
    words = ["generate", small_run, "--prompt", "line", "--length", 12, "--seed", 4]
    first, again = call(*words), call(*words)
    assert first.exit_code == 0, first.output
    assert first.output == again.output
    assert first.output.startswith("line")
