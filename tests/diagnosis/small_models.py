"""Models small enough to be trained in a test, on a language that needs position.

Token t repeats token t - 5 in nine of ten cases and is random otherwise, so a model has to look
five tokens back, and every other key is a distraction.
"""

from functools import cache

import numpy as np
import torch

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
def trained(encoding: str, steps: int = 150, seed: int = 0) -> GPT2Model:
    """A model of the language, trained at TRAINED tokens."""
    torch.manual_seed(seed)
    config = ModelConfig(
        layers=2, heads=4, width=64, vocabulary=VOCABULARY, train_length=TRAINED, encoding=encoding
    )
    model = GPT2(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.from_numpy(language(200_000, seed=1))
    places = torch.Generator().manual_seed(seed)
    for step in range(steps):
        starts = torch.randint(len(text) - TRAINED - 1, (32,), generator=places)
        windows = torch.stack([text[at : at + TRAINED + 1] for at in starts.tolist()])
        logits = model(windows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (steps - step) / (steps / 2))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return GPT2Model(model.eval(), name=encoding)
