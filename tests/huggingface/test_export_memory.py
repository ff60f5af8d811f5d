"""An exported model builds no matrix of queries x keys; its blocks of rows equal the definition."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import headscape as hs
from headscape.huggingface.export import exported_attention
from headscape.huggingface.export import write_export as export_module
from headscape.huggingface.export.exported_attention import attend, attend_rows
from huggingface.export_cases import case_model

transformers = pytest.importorskip("transformers")
LENGTH = 300
NAMES = ["alibi", "cable", "fire", "dapev2+kerple", "everything", "schedule", "path", "cope"]


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operator returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return found


def opened(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(export_module, "write_picture", lambda model, part: None)
    folder = hs.export(hs.load(case_model(name), tokenizer="bytes"), tmp_path / "out")
    return transformers.AutoModelForCausalLM.from_pretrained(folder).train()


def step(model: Any, length: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(255, (1, length), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_rows_are_the_definition(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(name, tmp_path, monkeypatch)
    model.set_attn_implementation("eager")
    expected = step(model, 23)
    model.set_attn_implementation("sdpa")
    monkeypatch.setattr(exported_attention, "attend", attend_rows)
    monkeypatch.setattr(exported_attention, "ROWS", 5)
    found = step(model, 23)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["alibi", "cable", "fire", "path"])
@pytest.mark.parametrize("way", [attend, attend_rows])
def test_no_matrix_of_tokens(
    way: Any, name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 layers, 4 heads: two encodings need more than the logits [length, 257].

    FIRE does for its blocks of rows. PaTH has a row of its block and of w, 64 + 8 numbers, per
    token and head; tokens are padded to blocks.
    """
    model = opened(name, tmp_path, monkeypatch)
    monkeypatch.setattr(exported_attention, "attend", way)
    monkeypatch.setattr(exported_attention, "ROWS", 16)
    with Largest() as largest:
        step(model, LENGTH)
    most = 4 * (64 + 8) * 320 if name == "path" else 257 * LENGTH
    if name == "fire" and way is attend_rows:
        most = 40 * 16 * 4 * LENGTH
    assert largest.numbers <= most
    model.set_attn_implementation("eager")
    with Largest() as largest:
        step(model, LENGTH)
    assert largest.numbers >= 4 * LENGTH**2
