"""Every encoding with learned tensors loads its authors' by their published names.

The golden tests load the files of tests/golden the same way; here are the names they do not cover,
and what is refused.
"""

from typing import Any

import pytest
import torch

from headscape.encodings import ENCODINGS, WRAPPERS, Encoding, build
from headscape.errors import InputError
from headscape.kernels.attend import attention
from headscape.properties.probe import draw, randomise

HEADS, DIM, WIDTH = 3, 4, 12
LEARNED = [*ENCODINGS, *(f"{wrapper}+kerple" for wrapper in WRAPPERS)]


UNPUBLISHED = ("carope", "wall")
"""Encodings without public code, or whose public code has no learned tensors."""
LARGEST: dict[str, tuple[Any, ...]] = {
    "sinusoidal": ("sinusoidal", {"learned_scale": True}),
    "rope": ("rope", {"learned_frequencies": True}),
    "k-cable": ("k-cable", {"weights": "inside"}),
    "cable-nw": ("cable", {}),
    "bam": ("bam", {"train_loc": True}),
    "deberta": ("deberta", {"norm": True}),
    "inkling": ("inkling", {"projection_bias": True}, {"clip": 8.0}),
    "grape": ("grape", {"gate": "both"}, {"gate": "path"}),
    "path": ("path", {"gate": True, "convolution_bias": True}),
    "selective-rope": (
        "selective-rope",
        {},
        {"projection": "per-head", "gate": "pair", "bias": True, "learned_rates": True},
    ),
}
"""The encoding, and its fields, that has all parameters which a class names as published.

Where no one form has them all, several.
"""


def encoding(name: str, **fields: object) -> Encoding:
    return build(name, heads=HEADS, head_dim=DIM, width=WIDTH, train_length=16, **fields).double()


def own_parameters(made: Encoding) -> set[str]:
    return {name for name, _ in made.named_parameters() if not name.startswith("base.")}


@pytest.mark.parametrize("name", LEARNED)
def test_every_learned_tensor_has_a_published_name(name: str) -> None:
    made = encoding(name)
    if name in UNPUBLISHED:
        with pytest.raises(InputError, match="lists no published names"):
            made.load_published({})
        return
    largest, *forms = LARGEST.get(name, (name, {}))
    known = set().union(*(own_parameters(encoding(largest, **fields)) for fields in forms))
    for mapping in made.published:
        assert set(mapping.values()) <= known
    if own_parameters(made):
        assert any(set(mapping.values()) >= own_parameters(made) for mapping in made.published)
    else:
        with pytest.raises(InputError, match="has no learned tensors"):
            made.load_published({})


@pytest.mark.parametrize(
    ("name", "fields", "tensors"),
    [
        ("learned", {}, {"wpe.weight": (16, 12)}),
        ("learned", {"offset": 2}, {"embed_positions.weight": (18, 12)}),
        ("sinusoidal", {"learned_scale": True}, {"scale": (1,)}),
        ("rope", {"learned_frequencies": True}, {"rotary_emb.alpha": (2,)}),
        ("t5", {}, {"relative_attention_bias.weight": (32, 3)}),
        ("t5", {}, {"weight": (32, 3)}),
        ("t5-clipped", {}, {"relative_attention_bias.weight": (513, 3)}),
        ("fox", {}, {"fgate_proj.weight": (3, 12), "fgate_proj.bias": (3,)}),
        ("fox", {}, {"f_proj.weight": (3, 12), "f_proj.bias": (3,)}),
        ("fox", {}, {"to_forget_gates.0.weight": (3, 12), "to_forget_gates.0.bias": (3,)}),
        ("cable-nw", {}, {"cable_layer.weight": (3, 12), "cable_layer.bias": (3,)}),
        (
            "k-cable",
            {"weights": "outside"},
            {
                "cable_layer.weight": (3, 12),
                "cable_layer.bias": (3,),
                "cable_layer_scale.weight": (3, 12),
                "cable_layer_scale.bias": (3,),
            },
        ),
    ],
)
def test_a_published_tensor_is_copied_as_it_is(
    name: str, fields: dict[str, object], tensors: dict[str, tuple[int, ...]]
) -> None:
    made = encoding(name, **fields)
    given = {their: draw(*shape, seed=seed) for seed, (their, shape) in enumerate(tensors.items())}
    more = {f"h.3.attn.{their}": value for their, value in given.items()} | {"wte": torch.zeros(1)}
    (mapping,) = [m for m in made.published if given.keys() <= m.keys()]
    made.load_published(more, prefix="h.3.attn.")
    for their, value in given.items():
        assert torch.equal(made.get_parameter(mapping[their]).flatten(), value.flatten())


def test_cope_takes_both_layouts() -> None:
    official, transposed = encoding("cope", positions=5), encoding("cope", positions=5)
    table = draw(1, DIM, 5, seed=1)
    official.load_published({"pos_emb": table})
    transposed.load_published({"pos_emb": table[0].T})
    assert torch.equal(official.table, table[0])
    assert torch.equal(transposed.table, table[0])


def test_a_wrapper_loads_its_base_too() -> None:
    source, target = encoding("dapev2+cable"), encoding("dapev2+cable")
    randomise(source, seed=1)
    tensors = {}
    for part in (source, source.base):
        for theirs, ours in part.published[0].items():
            tensors[f"layers.0.{theirs}"] = part.get_parameter(ours).detach().clone()
    target.load_published(tensors, source="model.safetensors", prefix="layers.0.")
    q, k, v = (draw(1, HEADS, 9, DIM, seed=seed) for seed in (1, 2, 3))
    x = draw(1, 9, WIDTH, seed=4)
    expected = attention(q, k, v, encoding=source, x=x)
    assert torch.equal(attention(q, k, v, encoding=target, x=x), expected)


def fire_tensors() -> dict[str, torch.Tensor]:
    return {
        "c": torch.tensor(0.1),
        "L_multiplier": torch.tensor(1.0),
        "init_L": torch.tensor(512.0),
        "mlp.0.weight": torch.zeros(32, 1),
        "mlp.0.bias": torch.zeros(32),
        "mlp.2.weight": torch.zeros(HEADS, 32),
        "mlp.2.bias": torch.zeros(HEADS),
    }


def test_fire_refuses_another_frozen_length() -> None:
    made = encoding("fire")
    made.load_published(fire_tensors())
    with pytest.raises(InputError, match=r"a\.pt: init_L is 64, but .* length 512; .* length=64"):
        made.load_published(fire_tensors() | {"init_L": torch.tensor(64.0)}, source="a.pt")


def test_a_missing_or_misshapen_tensor_is_named_and_nothing_changes() -> None:
    made = encoding("fire")
    before = {name: value.clone() for name, value in made.named_parameters()}
    given = fire_tensors()
    missing = {name: value for name, value in given.items() if name != "mlp.2.bias"}
    with pytest.raises(InputError, match=r"a\.pt has no tensor 'mlp\.2\.bias', which Fire needs"):
        made.load_published(missing, source="a.pt")
    with pytest.raises(
        InputError, match=r"'mlp\.2\.bias' has shape \(7,\), but this Fire needs \(3,\)"
    ):
        made.load_published(given | {"mlp.2.bias": torch.zeros(7)})
    with pytest.raises(InputError, match=r"has no tensor 'h\.0\.c'.*pass prefix="):
        made.load_published(given, prefix="h.0.")
    assert all(torch.equal(before[name], value) for name, value in made.named_parameters())
