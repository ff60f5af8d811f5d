"""The authors' weights of a golden file, put into the package's modules.

`encoding(name, z)` builds the encoding of a file in float64 with the file's conventions; `scale`
is what that code multiplies q.k by.
"""

import json

import numpy as np
import torch
from torch import Tensor, nn

from headscape.encodings import Encoding, build
from oracle.golden_cases import GOLDEN, Golden, load

__all__ = ["FILES", "Golden", "encoding", "load", "scale", "tensor"]

FILES = sorted(path.stem for path in GOLDEN.glob("*.npz"))

NAMES: dict[str, tuple[str, dict[str, object]]] = {
    "alibi_cable_official_h12": ("alibi", {}),
    "alibi_neox_h12": ("alibi", {"slopes": "fairseq"}),
    "alibi_xtransformers_h12": ("alibi", {"slopes": "fairseq"}),
    "cable6_weighted_thirdparty_h12": ("cable", {}),
    "cable_official_v1_h12": ("cable-nw", {}),
    "dape_cable_official_kerple_h12": ("dape+kerple", {"base_bias": "channel-only"}),
    "dape_v1_kerple_h12": ("dape+kerple", {}),
    "dape_v1_rope_h12": ("dape+nope", {}),
    "dapev2_alibi_h8": ("dapev2+alibi", {"slopes": "fairseq", "boundary": "released"}),
    "dapev2_kerple_h12": ("dapev2+kerple", {"boundary": "released"}),
    "fire_cable_official_h12": ("fire", {}),
    "fire_dape_h12": ("fire", {}),
    "fire_megatron_h12": ("fire", {}),
    "fox_fla_h12": ("fox", {}),
    "kcable_nw_h12": ("k-cable", {}),
    "kerple_log_h12": ("kerple", {}),
    "kerple_power_ap_h12": ("kerple-power", {}),
    "rope_halfsplit_neox_h12": ("rope", {"pairing": "halves"}),
    "rope_interleaved_cable_official_h12": ("rope", {}),
    "t5_hf_causal_h12_L48": ("t5", {}),
    "t5bias_cable_official_h12": ("t5-clipped", {}),
}

# Their name of a tensor -> ours.
TENSORS = {
    "w1": "inner.weight",
    "b1": "inner.bias",
    "w2": "outer.weight",
    "b2": "outer.bias",
    "c": "c",
    "L_multiplier": "length_multiplier",
    "mlp2_0_weight": "inner.weight",
    "mlp2_0_bias": "inner.bias",
    "mlp2_2_weight": "outer.weight",
    "mlp2_2_bias": "outer.bias",
    "mlp_dape_0_weight": "inner.weight",
    "mlp_dape_0_bias": "inner.bias",
    "mlp_dape_2_weight": "outer.weight",
    "mlp_dape_2_bias": "outer.bias",
    "cable_layer_weight": "increment.weight",
    "cable_layer_bias": "increment.bias",
    "cable_layer_scale_weight": "weight.weight",
    "cable_layer_scale_bias": "weight.bias",
}
PROJECTIONS = {"cable_official_v1_h12": "increment", "fox_fla_h12": "gate"}
TABLES = {"t5_hf_causal_h12_L48", "t5bias_cable_official_h12"}


def tensor(value: np.ndarray) -> Tensor:
    """A float64 tensor of an array."""
    return torch.tensor(value, dtype=torch.float64)


def ours(name: str) -> dict[str, str]:
    """Their tensors' names in this file and ours."""
    if name in PROJECTIONS:
        return {"w": f"{PROJECTIONS[name]}.weight", "b": f"{PROJECTIONS[name]}.bias"}
    return {"weight": "table.weight"} if name in TABLES else TENSORS


def encoding(name: str, z: Golden, *, causal: bool = True, **fields: object) -> Encoding:
    """The file's encoding with the authors' weights."""
    kind, conventions = NAMES[name]
    if "init_L" in z:
        conventions = conventions | {"length": float(z["init_L"])}
    heads, head_dim = z["q"].shape[1::2] if "q" in z else (12, 16)
    made = build(
        kind,
        heads=heads,
        head_dim=head_dim,
        width=heads * head_dim,
        train_length=32,
        causal=causal,
        **(conventions | fields),
    ).double()
    names = {theirs: mine for theirs, mine in ours(name).items() if theirs in z}
    with torch.no_grad():
        for theirs, mine in names.items():
            parameter = made.get_parameter(mine)
            assert parameter.shape == z[theirs].shape
            parameter.copy_(tensor(z[theirs]))
    loaded = set(names.values())
    prefix = "param_bias" if "param_bias_p" in z else "bias"
    if f"{prefix}_p" in z:
        kernel: nn.Module = made.base if "+" in kind else made
        kernel.load_published(tensor(z[f"{prefix}_p"]), tensor(z[f"{prefix}_a"]))
        start = "base." if "+" in kind else ""
        loaded |= {f"{start}raw_p", f"{start}raw_a"}
    assert loaded == {parameter for parameter, _ in made.named_parameters()}
    return made


def scale(z: Golden) -> float:
    """What the file's code multiplies q.k by."""
    said = str(json.loads(str(z["config"])).get("qk_scale", ""))
    heads, head_dim = z["q"].shape[1::2]
    if said.startswith("1/sqrt(n_embd)"):
        return (heads * head_dim) ** -0.5
    return 1.0 if said == "1.0" else head_dim**-0.5
