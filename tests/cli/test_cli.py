"""The command line: what it prints, what it writes, and how it refuses."""

import csv
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

import headscape
import headscape as hs
from headscape.captures import capture_file
from headscape.cli import app as cli
from headscape.encodings import ENCODINGS
from headscape.encodings.registry import SHIPPED, parse
from headscape.errors import InputError
from headscape.training.config import NAMES, PRESETS

COMMANDS = (
    "figures", "encodings", "train", "generate", "capture", "draw", "measure", "view",
    "evaluate", "compare", "check", "doctor",
)  # fmt: skip
PLUGIN = '''
"""ALiBi at half the slope."""

import torch

from headscape.call.bias import Toeplitz
from headscape.encodings import Encoding


class HalfALiBi(Encoding):
    """A - m (i - j) / 2."""

    name = "half-alibi"
    paper = "here"
    formula = "A - m (i-j) / 2"
    adds_bias = True
    no_bidirectional_form = "it is only defined for keys before the query"

    def bias(self, layer):
        low, high = layer.positions.bounds
        distance = torch.arange(low, high + 1, dtype=torch.float32)
        slopes = 2.0 ** -torch.arange(1, self.shape.heads + 1)
        return Toeplitz(-slopes[:, None] * distance / 2, -low)
'''
HEADSCAPE = Path(sys.executable).with_name("headscape")


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.argv = ['headscape', '--help']\n"
    code += "from headscape.cli.app import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\n"
    code += "heavy = {'torch', 'numpy', 'matplotlib', 'tokenizers'} & set(sys.modules)\n"
    code += "assert not heavy, heavy\n"
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    for command in COMMANDS:
        assert command in result.stdout


