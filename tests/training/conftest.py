"""A small text, a cache for its tokens, and runs of a few seconds."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headscape.training import TrainConfig, preset

Make = Callable[..., TrainConfig]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty thousand words of a language with a grammar of pairs."""
    draw = random.Random(5)  # noqa: S311 - a text, not a secret
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 6))) for _ in range(200)]
    follow = {word: draw.choices(words, k=4) for word in words}
    word, lines = words[0], []
    for _ in range(6_000):
        line = []
        for _ in range(10):
            word = draw.choice(follow[word])
            line.append(word)
        lines.append(" ".join(line))
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make(text: Path) -> Make:
    """A run of one small layer; every field can be changed."""

    def made(**changes: Any) -> TrainConfig:
        small = {
            "encoding": "cable",
            "corpus": str(text),
            "tokenizer": "bytes",
            "layers": 1,
            "heads": 4,
            "width": 32,
            "context_length": 32,
            "batch_size": 4,
            "tokens_per_step": 256,
            "steps": 12,
            "lr": 3e-3,
            "checkpoint_every": 4,
            "validate_every": 4,
            "validation_windows": 5,
            "seed": 7,
        }
        return preset("nano", **{**small, **changes})

    return made
