"""Whole evaluations on text, and what they refuse before anything is computed."""

from pathlib import Path

import numpy as np
import pytest

import headscape as hs
from evaluation.models import Stretched, Subject, dataset, stream, tiny
from headscape.data.dataset import open_dataset
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.errors import InputError
from headscape.evaluation import perplexity
from headscape.evaluation.evaluate import evaluate
from headscape.evaluation.table import Table

TEXT = dataset(stream(300))


def subject(encoding, **options):
    return Subject(tiny(encoding), data=TEXT, **options)


def test_a_method_that_cannot_gets_a_dash():
    table = evaluate([subject("learned"), subject("alibi")], lengths=(32, 8, 16))
    assert table.lengths == [8, 16, 32]
    assert table.cell("Learnable", 16).mean is not None
    assert table.cell("Learnable", 32).mean is None
    assert "| 32 | - | **" in table.to_markdown()
    (refused,) = [row for row in table.rows if row.refused]
    assert "past the learned table's 16 rows" in refused.refused
    assert (refused.windows, refused.tokens, refused.loss) == (0, 0, None)


def test_a_method_that_cannot_at_all_is_refused():
    with pytest.raises(InputError, match="Learnable: position 31 is past the learned table"):
        evaluate([subject("alibi"), subject("learned")], lengths=(32, 64))


class Untouched(Subject):
    """A model that must not be run."""

    def losses(self, *_):
        raise AssertionError


def untouched(name, data=TEXT, seed=0, **spec):
    return Untouched(tiny(seed=seed), data=data, name=name, seed=seed, **spec)


def test_a_length_longer_than_the_text_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="a length of 300 needs 301 tokens"):
        evaluate(untouched("a"), lengths=[8, 300])
    with pytest.raises(InputError, match="a length of 128 needs 129 tokens"):
        evaluate(untouched("a"), lengths=[8, 128], limit=100)


def test_what_cannot_stand_in_one_table_is_refused_before_anything_runs():
    other = dataset(stream(299))
    with pytest.raises(InputError, match=r"different tokens \(different limit or tokenizer\)"):
        evaluate([untouched("a"), untouched("b", other)], lengths=8)
    texts = [dataset(stream(count), ByteTokenizer()) for count in (300, 200)]
    with pytest.raises(InputError, match="a was scored on 296 bytes and b on 192"):
        evaluate(
            [untouched(name, text) for name, text in zip("ab", texts, strict=True)],
            lengths=8,
            quantity="bits-per-byte",
        )
    with pytest.raises(InputError, match="configs differ in more than the seed"):
        evaluate([untouched("a", seed=seed, recipe=f"{seed}") for seed in range(2)], lengths=8)
    with pytest.raises(InputError, match="does not say which bytes its tokens are"):
        evaluate(untouched("a"), lengths=8, quantity="word-perplexity")


def test_a_stretched_model_is_built_once_for_each_length():
    stretched = Stretched(tiny("rope"), data=TEXT)
    table = evaluate([subject("rope"), stretched], lengths=(16, 64))
    assert sorted(stretched.built) == [16, 64]
    assert table.methods == ["RoPE", "RoPE, linear"]
    assert table.cell("RoPE", 16).mean == pytest.approx(table.cell("RoPE, linear", 16).mean)
    assert table.cell("RoPE", 64).mean != pytest.approx(table.cell("RoPE, linear", 64).mean)
    assert len({row.model for row in table.rows if row.method == "RoPE, linear"}) == 2


def test_a_model_given_twice_is_scored_once():
    class Counted(Subject):
        calls = 0

        def losses(self, windows, first):
            Counted.calls += 1
            return super().losses(windows, first)

    twice = [Counted(tiny(), data=TEXT) for _ in range(2)]
    assert len(evaluate(twice, lengths=16).rows) == 1
    assert Counted.calls == 1


def test_numbers_may_be_numpys(tmp_path):
    plain = evaluate(subject("alibi"), lengths=[8, 16], out=tmp_path / "a")
    lengths = np.array([8, 16])
    model = subject("alibi")
    table = evaluate(model, lengths=lengths, batch_tokens=np.int64(8192), out=tmp_path / "b")
    assert table.to_json() == plain.to_json()


