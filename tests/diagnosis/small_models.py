"""Models small enough to be trained in a test, on a language that needs position.

Token t repeats token t - 5 in nine of ten cases and is random otherwise, so a model has to look
five tokens back, and every other key is a distraction.
"""

from functools import cache

import numpy as np
import torch

from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.gpt2 import GPT2, ModelConfig
from headscape.models.gpt2_model import GPT2Model

VOCABULARY, TRAINED, BACK = 24, 32, 5


def language(count: int, seed: int = 0) -> np.ndarray:
    """Tokens of the language."""
    random = np.random.default_rng(seed)
    tokens = random.integers(VOCABULARY, size=count)
    repeats = random.random(count) < 0.9
    for at in range(BACK, count):
        if repeats[at]:
            tokens[at] = tokens[at - BACK]
    return tokens.astype(np.int64)


@cache
def trained(encoding: str, steps: int = 150, seed: int = 0, first: str | None = None) -> GPT2Model:
    """A model of the language, trained at TRAINED tokens.

    With `first`, texts are bytes with an end-of-text token. "seen": half of the windows begin with
    that token. "needed": after any other token the targets of these windows are random, so heads
    learn to look at the first token.
    """
    torch.manual_seed(seed)
    tokenizer = None if first is None else ByteTokenizer()
    vocabulary = VOCABULARY if tokenizer is None else tokenizer.vocabulary
    config = ModelConfig(
        layers=2, heads=4, width=64, vocabulary=vocabulary, train_length=TRAINED, encoding=encoding
    )
    model = GPT2(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.from_numpy(language(200_000, seed=1))
    places = torch.Generator().manual_seed(seed)
    for step in range(steps):
        starts = torch.randint(len(text) - TRAINED - 1, (32,), generator=places)
        windows = torch.stack([text[at : at + TRAINED + 1] for at in starts.tolist()])
        target = windows[:, 1:].clone()
        if tokenizer is not None:
            windows[:16, 0] = tokenizer.end_of_text
        if first == "needed":
            target[16:] = torch.randint(VOCABULARY, (16, TRAINED), generator=places)
        logits = model(windows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (steps - step) / (steps / 2))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return GPT2Model(model.eval(), name=encoding, tokenizer=tokenizer)
