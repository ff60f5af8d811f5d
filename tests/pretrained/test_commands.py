"""Commands on a published model: what it uses, captures, text and losses."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headscape.captures import capture_file
from headscape.cli.app import app, main
from headscape.data.tokenize.bpe import train
from headscape.models.load import load
from pretrained.families import FAMILIES

transformers = pytest.importorskip("transformers")
TEXT = "\n".join(f"{number} words, and more words {number % 7}" for number in range(900))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("published") / "small", "smollm3")


def written(folder: Path, name: str) -> Path:
    """A model and its tokenizer on disk."""
    folder.mkdir()
    (folder / "t.json").write_text(train(iter([TEXT]), 280))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "t.json"),
        eos_token="<end>",  # noqa: S106
    )
    fast.save_pretrained(folder)
    family = FAMILIES[name]
    end = fast.eos_token_id
    theirs = family.build(vocab_size=len(fast), eos_token_id=end, pad_token_id=end)
    theirs.float().save_pretrained(folder)
    return folder


def call(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_model_and_a_tokenizer_in_memory(folder: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    live, opened = load(theirs, tokenizer=fast), load(f"hf:{folder}")
    assert live.spec.layers == opened.spec.layers
    text = "12 words, and more"
    assert live.capture(text).maps.keys() == opened.capture(text).maps.keys()
    assert live.generate(text, length=5, seed=1) == opened.generate(text, length=5, seed=1)


def test_encodings_of_a_model_layer_by_layer(folder: Path) -> None:
    lines = call("encodings", "--of", f"hf:{folder}").splitlines()
    assert lines[0] == "small: 3 layers x 6 heads of 8, context 64, causal"
    assert lines[1].startswith("layer 1-2: rope  ")
    assert "pairing='halves', rotary_fraction=1.0, base=" in lines[1]
    assert lines[1].endswith("scale='head_dim', key_heads=2")
    assert lines[2] == "layer 3: nope  scale='head_dim', key_heads=2"
    done = CliRunner().invoke(app, ["encodings", "alibi", "--of", f"hf:{folder}"])
    assert "not both" in str(done.exception)


def test_capture_and_draw(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    call("capture", f"hf:{folder}", "--prompt", "12 words, and more", "--layers", "all",
         "--out", out)  # fmt: skip
    cap = capture_file.load(out)
    assert cap.layers == (0, 1, 2)
    assert cap.encoding == "rope,nope"
    assert "".join(cap.sequence["pieces"]) == "12 words, and more"
    call("draw", out, "--out", tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 1000


def test_generate(folder: Path) -> None:
    text = call("generate", f"hf:{folder}", "--prompt", "12 words", "--length", 5)
    assert text.startswith("12 words")


def test_evaluate(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    call("evaluate", f"hf:{folder}", "--corpus", tmp_path / "text.txt", "--lengths", 32,
         "--limit", 97, "--out", tmp_path / "table")  # fmt: skip
    assert "small" in (tmp_path / "table" / "evaluation.md").read_text()


def test_a_stretched_model_has_its_own_column(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    corpus = ["--corpus", tmp_path / "text.txt", "--lengths", 96, "--limit", 97]
    call("evaluate", f"hf:{folder}", "--extend", "yarn:2", "--extend", "ntk:2", *corpus,
         "--out", tmp_path / "all")  # fmt: skip
    rows = json.loads((tmp_path / "all" / "evaluation.json").read_text())["measurements"]
    assert [row["method"] for row in rows] == ["small", "small, YaRN x2", "small, NTK x2"]
    assert len({row["model"] for row in rows}) == len({row["loss"] for row in rows}) == 3
    for suffix in ("md", "csv"):
        assert "small, YaRN x2" in (tmp_path / "all" / f"evaluation.{suffix}").read_text()
    call("compare", tmp_path / "all", "--out", tmp_path / "compared")
    assert "small, NTK x2" in (tmp_path / "compared" / "evaluation.md").read_text()


def test_a_length_past_a_learned_table_is_a_dash(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    table = written(tmp_path / "table", "gpt2")
    (tmp_path / "text.txt").write_text(TEXT)
    call("evaluate", f"hf:{folder}", f"hf:{table}", "--corpus", tmp_path / "text.txt",
         "--lengths", 32, "--lengths", 96, "--limit", 300, "--out", tmp_path / "out")  # fmt: skip
    lines = (tmp_path / "out" / "evaluation.md").read_text().splitlines()
    [past] = [line for line in lines if line.startswith("| 96 ")]
    cells = [cell.strip() for cell in past.strip("|").split("|")]
    assert cells.count("-") == 1
    assert len(cells) == 3


def plain(folder: Path, name: str = "llama", **changes: object) -> Path:
    """A model without a tokenizer on disk, with some entries of its config changed."""
    FAMILIES[name].build().float().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def unknown_architecture(folder: Path) -> list[str]:
    return ["encodings", "--of", f"hf:{plain(folder, model_type='nothing-known')}"]


def quantised(folder: Path) -> list[str]:
    how = {"quant_method": "gptq", "bits": 4}
    return ["encodings", "--of", f"hf:{plain(folder, quantization_config=how)}"]


def damaged(folder: Path) -> list[str]:
    (plain(folder) / "model.safetensors").write_bytes(b"no weights" * 9)
    return ["encodings", "--of", f"hf:{folder}"]


def flash(folder: Path) -> list[str]:
    made = plain(folder, "bloom", attn_implementation="flash_attention_2")
    return ["capture", f"hf:{made}", "--prompt", "a text"]


def no_tokenizer(folder: Path) -> list[str]:
    return ["capture", f"hf:{plain(folder)}", "--prompt", "a text"]


def no_tokenizer_to_write(folder: Path) -> list[str]:
    return ["generate", f"hf:{plain(folder)}", "--prompt", "a text"]


def too_large(folder: Path) -> list[str]:
    # Only shapes are made of it, and no weight is read.
    wide = {"hidden_size": 12 * 10**5, "intermediate_size": 10**7, "vocab_size": 10**6}
    return ["encodings", "--of", f"hf:{plain(folder, **wide)}"]


def sizes_that_do_not_fit(folder: Path) -> list[str]:
    return ["encodings", "--of", f"hf:{plain(folder, hidden_size=50)}"]


def text_for_sound(folder: Path) -> list[str]:
    return ["capture", f"hf:{plain(folder, 'wav2vec2-bert')}", "--prompt", "a text"]


def heads_of_sound(folder: Path) -> list[str]:
    made = plain(folder, "wav2vec2-bert")
    return ["atlas", f"hf:{made}", "--corpus", "stdlib", "--out", str(folder / "atlas")]


def cpm_ant(folder: Path) -> list[str]:
    config = transformers.CpmAntConfig(
        vocab_size=30, hidden_size=16, num_attention_heads=2, dim_head=8, dim_ff=16,
        num_hidden_layers=1, prompt_length=2,
    )  # fmt: skip
    transformers.CpmAntForCausalLM(config).save_pretrained(folder)
    return ["evaluate", f"hf:{folder}", "--corpus", "stdlib", "--out", str(folder / "table")]


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda folder: ["encodings", "--of", f"hf:{folder}"], "has no config.json"),
        (unknown_architecture, "nothing-known"),
        (quantised, "is not a model that transformers loads: .*GPTQ quantized"),
        (damaged, "model.safetensors is truncated or damaged: .*header too large"),
        (flash, "asks for flash_attention_2, which BloomForCausalLM cannot use: set"),
        (no_tokenizer, "has no tokenizer: give a tokenizer"),
        (no_tokenizer_to_write, "has no tokenizer, so it cannot read a prompt"),
        (
            too_large,
            "config describes 110,400,469,200,000: config and weights do not belong together",
        ),
        (sizes_that_do_not_fit, r"transformers loads: The hidden size \(50\) is not a multiple"),
        (text_for_sound, "reads sound: leave the text out to capture noise"),
        (heads_of_sound, "reads sound, and heads are measured on tokens"),
        (cpm_ant, "CPM-Ant puts learned prompt vectors before the tokens"),
    ],
)
def test_a_mistake_exits_with_2_and_one_sentence(
    mistake: Callable[[Path], list[str]],
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = mistake(tmp_path)
    capfd.readouterr()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["headscape", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capfd.readouterr().err.strip()
    assert re.search(said, error)
    assert len(error.splitlines()) == 1
    assert error.startswith("error: ")
