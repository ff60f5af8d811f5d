"""A model that learns another encoding from itself."""

import re
import signal
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import headscape as hs
from diagnosis.small_models import TRAINED, language, trained
from headscape.cli.app import app
from headscape.cli.command import docstrings
from headscape.encodings.measured_kernel import MeasuredKernel
from headscape.errors import InputError
from headscape.models.gpt2_model import GPT2Model
from headscape.training import adapt as adapting
from headscape.training.adapt import Adaptation, GPT2Pair, adapt, with_encoding
from headscape.training.kernel_start import by_distance


def windows(length: int) -> torch.Tensor:
    text = language(8 * (length + 1), seed=9)
    return torch.from_numpy(text.reshape(8, length + 1))


def pair_of(encoding: str) -> GPT2Pair:
    old = trained("rope").gpt2
    return GPT2Pair(old, with_encoding(old, encoding))


def test_the_same_encoding_is_the_same_model() -> None:
    pair = pair_of("rope")
    tokens = windows(TRAINED)
    with torch.no_grad():
        assert torch.equal(pair.new(tokens), pair.old(tokens))
    assert pair.output_gradient(tokens) == 0.0
    assert pair.logit_gradient(tokens) == pytest.approx(0.0, abs=1e-6)


def test_losses_are_those_of_a_direct_computation() -> None:
    pair = pair_of("nope")
    tokens = windows(TRAINED)
    with torch.no_grad():
        p, q = (model(tokens).double().softmax(dim=-1) for model in (pair.old, pair.new))
        expected = (p * (p / q).log()).sum(dim=-1).mean()
    assert pair.logit_gradient(tokens) == pytest.approx(float(expected), rel=1e-4)
    assert pair.output_gradient(tokens) > 0.01


def test_the_gradient_does_not_depend_on_the_windows_per_pass() -> None:
    pair = pair_of("fox")
    tokens = windows(TRAINED)
    found = []
    for size in (8, 3):
        pair.new.zero_grad()
        for part in tokens.split(size):
            pair.logit_gradient(part, len(part) / 8)
        found.append([x.grad for x in pair.new.parameters() if x.grad is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_rope_with_fox_holds_where_rope_broke() -> None:
    old = trained("rope")
    weights = {name: value.clone() for name, value in old.gpt2.tensors().items()}
    options = Adaptation(encoding="rope+fox", steps=40, batch=32)
    parts: list[tuple[int, str]] = []
    new = adapt(
        old.gpt2, language(50_000, seed=1), options, lambda n, part, _: parts.append((n, part))
    )
    assert parts == [(n, "outputs" if n <= 20 else "logits") for n in range(1, 41)]
    assert all(torch.equal(value, weights[name]) for name, value in old.gpt2.tensors().items())
    short, long = windows(TRAINED), windows(8 * TRAINED)
    before, after = old.losses(short, 8).mean(), GPT2Model(new).losses(short, 8).mean()
    assert float(after) < 1.15 * float(before)
    far = GPT2Model(new).losses(long, 4 * TRAINED).mean()
    assert float(far) < float(old.losses(long, 4 * TRAINED).mean()) - 1.0


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resumed_adaptation_ends_with_the_same_bits(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, text = trained("rope").gpt2, language(20_000, seed=1)
    options = Adaptation(encoding="fox", steps=6, batch=4)
    whole = adapt(old, text, options)
    file = tmp_path / "checkpoint.safetensors"

    def kill(done: int, *_: object) -> None:
        if done > stop:
            raise RuntimeError

    monkeypatch.setattr(adapting, "SECONDS", 0.0)
    with pytest.raises(RuntimeError):
        adapt(old, text, options, kill, file)
    steps: list[int] = []
    again = adapt(old, text, options, lambda n, _, __: steps.append(n), file)
    assert steps == [*range(stop + 1, 7)]
    assert all(torch.equal(again.tensors()[name], x) for name, x in whole.tensors().items())


def test_a_signal_writes_the_checkpoint(tmp_path: Path) -> None:
    old, text = trained("rope").gpt2, language(20_000, seed=1)
    options = Adaptation(encoding="fox", steps=4, batch=4)
    file = tmp_path / "checkpoint.safetensors"

    def interrupt(done: int, *_: object) -> None:
        if done == 2:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        adapt(old, text, options, interrupt, file)
    with pytest.raises(InputError, match="different model, text or settings"):
        adapt(old, text, Adaptation(encoding="fox", steps=5, batch=4), checkpoint=file)
    steps: list[int] = []
    adapt(old, text, options, lambda n, _, __: steps.append(n), file)
    assert steps == [3, 4]


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(b"something else")
    with pytest.raises(InputError, match="is not a checkpoint"):
        adapt(trained("rope").gpt2, language(2000), Adaptation(encoding="fox", steps=1),
              checkpoint=file)  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"steps": 0},
        {"outputs": 2.0},
        {"lr": 0.0},
        {"encoding": "nothing"},
        {"length": TRAINED + 1},
    ],
)
def test_bad_options_are_one_sentence(given: dict[str, object]) -> None:
    options = {"encoding": "fox", "steps": 1, **given}
    with pytest.raises(InputError):
        adapt(trained("rope").gpt2, language(2000), Adaptation(**options))  # type: ignore[arg-type]


