"""A model of the figure job that is trained in no time."""

from collections.abc import Iterator
from typing import Any

import pytest

Settings = dict[str, Any]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of a model that is trained in no time, on a text of its own."""
    folder = tmp_path_factory.mktemp("corpus")
    text = folder / "text.txt"
    text.write_text("".join(f"{n} and {n % 7} and {n % 11}\n" for n in range(3000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCAPE_CACHE", str(folder / "cache"))
        yield {
            "corpus": str(text), "tokenizer": "bytes", "context_length": 32, "steps": 3,
            "width": 48, "tokens_per_step": 64, "batch_size": 2, "warmup_steps": 1,
            "validation_windows": 4,
        }  # fmt: skip
