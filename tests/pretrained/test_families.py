"""Every family: recognised as what it is, and scores and weights equal to the model's own."""

from functools import partial
from typing import Any

import pytest
import torch

from headscape.call.definition import AttentionCall, scores
from headscape.models.load import load
from pretrained.families import FAMILIES
from pretrained.family import Family

pytest.importorskip("transformers")
# transformers scripts a function of DeBERTa with TorchScript while it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
LENGTH = 29
"""Longer than the sequence that loading checks."""


def tokens(length: int = LENGTH) -> torch.Tensor:
    return FAMILIES["llama"].read(length)


def observed(
    model: Any, length: int = LENGTH, given: torch.Tensor | None = None
) -> dict[int, AttentionCall]:
    found: dict[int, AttentionCall] = {}
    given = tokens(length) if given is None else given
    model.observe(given, range(len(model.spec.layers)), found.__setitem__)
    return found


def tolerance(family: Family) -> float:
    """Eager attention takes its softmax in float32 whatever the dtype."""
    return 2e-5 if family.dtype == torch.float32 else 2e-6


def own_weights(model: Any, given: torch.Tensor, wavlm: bool) -> list[torch.Tensor]:
    """The weights that the model returns; WavLM asks torch for their mean over heads."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        if wavlm:
            functions = torch.nn.functional
            apart = partial(functions.multi_head_attention_forward, average_attn_weights=False)
            patch.setattr(functions, "multi_head_attention_forward", apart)
        found = model(given, output_attentions=True).attentions
    # It repeats that mean, now the weights of every head, once per head.
    length = given.shape[1]
    return [
        own[:, 0] if wavlm else own if own.ndim == 4 else unblocked(own, length) for own in found
    ]


def unblocked(weights: torch.Tensor, length: int) -> torch.Tensor:
    """LongT5's weights [b blocks h r 3r] as a whole map."""
    _, blocks, heads, size, _ = weights.shape
    whole = torch.zeros(1, heads, blocks * size, (blocks + 2) * size, dtype=weights.dtype)
    for block in range(blocks):
        rows = slice(block * size, (block + 1) * size)
        whole[:, :, rows, block * size : (block + 3) * size] = weights[:, block]
    return whole[:, :, :length, size : size + length]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def test_a_family_is_read_as_its_own_attention(family: Family) -> None:
    model = load(family.build())
    spec, given = model.spec, family.read(LENGTH)

    assert tuple(layer.encoding for layer in spec.layers) == family.encodings
    assert spec.causal == family.causal
    found = dict(spec.layers[-1].conventions)
    assert {name: found.get(name) for name in family.conventions} == family.conventions

    eager = load(family.build(attn_implementation="eager"))
    expected = family.eager or family.encodings
    assert tuple(layer.encoding for layer in eager.spec.layers) == expected
    body = eager._body  # type: ignore[attr-defined]
    weights = own_weights(body, given, "wavlm" in family.encodings)
    inputs = observed(model if family.eager is None else eager, given=given)
    assert len(weights) == len(inputs) == len(spec.layers)
    for layer, own in enumerate(weights):
        every = scores(inputs[layer])
        assert own.shape == every.weights.shape
        theirs = own.to(every.weights.dtype)
        assert torch.allclose(every.weights, theirs, atol=tolerance(family))
        seen = every.visible.expand_as(every.final)
        total = (every.content + every.bias - every.final)[seen]
        size = every.final[seen].abs().max()
        assert total.abs().max() <= 1e-6 * size


def test_observing_changes_nothing_and_leaves_nothing_behind(family: Family) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    theirs, given = family.build(), family.read(LENGTH)
    implementation = theirs.config._attn_implementation
    model = load(theirs)
    body = model._body  # type: ignore[attr-defined]
    with torch.no_grad():
        before = body(given)[0]
        observed(model, given=given)
        after = body(given)[0]
    assert torch.equal(before, after)
    assert theirs.config._attn_implementation == implementation
    assert "get_interface" not in vars(ALL_ATTENTION_FUNCTIONS)
    for module in theirs.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
        assert not {"_attn", "rel_attn_core", "out_proj"} & vars(module).keys()
        assert "torch_multi_head_self_attention" not in vars(module)


def test_only_the_layers_asked_for_are_run(family: Family) -> None:
    model = load(family.build())
    found: list[int] = []
    ran: list[int] = []
    [last] = [
        module for name, module in model.model.named_modules()  # type: ignore[attr-defined]
        if name.endswith(("lm_head", "embed_out"))
    ][-1:] or [None]  # fmt: skip
    if last is not None:
        last.register_forward_hook(lambda *_: ran.append(1))
    model.observe(family.read(LENGTH), [1], lambda layer, inputs: found.append(layer))
    assert found == [1]
    assert not ran
