"""Our tokenizers as `tokenizers` objects, which AutoTokenizer loads from tokenizer.json.

Every text gets the tokens that our tokenizer gives it: "<|endoftext|>" in a text is split into
characters (`split_special_tokens`), and nothing is added around a text.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headscape.data.tokenize import tokenizer as ours
from headscape.data.tokenize.bpe import gpt2
from headscape.data.tokenize.byte_tokenizer import END_OF_TEXT
from headscape.errors import InputError


def write_tokenizer(tokenizer: ours.Tokenizer, folder: Path, positions: int) -> None:
    """Write tokenizer.json and tokenizer_config.json; `positions` is the longest input."""
    from transformers import PreTrainedTokenizerFast

    built = as_tokenizers(tokenizer)
    end = tokenizer.end_of_text
    word = None if end is None else built.id_to_token(end)
    PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token=word,
        eos_token=word,
        pad_token=word,
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        add_prefix_space=False,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)


def as_tokenizers(tokenizer: ours.Tokenizer) -> Tokenizer:
    """Return the same tokenizer as an object of the package `tokenizers`."""
    described = tokenizer.describe()
    kind = described["kind"]
    if kind not in BUILDERS:
        raise InputError(f"a tokenizer of kind {kind!r} cannot be exported.")
    built = BUILDERS[kind](described)
    if kind != "published":
        built.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
        assert built.token_to_id(END_OF_TEXT) == tokenizer.end_of_text
    return built


def _bytes(_: dict[str, Any]) -> Tokenizer:
    """Return a byte-level BPE without merges whose token of a byte is the byte."""
    letters = _letters()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    return built


def _letters() -> dict[int, str]:
    """Return the character by which GPT-2's byte-level alphabet writes each byte.

    Printable bytes are themselves; the others are the characters from 256 on, in order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {byte: chr(byte) for byte in printable}
    return found | {byte: chr(256 + place) for place, byte in enumerate(others)}


def _from_json(described: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(described["json"])


def _gpt2(_: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(gpt2().to_str())


BUILDERS: dict[str, Callable[[dict[str, Any]], Tokenizer]] = {
    "bytes": _bytes,
    "bpe": _from_json,
    "gpt2": _gpt2,
    "published": _from_json,
}
