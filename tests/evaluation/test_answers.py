"""Accuracy against one pass per token, and of models whose mistakes are known."""

import numpy as np
import pytest
import torch

from evaluation.knowing import choosing, knowing
from evaluation.models import Subject
from headscape.data.tasks import TASKS, Example
from headscape.data.tasks.retrieval import RETRIEVAL
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.evaluation.answers import AnswerJob, Question, QuestionSet
from headscape.plots.lengths import Depths


def question_set(name, length, count):
    task = TASKS[name]
    examples = [task.example(1, index, length) for index in range(count)]
    return QuestionSet(questions=[Question.in_layout(task, one) for one in examples])


def marked(model, asked, **options):
    found = AnswerJob.of(Subject(model), "copy", asked, length=1).run(**options)
    return found.symbols, found.exact


@pytest.mark.parametrize("name", ["reverse-string", "addition", "stack-manipulation"])
def test_a_model_that_knows_is_always_right(name):
    asked = question_set(name, 9, 6)
    assert marked(knowing(asked.questions), asked, batch_tokens=24) == (1, 1)


def test_one_wrong_symbol_spoils_one_answer():
    asked = question_set("copy", 8, 5)
    last = len(asked.questions[2].tokens) - 2
    found = marked(knowing(asked.questions, wrong=[(2, last)]), asked)
    assert found == pytest.approx((1 - 1 / (5 * 8), 4 / 5))


def test_a_wrong_end_spoils_the_answer_and_no_symbol():
    asked = question_set("copy", 8, 5)
    end = len(asked.questions[2].tokens) - 1
    found = marked(knowing(asked.questions, wrong=[(2, end)]), asked)
    assert found == pytest.approx((1, 4 / 5))


def test_where_an_answers_length_is_asked_its_end_is_a_symbol():
    task = TASKS["stack-manipulation"]
    asked = QuestionSet(
        questions=[
            Question.in_layout(task, Example("aP", "")),
            Question.in_layout(task, Example("abA", "aba")),
        ]
    )
    found = marked(knowing(asked.questions, wrong=[(0, 4), (1, 8)]), asked)
    assert found == pytest.approx(((0 + 3 / 4) / 2, 0))


def test_a_wrong_guess_at_parity_scores_nothing():
    asked = question_set("parity", 7, 4)
    found = marked(knowing(asked.questions, wrong=[(0, 9), (3, 9)]), asked)
    assert found == (0.5, 0.5)


def test_every_answer_counts_alike_whatever_its_length():
    task = TASKS["copy"]
    examples = [Example("a", "a"), Example("abc", "abc")]
    asked = QuestionSet(questions=[Question.in_layout(task, one) for one in examples])
    assert marked(knowing(asked.questions, wrong=[(0, 3)]), asked) == (0.5, 0.5)


def test_symbols_are_those_of_a_pass_per_token_after_the_true_answer():
    asked, model = question_set("reverse-string", 6, 8), choosing()
    shares = []
    for one in asked.questions:
        hits = []
        for at in range(one.answer, len(one.tokens) - 1):
            with torch.no_grad():
                logits = model(torch.from_numpy(one.tokens[:at])[None])[0, -1]
            hits.append(int(logits.argmax()) == one.tokens[at])
        shares.append(np.mean(hits))
    assert len(set(shares)) > 2
    assert marked(model, asked, batch_tokens=30)[0] == pytest.approx(np.mean(shares))


def test_exact_answers_are_those_of_greedy_decoding():
    asked, right = question_set("stack-manipulation", 2, 16), []
    model = choosing(seed=8)
    for one in asked.questions:
        said = one.tokens[: one.answer].tolist()
        while len(said) < len(one.tokens):
            with torch.no_grad():
                said.append(int(model(torch.tensor([said]))[0, -1].argmax()))
        right.append(said == one.tokens.tolist())
    assert 0 < sum(right) < len(right)
    assert marked(model, asked)[1] == pytest.approx(np.mean(right))


def test_a_text_is_continued_with_the_answer():
    task, encode = RETRIEVAL["needle"], ByteTokenizer().encode
    asked = QuestionSet(
        questions=[
            Question.in_text(*task.tokens_at(1, index, 80, 0.5, encode)) for index in range(3)
        ]
    )
    (spelled,) = {one.tokens[one.answer :].size for one in asked.questions}
    assert spelled == 4
    assert asked.reads == 83
    assert marked(knowing(asked.questions), asked) == (1, 1)
    found = marked(knowing(asked.questions, wrong=[(1, 81)]), asked)
    assert found == pytest.approx((1 - 1 / 12, 2 / 3))


def test_an_interrupted_set_goes_on_where_it_was(tmp_path):
    asked = question_set("copy", 8, 6)
    wrong = [(1, len(asked.questions[1].tokens) - 2)]
    whole = marked(knowing(asked.questions, wrong), asked, batch_tokens=2 * asked.reads)
    model, told = knowing(asked.questions, wrong), []

    def stop(count):
        told.append(count)
        if len(told) == 2:
            raise KeyboardInterrupt

    options = {"batch_tokens": 2 * asked.reads, "journal": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        marked(model, asked, advance=stop, **options)
    assert len(told) == 2
    assert told[0] == told[1]
    assert model.calls == 2
    assert marked(model, asked, **options) == whole
    assert model.calls == 3
    other = question_set("copy", 9, 6)
    marked(model, other, **options)
    assert model.calls > 3


def test_sets_that_ask_otherwise_have_other_fingerprints():
    asked = {
        question_set("copy", length, count).fingerprint for length in (5, 6) for count in (2, 3)
    }
    assert len(asked) == 4
    assert question_set("copy", 5, 2).fingerprint in asked


def test_the_heat_map_shows_every_cell():
    values = np.array([[0.0, 0.25], [1.0, 0.5], [0.75, np.nan]])
    figure = Depths(accuracy=values, depths=[0, 0.5, 1], lengths=[64, 128], heading="needle").draw()
    axes = next(axes for axes in figure.axes if axes.get_gid() == "depths")
    assert np.array_equal(axes.images[0].get_array().filled(np.nan), values, equal_nan=True)
    assert axes.images[0].get_clim() == (0, 1)
    assert [text.get_text() for text in axes.texts] == ["0.00", "0.25", "1.00", "0.50", "0.75", "-"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0%", "50%", "100%"]
