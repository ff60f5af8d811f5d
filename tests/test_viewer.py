"""Models as sources: their captures, their numbers, and texts that they are run on."""

from pathlib import Path

import numpy as np
import pytest
import torch

import headscape
from headscape.call.definition import AttentionCall, scores
from headscape.captures.capture_file import open_pack
from headscape.captures.record import Kept, capture
from headscape.captures.sequences import choose_tokens
from headscape.errors import InputError
from headscape.models.model import Model
from headscape.viewer.view import TypedText, open_source
from headscape.viewer.viewer_answers import Answers


def nano(encoding: str = "cable") -> Model:
    gpt2 = headscape.GPT2.from_preset("nano", encoding=encoding, vocabulary=257)
    model: Model = headscape.load(gpt2, tokenizer="bytes")
    return model


@pytest.mark.parametrize("encoding", ["cable", "rope", "dapev2+kerple"])
def test_a_models_pack_is_the_definition(encoding: str, tmp_path: Path) -> None:
    model = nano(encoding)
    tokens = np.frombuffer(b"The cat sat on the mat, and the dog looked on.", np.uint8)
    capture(model, tokens.astype(np.int64), layers="all").save(tmp_path / "a.safetensors")
    pack = open_pack(tmp_path / "a.safetensors")
    assert pack.header["encoding"] == encoding
    assert pack.header["pieces"][:3] == ["T", "h", "e"]
    assert pack.header["layers"] == [0, 1]
    assert pack.title == model.spec.name
    every = slice(0, len(tokens))

    def watch(layer: int, inputs: AttentionCall) -> None:
        expected = scores(inputs)
        hidden = ~expected.visible[0].numpy()
        for quantity in ("content", "bias", "final", "weights"):
            found = pack.layer(layer).tile(quantity, range(12), every, every)
            want = getattr(expected, quantity)[0].numpy()
            size = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(
                np.where(hidden, 0.0, found), np.where(hidden, 0.0, want), atol=4e-6 * size
            )

    with torch.no_grad():
        model.observe(torch.from_numpy(tokens.astype(np.int64))[None], [0, 1], watch)


def test_a_pack_says_what_each_layer_has() -> None:
    gpt2 = headscape.GPT2.from_preset("nano", encoding="rope:window=9,nope", vocabulary=257)
    tokens = np.arange(20) + 60
    pack = capture(headscape.load(gpt2), tokens, layers="all").pack()
    assert pack.header["notes"] == ["RoPE, window 9", "NoPE"]
    assert pack.header["unit"] == "token"
    assert capture(nano(), tokens).pack().header["notes"] == [""]


def test_some_layers_and_heads() -> None:
    tokens = np.arange(20) + 60
    pack = capture(nano(), tokens, layers=[1], heads=[3, 5]).pack()
    assert (pack.header["layers"], pack.header["heads"]) == ([1], [3, 5])
    some = capture(nano("dapev2+kerple"), tokens, heads=[3], quantities=("bias",))
    assert some.bias().shape == (1, 20, 20)
    with pytest.raises(
        InputError,
        match=r"layer 1 \(counted from 0\): scores of all heads are mixed and only some of them",
    ):
        some.pack()


def test_a_model_without_text_says_so() -> None:
    with pytest.raises(InputError, match="no validation text to choose from"):
        open_source(nano())


def test_a_text_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headscape.viewer.view.choose_tokens",
        lambda model, text=None, **rest: choose_tokens(
            model, text or "some validation text", **rest
        ),
    )
    pack, run = open_source(nano())
    assert pack.length == 20
    answers = Answers.of([pack], [run])
    content, _ = answers.answer({"type": "run", "id": "p0", "text": "hello", "request": 1})
    assert content["pack"]["header"]["pieces"] == list("hello")
    assert content["pack"]["header"]["measures"]


@pytest.mark.parametrize(
    ("encoding", "answer"),
    [
        ("cable", {"type": "run"}),
        ("learned", {"type": "error", "message": "past the learned table's 1024 rows"}),
    ],
)
def test_a_text_longer_than_the_trained_length_is_read_where_the_encoding_can(
    encoding: str, answer: dict[str, str]
) -> None:
    pack, run = open_source(nano(encoding), "Hello")
    answers = Answers.of([pack], [run])
    content, _ = answers.answer({"type": "run", "id": "p0", "text": "x" * 1100, "request": 1})
    assert content["type"] == answer["type"]
    if "message" in answer:
        assert answer["message"] in content["message"]
    else:
        assert content["pack"]["header"]["length"] == 1100


def test_a_model_reads_the_text_given() -> None:
    pack, run = open_source(nano(), "Hello")
    assert pack.header["pieces"] == ["H", "e", "l", "l", "o"]
    assert run is not None
    with pytest.raises(InputError, match="text is given, but every source is a capture"):
        headscape.view(pack, text="Hello", html="a.html")


def test_a_typed_text_is_limited_and_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    _, run = open_source(nano(), "Hello")
    assert isinstance(run, TypedText)
    with pytest.raises(InputError, match="at most 4,096 tokens, got 4,097: capture a longer"):
        run("x" * 4097)
    seen: list[int] = []

    def cancelled(*args: object, **_: object) -> None:
        seen.append(1)
        run.cancel()

    monkeypatch.setattr(Kept, "add", cancelled)
    with pytest.raises(InputError, match="not read to its end"):
        run("Hello")
    assert seen == [1]  # of two layers
