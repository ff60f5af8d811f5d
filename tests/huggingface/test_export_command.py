"""`headscape export` on a run: the folder, the card, and every refusal in one sentence."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import headscape as hs
from headscape.cli.app import main
from headscape.encodings import ENCODINGS, load_plugin
from headscape.huggingface.export import write_export as export_module
from huggingface.export_cases import SIZES

NANO = {"layers": 2, "heads": 4, "width": 32, "tokenizer": "bytes", "context_length": 32,
        "batch_size": 2, "tokens_per_step": 64, "quiet": True}  # fmt: skip

PLUGIN = '''"""An encoding of a user's own."""

from headscape.call.bias import Toeplitz
from headscape.encodings import Encoding


class Decay(Encoding):
    """The same slope in every head."""

    adds_bias = True

    def bias(self, layer):
        """Return -distance / 10."""
        distance, zero = self.distances(layer.positions, layer.positions.q.device)
        return Toeplitz(-0.1 * distance.abs().expand(self.shape.heads, -1), zero)
'''


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A trained CABLE and RoPE with an evaluation beside them."""
    home = tmp_path_factory.mktemp("runs")
    text = home / "text.txt"
    text.write_text("".join(f"line {n} of {n % 7} things and {n % 11} more\n" for n in range(2000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCAPE_CACHE", str(home / "cache"))
        for encoding in ("cable", "rope"):
            hs.train("nano", encoding=encoding, corpus=str(text), steps=4, out=home / encoding,
                     **NANO)  # fmt: skip
        models = [hs.load(home / "cable"), hs.load(home / "rope")]
        hs.evaluate(models, lengths=[16, 32, 64], limit=2000, out=home / "evaluation")
        yield home


@pytest.fixture(scope="module")
def exported(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both runs, exported by the command in a process of its own, as a user does it."""
    out = tmp_path_factory.mktemp("exported")
    for name in ("cable", "rope"):
        words = ["export", str(runs / name), "--to", "hf", "--out", str(out / name)]
        command = [sys.executable, "-m", "headscape.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "random tokens" not in done.stderr, done.stderr
        assert done.stdout.strip() == str(out / name)
    return out


def test_the_card_says_what_the_model_is(exported: Path, runs: Path) -> None:
    card = (exported / "cable" / "README.md").read_text()
    assert "exported as `HeadscapeForCausalLM`" in card
    assert "Veisi et al. 2025, arXiv:2503.08067" in card
    assert "| increments | relu |" in card
    assert "| corpus |" in card
    assert re.search(r"\| validation loss \| \d\.\d+ \|", card)
    assert "| step | 4 |" in card
    table = hs.Table.read(runs / "evaluation")
    for length in (16, 32, 64):
        assert f"| {length} | **{table.cell('CABLE', length).mean:.2f}** |" in card
    assert "RoPE" not in card
    picture = re.findall(r"!\[(.*?)\]", card)
    assert picture == [
        "Every head of the last layer: positional bias on 32 tokens (text of the validation split)."
    ]
    assert (exported / "cable" / "heads.png").read_bytes().startswith(b"\x89PNG")
    assert "GPTNeoXForCausalLM" in (exported / "rope" / "README.md").read_text()


@pytest.mark.parametrize("name", ["cable", "rope"])
def test_the_code_of_the_card_runs(
    name: str, exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(exported)
    card = (exported / name / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0].replace("FOLDER", name)
    exec(code, {})  # noqa: S102
    assert capsys.readouterr().out.startswith("The")


def test_the_run_is_read_back_with_its_provenance(exported: Path, runs: Path) -> None:
    run, back = hs.load(runs / "cable"), hs.load(exported / "cable")
    assert back.fingerprint == run.fingerprint
    assert back.spec == run.spec
    assert back.generate("line", length=5, temperature=0) == run.generate(
        "line", length=5, temperature=0
    )


def test_a_stretched_model_is_exported_with_its_factor(runs: Path, tmp_path: Path) -> None:
    stretched = hs.stretch(hs.load(runs / "rope"), "yarn:4")
    back = hs.load(hs.export(stretched, tmp_path / "yarn"))
    assert back.spec.layers[0].conventions["factor"] == 4.0
    assert '"max_position_embeddings": 128' in (tmp_path / "yarn" / "config.json").read_text()
    with pytest.raises(hs.InputError, match=r"an export has one factor: write yarn:4"):
        hs.export(hs.stretch(hs.load(runs / "rope"), "yarn"), tmp_path / "other")


@pytest.fixture
def refused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Whether a command line is refused in one sentence that says this."""

    def run(message: str, *words: object) -> None:
        monkeypatch.setattr(sys, "argv", ["headscape", "export", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        said = capfd.readouterr().err
        assert stop.value.code == 2
        assert message in said
        assert len(said.strip().splitlines()) == 1

    return run


def test_bad_command_lines(refused: Callable[..., None], runs: Path, tmp_path: Path) -> None:
    run, out = runs / "cable", tmp_path / "deep" / "out"
    refused("there is no file or folder", tmp_path / "nothing", "--out", out)
    refused("export writes to hf", run, "--to", "onnx", "--out", out)
    refused(
        "there are auto, gpt2, gpt_neox, headscape", run, "--architecture", "bert", "--out", out
    )
    refused("GPTNeoXForCausalLM is not the same function as this model: it does not use RoPE",
            run, "--architecture", "gpt_neox", "--out", out)  # fmt: skip
    refused("which needs no code: leave with_code out", runs / "rope", "--with-code", "--out", out)
    refused("max_positions must be at least 1, got 0", run, "--max-positions", 0, "--out", out)
    refused("has no checkpoint of step 9", run, "--step", 9, "--out", out)
    refused("contains no evaluation.json", run, "--evaluation", tmp_path, "--out", out)
    empty = tmp_path / "run"
    empty.mkdir()
    shutil.copy(run / "config.toml", empty)
    refused("has no checkpoint yet", empty, "--out", out)
    shutil.rmtree(empty)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    refused("is not empty: choose a new folder", run, "--out", tmp_path / "full")
    refused("it is a file, not a folder", run, "--out", tmp_path / "full" / "mine.txt")
    refused("cannot write", run, "--out", tmp_path / "full" / "mine.txt" / "below")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine.txt"]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_nothing(
    refused: Callable[..., None], runs: Path, tmp_path: Path
) -> None:
    refused("cannot write", runs / "cable", "--out", tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_wrong_logits_is_never_written(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = export_module.write_model

    def wrong(model: Any, *rest: Any) -> None:
        other = hs.load(runs / "cable")
        with torch.no_grad():
            other.gpt2.norm.weight.add_(1.0)
        written(other, *rest)

    monkeypatch.setattr(export_module, "write_model", wrong)
    with pytest.raises(AssertionError, match="exported logits differ"):
        hs.export(runs / "cable", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def _model(**fields: Any) -> Any:
    return hs.load(hs.GPT2.from_preset("nano", **{**SIZES, **fields}), tokenizer="bytes")


def test_models_that_have_no_export(tmp_path: Path) -> None:
    with pytest.raises(hs.InputError, match="bidirectional, so it cannot be exported as a causal"):
        hs.export(_model(encoding="alibi", causal=False), tmp_path / "out")
    with pytest.raises(hs.InputError, match="the learned table has 48 rows"):
        hs.export(_model(encoding="learned"), tmp_path / "out", max_positions=96)


def test_the_code_contains_the_encoding_of_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "decay.py"
    plugin.write_text(PLUGIN)
    load_plugin(plugin)
    try:
        hs.export(_model(encoding="decay"), tmp_path / "decay_hf", with_code=True)
    finally:
        ENCODINGS.pop("decay")
    code = (tmp_path / "decay_hf" / "modeling_headscape.py").read_text()
    # The package has its own Decay, so the plugin's class gets a longer name.
    named = re.search(r'ENCODINGS = {"nope": NoPE, "decay": (Decay_\w+)}', code)
    assert named is not None
    assert f"class {named[1]}(Encoding):" in code
    assert code.count("class Decay:") == 1
    made = ModuleType("modeling_decay")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(code, "modeling_headscape.py", "exec"), made.__dict__)  # noqa: S102
    assert issubclass(made.ENCODINGS["decay"], made.Encoding)


def test_an_encoding_without_source_has_no_code(tmp_path: Path) -> None:
    space: dict[str, Any] = {"hs": hs, "__name__": "typed"}
    exec("class Typed(hs.Encoding):\n    '''Typed into a notebook.'''", space)  # noqa: S102
    hs.register("typed", space["Typed"])
    try:
        with pytest.raises(hs.InputError, match="'typed' has no source file, so its code cannot"):
            hs.export(_model(encoding="typed"), tmp_path / "out", with_code=True)
    finally:
        ENCODINGS.pop("typed")
    assert list(tmp_path.iterdir()) == []
