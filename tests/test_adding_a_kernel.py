"""A kernel joins by one record: chosen, named, listed, and used by captures and transformers."""

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import headscape as hs
from contributing import shown
from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.captures import call_blocks
from headscape.cli.app import app
from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.huggingface import set_attention
from headscape.kernels import attend
from headscape.kernels.attend import Kernel
from headscape.kernels.native import adapter
from headscape.training.config import TrainConfig
from pretrained.families import FAMILIES, VOCABULARY

Q, K, V = torch.randn(3, 1, 2, 9, 8, generator=torch.Generator().manual_seed(1)).unbind()


class Recorded(SimpleNamespace):
    """A kernel's module, by the definition; it serves what has no mixing."""

    def refuses(self, call: AttentionCall) -> str | None:
        return "it does not mix" if call.mixing is not None else None

    def run(self, call: AttentionCall) -> Tensor:
        self.calls.append(call)
        return definition.run(call)

    def with_lse(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        self.calls.append(call)
        return adapter.run_with_lse(call)

    def reduce_scores(self, call: AttentionCall, edges: np.ndarray) -> object:
        self.calls.append(call)
        cells = np.full((call.q.shape[1], len(edges) - 1, len(edges) - 1), 7, np.float32)
        grid = dict.fromkeys(("mean", "min", "max"), cells)
        return dict.fromkeys(("content", "bias", "final", "weights"), grid)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """A kernel before all others, by one record."""
    module = Recorded(calls=[])
    record = Kernel(
        backend=module, auto="on CPUs", fused=True, with_lse=module.with_lse, cells=module
    )
    monkeypatch.setattr(attend, "KERNELS", {"triton": record, **attend.KERNELS})
    return module


def test_the_file_that_contributing_shows_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ModuleType("plain")
    exec(shown("A kernel"), vars(plain))  # noqa: S102
    record = Kernel(backend=plain, auto="on CPUs")
    monkeypatch.setattr(attend, "KERNELS", {"plain": record, **attend.KERNELS})
    expected = hs.attention(Q, K, V, encoding="alibi", path="reference")
    torch.testing.assert_close(hs.attention(Q, K, V, encoding="alibi", path="plain"), expected)
    mixed = hs.build("dape+alibi", heads=2, head_dim=8, width=16, train_length=9)
    with pytest.raises(InputError, match="'plain' cannot run this call: its scores are mixed"):
        hs.attention(Q, K, V, encoding=mixed, path="plain")


def test_auto_takes_it_before_those_after_it(kernel: Recorded) -> None:
    out = hs.attention(Q, K, V, encoding="alibi")
    assert len(kernel.calls) == 1
    torch.testing.assert_close(out, definition.run(kernel.calls[0]))
    assert attend.choose(kernel.calls[0]).path == "triton"


def test_it_is_asked_for_by_name_and_refuses_by_name(kernel: Recorded) -> None:
    hs.attention(Q, K, V, encoding="rope", path="triton")
    assert len(kernel.calls) == 1
    mixed = hs.build("dape+alibi", heads=2, head_dim=8, width=16, train_length=9)
    with pytest.raises(InputError, match="'triton' cannot run this call: it does not mix"):
        hs.attention(Q, K, V, encoding=mixed, path="triton")
    hs.attention(Q, K, V, encoding=mixed)
    assert len(kernel.calls) == 1
    with pytest.raises(InputError, match="there are auto, triton, decode, native"):
        hs.attention(Q, K, V, encoding="rope", path="cuda")


def test_a_gpu_kernel_is_passed_over_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Kernel(backend=Recorded(calls=[]), auto="on GPUs")
    monkeypatch.setattr(attend, "KERNELS", {"triton": record, **attend.KERNELS})
    call = definition.AttentionCall(Q, K, V, None, *positions())
    assert attend.choose(call).passed_over["triton"] == "auto takes it on GPUs only"
    attend.run(call, "triton")
    assert len(record.backend.calls) == 1


def positions() -> tuple[object, ...]:
    from headscape.call.positions import Positions, Visible

    return Positions.span(9), Visible(), 0.5


@pytest.mark.usefixtures("kernel")
def test_the_doctor_lists_it() -> None:
    result = CliRunner().invoke(app, ["doctor", "--length", "16"])
    assert result.exit_code == 0, result.output
    assert "triton (on CPUs), decode, native (on CPUs), sdpa (on GPUs), flex (by name)" in (
        result.output
    )
    rows = {line.split()[0]: line.split()[1:3] for line in result.output.splitlines() if line}
    assert rows["alibi"] == ["triton", "triton"]
    assert rows["dape+kerple"] == ["native", "decode"]


def test_models_of_transformers_run_on_it(kernel: Recorded) -> None:
    model = FAMILIES["llama"].build().eval()
    tokens = torch.randint(3, VOCABULARY, (1, 7))
    with torch.no_grad():
        expected = model(tokens).logits
        set_attention(model)
        torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-4, atol=1e-4)
        layers = model.config.num_hidden_layers
        assert [call.q.shape[2] for call in kernel.calls] == [7] * layers
        kernel.calls.clear()
        model.generate(tokens, max_new_tokens=2, min_new_tokens=2, do_sample=False)
    assert [call.q.shape[2] for call in kernel.calls] == [7] * layers + [1] * layers


def test_what_no_fused_kernel_serves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fused kernel's reason is in the refusal."""

    class Refusing(Recorded):
        def refuses(self, _: AttentionCall) -> str | None:
            return "it takes head dims of 1,024"

    record = Kernel(backend=Refusing(calls=[]), auto="on CPUs", fused=True)
    monkeypatch.setattr(attend, "KERNELS", {**attend.KERNELS, "triton": record})
    model = FAMILIES["llama"].build().eval().double()
    set_attention(model)
    with (
        pytest.raises(InputError, match="float64, and it takes head dims of 1,024"),
        torch.no_grad(),
    ):
        model(torch.randint(3, VOCABULARY, (1, 7)))


def test_captures_ask_it_for_cells_and_denominators(
    kernel: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hs.load(GPT2.from_preset("nano", layers=1, encoding="alibi", vocabulary=257))
    reduced = hs.capture(model, list(range(40)), resolution=4)
    assert reduced.map("final", 0, 0, reduction="mean").max() == 7
    kernel.calls.clear()
    monkeypatch.setattr(call_blocks, "EXACT_LENGTH", 8)
    hs.capture(model, list(range(40))).map("weights", 0, 0)
    assert kernel.calls


def test_a_config_lists_the_paths_of_the_table() -> None:
    with pytest.raises(InputError, match="path='fused' is not one of 'auto', 'decode', 'native'"):
        TrainConfig(path="fused")
