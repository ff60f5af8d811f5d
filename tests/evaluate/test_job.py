"""Whole evaluations, of models and of runs, and what they refuse."""

import pytest

from evaluate.models import stream, tiny
from headscape.errors import InputError
from headscape.evaluate.extension import parse as extension
from headscape.evaluate.job import EvaluateConfig, evaluate
from headscape.evaluate.perplexity import Method, Text
from headscape.evaluate.subjects import Subject, open_subjects
from headscape.evaluate.table import Table
from headscape.evaluate.units import Units
from headscape.train import preset, train

TEXT = Text(tokens=stream(300), corpus="random")


def subject(encoding, **options):
    return Subject.of(tiny(encoding), TEXT, **options)


def test_a_method_that_cannot_gets_a_dash():
    config = EvaluateConfig(lengths=(32, 8, 16))
    rows = evaluate([subject("learned"), subject("alibi")], config)
    table = Table.of(rows)
    assert table.lengths == [8, 16, 32]
    assert table.cell("Learnable", 16).mean is not None
    assert table.cell("Learnable", 32).mean is None
    assert "| 32 | - | **" in table.markdown()
    (refused,) = [row for row in rows if row.refused]
    assert "past the learned table's 16 rows" in refused.refused


def test_a_method_that_cannot_at_all_is_refused():
    with pytest.raises(InputError, match="Learnable: position 31 is past the learned table"):
        evaluate([subject("alibi"), subject("learned")], EvaluateConfig(lengths=(32, 64)))


def test_a_length_longer_than_the_text_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="a length of 300 needs 301 tokens"):
        evaluate([subject("alibi")], EvaluateConfig(lengths=(8, 300)))
    with pytest.raises(InputError, match="a length of 128 needs 129 tokens and the text has 100"):
        evaluate([subject("alibi")], EvaluateConfig(lengths=(8, 128), limit=100))


class Untouched:
    """A model that must not be run."""

    fingerprint = "f"

    def cannot(self, _length):
        return None

    def cost(self, _length):
        return 1.0

    def losses(self, _window, _first):
        raise AssertionError


def untouched(name, text=TEXT, **method):
    scorer = Untouched()
    return Subject(method=Method(name=name, **method), text=text, scorer=lambda _: scorer)


def test_what_cannot_stand_in_one_table_is_refused_before_anything_runs():
    other = Text(tokens=stream(299), corpus="random")
    with pytest.raises(InputError, match="do not compare"):
        evaluate([untouched("a"), untouched("b", other)], EvaluateConfig(lengths=(8,)))
    spelled = Units.of([b"ab"] * 50)
    texts = [Text(tokens=stream(count), corpus="random", units=spelled) for count in (300, 200)]
    with pytest.raises(InputError, match="a was scored on 592 bytes and b on 384"):
        evaluate(
            [untouched(name, text) for name, text in zip("ab", texts, strict=True)],
            EvaluateConfig(lengths=(8,), quantity="bits-per-byte"),
        )
    with pytest.raises(InputError, match="trained in different ways"):
        evaluate(
            [untouched("a", seed=seed, recipe=f"{seed}") for seed in range(2)],
            EvaluateConfig(lengths=(8,)),
        )
    with pytest.raises(InputError, match="a's tokens do not say which bytes they are"):
        evaluate([untouched("a")], EvaluateConfig(lengths=(8,), quantity="word-perplexity"))


def test_extensions_stand_in_the_same_table():
    rows = evaluate(
        [subject("rope"), subject("rope", extension=extension("yarn"))],
        EvaluateConfig(lengths=(16, 64)),
    )
    table = Table.of(rows)
    assert table.methods == ["RoPE", "RoPE, YaRN"]
    assert table.cell("RoPE", 16).mean == pytest.approx(table.cell("RoPE, YaRN", 16).mean)
    assert table.cell("RoPE", 64).mean != pytest.approx(table.cell("RoPE, YaRN", 64).mean)


def test_same_tokens_scores_as_many_at_every_length():
    rows = evaluate([subject("alibi")], EvaluateConfig(lengths=(7, 16, 100), same_tokens=True))
    assert {row.tokens for row in rows} == {200}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"lengths": ()}, "no length"),
        ({"lengths": (8, 0)}, "a length must be at least 1, not 0"),
        ({"protocol": "first-3"}, "unknown protocol"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1"),
        ({"quantity": "ppl"}, "unknown quantity"),
    ],
)
def test_bad_options_are_refused(fields, complaint):
    with pytest.raises(InputError, match=complaint):
        EvaluateConfig(**fields)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    corpus = folder / "text.txt"
    corpus.write_text("".join(f"line {n} of a text that says {n * n}\n" for n in range(400)))
    config = preset(
        "nano", width=24, layers=1, heads=2, encoding="rope", corpus=str(corpus),
        tokenizer="bytes", context_length=32, batch_size=2, steps=2, seed=5,
    )  # fmt: skip
    train(config, out=folder / "run", cache=folder / "cache", quiet=True)
    return folder


def test_a_run_is_evaluated_on_its_held_out_text(run):
    subjects = open_subjects(
        str(run / "run"), cache=run / "cache", extensions=[extension("linear:2")]
    )
    rows = evaluate(subjects, EvaluateConfig(lengths=(32, 64)), run / "journal")
    assert {(row.method, row.seed, row.train_length) for row in rows} == {
        ("RoPE", 5, 32),
        ("RoPE, linear x2", 5, 32),
    }
    text = (run / "text.txt").read_bytes()
    held_out = bytes(subjects[0].text.tokens[:-1].tolist())
    assert text.endswith(held_out)
    assert all(row.bytes == row.tokens for row in rows)
    assert evaluate(subjects, EvaluateConfig(lengths=(32, 64)), run / "journal") == rows


def test_a_run_without_checkpoints_is_refused(run, tmp_path):
    (tmp_path / "config.toml").write_bytes((run / "run" / "config.toml").read_bytes())
    with pytest.raises(InputError, match="no checkpoint yet"):
        open_subjects(str(tmp_path), cache=tmp_path)
    with pytest.raises(InputError, match="is not a run"):
        open_subjects(str(tmp_path / "nowhere"), cache=tmp_path)


def test_a_model_from_elsewhere_needs_a_text(tmp_path):
    with pytest.raises(InputError, match="say which text with --corpus"):
        open_subjects(f"hf:{tmp_path}", cache=tmp_path)
