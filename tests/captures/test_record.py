"""Captured numbers are the oracle's, whole or reduced, in blocks of any size."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import oracle
from headscape.call.bias import dense
from headscape.call.definition import AttentionCall
from headscape.call.quantities import QUANTITIES
from headscape.captures import record, saved_call
from headscape.captures.capture_file import load
from headscape.captures.record import capture, indices
from headscape.captures.sequences import Tokens, choose_tokens
from headscape.cli.parsing import from_zero, numbers
from headscape.data.dataset import Dataset
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.encodings import ENCODINGS
from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig
from headscape.models.gpt2_model import GPT2Model
from headscape.properties.probe import randomise
from properties.formulas import array, expected, factor

NAMES = [*ENCODINGS, "dape+kerple", "dapev2+kerple", "dapev2+cable", "dapev2+rope"]
LENGTH = 24


def tiny(encoding: str) -> GPT2:
    config = ModelConfig(
        layers=2, heads=4, width=32, vocabulary=300, train_length=LENGTH, encoding=encoding
    )
    model = GPT2(config).double()
    randomise(model)
    return model


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 300, LENGTH)


def layer_input(model: GPT2, tokens: np.ndarray, layer: int) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    hook = model.blocks[layer].norm1.register_forward_hook(lambda *args: seen.append(args[2]))
    with torch.no_grad():
        model(torch.from_numpy(tokens)[None])
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("name", NAMES)
def test_maps_are_the_oracles(name: str, tokens: np.ndarray) -> None:
    model = tiny(name)
    x = layer_input(model, tokens, 1)
    q, k, _ = (
        array(part.unflatten(-1, (4, -1)).transpose(1, 2))
        for part in model.blocks[1].attention.qkv(x).chunk(3, dim=-1)
    )
    at = np.arange(LENGTH)
    encoding = model.blocks[1].attention.encoding
    final = expected(encoding, q, k, array(x), at, at)[0]
    content = oracle.content_scores(q, k, factor(encoding))[0]
    seen = np.tril(np.ones((LENGTH, LENGTH), dtype=bool))
    normalised = oracle.stick_weights if encoding.weighs else oracle.masked_softmax
    weights = normalised(final[None], seen)[0]

    made = capture(GPT2Model(model), tokens, layers=1)

    wanted = {"content": content, "final": final, "bias": final - content, "weights": weights}
    for quantity, values in wanted.items():
        got = made.map(quantity)
        np.testing.assert_allclose(got[:, seen], values[:, seen], rtol=1e-6, atol=2e-6)
        blank = got[:, ~seen]
        assert (blank == 0).all() if quantity == "weights" else np.isnan(blank).all()


@pytest.mark.parametrize("name", ["alibi", "kerple", "t5-clipped", "fire", "cable"])
def test_an_additive_bias_is_kept_bit_for_bit(name: str, tokens: np.ndarray) -> None:
    model = tiny(name).float()
    added: list[np.ndarray] = []

    def watch(_: int, inputs: AttentionCall) -> None:
        assert inputs.bias is not None
        added.append(dense(inputs.bias, inputs.positions)[0].float().numpy())

    GPT2Model(model).observe(torch.from_numpy(tokens)[None], [1], watch)
    seen = np.tri(LENGTH, dtype=bool)
    found = capture(GPT2Model(model), tokens, heads=(0, 3)).bias()
    if name == "fire":  # Its perceptron is evaluated by linear pieces.
        np.testing.assert_allclose(found[:, seen], added[0][[0, 3]][:, seen], rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(found[:, seen], added[0][[0, 3]][:, seen])


def test_a_context_free_bias_is_the_same_for_every_input() -> None:
    model = tiny("fire").float()
    rng = np.random.default_rng(0)
    maps = [
        capture(
            GPT2Model(model), rng.integers(0, 300, LENGTH), heads=0, quantities=("bias",)
        ).bias()
        for _ in range(3)
    ]
    assert all(np.array_equal(each, maps[0], equal_nan=True) for each in maps)


@pytest.mark.parametrize("name", ["rope", "dapev2+cable"])
def test_blocks_do_not_matter(
    name: str, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = GPT2Model(tiny(name))
    whole = capture(model, tokens, layers="all")
    monkeypatch.setattr(record, "BLOCK_ENTRIES", 5 * LENGTH)
    monkeypatch.setattr(saved_call, "WHOLE_PAIRS", 4 * 5 * LENGTH)
    parts = capture(model, tokens, layers="all")
    for layer in (0, 1):
        for quantity in QUANTITIES:
            np.testing.assert_allclose(
                parts.map(quantity, layer), whole.map(quantity, layer), rtol=1e-6, atol=1e-6
            )


def test_a_reduced_map_is_the_reduction_of_the_whole_one(tokens: np.ndarray) -> None:
    model = GPT2Model(tiny("cable"))
    whole = capture(model, tokens, heads=(0, 2), quantities=("bias",)).bias()
    window = (slice(3, 9), slice(0, 7))
    maps = capture(
        model, tokens, heads=(0, 2), quantities=("bias",), resolution=6, window=window
    ).maps
    for a in range(6):
        for b in range(6):
            cell = whole[:, 4 * a : 4 * a + 4, 4 * b : 4 * b + 4].reshape(2, -1)
            if b > a:
                assert np.isnan(maps["layer.1.bias.mean"][:, a, b]).all()
                continue
            for reduction, function in (
                ("mean", np.nanmean),
                ("min", np.nanmin),
                ("max", np.nanmax),
            ):
                np.testing.assert_allclose(
                    maps[f"layer.1.bias.{reduction}"][:, a, b], function(cell, axis=1), rtol=1e-6
                )
    np.testing.assert_allclose(maps["layer.1.bias.exact"], whole[:, 3:9, 0:7], rtol=1e-6)


def test_a_recorded_capture_says_what_it_is(tmp_path, tokens: np.ndarray) -> None:
    model = GPT2Model(tiny("alibi").float(), tokenizer=ByteTokenizer(), trained=False)
    made = capture(
        model,
        Tokens(tokens % 257, {"corpus": "here", "offset": 5, "seed": 3}),
        heads=(0, 1),
        quantities=("bias", "weights"),
    )
    made.save(tmp_path / "a.safetensors")
    held = load(tmp_path / "a.safetensors")
    wanted = {"slopes": "geometric", "divisor": "one", "scale": "head_dim", "window": None}
    assert wanted.items() <= held.conventions.items()
    assert held.sequence["seed"] == 3
    assert len(held.sequence["pieces"]) == LENGTH
    assert held.claims["context_dependent"] is False
    assert held.model["name"] == "ALiBi"
    np.testing.assert_array_equal(held.map("bias", 1), made.map("bias", 1))
    assert held.quantities == ("bias", "weights")


def text_model(words: str) -> GPT2Model:
    model = GPT2Model(tiny("alibi"), tokenizer=ByteTokenizer())
    stream = ByteTokenizer().encode(words)
    side = SimpleNamespace(tokens=stream, offsets=np.array([0, 7, len(stream)]))
    dataset = Dataset(
        corpus="x",
        fingerprint="f",
        tokenizer=ByteTokenizer(),
        train_side=side,
        validation_side=side,
    )
    return GPT2Model(model.gpt2, tokenizer=ByteTokenizer(), dataset=lambda: dataset)


def test_a_random_window_is_a_function_of_its_seed() -> None:
    model = text_model("".join(chr(33 + n % 90) for n in range(1000)))
    first, again, other = (choose_tokens(model, length=10, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert first.source["offset"] != other.source["offset"]
    assert first.tokens[0] == 33 + first.source["offset"] % 90


def test_a_document_is_taken_from_its_beginning() -> None:
    model = text_model("0123456789" * 4)
    assert choose_tokens(model, document=1, length=3).tokens.tolist() == list(b"789")
    with pytest.raises(InputError, match="between 0 and 1"):
        choose_tokens(model, document=2)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: choose_tokens(text_model("five!"), length=10), "5 tokens"),
        (lambda: choose_tokens(text_model("x"), "short", length=10, name="note.txt"), "5 tokens"),
        (lambda: choose_tokens(text_model("x"), "", name="note.txt"), "note.txt has no tokens"),
        (lambda: choose_tokens(text_model("x"), "a", document=1), "not both"),
        (lambda: choose_tokens(text_model("x"), "a", length=0), "at least 1, got 0"),
        (lambda: choose_tokens(text_model("x" * 99), length=3, seed=-1), "at least 0, got -1"),
        (lambda: capture(text_model("x"), "a", quantities=("bais",)), "'bais'"),
        (lambda: capture(text_model("x"), "a", quantities="bais"), "'bais'"),
        (lambda: capture(text_model("x"), "a", window=(slice(0, 1),) * 2), "resolution"),
        (
            lambda: capture(text_model("x"), "a", layers=2),
            "no layer 2: the model has layers 0 to 1",
        ),
        (lambda: from_zero(["x"], 3, "layer"), "'x'"),
        (lambda: from_zero(["4"], 3, "layer"), "no layer 4: the model has layers 1 to 3"),
        (lambda: from_zero(["0"], 3, "layer"), "'0'"),
        (lambda: from_zero(["2-1"], 3, "layer"), "'2-1'"),
        (lambda: from_zero(["1-99999999999"], 3, "layer"), "99999999999"),
    ],
)
def test_bad_input_is_one_sentence(act, message: str) -> None:
    with pytest.raises(InputError, match=message):
        act()


def test_layers_in_words() -> None:
    assert from_zero(["all"], 3, "layer") == (0, 1, 2)
    assert from_zero(["last"], 3, "layer") == (2,)
    assert from_zero(["1", "3-5", "3"], 6, "layer") == (0, 2, 3, 4)
    assert numbers(["1", "3-5"], "head") == [1, 3, 4, 5]
    assert indices([-1, 0], 6, "layer") == (5, 0)
