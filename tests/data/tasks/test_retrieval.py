"""Where the fact is, how long the text is, and that it is said only once."""

import numpy as np
import pytest

from headscape.data.tasks.retrieval import RETRIEVAL
from headscape.data.tokenize.bpe import GPT2Tokenizer
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.errors import InputError


@pytest.mark.parametrize("name", RETRIEVAL)
@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), GPT2Tokenizer()])
@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_fact_stands_at_its_depth_in_a_text_of_exactly_that_length(name, tokenizer, depth):
    for length in (64, 100, 777):
        text, answer = RETRIEVAL[name].tokens_at(0, 1, length, depth, tokenizer.encode)
        assert len(text) == length
        spelled = tokenizer.decode(text)
        told = tokenizer.decode(answer)
        assert spelled.count(told + ".") == 1
        at = spelled.index(told + ".") / len(spelled)
        if length == 777:
            assert abs(at - depth) < 0.15


@pytest.mark.parametrize("name", RETRIEVAL)
def test_a_text_too_short_or_a_depth_outside_is_refused(name):
    encode = ByteTokenizer().encode
    with pytest.raises(InputError, match="does not fit"):
        RETRIEVAL[name].tokens_at(0, 0, 20, 0.5, encode)
    with pytest.raises(InputError, match="does not fit"):
        RETRIEVAL[name].tokens_at(0, 0, 200, 1.5, encode)


def test_needles_lie_in_hay_that_varies():
    encode = ByteTokenizer().encode
    first, second = (
        RETRIEVAL["needle"].tokens_at(0, index, 600, 0.5, encode)[0] for index in range(2)
    )
    assert not np.array_equal(first, second)
