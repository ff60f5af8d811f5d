"""Bytes and words of tokens, counted from the text itself."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from evaluation.models import Numbers, Subject, tiny
from headscape.data.tokenize.bpe import GPT2Tokenizer, TrainedBPE, train
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.evaluation.perplexity import HeldOut, TextJob, units
from headscape.evaluation.protocols import parse
from headscape.evaluation.row import EvaluationRow

TEXTS = ["Grüße an  die\tWelt,\nsaid ½ of them.\n\n", "  x = [1, 2]\r\n", "日本 語", ""]


def tokenizers():
    trained = TrainedBPE(train(iter(TEXTS * 3), 300))
    return {"bytes": ByteTokenizer(), "bpe": trained, "gpt2": GPT2Tokenizer()}


@pytest.mark.parametrize("name", ["bytes", "bpe", "gpt2"])
def test_totals_are_those_of_the_text(name):
    tokenizer = tokenizers()[name]
    parts = [np.append(tokenizer.encode(text), tokenizer.end_of_text) for text in TEXTS]
    tokens = np.concatenate(parts).astype(np.int64)
    size, words = units(tokenizer).counts(tokens)
    assert size.sum() == sum(len(text.encode()) for text in TEXTS)
    assert words.sum() == sum(len(text.encode().split()) for text in TEXTS)
    ends = np.cumsum([len(part) for part in parts])
    for text, begin, end in zip(TEXTS, [0, *ends], ends, strict=False):
        assert size[begin:end].sum() == len(text.encode())
        assert words[begin:end].sum() == len(text.encode().split())


def test_a_word_belongs_to_the_token_that_begins_it():
    tokens = np.frombuffer(b"ab cd", dtype=np.uint8).astype(np.int64)
    assert units(ByteTokenizer()).counts(tokens)[1].tolist() == [1, 0, 0, 1, 0]


class Published(TrainedBPE):
    """A tokenizer with added tokens, as published ones have them."""

    def __init__(self, text):
        bpe = Tokenizer.from_str(text)
        bpe.add_tokens(["        "])
        bpe.add_special_tokens(["<end>"])
        super().__init__(bpe.to_str())
        self.end_of_text = bpe.token_to_id("<end>")
        self.vocabulary = bpe.get_vocab_size()


def test_added_tokens_are_spelled_in_characters_and_special_ones_are_not_text():
    words = "naïve words, and\n        more words"
    tokenizer = Published(train(iter([words] * 9), 280))
    tokens = np.append(tokenizer.encode(words), tokenizer.end_of_text).astype(np.int64)
    assert tokenizer.end_of_text - 1 in tokens
    size, found = units(tokenizer).counts(tokens)
    assert size.sum() == len(words.encode())
    assert found.sum() == len(words.split())


def test_a_tokenizer_that_does_not_give_bytes_has_no_units():
    assert units(Numbers()) is None
    words = HeldOut(tokens=np.arange(20), corpus="c", units=units(Numbers()))
    row = TextJob.of(Subject(tiny()), words, parse("nonoverlap"), 8).row
    assert (row.bytes, row.words) == (None, None)


def test_quantities_follow_from_the_loss():
    one = EvaluationRow(
        method="m", length=8, protocol="nonoverlap", corpus="c", text="t",
        model="h", tokens=100, bytes=400, words=50, loss=2.0, low=1.9, high=2.1,
    )  # fmt: skip
    assert one.value("perplexity") == pytest.approx(np.e**2)
    assert one.value("word-perplexity") == pytest.approx(np.e**4)
    assert one.value("byte-perplexity") == pytest.approx(np.e**0.5)
    assert one.value("bits-per-byte") == pytest.approx(0.5 / np.log(2))
    assert one.value("loss") == 2.0
    assert one.interval("loss") == (1.9, 2.1)
    assert one.interval("perplexity") == pytest.approx((np.exp(1.9), np.exp(2.1)))


def test_only_scored_text_is_counted():
    model = tiny(vocabulary=257)
    tokens = ByteTokenizer().encode("one two three four five six")
    text = HeldOut(tokens=tokens, corpus="c", units=units(ByteTokenizer()))
    found = TextJob.of(Subject(model), text, parse("last-4"), 8).row
    scored = [bytes(tokens[end - 3 : end + 1].tolist()) for end in (8, 16, 24)]
    assert found.bytes == 12
    assert found.words == sum(
        byte != ord(" ") and tokens[end - 3 + index - 1] == ord(" ")
        for end, part in zip((8, 16, 24), scored, strict=True)
        for index, byte in enumerate(part)
    )