def test_same_tokens_scores_as_many_at_every_length():
    table = evaluate(subject("alibi"), lengths=(7, 16, 100), same_tokens=True)
    assert {row.tokens for row in table.rows} == {200}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"lengths": ()}, "lengths must contain at least one number, got none"),
        ({"lengths": (8, 0)}, "a length must be at least 1, got 0"),
        ({"lengths": "512"}, "lengths must be a number or a list of numbers, got '512'"),
        ({"lengths": [8.5]}, r"a length must be a whole number, got 8\.5"),
        ({"lengths": [True]}, "a length must be a whole number, got True"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"protocol": "first-3"}, "unknown protocol 'first-3'"),
        ({"protocol": 3}, "protocol must be a string, got 3"),
        ({"corpus": 3}, "corpus must be a string, got 3"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1, got 0"),
        ({"quantity": "ppl"}, "unknown quantity 'ppl': choose one of perplexity"),
        ({"quantity": "exact"}, "unknown quantity 'exact'"),
        ({"examples": 5}, "examples applies to tasks only"),
        ({"examples": 0}, "examples must be at least 1, got 0"),
        ({"depths": 0.5}, "depths need a heat map"),
        ({"task": "passkey", "depths": [1.5]}, r"a depth must be between 0 and 1, got 1\.5"),
        ({"task": "passkey", "depths": [float("nan")]}, "between 0 and 1, got nan"),
        ({"task": "passkey", "limit": 9}, "limit applies to text, and this is a task"),
        ({"task": "passkey", "same_tokens": True}, "same_tokens applies to text"),
    ],
)
def test_bad_options_are_refused(options, complaint):
    with pytest.raises(InputError, match=complaint):
        evaluate(untouched("a"), **options)


@pytest.mark.parametrize("models", ["runs/cable", [Path("runs/cable")], None, tiny()])
def test_what_is_not_a_model_is_refused(models):
    with pytest.raises(InputError, match="evaluate takes models, got"):
        evaluate(models)


def test_no_model_is_refused():
    with pytest.raises(InputError, match="at least one model, got none"):
        evaluate([])


def test_the_bar_ends_full(bars):
    evaluate([subject("learned"), subject("alibi")], lengths=(8, 40), batch_tokens=20)
    ((total, done),) = bars
    assert total == done > 0


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    corpus = tmp_path / "book.txt"
    corpus.write_text("".join(f"line {n} of a text that says {n * n}\n" for n in range(400)))
    return corpus


def test_a_corpus_is_opened_once_with_each_tokenizer(book, monkeypatch):
    opened = []
    monkeypatch.setattr(
        perplexity, "open_dataset", lambda *given: opened.append(given) or open_dataset(*given)
    )
    models = [
        Subject(tiny(encoding, vocabulary=257), tokenizer=ByteTokenizer())
        for encoding in ("alibi", "rope")
    ]
    table = evaluate(models, lengths=(32, 64), corpus=book)
    assert len(opened) == 1
    assert all(row.bytes == row.tokens for row in table.rows)
    assert {row.corpus for row in table.rows} == {str(book)}
    (text,) = {text.fingerprint for text in perplexity.held_out(models, str(book))}
    assert {row.text for row in table.rows} == {text}


def test_the_text_is_the_held_out_side_of_the_models_own_corpus(book):
    data = open_dataset(str(book), ByteTokenizer())
    (text,) = perplexity.held_out([Subject(tiny(), data=data)], limit=50)
    assert np.array_equal(text.tokens, data.validation[:50])
    assert text.corpus == str(book)


def test_a_model_without_a_corpus_or_tokenizer_says_so(book):
    with pytest.raises(InputError, match="ALiBi has no text of its own: give a text or a corpus"):
        evaluate(Subject(tiny()), lengths=8)
    with pytest.raises(InputError, match="ALiBi has no tokenizer, so it cannot read"):
        evaluate(Subject(tiny()), lengths=8, corpus=str(book))


def test_out_keeps_the_table_and_a_journal_that_the_same_call_resumes(tmp_path):
    table = evaluate(subject("alibi"), lengths=(8, 16), out=tmp_path)
    assert Table.read(tmp_path).rows == table.rows
    assert len(list((tmp_path / "journal").iterdir())) == 2
    again = evaluate(Untouched(tiny(), data=TEXT), lengths=(8, 16), out=tmp_path)
    assert again == table


def test_a_text_of_ones_own_is_scored_whole(tmp_path) -> None:
    model = hs.load(
        hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257), tokenizer="bytes"
    )
    text = "".join(f"{number} cats sat.\n" for number in range(60))
    [row] = hs.evaluate(model, text=text, lengths=64).rows
    assert row.corpus == "text"
    assert row.tokens == (len(text) - 1) // 64 * 64
    file = tmp_path / "cats.txt"
    file.write_text(text)
    [held_out] = hs.evaluate(model, corpus=file, lengths=16).rows
    assert held_out.tokens < row.tokens / 5
    with pytest.raises(hs.InputError, match=r"cats.txt \(1 kB given, 5% held out\), cut to"):
        hs.evaluate(model, corpus=file, lengths=512)
    with pytest.raises(hs.InputError, match="a text or corpus"):
        hs.evaluate(model, corpus=file, text=text)
    with pytest.raises(hs.InputError, match="text applies to text, and this is a task"):
        hs.evaluate(model, task="needle", text=text)