def test_the_flags_are_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    run = CliRunner().invoke
    shown = " ".join(run(app, ["adapt", "--help"]).output.split())
    notes = docstrings(Adaptation)
    for field in fields(Adaptation):
        note = " ".join(notes[field.name].split())
        assert re.search(rf"--{field.name} (/ --no-fit|<\w+>) {re.escape(note)}", shown), field.name
    assert "[default: 50]" in shown
    assert "Missing option '--encoding'" in run(app, ["adapt", "run", "--out", "new"]).output


def test_an_adapted_model_opens_like_any_other(tmp_path: Path) -> None:
    new = with_encoding(trained("rope").gpt2, "fox")
    GPT2Model(new).save(tmp_path / "fox")
    opened = hs.load(tmp_path / "fox")
    assert opened.spec.encoding == "fox"
    tokens = torch.from_numpy(np.arange(20) % 24)[None]
    assert torch.equal(opened.losses(tokens, 0), GPT2Model(new).losses(tokens, 0))


@pytest.mark.parametrize("encoding", ["t5", "t5-clipped", "kerple", "kerple-power"])
def test_a_known_kernel_is_recovered(encoding: str) -> None:
    old = with_encoding(trained("rope", steps=1).gpt2, encoding, seed=5)
    new = with_encoding(old, encoding, seed=6)
    if "t5" in encoding:
        with torch.no_grad():
            for block in old.blocks:
                for weight in block.attention.encoding.parameters():  # type: ignore[union-attr]
                    weight.copy_(torch.rand_like(weight))  # type: ignore[operator]
    pair, tokens = GPT2Pair(old, new), windows(TRAINED)[:, :-1]
    assert pair.fit(tokens) == [True, True]
    for mine, theirs in zip(tables(new, tokens), tables(old, tokens), strict=True):
        off = (mine - mine[:, :1]) - (theirs - theirs[:, :1])
        assert float((theirs - theirs[:, :1]).abs().max()) > 0.1
        if "t5" in encoding:
            assert float(off.abs().max()) < 2e-3
        else:
            # The second parameter is from a grid; where no head looks, it does not matter.
            assert float((mine.softmax(dim=1) - theirs.softmax(dim=1)).abs().max()) < 0.03


