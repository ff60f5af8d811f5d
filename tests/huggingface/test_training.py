"""Gradient checkpointing, torch.compile, Trainer and PEFT with our attention and encodings."""

from typing import Any

import pytest
import torch

from headscape.huggingface import set_attention, set_encoding
from huggingface.small_models import build, inputs
from pretrained.families import VOCABULARY

transformers = pytest.importorskip("transformers")


def gradients(model: Any, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    labels = given.get("decoder_input_ids", given["input_ids"])
    model.zero_grad()
    model(**given, labels=labels, use_cache=False).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "encoding"), [("llama", None), ("t5", None), ("llama", "cable")])
def test_gradient_checkpointing(name: str, encoding: str | None) -> None:
    model = build(name)
    set_attention(model)
    if encoding is not None:
        set_encoding(model, encoding)
    if hasattr(model.config, "dropout_rate"):
        model.apply(lambda m: setattr(m, "dropout", 0.0) if hasattr(m, "n_heads") else None)
    given = inputs(name)
    plain = gradients(model.eval(), given)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again = gradients(model, given)
    assert plain.keys() == again.keys()
    for key, value in plain.items():
        torch.testing.assert_close(again[key], value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("backend", "encoding"),
    [
        ("eager", None),
        pytest.param("inductor", None, marks=pytest.mark.compiled),
        pytest.param("inductor", "cable", marks=pytest.mark.compiled),
    ],
)
def test_compiled(backend: str, encoding: str | None) -> None:
    model = build("llama")
    set_attention(model)
    if encoding is not None:
        set_encoding(model, encoding)
    given = inputs("llama", padding="left")
    expected, grads = model(**given).logits, gradients(model, given)
    compiled = torch.compile(model, backend=backend)
    torch.testing.assert_close(compiled(**given).logits, expected, atol=5e-5, rtol=1e-4)
    for name, grad in gradients(compiled, given).items():
        torch.testing.assert_close(
            grad, grads[name.removeprefix("_orig_mod.")], atol=1e-4, rtol=1e-3
        )


@pytest.mark.filterwarnings("ignore")
def test_trainer(tmp_path: Any) -> None:
    pytest.importorskip("accelerate", reason="Trainer needs accelerate")
    model = build("gpt2")
    model.config.attn_pdrop = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    set_encoding(model, "cable")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rows = [{"input_ids": x, "labels": x} for x in torch.randint(3, VOCABULARY, (8, 12))]
    options = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="steps", save_steps=2,
    )  # fmt: skip
    transformers.Trainer(model=model, args=options, train_dataset=rows).train()
    learned = [name for name in before if "headscape_encoding" in name]
    assert learned
    for name, parameter in model.named_parameters():
        if name in learned:
            assert not torch.equal(parameter, before[name]), name
    resumed = transformers.Trainer(model=model, args=options, train_dataset=rows)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.filterwarnings("ignore")
def test_peft() -> None:
    peft = pytest.importorskip("peft", reason="LoRA needs peft")
    model = build("llama")
    set_encoding(model, "cable")
    config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["headscape_encoding"])
    given = inputs("llama")
    expected = model(**given).logits
    adapted = peft.get_peft_model(model, config)
    torch.testing.assert_close(adapted(**given).logits, expected)
    adapted(**given, labels=given["input_ids"]).loss.backward()
    learned = {name for name, p in adapted.named_parameters() if p.grad is not None}
    assert learned
    assert all("lora" in name or "modules_to_save" in name for name in learned)
    assert any("increment" in name for name in learned)
    adapted.generate(**given, max_new_tokens=3, do_sample=False, pad_token_id=0)
