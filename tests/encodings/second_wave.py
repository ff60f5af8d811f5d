"""The vectors of tests/golden/second, and the package's modules on them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions
from headscape.encodings import Encoding, build
from headscape.kernels.assemble import prepare

SECOND = Path(__file__).parents[1] / "golden" / "second"
TIGHT = {"rtol": 1e-6, "atol": 1e-6}


def load(name: str) -> tuple[dict[str, Tensor], dict]:
    with np.load(SECOND / f"{name}.npz") as z:
        found = {key: torch.tensor(z[key]) for key in z if key != "config"}
        config = json.loads(str(z["config"]))
    floats = {key: x.double() if x.is_floating_point() else x for key, x in found.items()}
    return floats, config


def encoding(name: str, config: dict, **fields: object) -> Encoding:
    heads, head_dim = config["H"], config["D"]
    made = build(
        name, heads=heads, head_dim=head_dim, width=heads * head_dim, train_length=64,
        causal=config.get("causal", True), **fields,
    )  # fmt: skip
    return made.double()


def inputs(made: Encoding, z: dict[str, Tensor], **changes: object) -> AttentionCall:
    where = Positions.span(z["q"].shape[2], z["k"].shape[2])
    return replace(prepare(made, z["q"], z["k"], z["v"], None, where), **changes)


def same_scores(found: definition.Scores, expected: Tensor) -> None:
    seen = found.visible.expand_as(found.final)
    assert torch.equal(seen, torch.isfinite(expected))
    torch.testing.assert_close(found.final[seen], expected[seen], **TIGHT)