def tables(model: hs.GPT2, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Every layer's kernel by distance."""
    found: list[torch.Tensor] = []
    model.observe(tokens, [0, 1], lambda _, call: found.append(call.bias.table.detach().double()))  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("encoding", ["fox", "cable", "cable-nw"])
def test_gates_start_at_the_slope_of_alibi(encoding: str) -> None:
    """ALiBi's kernel is a line, so the mean of what a token adds must be its slope."""
    old = with_encoding(trained("rope").gpt2, "alibi")
    pair = GPT2Pair(old, with_encoding(old, encoding))
    tokens = windows(TRAINED)[:, :-1]
    assert pair.fit(tokens) == [True, True]
    per_token: list[torch.Tensor] = []

    def watch(read: hs.Encoding, _: object, rows: torch.Tensor) -> None:
        stream = read.stream(hs.encodings.LayerInput(rows))
        assert stream is not None
        steps = -stream.sums.diff(dim=2, prepend=stream.sums.new_zeros(8, 4, 1)).mean(dim=(0, 2))
        weight = 1.0 if stream.weight is None else stream.weight.double().mean(dim=(0, 2))
        per_token.append(steps * weight)

    with torch.no_grad():
        pair.layer_calls(tokens, watch)
    slopes = 2.0 ** (-8 * torch.arange(1, 5).double() / 4)
    # The slope of the last head is raised to 1 nat over the trained length.
    expected = slopes.clamp(min=1 / (TRAINED - 1))
    assert len(per_token) == 2
    for each in per_token:
        torch.testing.assert_close(each, expected, rtol=1e-3, atol=1e-4)


def test_attention_weighs_the_fit() -> None:
    """Two distances share a bucket; the one that is looked at counts."""
    values = torch.tensor([[0.0, 3.0, 9.0]]).double()
    share = torch.tensor([[0.5, 0.4, 0.1]]).double()
    row = torch.zeros(1, 1, 1, 3), torch.tensor([[2, 1, 0]])
    kernel = MeasuredKernel(values, share, torch.zeros(1, 1), *row)
    means = kernel.means(torch.tensor([0, 1, 1]), 3)
    assert means[:, 0].tolist() == pytest.approx([0.0, (1.2 + 0.9) / 0.5, 4.2])


def test_a_matched_slope_is_the_nearest() -> None:
    """The divergence from the old attention is larger for any other slope."""
    generator = torch.Generator().manual_seed(0)
    content = torch.randn(2, 3, 16, 16, generator=generator)
    at = (torch.arange(16)[:, None] - torch.arange(16)).clamp(min=0)
    content = content.masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf)
    old = (content - torch.randn(16, generator=generator)[at] - 0.4 * at).softmax(dim=-1).double()
    share = by_distance(old, at)
    kernel = MeasuredKernel(
        share, share / share.sum(dim=1, keepdim=True), torch.zeros(1, 1), content, at
    )

    def divergence(slope: torch.Tensor) -> torch.Tensor:
        new = (content - slope[:, None, None] * at).double().softmax(dim=-1)
        return (old * ((old + 1e-30).log() - (new + 1e-30).log())).sum(dim=(0, 2, 3))

    found = kernel.slope()
    least = divergence(found)
    assert bool((found > 0.1).all())
    for factor in (0.95, 1.05):
        assert bool((divergence(factor * found) > least).all())


@pytest.mark.parametrize("encoding", ["alibi", "nope", "rope", "rope+fox", "k-cable"])
def test_what_has_nothing_to_fit_starts_as_it_is(encoding: str) -> None:
    pair = pair_of(encoding)
    before = {name: value.clone() for name, value in pair.new.tensors().items()}
    assert pair.fit(windows(TRAINED)) == [False, False]
    assert all(torch.equal(value, before[name]) for name, value in pair.new.tensors().items())


@pytest.mark.parametrize("encoding", ["t5", "t5-clipped"])
def test_a_fitted_table_starts_nearer_and_learns_faster(encoding: str) -> None:
    old, text, scored = trained("rope").gpt2, language(50_000, seed=1), windows(TRAINED)

    def loss(model: hs.GPT2) -> float:
        return float(GPT2Model(model).losses(scored, 8).mean())

    pair = pair_of(encoding)
    fresh = loss(pair.new)
    pair.fit(windows(TRAINED)[:, :-1])
    assert loss(pair.new) < fresh - 0.8
    after = [
        loss(adapt(old, text, Adaptation(encoding=encoding, steps=50, batch=8, fit=fit)))
        for fit in (False, True)
    ]
    assert after[1] < 1.1 * float(trained("rope").losses(scored, 8).mean())
    assert after[1] < after[0] - 1.5
