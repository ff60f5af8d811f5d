"""A generated task goes through the same training, and only its answers count."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from headscape.data.tasks import task
from headscape.data.tasks.task_batches import TaskBatches, scored
from headscape.errors import InputError
from headscape.training import Run, train


def test_a_task_is_trained_and_counts_its_answers_alone(make, tmp_path: Path) -> None:
    config = make(
        corpus="task:parity", context_length=64, tokens_per_step=256, steps=3, curriculum=()
    )
    result = train(config, out=tmp_path / "run", quiet=True)
    assert result.finished
    windows = TaskBatches(task("parity"), 64, config.seed).windows(0, 4)
    torch.manual_seed(config.seed)
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    from headscape.gpt2 import GPT2

    model = GPT2(config.model_for(257))
    rows = torch.from_numpy(windows)
    with torch.no_grad():
        losses = F.cross_entropy(
            model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="none"
        ).view(4, -1)
    answers = torch.from_numpy(scored(windows))
    by_example = [row[kept].mean().item() for row, kept in zip(losses, answers, strict=True)]
    assert first["loss"] == pytest.approx(sum(by_example) / 4, rel=1e-5)
    run = Run.open(tmp_path / "run")
    assert run.config.corpus == "task:parity"
    assert run.dataset() is None


def test_a_task_is_spelled_in_bytes(make, tmp_path: Path) -> None:
    config = make(corpus="task:parity", tokenizer="bpe:300", context_length=64, tokens_per_step=256)
    with pytest.raises(InputError, match="tokenizer bytes"):
        train(config, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_an_unknown_task_is_named(make, tmp_path: Path) -> None:
    config = make(corpus="task:party", context_length=64, tokens_per_step=256)
    with pytest.raises(InputError, match="'party': did you mean 'parity'"):
        train(config, out=tmp_path / "run", quiet=True)
