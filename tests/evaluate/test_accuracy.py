"""Accuracy against one pass per token, and at both ends: a model that knows, one that does not."""

import numpy as np
import pytest
import torch

from evaluate.models import tiny
from headscape.errors import InputError
from headscape.evaluate.accuracy import against_length, by_depth, by_depth_trained
from headscape.figures.depths import Depths
from headscape.model import GPT2
from headscape.tasks import TASKS
from headscape.tasks.retrieval import RETRIEVAL
from headscape.text.byte_tokenizer import ByteTokenizer


class Knowing(GPT2):
    """Looks up which token follows; `wrong` examples get their last answer symbol wrong."""

    def learn(self, rows, wrong=()):
        self.rows = [row.tolist() for row in rows]
        self.wrong = set(wrong)
        return self

    def hidden(self, tokens, **_):
        out = torch.zeros(*tokens.shape, 257)
        for row, given in enumerate(tokens.tolist()):
            number = next(
                n for n, known in enumerate(self.rows) if given[: len(known)] == known[: len(given)]
            )
            known = self.rows[number]
            for index in range(min(len(given), len(known) - 1)):
                spoilt = number in self.wrong and index == len(known) - 3
                out[row, index, 0 if spoilt else known[index + 1]] = 1
        return out

    def logits(self, hidden):
        return hidden


def knowing(rows, wrong=()):
    return Knowing(tiny(vocabulary=257).config).learn(rows, wrong)


@pytest.mark.parametrize("name", ["reverse-string", "addition", "stack-manipulation"])
def test_a_model_that_knows_is_always_right(name):
    task = TASKS[name]
    rows = [task.example(1, index, 9).tokens() for index in range(6)]
    (found,) = against_length(knowing(rows), task, [9], examples=6, batch_tokens=24)
    assert (found.tokens, found.exact) == (1.0, 1.0)


def test_one_wrong_symbol_spoils_one_answer():
    task = TASKS["copy"]
    rows = [task.example(1, index, 8).tokens() for index in range(5)]
    (found,) = against_length(knowing(rows, wrong=[2]), task, [8], examples=5)
    assert found.exact == pytest.approx(4 / 5)
    assert found.tokens == pytest.approx(1 - 1 / (5 * 9))


def test_places_are_those_of_a_pass_per_token():
    task, model = TASKS["reverse"], tiny(vocabulary=257).float()
    hits = []
    for index in range(4):
        tokens = task.example(1, index, 6).tokens()
        begin = tokens.tolist().index(ord(">")) + 1
        for at in range(begin, len(tokens)):
            with torch.no_grad():
                logits = model(torch.from_numpy(tokens[:at])[None])[0, -1]
            hits.append(int(logits.argmax()) == tokens[at])
    (found,) = against_length(model, task, [6], examples=4)
    assert found.tokens == pytest.approx(np.mean(hits))


def test_a_vocabulary_too_small_is_refused():
    with pytest.raises(InputError, match="--tokenizer bytes"):
        against_length(tiny(vocabulary=40), TASKS["copy"], [4])


def test_retrieval_by_depth_and_length():
    task, encode = RETRIEVAL["needle"], ByteTokenizer().encode
    lengths, depths = [80, 120], [0.0, 0.5, 1.0]
    rows = [
        np.concatenate(task.tokens_at(1, index, length, depth, encode))
        for depth in depths
        for length in lengths
        for index in range(3)
    ]
    right = by_depth(knowing(rows), task, lengths, depths, encode, examples=3)
    assert right.tolist() == [[1, 1], [1, 1], [1, 1]]
    asked = [
        task.example_at(1, index, length, depth).tokens()
        for depth in depths
        for length in lengths
        for index in range(3)
    ]
    trained = by_depth_trained(knowing(asked, wrong=[0]), task, lengths, depths, examples=3)
    assert trained == pytest.approx(np.array([[2 / 3, 1], [1, 1], [1, 1]]))


def test_the_heat_map_shows_every_cell():
    values = np.array([[0.0, 0.25], [1.0, 0.5], [0.75, 0.1]])
    figure = Depths(accuracy=values, depths=[0, 0.5, 1], lengths=[64, 128], title="needle").draw()
    axes = next(axes for axes in figure.axes if axes.get_gid() == "depths")
    assert np.array_equal(axes.images[0].get_array(), values)
    assert axes.images[0].get_clim() == (0, 1)
    assert [text.get_text() for text in axes.texts] == [f"{value:.2f}" for value in values.flat]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0%", "50%", "100%"]
