"""Models whose mistakes are known."""

import torch

from evaluation.models import tiny
from headscape.gpt2 import GPT2


class Knowing(GPT2):
    """Looks up which token follows; the places in `wrong`, (question, token), it gets wrong."""

    def learn(self, questions, wrong=()):
        self.rows = [one.tokens.tolist() for one in questions]
        self.wrong = set(wrong)
        self.calls = 0
        return self

    def hidden(self, tokens, **_):
        self.calls += 1
        out = torch.zeros(*tokens.shape, 257)
        for row, given in enumerate(tokens.tolist()):
            number = next(
                (n for n, known in enumerate(self.rows) if given[: len(known) - 1] == known[:-1]),
                None,
            )
            known = [] if number is None else self.rows[number]
            for index in range(len(known) - 1):
                spoilt = (number, index + 1) in self.wrong
                out[row, index, 0 if spoilt else known[index + 1]] = 1
        return out

    def logits(self, hidden):
        return hidden


def knowing(questions, wrong=(), encoding="alibi"):
    return Knowing(tiny(encoding, vocabulary=257).config).eval().learn(questions, wrong)


class Choosing(GPT2):
    """A random model that knows only a few tokens, so that it is right now and then."""

    choices = (ord("a"), ord("b"), 256)

    def logits(self, hidden):
        logits = super().logits(hidden)
        mask = torch.full_like(logits, -torch.inf)
        mask[..., list(self.choices)] = 0
        return logits + mask


def choosing(seed=0):
    known = tiny(vocabulary=257, seed=seed)
    model = Choosing(known.config).double()
    model.load_state_dict(known.state_dict())
    return model.eval()
