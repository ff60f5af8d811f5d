"""Groups, rates and the update itself, against the formulas."""

import math

import numpy as np
import pytest
import torch

from headscape.gpt2 import GPT2, preset
from headscape.train import TrainConfig
from headscape.train.loop.optim import adamw, moments, set_updates
from headscape.train.loop.schedule import lr_at, set_lr

CONFIG = TrainConfig(lr=1e-2, final_lr=1e-3, warmup_steps=10, steps=110)


def test_the_rate_rises_in_a_line_and_falls_as_a_cosine() -> None:
    rates = [lr_at(CONFIG, step, step / 110) for step in range(111)]
    assert rates[:10] == pytest.approx([1e-3 * (step + 1) for step in range(10)])
    for step in range(10, 111):
        x = (step - 10) / 100
        assert rates[step] == pytest.approx(1e-3 + 9e-3 * (1 + math.cos(math.pi * x)) / 2)


def test_a_run_of_minutes_falls_with_time() -> None:
    timed = TrainConfig(steps=None, minutes=1.0, warmup_steps=0, lr=1.0, final_lr=0.0)
    assert [lr_at(timed, 5, x) for x in (0, 0.5, 1, 2)] == pytest.approx([1, 0.5, 0, 0])


def test_only_matrices_decay() -> None:
    model = GPT2(preset("nano", vocabulary=64, encoding="fire", train_length=16))
    groups = adamw(model, CONFIG).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for parameter in model.parameters():
        assert decay[id(parameter)] == (0.1 if parameter.ndim >= 2 else 0.0)


def test_updates_are_adamws_by_hand() -> None:
    model = torch.nn.Linear(3, 2, dtype=torch.float64)
    optimiser = adamw(model, CONFIG)
    weight = model.weight.detach().numpy().copy()
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    for step in range(1, 4):
        gradient = np.random.default_rng(step).normal(size=weight.shape)
        model.weight.grad = torch.from_numpy(gradient.copy())
        model.bias.grad = torch.zeros_like(model.bias)
        set_lr(optimiser, 0.01 * step)
        optimiser.step()
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.95 * square + 0.05 * gradient**2
        weight *= 1 - 0.01 * step * 0.1
        step_by = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.95**step)) + 1e-8)
        weight -= 0.01 * step * step_by
    np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=1e-9)
    np.testing.assert_allclose(moments(model, optimiser)["square.weight"].numpy(), square)


def test_moments_and_a_count_are_all_an_optimiser_remembers() -> None:
    def two() -> list[torch.nn.Linear]:
        torch.manual_seed(0)
        first = torch.nn.Linear(3, 2)
        return [first, torch.nn.Linear(3, 2)]

    model, copy = two()
    optimiser, other = adamw(model, CONFIG), adamw(copy, CONFIG)
    for step in range(3):
        model(torch.full((1, 3), float(step))).square().sum().backward()
        optimiser.step()
    copy.load_state_dict(model.state_dict())
    theirs = moments(copy, other)
    for name, value in moments(model, optimiser).items():
        theirs[name].copy_(value)
    set_updates(other, 3)
    for module, update in ((model, optimiser), (copy, other)):
        update.zero_grad()
        module(torch.ones(1, 3)).square().sum().backward()
        update.step()
    assert torch.equal(model.weight, copy.weight)
    assert torch.equal(model.bias, copy.bias)
