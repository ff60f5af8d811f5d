"""hf: models by our protocols against the loss that transformers computes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evaluation.models import stream
from headscape.data.tokenize.bpe import train
from headscape.evaluation.evaluate import evaluate
from headscape.evaluation.perplexity import HeldOut, TextJob, held_out, units
from headscape.evaluation.protocols import parse
from headscape.evaluation.row import EvaluationRow
from headscape.models.load import load

transformers = pytest.importorskip("transformers")
VOCABULARY = 61
WORDS = "naïve words, and\n        more words"


def saved(kind: str, folder: Path) -> Any:
    torch.manual_seed(1)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=16, vocab_size=VOCABULARY, n_positions=40,
            bos_token_id=0, eos_token_id=0, resid_pdrop=0.1, initializer_range=0.3,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, hidden_size=16,
            intermediate_size=32, vocab_size=VOCABULARY, max_position_embeddings=40,
            initializer_range=0.3,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return model.eval()


def measure(model: Any, tokens: np.ndarray, protocol: str, length: int) -> EvaluationRow:
    text = HeldOut(tokens=tokens, corpus="c")
    return TextJob.of(model, text, parse(protocol), length).run()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_nonoverlap_is_the_mean_of_their_own_losses(kind: str, tmp_path: Path) -> None:
    theirs = saved(kind, tmp_path)
    tokens = stream(100, VOCABULARY)
    found = measure(load(f"hf:{tmp_path}"), tokens, "nonoverlap", 24)
    losses = []
    for start in range(0, 96, 24):
        window = torch.from_numpy(tokens[start : start + 25].astype(np.int64))[None]
        with torch.no_grad():
            losses.append(theirs(window, labels=window).loss.item())
    assert found.windows == 4
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_last_ignores_what_their_labels_ignore(kind: str, tmp_path: Path) -> None:
    theirs = saved(kind, tmp_path)
    tokens = stream(73, VOCABULARY)
    found = measure(load(f"hf:{tmp_path}"), tokens, "last-5", 24)
    losses = []
    for start in range(0, 72, 24):
        window = torch.from_numpy(tokens[start : start + 25].astype(np.int64))[None]
        labels = window.clone()
        labels[:, :-5] = -100
        with torch.no_grad():
            losses.append(theirs(window, labels=labels).loss.item())
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-6)


def test_gpt2_gives_the_same_through_our_own_model(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    tokens = stream(100, VOCABULARY)
    ours, theirs = (
        measure(load(source), tokens, "sliding-7", 20) for source in (tmp_path, f"hf:{tmp_path}")
    )
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)


def test_gpt2_is_captured_the_same_through_our_own_model(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    tokens = stream(20, VOCABULARY).tolist()
    ours, theirs = (
        load(source).capture(tokens, layers="all") for source in (tmp_path, f"hf:{tmp_path}")
    )
    assert ours.maps.keys() == theirs.maps.keys()
    for name, values in ours.maps.items():
        assert np.allclose(values, theirs.maps[name], atol=1e-5, equal_nan=True), name


def test_a_learned_table_ends_and_rotary_positions_do_not(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "gpt2")
    saved("llama", tmp_path / "llama")
    gpt2 = load(f"hf:{tmp_path / 'gpt2'}")
    assert gpt2.length_error(40) is None
    assert "more than the 40 positions of the model's table" in (gpt2.length_error(41) or "")
    assert load(f"hf:{tmp_path / 'llama'}").length_error(4000) is None


def test_fingerprints_tell_models_apart(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "gpt2")
    saved("llama", tmp_path / "llama")
    first, again, other = (
        load(f"hf:{tmp_path / name}").fingerprint for name in ("gpt2", "gpt2", "llama")
    )
    assert first == again != other


def saved_tokenizer(folder: Path) -> Any:
    """Byte-level, with a run of spaces added to it, as GPT-NeoX's has several."""
    (folder / "t.json").write_text(train(iter([WORDS] * 9), 280))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "t.json"),
        eos_token="<end>",  # noqa: S106
    )
    fast.add_tokens(["        "])
    fast.save_pretrained(folder)
    return fast


def test_a_folder_is_evaluated_by_its_own_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    folder, text = tmp_path / "model", tmp_path / "text.txt"
    folder.mkdir()
    fast = saved_tokenizer(folder)
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=len(fast), n_positions=40,
        bos_token_id=0, eos_token_id=fast.eos_token_id, initializer_range=0.3,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(folder)
    text.write_text("".join(f"{number} {WORDS}\n" for number in range(900)))
    model = load(f"hf:{folder}")
    tokens = model.tokenizer.encode(WORDS)
    assert len(fast) - 1 in tokens
    counted = units(model.tokenizer)
    assert counted is not None
    size, found = counted.counts(tokens)
    assert size.sum() == len(WORDS.encode())
    assert found.sum() == len(WORDS.split())

    (row,) = evaluate(model, lengths=32, limit=97, corpus=text).rows
    [side] = held_out([model], str(text), 97)
    assert fast.decode(side.tokens) in text.read_text()
    windows = torch.from_numpy(side.tokens.astype(np.int64)).unfold(0, 33, 32)
    with torch.no_grad():
        expected = theirs(windows, labels=windows).loss.item()
    assert (row.method, row.tokens) == ("model", 96)
    assert row.loss == pytest.approx(expected, rel=1e-6)
    assert row.bytes == len(fast.decode(side.tokens[1:97]).encode())
