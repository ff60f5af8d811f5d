"""Calls whose encoding, bias, positions and mask contradict one another are refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from headscape.attention import attend
from headscape.attention.layer import attention, prepare
from headscape.attention.reference import AttentionInputs
from headscape.bias import Slope, Toeplitz, dense
from headscape.encodings import Encoding, Stream, build
from headscape.encodings.alibi import ALiBi
from headscape.errors import InputError
from headscape.gpt2 import GPT2, Cache, ModelConfig
from headscape.properties.probe import draw, randomise
from headscape.types import Positions, Visible

HEADS, DIM, LENGTH = 3, 8, 12
PATHS: tuple[attend.Path, ...] = ("reference", "torch", "native", "flex", "decode", "auto")
every_path = pytest.mark.parametrize("path", PATHS)


def encoding(name: str, *, causal: bool = True) -> Encoding:
    made = build(
        name, heads=HEADS, head_dim=DIM, width=HEADS * DIM, train_length=LENGTH, causal=causal
    )
    randomise(made)
    return made


def at(path: str, shift: int = 0) -> Positions:
    """Positions of a call: one query in the middle of the keys for decode, else all."""
    keys = torch.arange(LENGTH)[None]
    return Positions((keys[:, 7:8] if path == "decode" else keys) + shift, keys + shift)


def call(name: str, path: str) -> AttentionInputs:
    """A consistent call, under a causal mask."""
    made, where = encoding(name), at(path)
    k, v = (draw(2, HEADS, LENGTH, DIM, seed=seed).float() for seed in (2, 3))
    q = draw(2, HEADS, where.q.shape[1], DIM, seed=1).float()
    return prepare(made, q, k, v, draw(2, LENGTH, HEADS * DIM, seed=4).float(), where)


def bidirectional(inputs: AttentionInputs) -> AttentionInputs:
    return replace(inputs, visible=Visible(causal=False))


def without_bias(inputs: AttentionInputs) -> AttentionInputs:
    return replace(inputs, bias=None)


def built_for_fewer_keys(inputs: AttentionInputs) -> AttentionInputs:
    return replace(inputs, bias=inputs.encoding.bias(Positions.span(5)))


def built_for_other_positions(inputs: AttentionInputs) -> AttentionInputs:
    old = inputs.positions
    moved = Positions(old.q + 100, old.k + 100)
    stream = inputs.encoding.stream(draw(2, LENGTH, HEADS * DIM, seed=4).float())
    queries = None if stream is None else Stream(stream.total[..., : old.q.shape[1]])
    return replace(inputs, bias=inputs.encoding.bias(moved, queries, stream))


def short_stream(inputs: AttentionInputs) -> AttentionInputs:
    assert isinstance(inputs.bias, Slope)
    return replace(inputs, bias=replace(inputs.bias, col=inputs.bias.col[..., :-1]))


def other_heads(inputs: AttentionInputs) -> AttentionInputs:
    other = build("alibi", heads=5, head_dim=DIM, width=5 * DIM, train_length=LENGTH)
    return replace(inputs, bias=other.bias(inputs.positions))


MISTAKES: list[tuple[str, Callable[[AttentionInputs], AttentionInputs], str]] = [
    (
        "alibi",
        bidirectional,
        r"ALiBi was built for causal attention, .* build it with causal=False",
    ),
    ("cable", bidirectional, r"CABLE was built for causal attention"),
    ("dapev2+t5", bidirectional, r"DAPEv2 was built for causal attention"),
    ("fire", bidirectional, r"Fire has no bidirectional form, because .*: use a causal mask"),
    ("xpos", bidirectional, r"xPos has no bidirectional form"),
    ("cope", bidirectional, r"CoPE has no bidirectional form"),
    ("dape+xpos", bidirectional, r"DAPE has no bidirectional form"),
    ("alibi", without_bias, r"ALiBi adds a bias, but bias is None"),
    ("fire", without_bias, r"Fire adds a bias, but bias is None"),
    ("dapev2+cable", without_bias, r"DAPEv2 adds a bias, but bias is None"),
    ("kerple", built_for_fewer_keys, r"covers distances 0 to 4, but the positions have 0 to \d+"),
    ("alibi", other_heads, r"bias\.table has shape \(5, \d+\), but this call needs \(3, \d+\)"),
    ("fire", built_for_other_positions, r"built for different query positions"),
    ("k-cable", built_for_other_positions, r"built for different positions\.q"),
    ("fox", short_stream, r"bias\.col has shape \(2, 3, 11\), but this call needs \(2, 3, 12\)"),
    ("cable", short_stream, r"bias\.col has shape"),
]


@every_path
@pytest.mark.parametrize(("name", "mistake", "sentence"), MISTAKES)
def test_a_contradiction_is_refused_on_every_path(
    name: str, mistake: Callable[..., AttentionInputs], sentence: str, path: attend.Path
) -> None:
    right = call(name, path)
    with pytest.raises(InputError, match=sentence) as error:
        attend.attend(**vars(mistake(right)), path=path)
    assert str(error.value).count(". ") == 0, "one sentence"


@every_path
@pytest.mark.parametrize("name", ["alibi", "fire", "cable", "fox", "k-cable", "rope", "dapev2+t5"])
def test_a_consistent_call_is_accepted(name: str, path: attend.Path) -> None:
    given = call(name, path)
    if path == "decode":  # it takes a query that sees every key
        given = replace(given, k=given.k[:, :, :8], v=given.v[:, :, :8], unrotated=None)
        where = Positions(given.positions.q, given.positions.k[:, :8])
        stream = given.encoding.stream(draw(2, 8, HEADS * DIM, seed=4).float())
        last = None if stream is None else _last(stream)
        given = replace(given, positions=where, bias=given.encoding.bias(where, last, stream))
    try:
        chosen = attend.choose(given, path)
    except InputError:
        assert (path, name) in {("native", "k-cable"), ("flex", "k-cable"), ("flex", "dapev2+t5")}
        return
    if chosen.path == "flex":
        return  # compiling takes a minute; test_attend has the eager form
    found = attend.attend(**vars(given), path=path)
    expected = attend.attend(**vars(given), path="reference")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _last(stream: Stream) -> Stream:
    weight = None if stream.weight is None else stream.weight[..., -1:]
    return Stream(stream.total[..., -1:], weight)


def test_a_bidirectional_mask_is_accepted_where_no_key_follows_its_query() -> None:
    given = call("alibi", "torch")
    last = replace(given, q=given.q[:, :, -1:], positions=Positions.span(1, LENGTH))
    causal = attend.attend(**vars(last))
    torch.testing.assert_close(attend.attend(**vars(bidirectional(last))), causal)


@pytest.mark.parametrize("name", ["nope", "rope", "dapev2+nope"])
def test_encodings_without_a_direction_take_any_mask(name: str) -> None:
    both = bidirectional(call(name, "torch"))
    torch.testing.assert_close(
        attend.attend(**vars(both), path="torch"), attend.attend(**vars(both), path="reference")
    )


def test_a_longer_table_is_accepted() -> None:
    given = call("alibi", "torch")
    longer = replace(given, bias=given.encoding.bias(Positions.span(50)))
    assert torch.equal(attend.attend(**vars(longer)), attend.attend(**vars(given)))


@pytest.mark.parametrize("name", ["cable", "k-cable", "fox", "dape+cable"])
def test_a_bias_without_its_stream_is_refused(name: str) -> None:
    made, where = encoding(name), Positions.span(LENGTH)
    with pytest.raises(InputError, match="needs the layer's input"):
        made.bias(where)
    short = made.stream(torch.zeros(1, LENGTH - 1, HEADS * DIM))
    with pytest.raises(InputError, match=r"stream of the queries has 11 tokens, .* 12 positions"):
        made.bias(where, short, short)
    right = made.stream(torch.zeros(1, LENGTH, HEADS * DIM))
    with pytest.raises(InputError, match="stream of the keys has 11 tokens"):
        made.bias(where, right, short)


@every_path
@pytest.mark.parametrize("name", ["cable", "fox", "dapev2+cable"])
def test_attention_refuses_a_wrong_layer_input_on_every_path(name: str, path: attend.Path) -> None:
    q = torch.zeros(2, HEADS, 1 if path == "decode" else LENGTH, DIM)
    k = torch.zeros(2, HEADS, LENGTH, DIM)
    made = encoding(name)
    with pytest.raises(InputError, match="needs the layer's input: pass x"):
        attention(q, k, k, encoding=made, path=path)
    with pytest.raises(InputError, match=r"x must have shape 2 12 d, .* got \(2, 11, 24\)"):
        attention(q, k, k, encoding=made, x=torch.zeros(2, 11, 24), path=path)
    with pytest.raises(InputError, match=r"x has width 23, but .* was built for 24"):
        attention(q, k, k, encoding=made, x=torch.zeros(2, LENGTH, 23), path=path)
    with pytest.raises(InputError, match=r"x is torch\.float64 on cpu, but the parameters"):
        attention(q, k, k, encoding=made, x=torch.zeros(2, LENGTH, 24).double(), path=path)


def test_a_model_runs_without_these_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: AttentionInputs) -> None:
        raise AssertionError("the model's own calls are consistent")

    monkeypatch.setattr(attend, "check_consistency", fail)
    model = GPT2(
        ModelConfig(layers=1, heads=2, width=16, vocabulary=9, train_length=8, encoding="fire")
    )
    model(torch.zeros(1, 8, dtype=torch.long))


class ShortTable(ALiBi):
    """ALiBi for at most nine distances."""

    def bias(self, positions: Positions, *_: object) -> Toeplitz:
        right = super().bias(positions)
        return Toeplitz(right.table[:, : right.zero + 9], right.zero)


def short_model(**fields: object) -> GPT2:
    config = ModelConfig(
        layers=1, heads=2, width=16, vocabulary=9, train_length=8, encoding="alibi",
        encoding_fields=fields,
    )  # fmt: skip
    model = GPT2(config)
    right = model.blocks[0].attention.encoding
    model.blocks[0].attention.encoding = ShortTable(right.shape, right.config)
    return model


@pytest.mark.parametrize("path", [path for path in PATHS if path != "decode"])
def test_a_model_refuses_a_table_that_does_not_cover_its_distances(path: attend.Path) -> None:
    model = short_model()
    assert model(torch.zeros(1, 9, dtype=torch.long)).shape == (1, 9, 9)
    with pytest.raises(InputError, match=r"ShortTable covers distances 0 to 8, .* have 0 to 11"):
        model(torch.zeros(1, 12, dtype=torch.long), path=path)


@torch.no_grad()
def test_a_cache_refuses_a_table_that_does_not_cover_its_distances() -> None:
    model, cache = short_model(), Cache()
    tokens = torch.arange(9)[None]
    parts = [model(tokens[:, at : at + 1], cache=cache) for at in range(9)]
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens))
    with pytest.raises(InputError, match=r"ShortTable covers distances 0 to 8, .* have 0 to 9"):
        model(tokens[:, :1], cache=cache)


def test_a_window_asks_for_no_distance_that_it_hides() -> None:
    model = short_model(window=9)
    assert model(torch.zeros(1, 30, dtype=torch.long)).shape == (1, 30, 9)


def test_the_bias_of_a_causal_table_would_be_wrong_to_the_right() -> None:
    """Why a causal encoding under a bidirectional mask is refused."""
    where = Positions.span(LENGTH)
    causal, both = (encoding("alibi", causal=causal).bias(where) for causal in (True, False))
    right = dense(both, where)[0, :, 0, 1:]
    assert (right < 0).all()
    assert not dense(causal, where)[0, :, 0, 1:].any()
