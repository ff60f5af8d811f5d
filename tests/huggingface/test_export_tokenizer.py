"""AutoTokenizer gives the tokens of our tokenizers."""

from pathlib import Path

import numpy as np
import pytest
import transformers

from headscape.data.tokenize.bpe import GPT2Tokenizer, TrainedBPE, train
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.data.tokenize.published_tokenizer import PublishedTokenizer
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.huggingface.export.write_export import write_tokenizer

TEXTS = [
    "The cat sat on the mat.",
    "  two  spaces\n\n\tand\ttabs \r\n",
    "naïve façade, 你好, \U0001f600 \u0000 \x7f",
    "a <|endoftext|> inside a text",
    "",
]


def tokenizers() -> dict[str, Tokenizer]:
    bpe = TrainedBPE(train(iter(["the cat sat on the mat " * 20, "a b c d é"]), 300))
    return {
        "bytes": ByteTokenizer(),
        "bpe": bpe,
        "gpt2": GPT2Tokenizer(),
        "published": PublishedTokenizer(bpe.describe()["json"], None),
    }


@pytest.mark.parametrize("kind", ["bytes", "bpe", "gpt2", "published"])
def test_every_text_has_the_same_tokens(kind: str, tmp_path: Path) -> None:
    ours = tokenizers()[kind]
    write_tokenizer(ours, tmp_path, 512)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        expected = ours.encode(text).tolist() if text else []
        assert theirs(text).input_ids == expected
        assert theirs.decode(expected) == ours.decode(np.array(expected, dtype=np.int64))
    assert theirs.eos_token_id == ours.end_of_text
    assert theirs.model_max_length == 512
    assert set(theirs("a")) == {"input_ids", "attention_mask"}
    if ours.end_of_text is not None:
        assert theirs.decode([ours.end_of_text]) == "<|endoftext|>"
