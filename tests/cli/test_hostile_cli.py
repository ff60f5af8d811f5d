"""Bad input and a bad machine: a sentence and exit code 2, or a right result; no traceback."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from headscape.captures import capture_file
from headscape.captures.capture_file import Capture, load
from headscape.captures.file_checks import digest_of
from headscape.cli.app import main
from headscape.io.folder_lock import FolderLock

Refuses = Callable[..., None]
DEEP = "[" * 200_000
TRAIN = ["train", "--encoding", "cable", "--tokenizer", "bytes", "--context-length", "32",
         "--batch-size", "2"]  # fmt: skip


@pytest.fixture
def refused(refuses: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Refuses:
    """Whether a command line is refused in one sentence that says this."""

    def run(message: str, *words: object) -> None:
        monkeypatch.setattr(sys, "argv", ["headscape", *map(str, words)])
        refuses(message)

    return run


@pytest.fixture(scope="module")
def text(small_run: Path) -> Path:
    return small_run.parent / "text.txt"


@pytest.fixture(scope="module")
def captured(small_run: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from typer.testing import CliRunner

    from headscape.cli.app import app

    path = tmp_path_factory.mktemp("captured") / "a.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCAPE_CACHE", str(cache))
        result = CliRunner().invoke(app, ["capture", str(small_run), "--out", str(path)])
    assert result.exit_code == 0, result.output
    return path


def changed(path: Path, out: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = json.loads(file.metadata()["headscape"])
    change(described)
    save_file(tensors, out, metadata={"headscape": json.dumps(described)})
    return out


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_folder_in_use_is_refused(
    refused: Refuses, small_run: Path, tmp_path: Path, resume: list[str]
) -> None:
    out = shutil.copytree(small_run, tmp_path / "run")
    with FolderLock(out) as lock:
        lock.acquire()
        refused(f"is in use by process {os.getpid()}", "train", "--out", out, *resume)


def make_foreign(path: Path) -> None:
    path.write_text("mine")


def make_link(path: Path) -> None:
    path.with_name("else").write_text("mine")
    path.symlink_to("else")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (make_foreign, "exists and is not a capture: add --overwrite"),
        (make_link, "exists and is not a capture: add --overwrite"),
        (os.mkfifo, "it is a FIFO, not a file"),
        (make_loop, "symbolic links form a loop"),
        (Path.mkdir, "it is a folder, not a file"),
    ],
)
def test_a_capture_replaces_nothing_that_is_not_one(
    refused: Refuses, small_run: Path, tmp_path: Path, made: Callable[[Path], None], message: str
) -> None:
    out = tmp_path / "out"
    made(out)
    before = os.lstat(out)
    refused(message, "capture", small_run, "--out", out)
    assert os.lstat(out) == before
    assert all(path.read_text() == "mine" for path in tmp_path.iterdir() if path.is_file())


TABLE = "| layer | head | reach |\n| --- | --- | --- |\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["view", "CAP", "--html", "CAP"], "exists and is not a page of headscape"),
        (["view", "CAP", "--html", "RUN/config.toml"], "exists and is not a page of headscape"),
        (["measure", "RUN", "--text", "notes.md", "--out", "notes.md"], "it is one of the inputs"),
        (["measure", "RUN", "--corpus", ".", "--out", "notes.md"], "it is one of the inputs"),
        (["measure", "CAP", "--out", "own.md"], "exists and is not a Markdown table"),
        (["measure", "RUN", "--out", "RUN/tokenizer.json"], "exists and is not a JSON file"),
        (["capture", "RUN", "--text", "notes.md", "--out", "notes.md", "--overwrite"],
         "it is one of the inputs"),
        (["draw", "CAP", "--out", "own.png"], "exists and is not a PNG picture"),
        (["atlas", "RUN", "--out", "site"], "exists and is not a CSV table of headscape"),
        (["evaluate", "RUN", "--out", "site"], "exists and is not a LaTeX table of headscape"),
        (["figures", "--untrained", "--out", "site"], "exists and is not a page of headscape"),
        (["compare", "old", "--out", "old"], "it is one of the inputs"),
        (["train", "--corpus", "notes.md", "--out", "site"], "config.toml"),
    ],
)  # fmt: skip
def test_no_command_replaces_a_foreign_file_or_its_own_input(
    refused: Refuses,
    captured: Path,
    small_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"notes.md": TABLE, "own.md": "my notes", "own.png": "my notes"}
    files |= {"old/evaluation.json": '{"format": 2, "measurements": []}'}
    names = ("heads.csv", "evaluation.tex", "index.html", "config.toml")
    files |= {f"site/{name}": "a = 'site'" for name in names}
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    run = [captured.read_bytes(), *((small_run / name).read_bytes() for name in OF_A_RUN)]
    spelled = {"CAP": str(captured), "RUN": str(small_run)}
    refused(message, *[spelled.get(word, word.replace("RUN", str(small_run))) for word in words])
    assert {name: Path(name).read_text() for name in files} == files
    assert [captured.read_bytes(), *((small_run / name).read_bytes() for name in OF_A_RUN)] == run


OF_A_RUN = ("config.toml", "tokenizer.json")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_capture_does_not_replace_a_device(
    refused: Refuses, small_run: Path, device: str
) -> None:
    refused("it is a device, not a file", "capture", small_run, "--out", device)


def test_a_capture_follows_a_link_and_replaces_a_capture(
    call, captured: Path, small_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("real")
    shutil.copy(captured, tmp_path / "real")
    assert call("capture", small_run, "--out", tmp_path / "link", "--seed", 3).exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "real").sequence["seed"] == 3


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_in_capture(refused: Refuses, small_run: Path, tmp_path: Path) -> None:
    refused("cannot write", "capture", small_run, "--out", tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_in_figures(refused: Refuses, small_run: Path, tmp_path: Path) -> None:
    words = ["figures", "--encodings", "cable", "--run", f"cable={small_run}", "--length", 32]
    refused("cannot write", *words, "--out", tmp_path / "out")
    assert not list(tmp_path.rglob("*.p*"))


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_in_export(refused: Refuses, small_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    refused("cannot write", "export", small_run, "--to", "hf", "--out", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["capture", "RUN", "--seed", "-1"], "seed must be at least 0, got -1"),
        (["figures", "--seed", "-1"], "seed must be at least 0, got -1"),
        (["figures", "--length", "0"], "length must be at least 1, got 0"),
        (["train", "--seed", "-1", "--out", "OUT"], "seed must be at least 0, got -1"),
        (["generate", "RUN", "--seed", "-1"], "seed must be from 0"),
        (["capture", "RUN", "--layers", "1-99999999999"], "a range must go up, within 1 to"),
        (["capture", "RUN", "--layers", "1" * 5000], "write all, last, or numbers"),
        (["capture", "RUN", "--layers", "2-1"], "a range must go up"),
        (["capture", "RUN", "--heads", "99"], "there is no head 99"),
        (["doctor", "--length", "100000000"], "--length must be from 2 to 16384, got 100000000"),
        (["doctor", "--length", "1"], "--length must be from 2 to 16384, got 1"),
        (["figures", "--encodings", ""], "--encodings is empty"),
        (["figures", "--format", ","], "--format is empty"),
        (["figures", "--processes", "0"], "processes must be at least 1, got 0"),
        (["train", "--corpus", "LOOP", "--out", "OUT"], "cannot read the corpus"),
        (["train", "--optimizer", "sgd", "--out", "OUT"], "optimizer='sgd' is not one of"),
        *[
            (["draw", "CAP", "--as", view, "--width", width], "width must be a number of inches")
            for view in ("grid", "row", "overview")
            for width in ("nan", "inf", "0", "-1", "1e9")
        ],
        (["train", "--lr", "nan", "--out", "OUT"], "lr must be"),
        (["train", "--minutes", "inf", "--out", "OUT"], "minutes must be"),
        (["train", "--field", "base=nan", "--out", "OUT"], "base must be finite, got nan"),
        (["generate", "RUN", "--temperature", "nan"], "temperature must be 0 or at least"),
        (["generate", "RUN", "--top-p", "nan"], "top_p must be above 0 and at most 1"),
        (["evaluate", "RUN", "--task", "needle", "--depths", "nan"], "a depth must be between"),
        (["draw", "CAP", "--heads", "0"], "heads '0': heads count from 1"),
        (["draw", "CAP", "--heads", "0-3"], "heads '0-3': heads count from 1"),
        (["draw", "CAP", "--layer", "0"], "layers '0': layers count from 1"),
        (["draw", "CAP", "CAP", "--as", "compare", "--head", "0"], "heads count from 1"),
        (["capture", "RUN", "--layers", "0"], "layers '0': layers count from 1"),
        (["draw", "CAP", "--as", "row", "--query", "99"], "choose one from 1 to 32"),
    ],
)
def test_a_value_out_of_range_is_refused_at_once(
    refused: Refuses,
    captured: Path,
    small_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    names = {
        "RUN": str(small_run),
        "CAP": str(captured),
        "LOOP": str(tmp_path / "loop"),
        "OUT": "out",
    }
    refused(message, *[names.get(word, word) for word in words])
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def flip(path: Path, out: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    out.write_bytes(data)
    return out


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "does not match its checksum"),
        (lambda a, b: changed(a, b, lambda d: d.update(heads=list(range(500)))), "is damaged"),
        (lambda a, b: changed(a, b, lambda d: d["model"].update(heads=500)), "is damaged"),
        (lambda a, b: changed(a, b, lambda d: d.update(trained=False)), "is damaged"),
    ],
)
@pytest.mark.parametrize("command", ["draw", "measure"])
def test_a_damaged_capture_is_not_shown(
    refused: Refuses,
    captured: Path,
    tmp_path: Path,
    damage: Callable[[Path, Path], Path],
    message: str,
    command: str,
) -> None:
    refused(message, command, damage(captured, tmp_path / "bad.safetensors"))


def sealed(path: Path, out: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A capture with a changed description and the right checksum."""

    def with_sum(described: dict[str, Any]) -> None:
        change(described)
        described["sha256"]["description"] = digest_of(described)

    return changed(path, out, with_sum)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("provenance.step", "many"),
        ("provenance.step", -1),
        ("provenance", []),
        ("model", "gpt2"),
        ("model.name", {"a": 1}),
        ("model.shows", "everything"),
        ("model.schedule", {"1": {"title": 3}}),
        ("conventions", [1, 2]),
        ("conventions.0", "rope"),
        ("sequence", None),
        ("sequence.pieces", {"a": 1}),
        ("sequence.pieces", ["a"]),
        ("sequence.pieces", [1] * 32),
        ("sequence.corpus", "\ud800"),
        ("claims", {"toeplitz": "yes"}),
        ("trained", 1),
        ("encoding", "x" * 100_000),
        ("length", 0),
        ("length", 10**30),
        ("resolution", 2.5),
        ("layers", [1, 1]),
        ("heads", []),
        ("shown", ["bias", []]),
        ("calls", {"1": []}),
        ("calls.1.scale", "1"),
        ("calls.1.scale", float("nan")),
        ("calls.1.visible", None),
        ("calls.1.bias", {"kind": []}),
        ("calls.1.visible.window", 10**400),
    ],
)
def test_a_field_of_the_wrong_type_or_size_is_named(
    refused: Refuses, captured: Path, tmp_path: Path, field: str, value: object
) -> None:
    *groups, name = field.split(".")

    def change(described: dict[str, Any]) -> None:
        for group in groups:
            described = described[group]
        described[name] = value

    path = sealed(captured, tmp_path / "forged.safetensors", change)
    for command in ("measure", "draw"):
        refused(f"{path} is", command, path)
    refused(f"{path} is", "view", path, "--html", tmp_path / "a.html")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_escapes_in_a_capture_do_not_reach_the_terminal(
    captured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = changed(captured, tmp_path / "a", lambda d: d.update(kind="\x1b]0;owned\x07\n=1"))
    monkeypatch.setattr(sys, "argv", ["headscape", "measure", str(path)])
    with pytest.raises(SystemExit):
        main()
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    named = sealed(captured, tmp_path / "b", lambda d: d["model"].update(name="a\x1b[31m$x$"))
    assert repr(Capture.load(named)).isprintable()
    Capture.load(named).grid(heads=[0]).save(tmp_path / "a.svg")
    assert "a\x1b" not in (tmp_path / "a.svg").read_text()


def test_an_unreadable_capture_says_why(
    refused: Refuses, captured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(captured))

    monkeypatch.setattr(capture_file, "safe_open", denied)
    message = f"cannot read {captured}: Permission denied: check its permissions."
    refused(message, "measure", captured)
    refused(message, "view", captured, "--html", captured.with_name("a.html"))


def test_nested_json_is_refused(
    refused: Refuses, captured: Path, small_run: Path, tmp_path: Path
) -> None:
    with safe_open(captured, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, tmp_path / "deep.safetensors", metadata={"headscape": DEEP})
    refused("not a headscape capture", "draw", tmp_path / "deep.safetensors")
    run = shutil.copytree(small_run, tmp_path / "run")
    (run / "tokenizer.json").write_text(DEEP)
    refused("nested too deeply", "capture", run, "--out", tmp_path / "x")
    (tmp_path / "evaluation.json").write_text(DEEP)
    refused("nested too deeply", "compare", tmp_path / "evaluation.json")


@pytest.mark.skipif(
    os.geteuid() == 0, reason="root may read every file, so none can be made unreadable"
)
def test_an_unreadable_file_is_named(refused: Refuses, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * 9999)
    path.chmod(0)
    refused("check its permissions", "train", "--corpus", path, "--out", tmp_path / "run")


def test_a_run_that_diverged_can_be_started_over(
    refused: Refuses, call, text: Path, tmp_path: Path
) -> None:
    words = [*TRAIN, "--corpus", text, "--steps", 8, "--out", tmp_path / "run"]
    refused("the same folder can be used again with a lower lr", *words, "--lr", 1000)
    assert call(*words, "--lr", 0.001).exit_code == 0


def test_tensorboard_that_is_missing_leaves_no_folder(
    refused: Refuses, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    words = [*TRAIN, "--corpus", text, "--steps", 8, "--tensorboard", "--out", tmp_path / "run"]
    refused("tensorboard is not installed", *words)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_weights_without_a_tokenizer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=12, n_layer=1, n_head=2, vocab_size=50, n_positions=32)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    words = ["capture", f"hf:{tmp_path / 'model'}", "--prompt", "a", "--out", tmp_path / "a"]
    monkeypatch.setattr(sys, "argv", ["headscape", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    # transformers writes lines of its own before ours.
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: model has no tokenizer")


def shell(*words: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    extra = options.pop("env", {})
    return subprocess.run(
        [sys.executable, "-m", "headscape.cli", *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **extra},
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def test_a_closed_stdout_is_no_traceback(captured: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for options in ({"stdout": writing}, {"preexec_fn": lambda: os.close(1)}):
        done = shell("measure", captured, **options)
        assert "Traceback" not in done.stderr
        assert "Exception" not in done.stderr
    os.close(writing)


def test_a_locale_without_utf8_and_a_path_outside_of_ascii(small_run: Path, tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = shutil.copytree(small_run, tmp_path / "a b é" / "rün")
    done = shell("capture", run, env=locale, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    made = load(run / "capture.safetensors")
    assert made.provenance["run"] == "rün"
    picture = tmp_path / "a b é" / "ö.png"
    done = shell("draw", run / "capture.safetensors", "--out", picture, env=locale)
    assert done.returncode == 0, done.stderr
    assert picture.is_file()
    done = shell("generate", run, "--prompt", "é", "--length", 4, env=locale)
    assert done.returncode == 0, done.stderr


def test_a_home_that_cannot_be_written_and_a_narrow_terminal(text: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file, so that not even root can write into it")
    env = {"HOME": str(home), "XDG_CACHE_HOME": "", "HEADSCAPE_CACHE": "", "COLUMNS": "40"}
    done = shell(*TRAIN, "--corpus", text, "--steps", 2, "--out", tmp_path / "run", env=env)
    assert done.returncode in {0, 2}
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert "HEADSCAPE_CACHE" in done.stderr or "cannot write" in done.stderr
    done = shell("doctor", "--length", 16, env={"COLUMNS": "40"}, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "native kernel" in done.stdout
