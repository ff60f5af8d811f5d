"""A family that computes attention in its own code is added by one record.

The record goes into FAMILIES of models/transformers/families.py; here it is put there for a test.
"""

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contributing import shown
from headscape.call.definition import scores
from headscape.errors import InputError
from headscape.models.load import load
from headscape.models.transformers import families
from headscape.models.transformers.families import Family, projected
from headscape.models.transformers.observed_call import ObservedCall, custom_attention

transformers = pytest.importorskip("transformers")
# transformers scripts a function of DeBERTa with TorchScript while it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


class TinyConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    model_type = "tiny"
    hidden_size, num_attention_heads, num_hidden_layers, vocab_size = 32, 4, 2, 67
    max_position_embeddings = 64


class TinyAttention(nn.Module):
    """Causal attention with ALiBi, written out, which no interface of transformers sees."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(config.hidden_size, config.hidden_size) for _ in range(4)
        )
        heads = torch.arange(1, config.num_attention_heads + 1)
        self.slopes = 2.0 ** (-8 * heads / config.num_attention_heads)
        self.weights = torch.empty(0)

    def bias(self, length: int) -> Tensor:
        at = torch.arange(length)
        return -self.slopes[:, None, None] * (at[:, None] - at)

    def forward(self, hidden_states: Tensor) -> Tensor:
        q, k, v = projected(self, hidden_states, "query key value", self.head_dim)
        length = q.shape[2]
        every = q @ k.mT / math.sqrt(self.head_dim) + self.bias(length)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.weights = every.masked_fill(later, -math.inf).softmax(-1)
        return self.out((self.weights @ v).transpose(1, 2).flatten(2))


class TinyModel(transformers.PreTrainedModel):  # type: ignore[misc]
    config_class = TinyConfig

    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TinyAttention(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, input_ids: Tensor) -> tuple[Tensor]:
        x = self.tokens(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        return (x,)


def shown_family() -> Family:
    """The record that CONTRIBUTING.md shows."""
    found: dict[str, Any] = {}
    exec(shown("A family of published models"), found)  # noqa: S102
    return found["TINY"]  # type: ignore[no-any-return]


TINY = shown_family()
MODULE = TinyAttention.__module__ = "transformers.models.tiny.modeling_tiny"


@pytest.fixture(autouse=True)
def in_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this file be the module of transformers that has the class."""
    monkeypatch.setitem(sys.modules, MODULE, sys.modules[__name__])


def built() -> Any:
    torch.manual_seed(0)
    return TinyModel(TinyConfig()).eval()


def test_without_a_record_it_is_not_captured() -> None:
    with pytest.raises(InputError, match=r"'tiny' model, .* it can be scored, not captured"):
        load(built()).capture([1, 2, 3])


def test_a_record_is_all_that_a_family_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, TINY))
    theirs = built()
    model = load(theirs)
    assert [layer.encoding for layer in model.spec.layers] == ["alibi", "alibi"]
    assert model.spec.layers[0].conventions["slopes"] == "geometric"
    tokens = torch.arange(3, 32)[None]
    found: dict[int, Any] = {}
    model.observe(tokens, range(2), found.__setitem__)
    theirs(tokens)
    for layer, module in enumerate(theirs.layers):
        torch.testing.assert_close(scores(found[layer]).weights, module.weights)


def test_a_wrong_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(module: Any, given: dict[str, Any]) -> ObservedCall:
        q, k, v = projected(module, given["hidden_states"], "key query value", module.head_dim)
        return custom_attention(module, q, k, v, None, 1.0, None)

    record = Family(attention=TINY.attention, read=wrong, result="out")
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, record))
    with pytest.raises(InputError, match="is not read correctly: in layer 0"):
        load(built())


NEWER = {"inkling2": (5, 23)}
"""Families of releases after the one that the checks are run against, and their first release."""


def test_every_record_is_of_a_class_of_transformers() -> None:
    from importlib import import_module

    release = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    for family in families.FAMILIES:
        for name in family.attention:
            package, kind = name.split(".")
            if release < NEWER.get(package, release):
                continue
            module = import_module(f"transformers.models.{package}.modeling_{package}")
            assert isinstance(getattr(module, kind), type), name
            if family.method is not None:
                assert callable(getattr(getattr(module, kind), family.method.name))


def test_no_other_file_names_a_family() -> None:
    """What is known of a family stands in its record: no source file names its attention class."""
    from pathlib import Path

    import headscape

    root = Path(headscape.__file__).parent
    kinds = {name.split(".")[1] for family in families.FAMILIES for name in family.attention}
    kinds -= {"Attention", "MultiHeadAttention"}  # not the names of one family
    for path in [*root.glob("models/**/*.py"), *root.glob("huggingface/**/*.py")]:
        if path.name != "families.py":
            text = path.read_text(encoding="utf-8")
            assert not [kind for kind in kinds if kind in text], path
