"""Which path is taken, that it says why, and that decode and flex equal the definition."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from headscape.call import definition
from headscape.call.bias import RelativeCurves
from headscape.call.positions import Positions, Visible
from headscape.encodings import ENCODINGS, Encoding, build
from headscape.errors import InputError
from headscape.kernels import attend, decode, flex
from headscape.kernels.assemble import assemble, prepare
from headscape.kernels.native import adapter
from headscape.properties.probe import draw, randomise

HEADS, DIM, LENGTH = 4, 8, 48
NAMES = [*ENCODINGS, "dape+alibi", "dapev2+kerple", "dapev2+cable", "dapev2+rope"]


def quiet(test: Callable[..., None]) -> Callable[..., None]:
    """Torch warns of its own eager form, and of what it does itself while it traces."""
    for text in (
        "flex_attention called without torch.compile",
        "The .grad attribute of a Tensor",
        ".torch.jit.script",
    ):
        test = pytest.mark.filterwarnings(f"ignore:{text}")(test)
    return test


def subject(name: str, dtype: torch.dtype = torch.float64) -> Encoding:
    encoding = build(
        name, heads=HEADS, head_dim=DIM, width=HEADS * DIM, train_length=LENGTH
    ).double()
    randomise(encoding)
    return encoding.to(dtype)


def inputs(
    encoding: Encoding, queries: int = LENGTH, dtype: torch.dtype = torch.float64
) -> definition.AttentionCall:
    q = draw(2, HEADS, queries, DIM, seed=1).to(dtype)
    k, v = (draw(2, HEADS, LENGTH, DIM, seed=seed).to(dtype) for seed in (2, 3))
    x = draw(2, LENGTH, HEADS * DIM, seed=4).to(dtype)
    return prepare(encoding, q, k, v, x, Positions.span(queries, LENGTH))


@pytest.mark.parametrize("name", NAMES)
def test_one_query_equals_the_definition(name: str) -> None:
    one = inputs(subject(name), queries=1)
    torch.testing.assert_close(decode.run(one), definition.run(one), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_one_query_of_a_cache_that_slides_equals_the_definition(name: str) -> None:
    if name == "learned":
        return
    encoding = subject(name)
    q, k, v = (draw(1, HEADS, n, DIM, seed=n) for n in (1, LENGTH, LENGTH + 1))
    x = draw(1, LENGTH, HEADS * DIM, seed=4)
    at = torch.arange(100, 100 + LENGTH)[None]
    late = prepare(encoding, q, k, v[:, :, 1:], x, Positions(at[:, -1:], at))
    torch.testing.assert_close(decode.run(late), definition.run(late), rtol=1e-12, atol=1e-12)


DENSE = {"k-cable", "cope", "grid", "kerple-weight", "path", "stick-breaking", "wall"}


@quiet
@pytest.mark.parametrize("name", NAMES)
def test_flex_equals_the_definition_or_says_why_not(name: str) -> None:
    with torch.no_grad():
        whole = inputs(subject(name))
        reason = flex.refuses(whole)
        if reason is not None:
            sheared = isinstance(whole.bias, RelativeCurves)
            assert sheared or name in DENSE or "+" in name
            with pytest.raises(InputError, match=r"attention path 'flex' cannot run this call"):
                attend.run(whole, "flex")
            return
        torch.testing.assert_close(
            flex.run(whole, compiled=False), definition.run(whole), rtol=1e-10, atol=1e-10
        )


@quiet
@pytest.mark.parametrize("name", ["t5", "kerple", "fire", "cable", "fox"])
def test_flex_gradients_reach_what_is_learned(name: str) -> None:
    encoding = subject(name)
    learned = list(encoding.parameters())
    gradients = []
    for run in (lambda i: flex.run(i, compiled=False), definition.run):
        out = run(inputs(encoding))
        gradients.append(torch.autograd.grad(out, learned, draw(*out.shape, seed=5)))
    for mine, true in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-8, atol=1e-10)


@pytest.mark.compiled
@quiet
@pytest.mark.parametrize("name", ["alibi", "nope"])
def test_flex_compiled_equals_the_definition_at_several_lengths(name: str) -> None:
    encoding = subject(name, torch.float32)
    for queries in (LENGTH, 33, 20):
        whole = inputs(encoding, queries, dtype=torch.float32)
        with torch.no_grad():
            torch.testing.assert_close(flex.run(whole), definition.run(whole), rtol=1e-4, atol=1e-5)


SERVED_BY_NATIVE = [
    "nope",
    "rope",
    "xpos",
    "alibi",
    "t5",
    "t5-clipped",
    "kerple",
    "kerple-power",
    "kerple-weight",
    "sandwich",
    "fire",
    "cable",
    "cable-nw",
    "fox",
    "stick-breaking",
    "dape+alibi",
    "dapev2+kerple",
    "dapev2+cable",
    "dapev2+rope",
]


@pytest.mark.skipif(adapter.available() is not None, reason=str(adapter.available()))
@pytest.mark.parametrize("name", SERVED_BY_NATIVE)
def test_what_the_kernels_serve_is_taken_by_itself(name: str) -> None:
    whole = inputs(subject(name, torch.float32), dtype=torch.float32)
    assert attend.choose(whole).path == "native"


def test_a_path_that_is_not_one_is_named() -> None:
    with pytest.raises(InputError, match="unknown attention path 'fles': there are auto"):
        attend.check_path("fles")
    attend.check_path("torch")


def test_one_query_of_keys_out_of_order_equals_the_definition() -> None:
    q, k, v = (draw(1, HEADS, n, DIM, seed=n) for n in (1, 4, 4))
    at = Positions(torch.tensor([[3]]), torch.tensor([[0, 2, 1, 3]]))
    mixed = prepare(subject("alibi"), q, k, v, None, at)
    torch.testing.assert_close(decode.run(mixed), definition.run(mixed))


def test_a_choice_says_why() -> None:
    choice = attend.choose(inputs(subject("k-cable")))
    assert choice.path == "torch"
    assert set(choice.passed_over) == {"decode", "native", "sdpa"}
    assert "48" in choice.passed_over["decode"]
    assert attend.choose(inputs(subject("alibi"), queries=1)).path == "decode"


def test_a_path_asked_for_never_falls_back() -> None:
    whole = inputs(subject("alibi"))
    with pytest.raises(InputError, match=r"'decode' cannot run .*: it takes one query, got 48"):
        attend.run(whole, "decode")
    with pytest.raises(InputError, match="'native' cannot run this call"):
        attend.run(whole, "native")


def test_a_tap_is_shown_every_score_by_the_reference_alone() -> None:
    whole = inputs(subject("cable"))
    seen: list[definition.Scores] = []
    out = attend.run(whole, tap=seen.append)
    torch.testing.assert_close(out, definition.run(whole))
    torch.testing.assert_close(seen[0].content + seen[0].bias, seen[0].final)
    with pytest.raises(InputError, match="a tap needs the reference path"):
        attend.run(whole, "torch", tap=seen.append)


def test_a_call_is_checked_where_it_is_assembled() -> None:
    encoding = subject("alibi", torch.float32)
    given = inputs(encoding, dtype=torch.float32)
    half = torch.zeros(2, HEADS, LENGTH, DIM, dtype=torch.float16)
    with pytest.raises(InputError, match=r"v is torch\.float16"):
        assemble(encoding, given.q, given.k, half, given.positions, Visible())
    with pytest.raises(InputError, match=r"positions\.q"):
        assemble(encoding, given.q, given.k, given.v, Positions.span(5), Visible())


@pytest.mark.parametrize("keys", [LENGTH, LENGTH + 5])
@pytest.mark.parametrize("name", ["nope", "rope"])
def test_sdpa_serves_calls_without_a_bias(name: str, keys: int) -> None:
    encoding = build(name, heads=HEADS, head_dim=DIM, width=HEADS * DIM, train_length=LENGTH)
    q = draw(2, HEADS, LENGTH, DIM, seed=1)
    k, v = (draw(2, 1, keys, DIM, seed=seed) for seed in (2, 3))  # shared by all heads
    for causal in (True, False):
        call = assemble(encoding, q, k, v, Positions.span(LENGTH, keys), Visible(causal))
        torch.testing.assert_close(attend.run(call, "sdpa"), definition.run(call))


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("alibi", {}, "a bias"),
        ("cope", {}, "a mixing"),
        ("stick-breaking", {}, "a weighting"),
        ("path", {}, "a transition"),
        ("nope", {"softcap": 2.0}, "a softcap"),
        ("nope", {"sink": True}, "a sink"),
        ("nope", {"temperature": "llama4"}, "a temperature"),
        ("nope", {"window": 3}, "a window"),
        ("nope", {"chunk": 3}, "a chunk"),
    ],
)
def test_sdpa_refuses_by_name(name: str, fields: dict[str, object], reason: str) -> None:
    shape = {"heads": HEADS, "head_dim": DIM, "width": HEADS * DIM, "train_length": LENGTH}
    encoding = build(name, **shape, **fields)
    call = inputs(encoding, dtype=torch.float32)
    with pytest.raises(InputError, match=f"it does not take {reason}"):
        attend.run(call, "sdpa")


def test_on_a_gpu_auto_takes_sdpa_without_a_bias_and_torch_with_one() -> None:
    """A meta tensor stands for a device that is not the CPU."""
    for name, path in (("rope", "sdpa"), ("alibi", "torch"), ("dapev2+kerple", "torch")):
        encoding = subject(name, torch.float32)
        call = inputs(encoding, dtype=torch.float32)
        away = replace(call, **{part: getattr(call, part).to("meta") for part in "qkv"})
        assert attend.choose(away).path == path


def test_no_positions_are_refused() -> None:
    with pytest.raises(InputError, match="at least one query"):
        Positions.span(0)
