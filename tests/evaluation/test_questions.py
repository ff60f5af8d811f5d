"""Models asked on the task they learned, by length, and on retrieval, by depth and length."""

import pytest

from evaluation.knowing import knowing
from evaluation.models import Stretched, Subject, tiny
from headscape.data.tasks import TASKS
from headscape.data.tasks.retrieval import RETRIEVAL
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.errors import InputError
from headscape.evaluation.answers import (
    SEED,
    AnswerJob,
    Question,
    QuestionSet,
    default_lengths,
    labels,
)
from headscape.evaluation.evaluate import evaluate


def subject(encoding, task=None, *, seed=0, model=None, run=None, kind=Subject, recipe="r"):
    """A byte model of a task or of text."""
    model = model or tiny(encoding, vocabulary=257, train_length=64, seed=seed)
    where = {} if run is None else {"provenance": {"run": run}}
    return kind(model, tokenizer=ByteTokenizer(), task=task, seed=seed, recipe=recipe, **where)


def test_a_row_says_who_was_asked_what_and_both_accuracies():
    asked = [TASKS["parity"].example(SEED, index, 9) for index in range(6)]
    questions = [Question.in_layout(TASKS["parity"], one) for one in asked]
    model = knowing(questions, wrong=[(0, 11), (1, 12)], encoding="rope")
    models = [subject("alibi", "parity"), subject("rope", "parity", seed=1, model=model)]
    found = evaluate(models, lengths=(9, 4, 9), examples=6).rows
    rows = [(one.method, one.encoding, one.seed, one.task, one.length) for one in found]
    assert rows == [
        ("ALiBi", "alibi", 0, "parity", 4),
        ("ALiBi", "alibi", 0, "parity", 9),
        ("RoPE", "rope", 1, "parity", 4),
        ("RoPE", "rope", 1, "parity", 9),
    ]
    assert (found[3].symbols, found[3].exact) == pytest.approx((5 / 6, 4 / 6))
    assert {one.examples for one in found} == {6}
    alone = AnswerJob.of(models[0], "parity", QuestionSet(questions=questions), length=9).run()
    assert found[1] == alone


def test_a_length_past_a_learned_table_is_a_dash_and_no_length_at_all_is_refused():
    models = [subject("learned", "copy"), subject("alibi", "copy")]
    table = evaluate(models, lengths=(5, 31, 32), examples=2)
    refused = [one.exact is None for one in table.rows]
    assert refused == [False, False, True, False, False, False]
    assert "64 rows" in table.rows[2].refused
    assert "| 32 | - | " in table.to_markdown()
    assert "\n32 & - & " in table.to_latex()
    with pytest.raises(InputError, match="Learnable: position 65 is past"):
        evaluate(models, lengths=(32, 50), examples=2)


def test_an_evaluation_that_was_stopped_goes_on(tmp_path):
    class Stopping(Subject):
        left = 10

        def predictions(self, tokens, where):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return super().predictions(tokens, where)

    whole = evaluate(subject("alibi", "copy"), lengths=(4, 9), examples=3)
    model = subject("alibi", "copy", kind=Stopping)
    model.left = 1
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, lengths=(4, 9), examples=3, journal=tmp_path)
    model.left = 1
    assert evaluate(model, lengths=(4, 9), examples=3, journal=tmp_path) == whole
    assert model.left == 0


def test_the_bar_ends_full(bars):
    models = [subject("learned", "copy"), subject("alibi", "copy")]
    evaluate(models, lengths=(5, 40), examples=3, batch_tokens=20)
    ((total, done),) = bars
    assert total == done > 0


