"""T5 and BLOOM at lengths beyond the last bucket: values, the tables' own gradients, and no matrix.

The budget is that of test_same_as_sdpa.py, here against the model's own eager path and for every
table on its own: in one vector of all gradients a wrong small one would not be seen.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headscape.huggingface import register, set_attention
from headscape.huggingface.attend import attention_function
from huggingface.small_models import build, within_budget
from pretrained.families import VOCABULARY

pytest.importorskip("transformers")

QUERIES, KEYS = 390, 610
"""Tokens of the decoder and of the encoder; T5's last bucket starts at a distance of 128.

One matrix of them has more elements than any tensor of order length here."""


def given(name: str) -> dict[str, Tensor]:
    """Two sequences, the first of them padded on the right."""
    tokens = torch.randint(3, VOCABULARY, (2, KEYS), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    mask[0, -40:] = 0
    found = {"input_ids": tokens, "attention_mask": mask}
    if name == "t5":
        found["decoder_input_ids"] = tokens[:, :QUERIES].contiguous()
    return found


def loss(model: Any, name: str) -> Tensor:
    inputs = given(name)
    tokens = inputs.get("decoder_input_ids", inputs["input_ids"])
    found: Tensor = model(**inputs, labels=tokens, use_cache=False).loss
    return found


@pytest.mark.parametrize("name", ["t5", "bloom"])
def test_loss_and_every_gradient_equal_eager(name: str) -> None:
    losses, gradients = [], []
    for dtype, kind in (
        (torch.float32, "headscape"), (torch.float32, "eager"), (torch.float64, "eager")
    ):  # fmt: skip
        model = build(name, dtype)
        set_attention(model) if kind == "headscape" else model.set_attn_implementation(kind)
        found = loss(model, name)
        found.backward()
        losses.append(found.detach())
        gradients.append({key: p.grad for key, p in model.named_parameters()})
    assert within_budget(*losses)
    tables = [key for key in gradients[0] if "relative_attention_bias" in key]
    assert len(tables) == (2 if name == "t5" else 0)
    assert all(float(gradients[2][key].abs().amax()) > 0 for key in tables)
    for key in gradients[0]:
        ours, other, exact = (of[key] for of in gradients)
        assert within_budget(ours, other, exact), key


@pytest.mark.parametrize(("name", "calls"), [("t5", 9), ("bloom", 3)])
def test_every_attention_is_ours(name: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers each: a T5 calls it in the encoder, the decoder and across."""
    served, real = [], attention_function._attend

    def counted(module: Any, q: Tensor, k: Tensor, *rest: Any, **more: Any) -> Tensor:
        served.append((q.shape[2], k.shape[2]))
        return real(module, q, k, *rest, **more)

    monkeypatch.setattr(attention_function, "_attend", counted)
    model = build(name)
    set_attention(model)
    loss(model, name)
    assert len(served) == calls
    if name == "t5":
        assert {(KEYS, KEYS), (QUERIES, QUERIES), (QUERIES, KEYS)} == set(served)


class Largest(TorchDispatchMode):
    """Keeps the most elements that the output of any operator has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


@pytest.mark.parametrize("name", ["t5", "bloom"])
def test_a_training_step_builds_no_matrix(name: str) -> None:
    model = build(name)
    register()
    found = {}
    for kind in ("headscape", "eager"):
        model.set_attn_implementation(kind)
        with Largest() as largest:
            loss(model, name).backward()
        found[kind] = largest.elements
    assert found["eager"] >= 2 * 6 * KEYS * KEYS
    assert found["headscape"] < KEYS * QUERIES
