"""What people hand to capture: batches, tokenizers' output, chats, and texts to be continued."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import headscape as hs
from headscape.captures.capture_file import Capture
from pretrained.families import FAMILIES

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WORDS = ["<user>", "<assistant>", "<system>", "</s>", "<pad>", "?", "a", "cat", "sat", "on", "mat"]
LENGTHS = {
    "gptj": "n_positions", "codegen": "n_positions", "ctrl": "n_positions", "mpt": "max_seq_len",
    "marian": "max_position_embeddings", "gpt2": "n_positions", "mpnet": "max_position_embeddings",
}  # fmt: skip
QUANTITIES = ("content", "bias", "final", "weights")


def tokenizer(template: str | None = TEMPLATE) -> Any:
    words = dict(zip(WORDS, range(len(WORDS)), strict=True))
    own = Tokenizer(models.WordLevel(words, unk_token=WORDS[5]))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    own.add_special_tokens(WORDS[:5])
    special = {"eos_token": "</s>", "pad_token": "<pad>"}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=own, **special)
    theirs.chat_template = template
    return theirs


def randomise(model: torch.nn.Module) -> None:
    """Large random weights: as they are made, heads differ too little to see a wrong one."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)


def published(template: str | None = TEMPLATE, **fields: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, **fields,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    randomise(model)
    return hs.load(model, tokenizer=tokenizer(template))


def ours(encoding: str) -> hs.Model:
    torch.manual_seed(0)
    gpt2 = hs.GPT2.from_preset("nano", encoding=encoding, vocabulary=257)
    return hs.load(gpt2, tokenizer="bytes")


def assert_same(one: Capture, other: Capture, within: float = 1e-5) -> None:
    assert np.array_equal(one.tokens, other.tokens)
    assert (one.layers, one.heads, one.length) == (other.layers, other.heads, other.length)
    for layer in one.layers:
        for quantity in QUANTITIES:
            a, b = one.map(quantity, layer), other.map(quantity, layer)
            assert np.array_equal(np.isnan(a), np.isnan(b))
            np.testing.assert_allclose(a, b, atol=within, rtol=within)


TOKENS = [6, 7, 8, 9, 10]


@pytest.mark.parametrize(
    "given",
    [
        TOKENS,
        tuple(TOKENS),
        np.array(TOKENS),
        np.array([TOKENS]),
        torch.tensor([TOKENS]),
        {"input_ids": torch.tensor([TOKENS])},
        {"input_ids": TOKENS},
        {"input_ids": [[4, 4, *TOKENS]], "attention_mask": [[0, 0, 1, 1, 1, 1, 1]]},
        "a cat sat on mat",
    ],
    ids=str,
)
def test_one_sequence_in_many_forms(given: Any) -> None:
    model = published()
    assert_same(model.capture(given, layers="all"), model.capture(TOKENS, layers="all"), 0)


def test_what_a_tokenizer_returns() -> None:
    model, theirs = published(), tokenizer()
    encoded = theirs("a cat sat on mat", return_tensors="pt")
    assert_same(model.capture(encoded), model.capture("a cat sat on mat"), 0)
    padded = theirs(["a cat", "a cat sat on mat"], padding=True, return_tensors="pt")
    both = model.captures(padded)
    assert [cap.tokens.tolist() for cap in both] == [TOKENS[:2], TOKENS]


BATCH = ["a cat sat", "mat on a", "cat", "on mat sat", "sat on a cat"]


@pytest.mark.parametrize(
    "model", [published(), ours("cable"), ours("deberta"), ours("dapev2+kerple")],
    ids=lambda model: model.spec.name,
)  # fmt: skip
def test_a_batch_is_one_by_one(model: hs.Model) -> None:
    together = model.captures(BATCH, layers="all")
    assert len(together) == len(BATCH)
    for text, cap in zip(BATCH, together, strict=True):
        assert_same(cap, model.capture(text, layers="all"))


def test_sequences_of_one_length_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = published()
    shapes: list[tuple[int, ...]] = []
    observe = model.observe

    def counted(tokens: torch.Tensor, *rest: Any) -> None:
        shapes.append(tuple(tokens.shape))
        observe(tokens, *rest)

    monkeypatch.setattr(model, "observe", counted)
    model.captures(BATCH)
    assert shapes == [(3, 3), (1, 1), (1, 4)]


def test_token_rows_are_a_batch() -> None:
    model = published()
    rows = torch.tensor([TOKENS, TOKENS[::-1]])
    for row, cap in zip(rows, model.captures(rows), strict=True):
        assert_same(cap, model.capture(row))


MESSAGES = [
    {"role": "system", "content": "sat"},
    {"role": "user", "content": "a cat on mat"},
]


def test_the_chat_template_of_a_folder_is_used(tmp_path: Path) -> None:
    theirs = tokenizer()
    published().model.save_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path)
    # transformers 5 writes the template to a file of its own.
    assert (tmp_path / "chat_template.jinja").is_file()
    expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert hs.load(f"hf:{tmp_path}").capture(MESSAGES).tokens.tolist() == expected


