"""hf: models by our protocols against the loss that transformers computes."""

import numpy as np
import pytest
import torch

from evaluate.models import stream
from headscape.errors import InputError
from headscape.evaluate import huggingface
from headscape.evaluate.job import EvaluateConfig, evaluate
from headscape.evaluate.perplexity import Method, Text, measure
from headscape.evaluate.protocols import parse
from headscape.evaluate.scoring import GPT2Scorer
from headscape.evaluate.subjects import open_subjects
from headscape.gpt2 import GPT2
from headscape.text.tokenize.trained_bpe import train

transformers = pytest.importorskip("transformers")
VOCABULARY = 61


def saved(kind, folder):
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


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_nonoverlap_is_the_mean_of_their_own_losses(kind, tmp_path):
    theirs = saved(kind, tmp_path)
    tokens = stream(100, VOCABULARY)
    text = Text(tokens=tokens, corpus="c")
    scorer = huggingface.open_model(tmp_path)
    found = measure(scorer, text, Method(name="hf"), parse("nonoverlap"), 24)
    losses = []
    for start in range(0, 96, 24):
        window = torch.from_numpy(tokens[start : start + 25].astype(np.int64))[None]
        with torch.no_grad():
            losses.append(theirs(window, labels=window).loss.item())
    assert found.windows == 4
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_last_ignores_what_their_labels_ignore(kind, tmp_path):
    theirs = saved(kind, tmp_path)
    tokens = stream(73, VOCABULARY)
    scorer = huggingface.open_model(tmp_path)
    text = Text(tokens=tokens, corpus="c")
    found = measure(scorer, text, Method(name="hf"), parse("last-5"), 24)
    losses = []
    for start in range(0, 72, 24):
        window = torch.from_numpy(tokens[start : start + 25].astype(np.int64))[None]
        labels = window.clone()
        labels[:, :-5] = -100
        with torch.no_grad():
            losses.append(theirs(window, labels=labels).loss.item())
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-6)


def test_gpt2_gives_the_same_through_our_own_model(tmp_path):
    saved("gpt2", tmp_path)
    text = Text(tokens=stream(100, VOCABULARY), corpus="c")
    ours, theirs = (
        measure(scorer, text, Method(name="x"), parse("sliding-7"), 20)
        for scorer in (GPT2Scorer(GPT2.from_pretrained(tmp_path)), huggingface.open_model(tmp_path))
    )
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)


def test_a_learned_table_ends_and_rotary_positions_do_not(tmp_path):
    saved("gpt2", tmp_path / "gpt2")
    saved("llama", tmp_path / "llama")
    gpt2 = huggingface.open_model(tmp_path / "gpt2")
    assert gpt2.cannot(40) is None
    assert "table of 40 positions" in gpt2.cannot(41)
    assert huggingface.open_model(tmp_path / "llama").cannot(4000) is None


def test_fingerprints_tell_models_apart(tmp_path):
    saved("gpt2", tmp_path / "gpt2")
    saved("llama", tmp_path / "llama")
    first, again, other = (
        huggingface.open_model(tmp_path / name).fingerprint for name in ("gpt2", "gpt2", "llama")
    )
    assert first == again != other


WORDS = "naïve words, and\n        more words"


def saved_tokenizer(folder):
    """Byte-level, with a run of spaces added to it, as GPT-NeoX's has several."""
    (folder / "t.json").write_text(train(iter([WORDS] * 9), 280))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "t.json"),
        eos_token="<end>",  # noqa: S106
    )
    fast.add_tokens(["        "])
    fast.save_pretrained(folder)
    return fast


def test_byte_level_tokenizers_know_their_bytes(tmp_path):
    fast = saved_tokenizer(tmp_path)
    tokenizer = huggingface.open_tokenizer(tmp_path)
    tokens = tokenizer.encode(WORDS)
    assert len(fast) - 1 in tokens
    size, found = tokenizer.units().counts(tokens)
    assert size.sum() == len(WORDS.encode())
    assert found.sum() == len(WORDS.split())


def test_a_folder_is_evaluated_by_its_own_tokenizer(tmp_path):
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
    (subject,) = open_subjects(f"hf:{folder}", cache=tmp_path, corpus=str(text))
    (row,) = evaluate([subject], EvaluateConfig(lengths=(32,), limit=97))
    held_out = fast.decode(subject.text.tokens[:97])
    assert held_out in text.read_text()
    windows = fast(held_out, return_tensors="pt")["input_ids"][0].unfold(0, 33, 32)
    with torch.no_grad():
        expected = theirs(windows, labels=windows).loss.item()
    assert (row.method, row.tokens) == ("model", 96)
    assert row.loss == pytest.approx(expected, rel=1e-6)
    assert row.bytes == len(fast.decode(subject.text.tokens[1:97]).encode())


def test_bad_folders_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"holds no config\.json"):
        huggingface.open_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds no causal language model"):
        huggingface.open_model(tmp_path)
    with pytest.raises(InputError, match="holds no tokenizer"):
        huggingface.open_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="holds no tokenizer"):
        huggingface.open_tokenizer(tmp_path)
    with pytest.raises(InputError, match=r"the folder .*nowhere is not there"):
        huggingface.open_model(tmp_path / "nowhere")
