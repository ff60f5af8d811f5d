"""A text that does not begin with the token that a model's heads look at."""

from typing import Any

import numpy as np
import pytest
import torch

import headscape as hs
from diagnosis.small_models import TRAINED, language, trained
from headscape.call.definition import scores
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.data.tokenize.published_tokenizer import PublishedTokenizer
from headscape.diagnosis.first_token import first_token_effect, usual_first_token
from headscape.errors import InputError
from headscape.models.gpt2_model import GPT2Model
from headscape.models.load import load
from pretrained.families import FAMILIES, VOCABULARY

pytest.importorskip("transformers")
END = ByteTokenizer().end_of_text
QUICKLY: dict[str, Any] = {"quick": True, "questions": 0}


def needs_first(steps: int = 300) -> GPT2Model:
    return trained("rope:window=48", steps=steps, first="needed")


def test_a_lost_sink_is_a_finding_of_its_own() -> None:
    text = language(4000, seed=9)
    found = hs.diagnose(needs_first(), 2 * TRAINED, text, **QUICKLY)
    assert found.findings[0] == "sink"
    stage = found.data["first_token"]
    assert stage["token"] == END
    assert stage["more"][0] > 0.5
    assert all(head["own"] < head["usual"] / 2 for head in stage["lost"])
    assert "Put that token first" in found.to_markdown()
    mended = hs.diagnose(needs_first(), 2 * TRAINED, text, first=END, **QUICKLY)
    assert "sink" not in mended.findings
    past = [each.data["loss"]["bands"][4]["loss"][0] for each in (found, mended)]
    assert past[1] < past[0] - 0.5


@pytest.mark.parametrize("encoding", ["fox", "rope:window=16", "alibi"])
def test_models_that_do_not_miss_it_get_no_finding(encoding: str) -> None:
    model = trained(encoding, first="seen")
    found = hs.diagnose(model, 2 * TRAINED, language(4000, seed=9), **QUICKLY)
    assert found.data["first_token"]["token"] == END
    assert "sink" not in found.findings


def test_a_random_llama_gets_no_finding() -> None:
    model: Any = load(FAMILIES["llama"].build())
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, size=2000)
    found = hs.diagnose(model, 128, tokens, **QUICKLY)
    assert found.data["first_token"]["token"] == model.model.config.bos_token_id
    assert "sink" not in found.findings


def test_losses_and_sinks_are_those_of_whole_passes() -> None:
    model = trained("rope", first="seen")
    window = language(TRAINED + 1, seed=4)
    found = first_token_effect(model, window, END)
    changed = window.copy()
    changed[0] = END
    for name, tokens in (("own", window), ("usual", changed)):
        whole = torch.from_numpy(tokens)[None]
        expected = model.losses(whole, TRAINED // 4)[0]
        assert np.allclose(found[name]["losses"], expected, atol=1e-5)
        sinks: list[Any] = []

        def watch(_: int, call: Any, sinks: list[Any] = sinks) -> None:
            sinks.append(scores(call).weights[0, :, TRAINED // 2 :, 0].mean(dim=1).tolist())

        model.observe(whole[:, :-1], range(2), watch)
        assert np.allclose(found[name]["sinks"], sinks, atol=1e-6)


def test_the_usual_token_is_what_the_tokenizer_puts_first() -> None:
    from tokenizers import Tokenizer, models, processors

    built = Tokenizer(models.WordLevel({"a": 0, "<s>": 1}, "a"))
    plain = PublishedTokenizer(built.to_str(), None)
    assert plain.first_token is None
    built.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    tokenizer = PublishedTokenizer(built.to_str(), None)
    assert tokenizer.first_token == 1
    gpt2 = trained("fox").gpt2
    assert usual_first_token(GPT2Model(gpt2, tokenizer=tokenizer)) == 1
    assert usual_first_token(GPT2Model(gpt2, tokenizer=plain)) is None
    assert usual_first_token(GPT2Model(gpt2)) is None


def test_a_token_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="must be from 0 to 23, got 24"):
        hs.diagnose(trained("fox"), 2 * TRAINED, language(900), first=24, **QUICKLY)
