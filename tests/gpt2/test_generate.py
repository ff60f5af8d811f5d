"""Generation and the cache it uses."""

import pytest
import torch
from torch import Tensor

from headscape.encodings import ENCODINGS
from headscape.errors import InputError
from headscape.gpt2 import GPT2, Cache, ModelConfig, generate
from headscape.gpt2.generate import stream

PROMPT = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pytest.fixture
def model() -> GPT2:
    torch.manual_seed(1)
    return sharp("alibi")


def sharp(encoding: str, **changes: object) -> GPT2:
    """A model whose predictions differ enough for sampling to show."""
    fields = {"layers": 2, "heads": 2, "width": 16, "vocabulary": 19, "train_length": 64}
    made = GPT2(ModelConfig(encoding=encoding, **(fields | changes)))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def by_full_passes(model: GPT2, text: Tensor, length: int) -> Tensor:
    for _ in range(length):
        with torch.no_grad():
            text = torch.cat([text, model(text)[:, -1:].argmax(dim=-1)], dim=1)
    return text


@pytest.mark.parametrize("encoding", [*ENCODINGS, "dapev2+cable"])
def test_greedy_takes_the_likeliest_of_a_full_pass(encoding: str) -> None:
    model = sharp(encoding).double()
    ours = generate(model, PROMPT, length=12, temperature=0.0)
    assert torch.equal(ours, by_full_passes(model, PROMPT, 12))


def test_the_same_seed_gives_the_same_text(model: GPT2) -> None:
    first, again, other = (generate(model, PROMPT, length=30, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(99)
    assert torch.equal(first, generate(model, PROMPT, length=30, seed=5))
    assert torch.equal(first[:, :5], PROMPT)


def test_streaming_is_the_same_text(model: GPT2) -> None:
    steps = list(stream(model, PROMPT, length=7, seed=3))
    assert all(step.shape == (2, 1) for step in steps)
    assert torch.equal(
        torch.cat([PROMPT, *steps], dim=1), generate(model, PROMPT, length=7, seed=3)
    )


def drawn(model: GPT2, **options: object) -> list[int]:
    """What follows one prompt, over many rows at once."""
    many = PROMPT[:1].expand(4000, -1)
    return generate(model, many, length=1, **options)[:, -1].tolist()


def probabilities(model: GPT2, temperature: float = 1.0) -> Tensor:
    with torch.no_grad():
        return (model(PROMPT[:1])[0, -1] / temperature).softmax(dim=-1)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_draws_follow_the_tempered_probabilities(model: GPT2, temperature: float) -> None:
    found = torch.bincount(torch.tensor(drawn(model, temperature=temperature)), minlength=19)
    share = probabilities(model, temperature)
    spread = (share * (1 - share) / 4000).sqrt()
    assert ((found / 4000 - share).abs() <= 5 * spread + 1e-3).all()


def test_top_k_draws_from_the_k_likeliest(model: GPT2) -> None:
    likeliest = probabilities(model).topk(3).indices.tolist()
    assert set(drawn(model, top_k=3, temperature=2.0)) == set(likeliest)
    assert set(drawn(model, top_k=1, temperature=2.0)) == {likeliest[0]}
    assert drawn(model, top_k=500) == drawn(model)


def test_top_p_draws_from_the_smallest_set_that_holds_p(model: GPT2) -> None:
    share, index = probabilities(model, 2.0).sort(descending=True)
    kept = int((share.cumsum(0) < 0.4).sum()) + 1
    assert 1 < kept < 19
    found = set(drawn(model, top_p=0.4, temperature=2.0))
    assert found == set(index[:kept].tolist())
    assert set(drawn(model, top_p=1e-9, temperature=2.0)) == {index[0].item()}


def test_a_row_that_met_stop_is_filled_with_it_and_all_rows_end_it(model: GPT2) -> None:
    free = generate(model, PROMPT, length=40, seed=2)
    stop = free[0, 9].item()
    ended = generate(model, PROMPT, length=40, seed=2, stop=stop)
    for row, plain in zip(ended[:, 5:].tolist(), free[:, 5:].tolist(), strict=True):
        if stop in row:
            at = row.index(stop)
            assert row[:at] == plain[:at]
            assert set(row[at:]) == {stop}
        else:
            assert row == plain[: len(row)]
    assert stop in ended[0, 5:].tolist()
    if (ended[:, 5:] == stop).any(dim=1).all():
        assert (ended[:, 5:-1] == stop).all(dim=1).sum() < 2, "it went on after the last row ended"


def test_no_tokens_asked_for_gives_the_prompt(model: GPT2) -> None:
    assert torch.equal(generate(model, PROMPT, length=0), PROMPT)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"length": -1}, "-1"),
        ({"length": 1, "temperature": -0.5}, "-0.5"),
        ({"length": 1, "top_k": 0}, "0"),
        ({"length": 1, "top_p": 0.0}, "0.0"),
        ({"length": 1, "top_p": 1.5}, "1.5"),
    ],
)
def test_bad_options_are_named(model: GPT2, options: dict[str, float], value: str) -> None:
    with pytest.raises(InputError, match=value):
        # At once, not with the first token.
        stream(model, PROMPT, **options)


