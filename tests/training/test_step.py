"""A run against the same training written out in a dozen lines."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from headscape.gpt2 import GPT2
from headscape.training import Run, train
from headscape.training.objective import open_data
from headscape.training.optim import lr_at
from headscape.training.parallel import clip_gradients
from headscape.training.step import Learner
from headscape.training.world import World
from training.conftest import Make


def test_a_run_is_plain_training(make: Make, cache: Path, tmp_path: Path) -> None:
    config = make(curriculum=(16, 32), batch_size=2)
    train(config, out=tmp_path, cache=cache, quiet=True)
    data = open_data(config, World(), cache)
    torch.manual_seed(config.seed)
    model = GPT2(config.model_for(data.tokenizer.vocabulary))
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimiser = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, config.beta2),
        weight_decay=0.1,
    )
    losses = []
    for step in range(12):
        length = 16 if step < 6 else 32
        windows = torch.from_numpy(data.batches.windows(step, 256 // length, length))
        loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = lr_at(config, step, step / 12)
        optimiser.step()
        losses.append(loss.item())
    run = Run.open(tmp_path)
    lines = run.metrics()
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-5)
    assert [line["length"] for line in lines] == [16] * 6 + [32] * 6
    for name, value in run.model.tensors().items():
        torch.testing.assert_close(value, model.tensors()[name], rtol=1e-3, atol=2e-5)
    held_out = torch.from_numpy(data.held_out)
    with torch.no_grad():
        logits = run.model(held_out[:, :-1])
        expected = F.cross_entropy(logits.flatten(0, 1), held_out[:, 1:].flatten())
    assert lines[-1]["validation_loss"] == pytest.approx(float(expected), rel=1e-6)
    assert [line["step"] for line in lines if "validation_loss" in line] == [4, 8, 12]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_the_size_of_a_pass_does_not_change_the_gradient(
    batch: int, make: Make, cache: Path
) -> None:
    def gradients(size: int) -> tuple[float, list[torch.Tensor]]:
        config = make(batch_size=size)
        data = open_data(config, World(), cache)
        torch.manual_seed(0)
        model = GPT2(config.model_for(data.tokenizer.vocabulary))
        learner = Learner(config=config, world=World(), model=model, module=model)
        loss = learner.gradient(data.rows(config, 3, 32, World()))
        return loss, [p.grad for p in model.parameters() if p.grad is not None]

    loss, mine = gradients(batch)
    expected, whole = gradients(100)
    assert loss == pytest.approx(expected, rel=1e-6)
    for one, other in zip(mine, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_ranks_cut_one_batch_without_gap_or_overlap(make: Make, cache: Path) -> None:
    config = make()
    data = open_data(config, World(), cache)
    whole = data.rows(config, 5, 32, World())
    parts = [data.rows(config, 5, 32, World(rank=rank, size=4)) for rank in range(4)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("limit", [0.0, 0.5, 1e9])
def test_clipping_is_torchs(limit: float) -> None:
    ours, theirs = (torch.nn.Linear(5, 4) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    for model in (ours, theirs):
        model(torch.arange(10.0).view(2, 5)).square().sum().backward()
    norm = clip_gradients(ours.parameters(), limit)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit or float("inf"))
    assert norm == pytest.approx(float(expected))
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
