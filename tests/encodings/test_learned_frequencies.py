"""RoPE with learned frequencies: where it starts, its gradients, and everything that follows it."""

import json
from pathlib import Path

import pytest
import torch

import headscape as hs
from headscape.call.definition import AttentionCall
from headscape.diagnosis.remedies import pair_turns, remedies_for
from headscape.gpt2 import GPT2, ModelConfig
from headscape.huggingface.export.stock_architecture import as_gpt_neox
from headscape.kernels.attend import attention
from headscape.measures.rotation import wavelengths
from headscape.models.gpt2_model import GPT2Model
from headscape.models.stretched import Extension, stretched_gpt2
from headscape.properties.probe import draw

SIZES = {"layers": 2, "heads": 2, "width": 16, "vocabulary": 32, "train_length": 16}
PAIRS = 4


def model(**fields: object) -> GPT2:
    torch.manual_seed(0)
    return GPT2(ModelConfig(encoding="rope", encoding_fields=fields, **SIZES)).double().eval()


def learned(**fields: object) -> GPT2:
    """A model whose layers have factors of their own."""
    made = model(learned_frequencies=True, **fields)
    for layer in range(2):
        made.encoding(layer).log_factor.data = 0.5 * draw(PAIRS, seed=layer)
    return made


def tokens(length: int) -> torch.Tensor:
    return torch.randint(32, (1, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_it_starts_as_rope() -> None:
    plain, made = model(), model(learned_frequencies=True)
    made.load_state_dict(plain.state_dict(), strict=False)
    assert torch.equal(made(tokens(20)), plain(tokens(20)))
    more = {name for name, _ in made.named_parameters()} - set(dict(plain.named_parameters()))
    assert len(more) == 2
    assert all(name.endswith("log_factor") for name in more)
    assert not torch.allclose(learned()(tokens(20)), plain(tokens(20)))


def test_gradients_of_the_factors_are_differences() -> None:
    made = hs.build("rope", heads=2, head_dim=8, width=16, learned_frequencies=True).double()
    q, k, v = (draw(1, 2, 9, 8, seed=seed) for seed in (1, 2, 3))
    made.log_factor.data = 0.3 * draw(PAIRS, seed=4)

    def out(_: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, encoding=made)

    # The difference is taken by writing to the parameter in place.
    assert torch.autograd.gradcheck(out, (made.log_factor,))


def test_an_optimizer_changes_the_frequencies() -> None:
    made = model(learned_frequencies=True).train()
    before = made.encoding(1).frequencies(0).detach()
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.01)
    made(tokens(16)).square().mean().backward()
    optimizer.step()
    assert (made.encoding(1).frequencies(0) != before).all()


@torch.no_grad()
def test_a_checkpoint_from_before_the_field_loads_unchanged(tmp_path: Path) -> None:
    plain = model()
    plain.save_pretrained(tmp_path)
    path = tmp_path / "headscape.json"
    header = json.loads(path.read_text())
    del header["conventions"]["learned_frequencies"]
    assert "learned_frequencies" not in json.dumps(header)
    path.write_text(json.dumps(header))
    opened = GPT2.from_pretrained(tmp_path).double().eval()
    assert not opened.encoding().config.learned_frequencies
    assert torch.equal(opened(tokens(9)), plain(tokens(9)))


def test_bands_and_wavelengths_are_the_learned_ones() -> None:
    made, seen = learned(), {}

    def watch(layer: int, call: AttentionCall) -> None:
        seen[layer] = wavelengths(call)

    GPT2Model(made).observe(tokens(12), [0, 1], watch)
    for layer in range(2):
        speed = 1e4 ** (-torch.arange(PAIRS).double() / PAIRS)
        speed *= (0.5 * draw(PAIRS, seed=layer)).exp()
        torch.testing.assert_close(seen[layer], 2 * torch.pi / speed)


@torch.no_grad()
def test_stretching_keeps_the_factors() -> None:
    made = learned()
    twin = stretched_gpt2(made, Extension(kind="linear", factor=4.0), 64)
    for layer in range(2):
        expected = made.encoding(layer).frequencies(0) / 4
        torch.testing.assert_close(twin.encoding(layer).frequencies(0), expected)


def test_an_export_to_gpt_neox_is_refused() -> None:
    assert as_gpt_neox(learned().float(), 16) == "its frequencies are learned"


@pytest.mark.parametrize("name", ["linear", "yarn", "prope", "clip", "group", "sinks"])
def test_a_diagnosis_does_not_repeat_frequencies_that_its_spec_does_not_have(name: str) -> None:
    spec = GPT2Model(learned()).spec
    chosen, refused = remedies_for(spec, 16, 32, [name])
    assert not chosen
    assert "frequencies are learned" in refused[name]
    assert pair_turns(spec, 16) == []
    plain, _ = remedies_for(GPT2Model(model()).spec, 16, 32, [name])
    assert plain