def test_a_chat_is_the_tokenizers_own_text() -> None:
    model, theirs = published(), tokenizer()
    expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert model.capture(MESSAGES).tokens.tolist() == expected
    assert expected[-1] == WORDS.index("<assistant>")
    answered = [*MESSAGES, {"role": "assistant", "content": "mat"}]
    expected = theirs.apply_chat_template(answered)["input_ids"]
    assert model.capture(answered).tokens.tolist() == expected
    both = model.captures([MESSAGES, answered])
    assert [cap.length for cap in both] == [10, 12]


@pytest.mark.parametrize("model", [published(), ours("cable")], ids=lambda model: model.spec.name)
def test_a_generated_text_is_a_second_pass(model: hs.Model) -> None:
    cap = model.capture("a cat", generate=12, layers="all")
    prompt = model.capture("a cat").tokens.tolist()
    assert cap.tokens[: len(prompt)].tolist() == prompt
    assert len(prompt) < cap.length <= len(prompt) + 12
    assert cap.sequence["prompt_tokens"] == len(prompt)
    assert cap.sequence["generated_tokens"] == cap.length - len(prompt)
    assert_same(cap, model.capture(cap.tokens, layers="all"), 0)
    likeliest = model.predictions(
        torch.from_numpy(cap.tokens)[None], torch.ones(1, cap.length, dtype=torch.bool)
    )
    assert likeliest[len(prompt) - 1 : -1].tolist() == cap.tokens[len(prompt) :].tolist()


def test_a_continuation_is_transformers_own() -> None:
    model = published()
    given = torch.tensor([TOKENS])
    end = WORDS.index("</s>")
    theirs = model.model.generate(  # type: ignore[attr-defined]
        given, attention_mask=torch.ones_like(given), max_new_tokens=12, do_sample=False,
        eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    assert model.capture(TOKENS, generate=12).tokens.tolist() == theirs[0].tolist()


def test_a_batch_is_continued_as_its_sequences() -> None:
    model = published()
    for cap, text in zip(
        model.captures(["a cat", "a cat sat"], generate=5), ("a cat", "a cat sat"), strict=True
    ):
        assert_same(cap, model.capture(text, generate=5), 1e-5)


def test_a_text_is_not_continued_past_a_table_of_positions() -> None:
    config = transformers.GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=12)
    model = hs.load(transformers.GPT2LMHeadModel(config))
    assert model.capture(TOKENS, generate=7).length <= 12
    with pytest.raises(hs.InputError, match="5 tokens and 8 generated ones are too long: 13 "):
        model.capture(TOKENS, generate=8)


@pytest.mark.parametrize("name", LENGTHS)
def test_a_table_of_angles_or_biases_has_an_end(name: str) -> None:
    # Two rows of MPNet's table belong to padding.
    rows = 32 if name == "mpnet" else 30
    model = hs.load(FAMILIES[name].build(**{LENGTHS[name]: rows}))
    assert model.capture(list(range(3, 33))).length == 30
    with pytest.raises(hs.InputError, match="31 tokens are more than the 30 positions"):
        model.capture(list(range(3, 34)))


def test_a_model_without_weights_is_refused() -> None:
    config = published().model.config
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(config)
    with pytest.raises(hs.InputError, match="on the device meta, so it has no weights"):
        hs.load(theirs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.capture(torch.tensor([TOKENS, TOKENS])), "one sequence, got 2: captures()"),
        (lambda m: m.capture(["a cat", "mat"]), "one sequence, got 2: captures()"),
        (lambda m: m.captures("a cat"), "several texts, got one text of 5 characters"),
        (lambda m: m.captures(TOKENS), "several sequences, got one"),
        (lambda m: m.captures(MESSAGES), "several sequences, got one"),
        (lambda m: m.captures([]), "at least one sequence, got none"),
        (lambda m: m.capture({"ids": TOKENS}), "expected as input_ids, got a mapping of ids"),
        (lambda m: m.capture({"input_ids": "a"}), "must be one sequence of whole numbers"),
        (lambda m: m.capture({"input_ids": 3}), "must be rows of whole numbers"),
        (
            lambda m: m.capture({"input_ids": [TOKENS], "attention_mask": [[1]]}),
            "differ in shape",
        ),
        (lambda m: m.capture("a cat", generate=0), "generate must be at least 1, got 0"),
        (lambda m: published(None).capture(MESSAGES), "has no chat template"),
        (lambda _: ours("cable").capture(MESSAGES), "CABLE has no chat template"),
        (
            lambda _: published("{{ raise_exception('no\\nsystem') }}").capture(MESSAGES),
            "refuses these messages: no system",
        ),
    ],
)
def test_a_mistake_is_one_sentence(call: Any, message: str) -> None:
    with pytest.raises(hs.InputError) as error:
        call(published())
    assert message in str(error.value)
    assert "\n" not in str(error.value)