@pytest.mark.parametrize("tasks", [("copy", "sort"), ("copy", None), (None, "copy")])
def test_models_of_different_tasks_are_refused(tasks):
    with pytest.raises(InputError, match=r"not trained on the same task \(ALiBi on"):
        evaluate([subject("alibi", task) for task in tasks])


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(InputError, match="a length must be at least 3 for addition, got 2"):
        evaluate(subject("alibi", "addition"), lengths=(2, 9))
    with pytest.raises(InputError, match="'parity' has no depth: choose a task from passkey"):
        evaluate(subject("alibi"), task="parity")
    with pytest.raises(InputError, match="ALiBi has no tokenizer, so it cannot read needle"):
        evaluate(Subject(tiny()), task="needle")
    with pytest.raises(InputError, match="unknown quantity 'loss': choose one of exact, symbols"):
        evaluate(subject("alibi", "copy"), quantity="loss")
    models = [subject("alibi", "copy", seed=seed, recipe=f"{seed}") for seed in (0, 1)]
    with pytest.raises(InputError, match="configs differ in more than the seed"):
        evaluate(models, lengths=4, examples=1)


def layouts(examples, length, depth):
    """The questions of a needle sheet in the task's layout, and as plain text."""
    task, encode = RETRIEVAL["needle"], ByteTokenizer().encode
    return (
        [
            Question.in_layout(task, task.example_at(SEED, n, length, depth))
            for n in range(examples)
        ],
        [
            Question.in_text(*task.tokens_at(SEED, n, length, depth, encode))
            for n in range(examples)
        ],
    )


@pytest.mark.parametrize("task", ["needle", None])
def test_a_model_of_the_task_is_asked_in_its_layout_and_one_of_text_in_text(task):
    learned, plain = layouts(2, 90, 1.0)
    mine, others = (learned, plain) if task else (plain, learned)
    for known, right in ((mine, 0.5), (others, 0.0)):
        model = knowing(known, wrong=[(0, known[0].answer + 1)])
        one = subject("alibi", task, model=model)
        table = evaluate(one, task="needle", lengths=(90, 70), examples=2, depths=(1, 0))
        assert all(isinstance(row.depth, float) for row in table.rows)
        assert [(row.length, row.depth, row.exact) for row in table.rows] == [
            (70, 0.0, 0.0),
            (70, 1.0, 0.0),
            (90, 0.0, 0.0),
            (90, 1.0, right),
        ]


def test_a_stretched_model_is_built_once_for_all_depths():
    model = subject("rope", kind=Stretched)
    evaluate(model, task="needle", lengths=(60, 70), examples=1, depths=(0.0, 1.0))
    assert len(model.built) == len(set(model.built))
    assert len(set(model.built) - {model.trained}) == 2


def test_maps_are_labelled_by_the_run(tmp_path):
    runs = ["alibi", "learned", "alibi"]
    models = [subject("learned", seed=n % 2, run=run) for n, run in enumerate(runs)]
    table = evaluate(models, task="needle", lengths=(58, 70), examples=2, depths=(0.0, 0.5))
    assert list(table.maps()) == ["alibi", "learned"]
    names = {path.stem for path in table.save(tmp_path).iterdir()}
    assert names == {"needle-alibi", "needle-learned"}
    assert [row.exact is None for row in table.maps()["alibi"].rows] == [False, False, True, True]


def test_labels_are_short_and_differ():
    plain, stretched = subject("rope", run="r"), subject("rope", run="r", kind=Stretched)
    memory, other = subject("alibi"), subject("fire", run="s")
    assert labels([plain, other, plain]) == ["r", "s", "r"]
    assert labels([plain, stretched]) == ["r-RoPE", "r-RoPE-linear"]
    assert labels([memory, plain]) == ["ALiBi", "r"]
    again = subject("rope", run="r", seed=1)
    assert labels([plain, again]) == [f"r-RoPE-{one.fingerprint[:8]}" for one in (plain, again)]


def test_default_lengths_go_from_trained_to_tested():
    lengths = default_lengths(TASKS["parity"])
    assert lengths[:3] == (20, 40, 41)
    assert lengths[-1] == 500
    assert len(lengths) == 10
