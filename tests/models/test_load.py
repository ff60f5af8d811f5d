"""What `load` opens, and how it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.models.load import load
from headscape.models.stretched import stretch
from headscape.training.trainer import train


def tiny(encoding: str = "alibi") -> GPT2:
    return GPT2.from_preset("nano", encoding=encoding, vocabulary=257, train_length=32)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    text = folder / "text.txt"
    text.write_text("".join(f"{n} and {n % 7} and {n % 11}\n" for n in range(2000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCAPE_CACHE", str(folder / "cache"))
        train(
            "nano", encoding="rope", corpus=str(text), tokenizer="bytes", context_length=32,
            batch_size=2, steps=4, checkpoint_every=2, keep_every=2, out=folder / "run",
        )  # fmt: skip
    return folder / "run"


def test_a_run_knows_what_it_is(run: Path) -> None:
    model = load(run)
    assert model.spec.name == "RoPE"
    assert model.spec.train_length == 32
    assert model.spec.provenance["step"] == 4
    assert model.spec.recipe
    assert model.spec.task is None
    assert model.dataset is not None
    assert model.tokenizer is not None
    assert len(model.dataset.validation) > 32
    assert load(run, step=2).spec.provenance["step"] == 2


def test_a_saved_model_comes_back_with_its_tokenizer(run: Path, tmp_path: Path) -> None:
    model = load(run)
    back = load(model.save(tmp_path / "saved"))
    assert back.fingerprint == model.fingerprint
    assert back.tokenizer.fingerprint == model.tokenizer.fingerprint
    assert back.generate("1 and", length=5, temperature=0) == model.generate(
        "1 and", length=5, temperature=0
    )


def test_a_name_like_a_packages_is_asked_about_before_anything_is_downloaded() -> None:
    with pytest.raises(InputError, match=r"no folder smolm2 here: did you mean hf:smollm2\?"):
        load("hf:smolm2")


def test_a_run_keeps_the_tokenizer_it_was_trained_with(run: Path) -> None:
    for source in (run, load(run)):
        with pytest.raises(InputError, match="the tokenizer it was trained with: leave"):
            load(source, tokenizer="gpt2")


def test_a_model_in_memory_takes_a_tokenizer_by_name() -> None:
    model = load(tiny(), tokenizer="bytes")
    cap = model.capture("The cat sat", layers="all")
    assert cap.sequence["pieces"] == list("The cat sat")
    assert not model.spec.trained
    assert load(model) is model


def test_hugging_face_gpt2_weights_bring_their_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=300, n_positions=40, eos_token_id=7
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    bpe.train_from_iterator(["the cat sat on the mat"] * 20, trainer)
    bpe.save(str(tmp_path / "tokenizer.json"))
    model = load(tmp_path)
    assert model.tokenizer.end_of_text == 7
    assert model.capture("the cat sat").sequence["pieces"][0] == "the"


def modes(module: nn.Module) -> list[bool]:
    return [each.training for each in module.modules()]


def hooks(module: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return sum(len(getattr(each, kind)) for each in module.modules() for kind in kinds)


def failing(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("ours", [True, False])
def test_a_model_in_memory_keeps_its_mode_hooks_and_attention(ours: bool) -> None:
    if ours:
        theirs: Any = tiny()
        inner = theirs.blocks[0].norm1
    else:
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
        config = transformers.LlamaConfig(
            **sizes, num_attention_heads=2, vocab_size=67, attention_dropout=0.5,
            attn_implementation="eager",
        )  # fmt: skip
        theirs = transformers.LlamaForCausalLM(config)
        inner = theirs.model.layers[0].self_attn
    theirs.train()
    theirs.get_submodule("norm" if ours else "model.norm").eval()
    seen: list[bool] = []
    inner.register_forward_hook(lambda module, *_: seen.append(module.training))
    before = modes(theirs), hooks(theirs), set(vars(inner))
    model: Any = load(theirs)
    tokens = torch.arange(9)[None]

    def unchanged() -> bool:
        same = (modes(theirs), hooks(theirs), set(vars(inner))) == before
        return same and (ours or theirs.config._attn_implementation == "eager")

    assert unchanged()
    model.capture(range(9))
    assert unchanged()
    with pytest.raises(ZeroDivisionError):
        model.observe(tokens, [0, 1], failing)
    assert unchanged()
    model.predictions(tokens, torch.ones(1, 9, dtype=torch.bool))
    assert torch.equal(model.losses(tokens, 0), model.losses(tokens, 0))
    for _ in model.continuation(tokens, length=2):
        assert unchanged()
    edits = [lambda _, result: 0 * result, failing]
    losses = model.edited_losses(tokens, 0, 1, edits)
    assert next(losses).shape == (1, 8)
    assert unchanged()
    with pytest.raises(ZeroDivisionError):
        next(losses)
    assert unchanged()
    assert seen
    assert not any(seen)


def test_observe_computes_nothing_after_the_last_layer_asked_for() -> None:
    model = load(tiny())
    used: list[int] = []
    for layer, block in enumerate(model.gpt2.blocks):
        block.down.register_forward_hook(lambda *_, layer=layer: used.append(layer))
    seen: list[int] = []
    model.observe(torch.zeros(1, 4, dtype=torch.long), [1], lambda layer, _: seen.append(layer))
    assert seen == [1]
    assert used == [0]


def test_stretching_keeps_one_copy_per_length(run: Path) -> None:
    model = stretch(load(run), "yarn")
    assert model.spec.name == "RoPE, YaRN"
    assert model.for_length(64) is model.for_length(64)
    assert model.for_length(64).fingerprint != model.for_length(128).fingerprint
    shared = model.for_length(64).gpt2.tokens.weight.data_ptr()
    assert shared == model.base.gpt2.tokens.weight.data_ptr()
    windows = torch.from_numpy(np.arange(65)[None] % 250)
    assert model.losses(windows, 0).shape == (1, 64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (load, "is not a model: it has no config.toml"),
        (lambda folder: load(folder / "none"), "there is no file or folder .*none[.]$"),
        (
            lambda folder: load("Qwen/Qwen3-0.6B"),
            "no file or folder Qwen/Qwen3-0.6B; a model of the .* is opened as hf:Qwen/Qwen3-0.6B",
        ),
        (lambda folder: load(3.5), "got float"),
        (lambda folder: load(tiny(), tokenizer="gpt9"), "unknown tokenizer 'gpt9'"),
        (lambda folder: load(tiny()).capture("text"), "no tokenizer"),
        (lambda folder: load(tiny()).capture(), "no validation text"),
        (lambda folder: load(tiny()).capture([1, 300]), "token 300"),
        (
            lambda folder: load(tiny(), tokenizer="gpt2").capture("The cat sat"),
            "is not in the vocabulary",
        ),
        (lambda folder: load(tiny()).capture([1.5]), "whole numbers"),
        (lambda folder: load(tiny()).capture([]), "no tokens"),
        (lambda folder: load(tiny()).capture([1], layers=[5]), "no layer 5"),
        (lambda folder: load(tiny()).capture([1], layers=[]), "no layer is chosen"),
        (lambda folder: load(tiny("learned")).capture([1] * 40), "position 39"),
        (lambda folder: stretch(load(tiny()), "yarn"), "stretches RoPE"),
        (lambda folder: stretch(load(tiny("rope")), "yern"), "unknown extension 'yern'"),
    ],
)
def test_a_mistake_is_one_sentence(call, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=message):
        call(tmp_path / "folder")


def test_a_damaged_checkpoint_is_named(run: Path, tmp_path: Path) -> None:
    folder = load(run).save(tmp_path / "saved")
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        load(folder)


def test_a_tokenizer_file_that_is_not_one_is_named(tmp_path: Path) -> None:
    folder = load(tiny(), tokenizer="bytes").save(tmp_path / "saved")
    (folder / "tokenizer.json").write_text(json.dumps({"kind": "nothing"}))
    with pytest.raises(InputError, match="nothing"):
        load(folder)
