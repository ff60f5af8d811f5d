"""Captured numbers are the oracle's, whole or reduced, in blocks of any size."""

import numpy as np
import pytest
import torch
from headscape.capture.select import chosen
from headscape.capture.tap import Request, capture_maps

import oracle
from headscape.arrays.capture_file import load
from headscape.capture import tap
from headscape.capture.record import Sequence, from_text, record, sample
from headscape.encodings import ENCODINGS
from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig
from headscape.properties.probe import randomise
from headscape.text.tokenize.byte_tokenizer import ByteTokenizer
from properties.formulas import array, expected

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
    final = expected(model.blocks[1].attention.encoding, q, k, array(x), at, at)[0]
    content = oracle.content_scores(q, k)[0]
    seen = np.tril(np.ones((LENGTH, LENGTH), dtype=bool))
    weights = oracle.masked_softmax(final[None], seen)[0]

    maps = capture_maps(model, torch.from_numpy(tokens), Request(layers=(1,), heads=(0, 1, 2, 3)))

    wanted = {"content": content, "final": final, "bias": final - content, "weights": weights}
    for quantity, values in wanted.items():
        got = maps[f"layer.1.{quantity}"]
        np.testing.assert_allclose(got[:, seen], values[:, seen], rtol=1e-6, atol=1e-6)
        blank = got[:, ~seen]
        assert (blank == 0).all() if quantity == "weights" else np.isnan(blank).all()


@pytest.mark.parametrize("name", ["alibi", "kerple", "t5-clipped", "fire", "cable"])
def test_an_additive_bias_is_kept_bit_for_bit(name: str, tokens: np.ndarray) -> None:
    model = tiny(name).float()
    maps = capture_maps(model, torch.from_numpy(tokens), Request(layers=(1,), heads=(0, 3)))
    total = maps["layer.1.content"] + maps["layer.1.bias"]
    assert np.array_equal(total, maps["layer.1.final"], equal_nan=True)


def test_a_context_free_bias_is_the_same_for_every_input() -> None:
    model = tiny("fire").float()
    rng = np.random.default_rng(0)
    maps = [
        capture_maps(
            model,
            torch.from_numpy(rng.integers(0, 300, LENGTH)),
            Request(layers=(1,), heads=(0,), quantities=("bias",)),
        )["layer.1.bias"]
        for _ in range(3)
    ]
    assert all(np.array_equal(each, maps[0], equal_nan=True) for each in maps)


@pytest.mark.parametrize("name", ["rope", "dapev2+cable"])
def test_blocks_do_not_matter(
    name: str, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, request = tiny(name), Request(layers=(0, 1), heads=(0, 1, 2, 3))
    whole = capture_maps(model, torch.from_numpy(tokens), request)
    monkeypatch.setattr(tap, "BLOCK_ENTRIES", 5 * LENGTH)
    for key, values in capture_maps(model, torch.from_numpy(tokens), request).items():
        np.testing.assert_allclose(values, whole[key], rtol=1e-6, atol=1e-6)


def test_a_reduced_map_is_the_reduction_of_the_whole_one(tokens: np.ndarray) -> None:
    model = tiny("cable")
    everything = Request(layers=(1,), heads=(0, 2), quantities=("bias",))
    reduced = Request(
        layers=(1,),
        heads=(0, 2),
        quantities=("bias",),
        resolution=6,
        window=(slice(3, 9), slice(0, 7)),
    )
    whole = capture_maps(model, torch.from_numpy(tokens), everything)["layer.1.bias"]
    maps = capture_maps(model, torch.from_numpy(tokens), reduced)
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
    np.testing.assert_array_equal(maps["layer.1.bias.exact"], whole[:, 3:9, 0:7])


def test_a_recorded_capture_says_what_it_is(tmp_path, tokens: np.ndarray) -> None:
    model = tiny("alibi").float()
    request = Request(layers=(1,), heads=(0, 1), quantities=("bias", "weights"))
    capture = record(
        model,
        Sequence(tokens, {"corpus": "here", "offset": 5, "seed": 3}),
        request,
        preset="own",
        trained=False,
        tokenizer=ByteTokenizer(),
    )
    capture.save(tmp_path / "a.safetensors")
    held = load(tmp_path / "a.safetensors")
    assert held.conventions == {"slopes": "geometric", "divisor": "one", "scale": "head_dim"}
    assert held.sequence["seed"] == 3
    assert len(held.sequence["pieces"]) == LENGTH
    assert held.claims["context_dependent"] is False
    np.testing.assert_array_equal(held.values(1, "bias"), capture.maps["layer.1.bias"])


def test_a_random_window_is_a_function_of_its_seed() -> None:
    stream = np.arange(1000, dtype=np.uint16)
    first, again, other = (sample(stream, 10, seed, "x") for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert first.source["offset"] != other.source["offset"]
    assert first.tokens[0] == first.source["offset"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: sample(np.arange(5), 10, 0, "x"), "5 tokens"),
        (lambda: from_text("short", ByteTokenizer(), 10, "note.txt"), "note.txt has 5 tokens"),
        (lambda: Request(layers=(0,), heads=(0,), quantities=("bais",)), "'bais'"),
        (lambda: Request(layers=(0,), heads=(0,), window=(slice(0, 1),) * 2), "resolution"),
        (lambda: chosen("x", 3, "layer"), "'x'"),
        (lambda: chosen("4", 3, "layer"), "layer 4 is not there: the model has 1 to 3"),
        (lambda: chosen("0", 3, "layer"), "layer 0"),
    ],
)
def test_bad_input_is_one_sentence(act, message: str) -> None:
    with pytest.raises(InputError, match=message):
        act()


def test_a_layer_that_is_not_there(tokens: np.ndarray) -> None:
    with pytest.raises(InputError, match="layer 2 is not there"):
        capture_maps(tiny("nope"), torch.from_numpy(tokens), Request(layers=(2,), heads=(0,)))


def test_layers_in_words() -> None:
    assert chosen("all", 3, "layer") == (0, 1, 2)
    assert chosen("last", 3, "layer") == (2,)
    assert chosen("1,3-5,3", 6, "layer") == (0, 2, 3, 4)