def test_openmp_threads_sleep_soon() -> None:
    """torch's libgomp prints the settings it has read when it is loaded."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    found = [*Path(str(spec.origin)).parent.glob("lib/libgomp*")]
    if not found:
        pytest.skip("this torch brings no libgomp")
    code = "import ctypes, sys\nfrom headscape.cli.app import main\n"
    code += "sys.argv = ['headscape', '--version']\n"
    code += f"try:\n    main()\nexcept SystemExit:\n    ctypes.CDLL({str(found[0])!r})\n"
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    env = {name: value for name, value in os.environ.items() if name not in chosen}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"GOMP_SPINCOUNT = '{cli.SPIN_COUNT}'" in done.stderr


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_a_users_openmp_settings_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "ACTIVE" if name == "OMP_WAIT_POLICY" else "7")
    before = dict(os.environ)
    cli._limit_spinning()
    assert dict(os.environ) == before


def test_every_option_says_what_it_does(call) -> None:
    for command in COMMANDS:
        text = call(command, "--help").output
        _, *options = re.split(r"^  (?=-)", text, flags=re.MULTILINE)
        assert options, command
        for option in options:
            name, *words = option.split()
            assert re.search(r"[a-z]{2,} .*[a-z]{2,}", " ".join(words)), f"{command} {name}"


def test_help_shows_defaults_and_whole_summaries(call) -> None:
    assert "[default: last]" in call("capture", "--help").output
    assert "..." not in call("--help").output.partition("Commands:")[2]


def test_the_table_names_every_encoding(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = call("encodings").output
    for name in [*ENCODINGS, "dape+kerple", "dapev2+kerple"]:
        assert re.search(rf"^{re.escape(name)} ", text, re.MULTILINE), name


def test_one_encoding_lists_its_fields(call) -> None:
    text = call("encodings", "dapev2+alibi").output
    for word in ("boundary", "'masked'", "slopes", "'geometric'", "kernel = 3"):
        assert word in text
    assert text.count("  softcap = ") == 1
    assert "softcap tanh(s / softcap)" in text, "the notes of inherited fields are missing"


def test_a_schedule_lists_its_layers(call) -> None:
    text = call("encodings", "rope:window=512*5,rope:base=1e6").output
    assert re.search(r"layers 1-5 +rope +window = 512\n", text)
    assert re.search(r"layer 6 +rope +base = 1000000.0\n", text)
    assert "a multiple of 6" in text
    text = call("encodings", "cohere2:window=64").output
    assert text.startswith("cohere2:window=64  Cohere 2\npattern: rope:window=64*3,nope\n")
    assert "transformers" in text
    assert re.search(r"layers 1-3 +rope +window = 64\n +layer 4 +nope\n", text)
    assert re.search(
        r"every layer +rope +softcap = 50.0\n", call("encodings", "rope:softcap=50").output
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_schedule_is_described(call, name: str) -> None:
    assert SHIPPED[name].title in call("encodings", name).output
    period = hs.list_encodings(name)
    assert [row.name for row in period] == [entry.name for entry in parse(name)]
    for row, entry in zip(period, parse(name), strict=True):
        defaults = {item.name: item.default for item in fields(row.kind.config_type)}
        changed = {key: value for key, value in entry.fields.items() if value != defaults[key]}
        assert row.fields == changed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["encodings", "cohere3"], "unknown encoding 'cohere3': did you mean 'cohere2'"),
        (["encodings", "rope:windw=3,nope"], "did you mean 'window'"),
        (["encodings", "rope:window=0,nope"], "window must be at least 1, got 0"),
        (["encodings", "cohere2,rope"], "'cohere2' is a schedule of layers"),
        (["encodings", "albi"], "unknown encoding 'albi': did you mean 'alibi'"),
        (["encodings", "dapv2+kerple"], "unknown encoding 'dapv2': did you mean 'dapev2'"),
        (["encodings", "dape"], "write 'dape+kerple'"),
        (["train", "--preset", "nanoo", "--out", "x"], "did you mean 'nano'"),
        (["train", "--encoding", "alibi", "--field", "slope=mpt", "--out", "x"], "'slope'"),
        (["train", "--encoding", "alibi", "--field", "slopes", "--out", "x"], "NAME=VALUE"),
        (["train", "--corpus", "nowhere.txt", "--out", "x"], "nowhere.txt"),
        (["train", "--context-length", "0", "--out", "x"], "length must be at least 1, got 0"),
        (["train", "--encoding", "fire", "--field", "heads=3", "--out", "x"], "'heads'"),
        (
            ["train", "--encoding", "t5", "--field", "buckets=many", "--out", "x"],
            "error: buckets='many' is not of type int.\n",
        ),
        (
            ["train", "--encoding", "xpos", "--field", "gamma=0", "--out", "x"],
            "error: gamma must be above 0, got 0.0.\n",
        ),
        (["capture", "nowhere"], "there is no file or folder nowhere"),
        (["draw", "a", "b", "--as", "grid"], "--as grid draws 1 capture, got 2"),
        (
            ["draw", "a", "--as", "curves", "--cmap", "viridis"],
            "--as curves does not use --cmap",
        ),
        (["evaluate", "nowhere"], "there is no file or folder nowhere"),
        (["compare", "nowhere"], "nowhere"),
        (["figures", "--encodings", "alibi", "--format", "bmp"], "'bmp' is not a figure format"),
        (["generate", "nowhere"], "there is no file or folder nowhere"),
        (["draw", "nowhere.safetensors"], "there is no file nowhere.safetensors"),
        (["figures", "--encodings", ""], "--encodings is empty"),
        (["draw", "a", "--head", "2"], "--as grid does not use --head"),
        (["draw", "a", "--as", "difference"], "--as difference draws 2 captures, got 1"),
        (["measure", "nowhere.safetensors"], "there is no file nowhere.safetensors"),
        (["check", "nowhere.py"], "nowhere.py"),
        (["train", "--plugin", "nowhere.py", "--out", "x"], "nowhere.py"),
        (["figures", "--encodings", "albi"], "unknown encoding 'albi'"),
        (["figures", "--encodings", "rope*3,nope"], "separate encodings by semicolons"),
        (["figures", "--encodings", ";"], "--encodings is empty"),
        (
            ["figures", "--encodings", "rope*3,nope;", "--untrained"],
            "has 4 layers, which does not divide the model's 2",
        ),
        (
            ["figures", "--encodings", "rope:window=0,nope; alibi", "--untrained"],
            "window must be at least 1, got 0",
        ),
        (
            ["figures", "--encodings", "rope:window=4:chunk=4;", "--untrained"],
            "window=4 and chunk=4 exclude each other",
        ),
        (
            ["figures", "--encodings", "stick-breaking:sink=true;", "--untrained"],
            "has no softmax that a sink could join",
        ),
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


def test_a_mistake_shows_no_traceback_to_a_shell(tmp_path: Path) -> None:
    result = subprocess.run(
        [HEADSCAPE, "draw", "nowhere.safetensors"],
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
    assert held.map("bias", 1).shape == (3, 40, 40)
    assert held.provenance["step"] == 8
    for kind in ("grid", "curves", "row", "overview"):
        result = call("draw", out, "--as", kind, "--format", "png,svg")
        assert result.exit_code == 0, result.output
        png, svg = (Path(line) for line in result.stdout.split())
        assert png.is_file()
        assert png.with_suffix(".svg") == svg
        assert f"-{kind}" in png.stem


def test_four_heads_fit_a_column(call, small_run: Path, tmp_path: Path) -> None:
    out, pdf = tmp_path / "a.safetensors", tmp_path / "figure.pdf"
    call("capture", small_run, "--prompt", "line 3 of 4 things", "--out", out)
    result = call("draw", out, "--heads", "1,4,7,10", "--columns", 2, "--width", 3.3, "--out", pdf)
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == [str(pdf)]
    box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+)", pdf.read_bytes())
    assert float(box[1]) == pytest.approx(3.3 * 72, abs=0.5)


def test_a_title_limits_and_tokens_are_drawn(call, small_run: Path, tmp_path: Path) -> None:
    out, svg = tmp_path / "a.safetensors", tmp_path / "figure.svg"
    call("capture", small_run, "--prompt", "line 3", "--out", out)
    words = ["draw", out, "--heads", "1", "--out", svg, "--limits", -1, -0.1, "--tokens"]
    result = call(*words, "--title", "Mine", "--cmap", "magma")
    assert result.exit_code == 0, result.output
    text = svg.read_text()
    for shown in (">Mine<", ">Positional bias<", ">−1.0<", ">·<"):
        assert shown in text
    assert call(*words, "--title", "none").exit_code == 0
    assert "positional bias" not in svg.read_text()


def test_measures_are_numbers(call, small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.safetensors"
    call("capture", small_run, "--layers", "all", "--length", 32, "--out", out)
    rows = list(csv.DictReader(call("measure", out, "--csv").stdout.splitlines()))
    assert [(row["layer"], row["head"]) for row in rows[:2]] == [("1", "1"), ("1", "2")]
    assert len(rows) == 24
    assert 0 <= float(rows[0]["position_share"]) <= 1


def test_text_comes_from_standard_input(small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.safetensors"
    words = [HEADSCAPE, "capture", small_run, "--text", "-", "--out", out]
    said = subprocess.run(
        words, check=True, capture_output=True, encoding="utf-8", input="sieben é!"
    ).stdout
    assert said.strip() == str(out)
    assert bytes(capture_file.load(out).tokens.tolist()).decode() == "sieben é!"


def test_a_plugin_is_checked_and_trained(call, small_run: Path, tmp_path: Path) -> None:
    # What the plugin adds is taken back: other tests count encodings and modules.
    before = set(ENCODINGS), set(sys.modules)
    try:
        _use_plugin(call, small_run, tmp_path)
    finally:
        for table, names in zip((ENCODINGS, sys.modules), before, strict=True):
            for name in [name for name in table if name not in names and "half" in name]:
                del table[name]


def _use_plugin(call, small_run: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "half.py"
    plugin.write_text(PLUGIN)
    result = call("check", plugin)
    assert result.exit_code == 0, result.output
    assert "FAILED" not in result.output
    corpus = small_run.parent / "text.txt"
    words = ["train", "--plugin", plugin, "--encoding", "half-alibi", "--corpus", corpus]
    words += ["--tokenizer", "bytes", "--context-length", 32, "--batch-size", 2, "--steps", 2]
    result = call(*words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    result = call("capture", tmp_path / "run", "--plugin", plugin, "--out", tmp_path / "c")
    assert result.exit_code == 0, result.output
    assert capture_file.load(tmp_path / "c").encoding == "half-alibi"
    weights = headscape.load(tmp_path / "run").save(tmp_path / "saved")
    del ENCODINGS["half-alibi"]
    result = call("capture", tmp_path / "run", "--out", tmp_path / "d")
    assert str(result.exception) == (
        f"{tmp_path / 'run'} uses the encoding 'half-alibi', which is not registered; it was "
        f"trained with the plugin {plugin}: load {plugin} as a plugin first "
        f"(headscape.encodings.load_plugin in Python)."
    )
    with pytest.raises(InputError, match=r"saved uses the encoding 'half-alibi', .*: load its"):
        headscape.load(weights)
    (tmp_path / "run" / "provenance.json").unlink()
    with pytest.raises(InputError, match="which is not registered: load its file as a plugin"):
        headscape.load(tmp_path / "run")


def test_the_version_is_printed(call) -> None:
    assert call("--version").output.strip() == f"headscape {headscape.__version__}"


def test_a_foreign_file_is_not_replaced(call, small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "thesis.txt"
    out.write_text("years of work")
    result = call("capture", small_run, "--length", 8, "--out", out)
    assert "is not a capture" in str(result.exception)
    assert out.read_text() == "years of work"
    result = call("capture", small_run, "--length", 8, "--out", out, "--overwrite")
    assert result.exit_code == 0, result.output


def test_the_change_over_training_is_drawn(call, small_run: Path, tmp_path: Path) -> None:
    for step in (4, 8):
        out = tmp_path / f"{step}.safetensors"
        call("capture", small_run, "--step", step, "--heads", "1,2", "--out", out)
    files = [tmp_path / f"{step}.safetensors" for step in (4, 8)]
    result = call("draw", *files, "--as", "training", "--out", tmp_path / "t.gif")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "t.gif").read_bytes().startswith(b"GIF")
    result = call("draw", *files, "--as", "compare", "--head", 2, "--out", tmp_path / "c.png")
    assert result.exit_code == 0, result.output
    result = call("draw", *files, "--as", "compare", "--head", 3)
    assert "head 3 is not in this capture, which contains head 1, 2" in str(result.exception)
    result = call("draw", files[0], files[0], "--as", "training")
    assert "two captures are of step 4" in str(result.exception)


def test_a_text_file_and_a_document_are_captured(call, small_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "note.txt"
    text.write_text("what every head does with this sentence")
    out = tmp_path / "n.safetensors"
    result = call("capture", small_run, "--text", text, "--length", 20, "--out", out)
    assert result.exit_code == 0, result.output
    assert "".join(capture_file.load(out).sequence["pieces"]) == "what every head does"
    result = call("capture", small_run, "--document", 1, "--length", 20, "--out", out)
    assert capture_file.load(out).sequence["document"] == 0
    assert result.exit_code == 0, result.output


def test_a_model_is_viewed_with_a_text(call, small_run: Path, tmp_path: Path) -> None:
    out, note = tmp_path / "a.html", tmp_path / "note.txt"
    note.write_text("from a file")
    for words in (["--prompt", "Hi there"], ["--text", note]):
        result = call("view", small_run, *words, "--html", out)
        assert result.exit_code == 0, result.output
        assert out.is_file()
    result = call("view", small_run, "--prompt", "Hi", "--text", note, "--html", out)
    assert "give --prompt or --text" in str(result.exception)


def test_a_long_capture_is_reduced(call, small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "long.safetensors"
    words = ["capture", small_run, "--length", 300, "--resolution", 10, "--window", "281:290,1:50"]
    result = call(*words, "--out", out)
    assert result.exit_code == 0, result.output
    held = capture_file.load(out)
    assert held.map("final", 1, reduction="max").shape == (12, 10, 10)
    assert held.map("final", 1, reduction="exact").shape == (12, 10, 50)
    result = call("draw", out, "--format", "png")
    assert result.exit_code == 0, result.output


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


def test_queries_count_from_1(call, small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "cap.safetensors"
    assert call("capture", small_run, "--length", 20, "--out", out).exit_code == 0
    result = call("draw", out, "--as", "row", "--query", 20)
    assert "query20" in result.output, result.output
    result = call("draw", out, "--as", "row", "--query", 0)
    assert "--query 0 is not in this capture: choose one from 1 to 20" in str(result.exception)
    for words, message in (
        (["--document", 0], "--document counts from 1"),
        (["--resolution", 4, "--window", "0:5,1:5"], "count from 1"),
    ):
        result = call("capture", small_run, *words, "--out", out)
        assert message in str(result.exception), words


def test_a_text_is_not_called_a_damaged_capture(call, tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("a text")
    result = call("measure", text)
    assert f"{text} is not a capture: `headscape measure MODEL --text" in str(result.exception)


def test_train_has_an_option_for_every_field(call) -> None:
    text = call("train", "--help").output
    for name in set(NAMES) - {"encoding_fields"}:
        assert re.search(rf"^  --{name.replace('_', '-')} ", text, re.MULTILINE), name
    for title in ("Model:", "Text:", "Schedule:", "Optimizer:", "Machine:"):
        assert f"\n{title}\n" in text
    assert "--optimizer adamw|muon " in text
    for name in PRESETS:
        assert re.search(rf"\b{name}\b", text), name


def test_train_reads_fields_of_every_type(
    call, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def train(config: object, **settings: object) -> object:
        asked.update(settings, config=config)
        raise InputError("asked")

    monkeypatch.setattr("headscape.training.train", train)
    words = ["--layers", 3, "--curriculum", "16,32", "--field", "base=100.0", "--no-compile"]
    words += ["--qk-norm", "after", "--eps", "1e-6", "--encoding", "rope"]
    call("train", "--preset", "mini", *words, "--out", tmp_path)
    given = {name: value for name, value in asked.items() if value is not None}
    assert given == {
        "config": "mini", "out": tmp_path, "resume": False, "layers": 3, "curriculum": [16, 32],
        "encoding_fields": {"base": 100.0}, "compile": False, "qk_norm": "after", "eps": 1e-6,
        "encoding": "rope",
    }  # fmt: skip


@pytest.mark.slow
def test_a_compiled_model_trains(call, small_run: Path, tmp_path: Path) -> None:
    words = ["--tokenizer", "bytes", "--context-length", 32, "--layers", 1, "--steps", 2]
    corpus = small_run.parent / "text.txt"
    result = call("train", "--compile", "--corpus", corpus, *words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run" / "checkpoints" / "step-000002").is_dir()


def test_the_command_alone_shows_what_people_do(call) -> None:
    shown = call()
    assert shown.exit_code == 0
    examples = re.findall(r"^  headscape ([a-z]+)(.*)$", shown.output, re.MULTILINE)
    assert len(examples) >= 5
    for name, rest in examples:
        options = call(name, "--help").output
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in options, f"{name} {option}"


@pytest.mark.parametrize(
    ("words", "completed"), [("headscape tra", "train"), ("headscape train --enc", "--encoding")]
)
def test_a_shell_completes_commands_and_options(words: str, completed: str) -> None:
    asked = {
        "_HEADSCAPE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [HEADSCAPE], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [completed], done.stderr
