"""A model that learns another encoding from itself."""

from pathlib import Path

import numpy as np
import pytest
import torch

import headscape as hs
from diagnosis.small_models import TRAINED, language, trained
from headscape.errors import InputError
from headscape.models.gpt2_model import GPT2Model
from headscape.training.adapt import Adaptation, adapt, logit_loss, output_loss, with_encoding
from headscape.training.kernel_start import fit_kernels, measured_kernels


def windows(length: int) -> torch.Tensor:
    text = language(8 * (length + 1), seed=9)
    return torch.from_numpy(text.reshape(8, length + 1))


def test_the_same_encoding_is_the_same_model() -> None:
    old = trained("rope").gpt2
    same = with_encoding(old, "rope")
    tokens = windows(TRAINED)
    with torch.no_grad():
        assert torch.equal(same(tokens), old(tokens))
        assert float(output_loss(old, same, tokens)) == 0.0
        assert float(logit_loss(old, same, tokens)) == pytest.approx(0.0, abs=1e-6)


def test_losses_are_those_of_a_direct_computation() -> None:
    old, new = trained("rope").gpt2, with_encoding(trained("rope").gpt2, "nope")
    tokens = windows(TRAINED)
    with torch.no_grad():
        p, q = (model(tokens).double().softmax(dim=-1) for model in (old, new))
        expected = (p * (p / q).log()).sum(dim=-1).mean()
        assert float(logit_loss(old, new, tokens)) == pytest.approx(float(expected), rel=1e-4)
        assert float(output_loss(old, new, tokens)) > 0.01


def test_rope_with_fox_holds_where_rope_broke() -> None:
    old = trained("rope")
    weights = {name: value.clone() for name, value in old.gpt2.tensors().items()}
    options = Adaptation(encoding="rope+fox", steps=40, batch=32)
    parts: list[str] = []
    new = adapt(old.gpt2, language(50_000, seed=1), options, lambda part, _: parts.append(part))
    assert parts == ["outputs"] * 20 + ["logits"] * 20
    assert all(torch.equal(value, weights[name]) for name, value in old.gpt2.tensors().items())
    short, long = windows(TRAINED), windows(8 * TRAINED)
    before, after = old.losses(short, 8).mean(), GPT2Model(new).losses(short, 8).mean()
    assert float(after) < 1.15 * float(before)
    far = GPT2Model(new).losses(long, 4 * TRAINED).mean()
    assert float(far) < float(old.losses(long, 4 * TRAINED).mean()) - 1.0


def test_two_runs_are_equal() -> None:
    old, text = trained("rope").gpt2, language(20_000, seed=1)
    options = Adaptation(encoding="fox", steps=4, batch=4)
    first, second = (adapt(old, text, options) for _ in range(2))
    assert all(torch.equal(second.tensors()[name], x) for name, x in first.tensors().items())


@pytest.mark.parametrize(
    "given", [{"steps": 0}, {"outputs": 2.0}, {"lr": 0.0}, {"encoding": "nothing"}]
)
def test_bad_options_are_one_sentence(given: dict[str, object]) -> None:
    options = {"encoding": "fox", "steps": 1, **given}
    with pytest.raises(InputError):
        adapt(trained("rope").gpt2, language(2000), Adaptation(**options))  # type: ignore[arg-type]


def test_an_adapted_model_opens_like_any_other(tmp_path: Path) -> None:
    new = with_encoding(trained("rope").gpt2, "fox")
    GPT2Model(new).save(tmp_path / "fox")
    opened = hs.load(tmp_path / "fox")
    assert opened.spec.encoding == "fox"
    tokens = torch.from_numpy(np.arange(20) % 24)[None]
    assert torch.equal(opened.losses(tokens, 0), GPT2Model(new).losses(tokens, 0))


@pytest.mark.parametrize("encoding", ["t5", "t5-clipped"])
def test_a_known_kernel_is_recovered(encoding: str) -> None:
    old = with_encoding(trained("rope", steps=1).gpt2, encoding, seed=5)
    with torch.no_grad():
        for block in old.blocks:
            for weight in block.attention.encoding.parameters():  # type: ignore[union-attr]
                weight.copy_(torch.rand_like(weight))  # type: ignore[operator]
    new = with_encoding(old, encoding, seed=6)
    tokens = windows(TRAINED)[:, :-1]
    wanted, _ = measured_kernels(old, tokens)
    assert fit_kernels(old, new, tokens) == [0, 1]
    found, _ = measured_kernels(new, tokens)
    for mine, theirs in zip(found, wanted, strict=True):
        off = (mine - mine[:, :1]) - (theirs - theirs[:, :1])
        assert float(off.abs().max()) < 2e-3
        assert float((theirs - theirs[:, :1]).abs().max()) > 0.1


def test_a_kernel_is_the_mean_of_what_position_adds() -> None:
    """ALiBi's is its slopes, exactly; it has no weights to fit."""
    old = with_encoding(trained("rope").gpt2, "alibi")
    tokens = windows(TRAINED)[:, :-1]
    kernels, _ = measured_kernels(old, tokens)
    slopes = 2.0 ** (-8 * torch.arange(1, 5).double() / 4)
    expected = -slopes[:, None] * torch.arange(TRAINED)
    assert all(torch.allclose(kernel, expected, atol=1e-5) for kernel in kernels)
    assert fit_kernels(trained("rope").gpt2, old, tokens) == []


def test_a_fitted_start_learns_faster() -> None:
    old, text = trained("rope").gpt2, language(50_000, seed=1)
    options = {"encoding": "t5", "steps": 50, "batch": 8}
    fresh, fitted = (
        adapt(old, text, Adaptation(**options, fit=fit))  # type: ignore[arg-type]
        for fit in (False, True)
    )
    scored = windows(TRAINED)
    losses = [float(GPT2Model(each).losses(scored, 8).mean()) for each in (fresh, fitted)]
    assert losses[1] < losses[0] - 0.5
