"""A transformers model learns a different encoding from itself, and is saved like any other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import headscape as hs
from diagnosis.small_models import language, trained
from headscape.cli.app import app
from headscape.errors import InputError
from headscape.models.gpt2_model import GPT2Model
from headscape.models.transformers.published_model import PublishedModel
from headscape.training import adapt as adapting
from headscape.training.adapt import Adaptation, adapt
from huggingface.small_models import build
from pretrained.families import VOCABULARY

pytest.importorskip("transformers")
import headscape.huggingface as hf
from headscape.huggingface.inject.adapt_published import (
    PublishedPair,
    adapt_published,
    save_adapted,
)

TEXT = np.random.default_rng(0).integers(3, VOCABULARY, 4000)
WINDOWS = torch.from_numpy(TEXT[:50].reshape(2, 25))
SMALL: dict[str, Any] = {"steps": 4, "batch": 2, "length": 24, "lr": 1e-3}


def published(name: str = "llama") -> PublishedModel:
    torch.manual_seed(0)
    model = hs.load(build(name).eval())
    assert isinstance(model, PublishedModel)
    return model


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("llama", "nope"),
        ("llama", "cable"),
        ("llama", "alibi"),
        ("llama", "rope:base=500"),
        ("llama", "rope+fox"),
        ("mistral", "t5"),
        ("gpt2", "fox"),
        ("gpt2", "learned"),
        ("gpt-neox", "kerple"),
    ],
)
def test_it_is_saved_and_opens_with_its_encoding(name: str, encoding: str, tmp_path: Path) -> None:
    old = published(name)
    weights = {key: value.clone() for key, value in old.model.state_dict().items()}
    attention = old.model.config._attn_implementation
    steps: list[str] = []
    options = Adaptation(encoding=encoding, **SMALL)
    new = adapt_published(old, TEXT, options, lambda _, part, __: steps.append(part))
    assert steps == ["outputs", "outputs", "logits", "logits"]
    assert old.model.config._attn_implementation == attention
    assert all(torch.equal(value, weights[key]) for key, value in old.model.state_dict().items())
    save_adapted(new, old, tmp_path / "new")
    opened = hs.load(f"hf:{tmp_path / 'new'}")
    if encoding == "learned":
        assert opened.spec.provenance["input"] == "Learnable"
    else:
        assert opened.spec.encoding == encoding.partition(":")[0]
    wanted = hs.load(new).losses(WINDOWS, 4)
    assert torch.equal(opened.losses(WINDOWS, 4), wanted)
    assert not torch.equal(wanted, old.losses(WINDOWS, 4))
    again = hf.load(tmp_path / "new").eval()
    with torch.no_grad():
        assert torch.equal(again(WINDOWS).logits, new(WINDOWS).logits)


def test_it_is_captured_and_diagnosed(tmp_path: Path) -> None:
    old = published()
    new = adapt_published(old, TEXT, Adaptation(encoding="fox", **SMALL))
    model = hs.load(f"hf:{save_adapted(new, old, tmp_path / 'new')}")
    bias = model.capture(TEXT[:20].tolist()).bias(layer=-1, head=0)
    assert bool((np.diff(bias[-1]) > 0).all())
    found = hs.diagnose(
        model, 48, TEXT[:400].tolist(), trained=24, windows=1, questions=0, effects=0,
        remedies=["sinks"], out=tmp_path / "diagnosis",
    )  # fmt: skip
    assert found.sentence


@pytest.mark.parametrize("name", ["llama", "gpt-neox", "gemma2"])
def test_the_same_encoding_has_no_loss(name: str) -> None:
    """What the copy's attention is given is what the old one computed its output from."""
    old = published(name)
    new = hs.load(build(name).eval()).model  # type: ignore[attr-defined]
    new.load_state_dict(old.model.state_dict())
    hf.set_encoding(new, "rope")
    hf.set_attention(old.model)
    pair = PublishedPair(old, new)
    assert pair.output_gradient(WINDOWS[:, :-1]) < 1e-9
    assert pair.logit_gradient(WINDOWS[:, :-1]) < 1e-6
    hf.set_encoding(new, "nope")
    assert pair.output_gradient(WINDOWS[:, :-1]) > 1e-3


def test_the_first_part_learns_attention_and_nothing_else() -> None:
    old = published()
    new = adapt_published(old, TEXT, Adaptation(encoding="fox", outputs=1.0, **SMALL))
    before = dict(old.model.named_parameters())
    changed = {
        name for name, x in new.named_parameters() if name in before and not x.equal(before[name])
    }
    assert {name.split(".")[3] for name in changed} == {"self_attn"}
    layers = {name.split(".")[2] for name in changed}
    assert layers == {str(layer) for layer in range(old.model.config.num_hidden_layers)}