def test_learned_positions_end_with_a_sentence_and_keep_what_was_written() -> None:
    model = sharp("learned", train_length=8)
    steps = stream(model, PROMPT, length=10)
    for _ in range(4):
        next(steps)
    with pytest.raises(InputError, match=r"position 8 .* 8 rows.*choose"):
        list(steps)


def test_a_cache_grows_by_doubling_and_keeps_what_it_holds(model: GPT2) -> None:
    model = model.double()
    text = torch.randint(19, (2, 40))
    cache = Cache(capacity=4)
    sizes = []
    with torch.no_grad():
        parts = []
        for part in text.split(3, dim=1):
            parts.append(model(part, cache=cache))
            sizes.append(cache.layers[0].k.shape[2])
        whole = model(text)
    assert set(sizes) == {4, 8, 16, 32, 64}
    assert cache.length == 40
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("encoding", ["alibi", "rope", "cable", "fire", "learned", "dapev2+kerple"])
def test_decoding_behind_left_padding(encoding: str) -> None:
    model = sharp(encoding).double()
    text, pads = torch.randint(19, (1, 12)), 5
    padded = torch.cat([torch.zeros(1, pads, dtype=torch.long), text], dim=1)
    at = (torch.arange(17) - pads)[None]
    groups, positions = torch.where(at < 0, -1, 0), at.clamp(min=0)
    cache = Cache(capacity=3)
    with torch.no_grad():
        parts = [
            model(
                padded[:, part], cache=cache, positions=positions[:, part], groups=groups[:, part]
            )
            for part in (slice(0, 9), slice(9, 10), slice(10, 17))
        ]
        whole = model(text)
    torch.testing.assert_close(torch.cat(parts, dim=1)[:, pads:], whole, rtol=1e-9, atol=1e-9)


def test_a_failed_pass_leaves_the_cache_as_it_was() -> None:
    model = sharp("learned", train_length=8).double()
    cache = Cache()
    text = torch.randint(19, (1, 8))
    with torch.no_grad():
        first = model(text[:, :5], cache=cache)
        with pytest.raises(InputError):
            model(torch.randint(19, (1, 6)), cache=cache)
        second = model(text[:, 5:], cache=cache)
        whole = model(text)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-9, atol=1e-9)


def test_a_cache_refuses_what_it_cannot_hold(model: GPT2) -> None:
    with pytest.raises(InputError, match="no_grad"):
        model(PROMPT, cache=Cache())
    with pytest.raises(InputError, match="0"):
        Cache(capacity=0)
    with torch.no_grad():
        cache = Cache()
        model(PROMPT, cache=cache)
        with pytest.raises(InputError, match="batch of 2"):
            model(PROMPT[:1], cache=cache)
        with pytest.raises(InputError, match="groups"):
            model(PROMPT, cache=cache, groups=torch.zeros_like(PROMPT))
        with pytest.raises(InputError, match="at least one token"):
            model(PROMPT[:, :0])
