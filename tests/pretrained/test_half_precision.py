"""Models in half precision: recognised as in float64, and a wrong reading is still caught."""

from typing import Any

import pytest
import torch

from headscape.errors import InputError
from headscape.models.load import load
from pretrained.families import FAMILIES

pytest.importorskip("transformers")
# transformers scripts a function of DeBERTa with TorchScript while it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
NAMES = ["llama", "llama-yarn", "gemma3", "phi", "cohere", "glm", "gpt-oss", "gptj", "helium",
         "roformer", "llama4", "llama4-nope", "ministral3", "phi3-longrope", "smollm3", "bloom",
         "mpt", "t5", "mpnet", "layoutlmv3", "deberta-v1", "deberta-v3", "xlnet", "wavlm", "sew-d",
         "wav2vec2-conformer", "wav2vec2-bert", "wav2vec2-bert-rotary"]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_family_is_recognised_with_the_same_conventions(name: str, dtype: torch.dtype) -> None:
    family = FAMILIES[name]
    spec = load(family.build().to(dtype)).spec
    assert tuple(layer.encoding for layer in spec.layers) == family.encodings
    found = dict(spec.layers[-1].conventions)
    assert {key: found.get(key) for key in family.conventions} == family.conventions


def test_a_rotation_that_is_none_of_ours_is_unknown() -> None:
    theirs = FAMILIES["llama"].build().bfloat16()
    theirs.model.rotary_emb.inv_freq *= 1.3
    assert load(theirs).spec.encoding == "unknown"


def test_a_wrong_reading_stops_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def odd(module: Any, q: Any, k: Any, v: Any, mask: Any, **more: Any) -> Any:
        more["scaling"] *= 0.7
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, q, k, v, mask, **more)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "odd", odd)
    theirs = FAMILIES["llama"].build().bfloat16()
    theirs.config._attn_implementation = "odd"
    with pytest.raises(InputError, match=r"in layer 0 .* differs by .* rounding explains"):
        load(theirs)