def test_losses_fall() -> None:
    losses: dict[str, list[float]] = {"outputs": [], "logits": []}
    options = Adaptation(encoding="fox", steps=60, batch=4, length=24, lr=3e-3)
    adapt_published(published(), TEXT, options, lambda _, part, loss: losses[part].append(loss))
    assert np.mean(losses["outputs"][-5:]) < 0.9 * np.mean(losses["outputs"][:5])
    assert np.mean(losses["logits"][-5:]) < 0.95 * np.mean(losses["logits"][:5])


def test_a_resumed_adaptation_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, options, file = published(), Adaptation(encoding="cable", **SMALL), tmp_path / "c"
    whole = adapt_published(old, TEXT, options)

    def kill(done: int, *_: object) -> None:
        if done > 3:
            raise RuntimeError

    monkeypatch.setattr(adapting, "SECONDS", 0.0)
    with pytest.raises(RuntimeError):
        adapt_published(old, TEXT, options, kill, file)
    steps: list[int] = []
    again = adapt_published(old, TEXT, options, lambda n, _, __: steps.append(n), file)
    assert steps == [4]
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("encoding", ["rope:base=500", "rope+fox", "rope*2,nope"])
def test_rope_keeps_the_pairs_of_the_model(encoding: str) -> None:
    model = published().model
    hf.set_encoding(model, encoding)
    conventions = hs.load(model).spec.layers[0].conventions
    assert conventions["pairing"] == "halves"
    assert conventions["base"] == (500.0 if "500" in encoding else 10_000.0)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("llama", {"encoding": "nothing"}, "unknown encoding 'nothing'"),
        ("llama", {"encoding": "fox", "length": 65}, "longer than the trained length of 64"),
        ("bert", {"encoding": "fox"}, "does not predict the next token"),
        ("t5", {"encoding": "fox"}, "does not predict the next token"),
        ("bloom", {"encoding": "fox"}, "does not know where bloom adds its positions"),
    ],
)
def test_what_cannot_be_adapted(name: str, given: dict[str, Any], message: str) -> None:
    old = published(name)
    old.model.config.max_position_embeddings = 64
    vars(old).pop("spec", None)
    with pytest.raises(InputError, match=message):
        adapt_published(old, TEXT, Adaptation(**SMALL | given))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Llama with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{n}": n for n in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "llama")
    torch.manual_seed(0)
    build("llama").save_pretrained(tmp_path / "llama")
    (tmp_path / "text.txt").write_text(" ".join(f"w{n}" for n in TEXT))
    return tmp_path


def test_a_published_model_learns_at_its_own_rate() -> None:
    def learned(**lr: float) -> list[torch.Tensor]:
        options = Adaptation(encoding="fox", steps=2, batch=1, length=16, **lr)
        return list(adapt_published(published(), TEXT, options).parameters())

    default, same, other = learned(), learned(lr=2e-4), learned(lr=2e-3)
    assert all(map(torch.equal, default, same))
    assert not all(map(torch.equal, default, other))


def test_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    def call(*words: str) -> Any:
        return CliRunner().invoke(app, ["adapt", "hf:llama", "--encoding", "fox", *words])

    small = ["--steps", "2", "--batch", "1", "--length", "16", "--no-fit", "--out", "new"]
    done = call(*small, "--text", "text.txt")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in folder.iterdir()) == ["llama", "new", "text.txt"]
    opened = hs.load("hf:new")
    assert opened.spec.encoding == "fox"
    assert opened.tokenizer is not None
    assert opened.tokenizer.encode("w5 w7").tolist() == [5, 7]
    text = (folder / "text.txt").read_text()[:2000]
    assert len(hs.evaluate(opened, lengths=[8, 16], text=text, quantity="loss").rows) == 2
    assert "is not empty" in str(call(*small, "--text", "text.txt").exception)
    small[-1] = "other"
    assert "has no text of its own" in str(call(*small).exception)
    assert "not both" in str(call(*small, "--text", "text.txt", "--corpus", "stdlib").exception)


def test_an_adapted_run_is_exported_and_loads_back(tmp_path: Path) -> None:
    old = trained("rope", steps=20)
    new = adapt(old.gpt2, language(20_000), Adaptation(encoding="cable", steps=4, batch=4))
    GPT2Model(new).save(tmp_path / "cable")
    hs.export(hs.load(tmp_path / "cable"), tmp_path / "exported")
    tokens = torch.from_numpy(language(40))[None]
    wanted = GPT2Model(new).losses(tokens, 0)
    assert torch.equal(hs.load(f"hf:{tmp_path / 'exported'}").losses(tokens, 0), wanted)
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")(tokens).logits
    torch.testing.assert_close(logits, new(tokens).detach())
