"""The weights of a golden file, loaded into the package's modules.

`encoding(name, z)` builds the encoding of a file in float64 with the file's conventions; `scale`
is what that code multiplies q.k by.
"""

import json
import re

import numpy as np
import torch
from torch import Tensor

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

# Arrays of a file whose name differs from the published one by more than dots for underscores.
RENAMED = {
    "w1": "mlp.0.weight",
    "b1": "mlp.0.bias",
    "w2": "mlp.2.weight",
    "b2": "mlp.2.bias",
    "param_bias_p": "bias_p",
    "param_bias_a": "bias_a",
}
DOTTED = re.compile(r"(mlp2|mlp_dape)_([02])_(weight|bias)|(cable_layer(?:_scale)?)_(weight|bias)")
UNCHANGED = ("c", "L_multiplier", "init_L", "bias_p", "bias_a")
PROJECTIONS = {"cable_official_v1_h12": "h_attn", "fox_fla_h12": "f_proj"}
TABLES = {"t5_hf_causal_h12_L48", "t5bias_cable_official_h12"}


def tensor(value: np.ndarray) -> Tensor:
    """A float64 tensor of an array."""
    return torch.tensor(value, dtype=torch.float64)


def published_names(name: str, z: Golden) -> dict[str, str]:
    """The arrays of a file that are parameters, and their names in the authors' state_dict."""
    if name in PROJECTIONS:
        return {"w": f"{PROJECTIONS[name]}.weight", "b": f"{PROJECTIONS[name]}.bias"}
    if name in TABLES:
        return {"weight": "relative_attention_bias.weight"}
    names = {array: RENAMED[array] for array in RENAMED if array in z}
    names |= {array: array for array in UNCHANGED if array in z}
    for array in z:
        if found := DOTTED.fullmatch(array):
            names[array] = ".".join(part for part in found.groups() if part)
    return names


def parameters(name: str, z: Golden, made: Encoding) -> dict[str, str]:
    """The arrays of a file that are parameters, and the names of ours."""
    ours = {theirs: mine for each in made.published for theirs, mine in each.items()}
    names = published_names(name, z)
    return {array: ours[theirs] for array, theirs in names.items() if theirs in ours}


def encoding(name: str, z: Golden, *, causal: bool = True, **fields: object) -> Encoding:
    """The file's encoding with the authors' weights, loaded by their published names."""
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
    tensors = {theirs: tensor(z[array]) for array, theirs in published_names(name, z).items()}
    if next(made.parameters(), None) is None:
        assert not tensors
        return made
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(torch.nan)
    made.load_published(tensors, source=name)
    assert all(torch.isfinite(parameter).all() for parameter in made.parameters())
    return made


def scale(z: Golden) -> float:
    """What the file's code multiplies q.k by."""
    said = str(json.loads(str(z["config"])).get("qk_scale", ""))
    heads, head_dim = z["q"].shape[1::2]
    if said.startswith("1/sqrt(n_embd)"):
        return (heads * head_dim) ** -0.5
    return 1.0 if said == "1.0" else head_dim**-0.5
