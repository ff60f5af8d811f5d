"""Groups, rates and the update itself, against the formulas."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from headscape.gpt2 import GPT2, preset
from headscape.training import TrainConfig
from headscape.training.optim import Muon, Optimizer, lr_at

ADAMW = {"optimizer": "adamw", "beta2": 0.95}
CONFIG = TrainConfig(**ADAMW, lr=1e-2, final_lr=1e-3, warmup_steps=10, steps=110)


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
    groups = Optimizer(model, CONFIG).adamw.param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for parameter in model.parameters():
        assert decay[id(parameter)] == (0.1 if parameter.ndim >= 2 else 0.0)


def test_updates_are_adamws_by_hand() -> None:
    model = torch.nn.Linear(3, 2, dtype=torch.float64)
    optimiser = Optimizer(model, CONFIG)
    weight = model.weight.detach().numpy().copy()
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    for step in range(1, 4):
        gradient = np.random.default_rng(step).normal(size=weight.shape)
        model.weight.grad = torch.from_numpy(gradient.copy())
        model.bias.grad = torch.zeros_like(model.bias)
        optimiser.step(0.01 * step)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.95 * square + 0.05 * gradient**2
        weight *= 1 - 0.01 * step * 0.1
        step_by = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.95**step)) + 1e-8)
        weight -= 0.01 * step * step_by
    np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=1e-9)
    np.testing.assert_allclose(optimiser.state()["square.weight"].numpy(), square)


def test_moments_and_a_count_are_all_an_optimiser_remembers() -> None:
    def two() -> list[torch.nn.Linear]:
        torch.manual_seed(0)
        first = torch.nn.Linear(3, 2)
        return [first, torch.nn.Linear(3, 2)]

    model, copy = two()
    optimiser, other = Optimizer(model, CONFIG), Optimizer(copy, CONFIG)
    for step in range(3):
        model(torch.full((1, 3), float(step))).square().sum().backward()
        optimiser.step(1e-2)
    copy.load_state_dict(model.state_dict())
    theirs = other.state()
    for name, value in optimiser.state().items():
        theirs[name].copy_(value)
    other.set_updates(3)
    for module, update in ((model, optimiser), (copy, other)):
        update.zero_grad()
        module(torch.ones(1, 3)).square().sum().backward()
        update.step(1e-2)
    assert torch.equal(model.weight, copy.weight)
    assert torch.equal(model.bias, copy.bias)


MUON = TrainConfig(optimizer="muon", lr=1e-2, final_lr=1e-3, muon_lr=4e-3)


def test_muon_gets_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    # CoPE has a table of 16 x 64, FIRE matrices of 32 rows; at 768 both would be wide enough.
    for encoding in ("fire", "cope", "dapev2+cable"):
        model = GPT2(
            preset("nano", vocabulary=64, encoding=encoding, train_length=64, width=768, layers=1)
        )
        optimiser = Optimizer(model, MUON)
        assert optimiser.muon is not None
        names = {id(item): name for name, item in model.named_parameters()}
        of_muon = {names[id(p)] for g in optimiser.muon.param_groups for p in g["params"]}
        of_adamw = {names[id(p)] for g in optimiser.adamw.param_groups for p in g["params"]}
        layers = ("attention.qkv", "attention.out", "up", "down")
        assert of_muon == {f"blocks.0.{layer}.weight" for layer in layers}
        assert of_muon | of_adamw == set(names.values())
        assert not of_muon & of_adamw


def test_beside_muon_an_encodings_projections_train_at_a_tenth_of_the_rate() -> None:
    model = GPT2(preset("nano", vocabulary=64, encoding="dapev2+cable", train_length=64, layers=1))
    for config, slow in ((MUON, {"increment", "weight"}), (TrainConfig(**ADAMW, lr=1e-2), set())):
        optimiser = Optimizer(model, config)
        for item in model.parameters():
            item.grad = torch.ones_like(item)
        optimiser.step(1e-2)
        rates = {id(p): g["lr"] for g in optimiser.adamw.param_groups for p in g["params"]}
        found = {
            name: rates[id(item)] for name, item in model.named_parameters() if id(item) in rates
        }
        tenth = {name for name, rate in found.items() if rate == 1e-3}
        assert {name.split(".")[-2] for name in tenth} == slow, config.optimizer
        assert all(name.endswith(".weight") for name in tenth)
        assert {rate for name, rate in found.items() if name not in tenth} == {1e-2}


def test_a_model_without_wide_matrices_is_adamws() -> None:
    model = GPT2(preset("nano", vocabulary=64, encoding="alibi", train_length=16, width=48))
    assert Optimizer(model, MUON).muon is None


def test_muons_update_is_orthogonal_and_follows_the_schedule() -> None:
    model = GPT2(preset("nano", vocabulary=64, encoding="alibi", train_length=16))
    optimiser = Optimizer(model, MUON)
    weight = model.blocks[0].up.weight
    for lr in (1e-2, 5e-3):
        before = weight.detach().clone()
        torch.manual_seed(3)
        for item in model.parameters():
            item.grad = torch.randn_like(item)
        optimiser.step(lr)
        # lr is half of AdamW's peak in the second round, so Muon's is half of muon_lr.
        update = (before - weight.detach()) / (0.2 * math.sqrt(768) * 0.4 * lr)
        values = torch.linalg.svdvals(update)
        assert 0.5 < float(values.min()) < float(values.max()) < 1.5
    optimiser.zero_grad()
    assert all(item.grad is None for item in model.parameters())


def test_muon_agrees_with_torchs_on_whole_matrices() -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(x) for x in torch.randn(1, 96, 64).repeat(2, 1, 1))
    mine = Muon([ours], [], lr=1e-2)
    other = torch.optim.Muon(
        [theirs], lr=1e-2, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(3):
        ours.grad = torch.randn_like(ours)
        theirs.grad = ours.grad.clone()
        mine.step()
        other.step()  # type: ignore[no-untyped-call]
    # torch iterates in bfloat16, whose rounding the iteration does not undo.
    assert torch.allclose(ours, theirs, atol=2e-3)


def test_muon_updates_stacked_matrices_one_by_one() -> None:
    torch.manual_seed(0)
    start, grad = torch.randn(192, 64), torch.randn(192, 64)
    stacked = nn.Parameter(start.clone())
    parts = [nn.Parameter(part.clone()) for part in start.chunk(3)]
    stacked.grad = grad.clone()
    for part, part_grad in zip(parts, grad.chunk(3), strict=True):
        part.grad = part_grad.clone()
    Muon([], [stacked], lr=1e-2).step()
    Muon(parts, [], lr=1e-2).step()
    assert torch.equal(stacked, torch.cat(parts))


def test_muons_momentum_is_a_running_mean() -> None:
    model = GPT2(preset("nano", vocabulary=64, encoding="alibi", train_length=16, layers=1))
    optimiser = Optimizer(model, MUON)
    expected = np.zeros((768, 192))
    for step in range(3):
        for item in model.parameters():
            item.grad = torch.full_like(item, float(step + 1))
        optimiser.step(1e-2)
        expected = 0.95 * expected + 0.05 * (step + 1)
    found = optimiser.state()["momentum.blocks.0.up.weight"].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
