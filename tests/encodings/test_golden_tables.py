"""Tables of published encoders: WavLM, MPNet, Swin and BEiT, against transformers' own biases."""

import pytest
import torch
from second_wave import TIGHT, load
from torch import Tensor

from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, LayerInput, build


def made(name: str, config: dict, **fields: object) -> Encoding:
    heads, head_dim = config["H"], config["D"]
    return build(
        name, heads=heads, head_dim=head_dim, width=heads * head_dim, train_length=config["L"],
        causal=False, **fields,
    ).double()  # fmt: skip


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.detach(), theirs, **TIGHT)


def test_wavlm_gates_its_buckets() -> None:
    z, config = load("readout_tables_h4")
    sizes = {"buckets": config["wavlm_buckets"], "max_distance": config["wavlm_max_distance"]}
    where = Positions.span(config["L"])
    ungated = made("t5", config, **sizes)
    ungated.load_published({"weight": z["wavlm_table"]})
    same(dense(ungated.bias(LayerContext(where)), where)[0], z["wavlm_bias"])
    gated = made("wavlm", config, **sizes)
    gated.load_published(
        {
            "rel_attn_embed.weight": z["wavlm_table"],
            "gru_rel_pos_linear.weight": z["wavlm_linear_weight"],
            "gru_rel_pos_linear.bias": z["wavlm_linear_bias"],
            "gru_rel_pos_const": z["wavlm_const"].reshape(1, -1, 1, 1),
        }
    )
    stream = gated.stream(LayerInput(z["wavlm_x"]))
    same(dense(gated.bias(LayerContext(where, stream, stream)), where)[0], z["wavlm_gated"])


def test_mpnet_has_t5s_buckets() -> None:
    z, config = load("readout_tables_h4")
    found, where = made("t5", config), Positions.span(config["L"])
    found.load_published({"relative_attention_bias.weight": z["mpnet_table"]})
    same(dense(found.bias(LayerContext(where)), where)[0], z["mpnet_bias"])


@pytest.mark.parametrize("name", ["swin", "beit"])
def test_tables_of_a_grid(name: str) -> None:
    z, config = load("readout_tables_h4")
    rows, columns = config["window"]
    found = made("grid", config, rows=rows, columns=columns, class_token=name == "beit")
    found.load_published({"relative_position_bias_table": z[f"{name}_table"]})
    where = Positions.span(rows * columns + (name == "beit"))
    assert torch.equal(found.index(where)[0], z[f"{name}_index"])
    bias = dense(found.bias(LayerContext(where)), where)[0]
    same(bias, z[f"{name}_bias"])
    if name == "beit":
        same(bias, z["beit_forward"])


@pytest.mark.parametrize(("rows", "columns"), [(1, 6), (3, 2), (2, 5)])
@pytest.mark.parametrize("name", ["swin", "beit"])
def test_grids_that_are_not_square(name: str, rows: int, columns: int) -> None:
    """The indices equal transformers'; its BEiT then resizes the table and reads wrong entries."""
    if name == "swin":
        from transformers.models.swin.modeling_swin import SwinRelativePositionBias

        index = SwinRelativePositionBias(2, (rows, columns)).relative_position_index
    else:
        from transformers.models.beit.modeling_beit import BeitRelativePositionBias

        index = BeitRelativePositionBias.generate_relative_position_index((rows, columns))
    found = made(
        "grid", {"H": 2, "D": 4, "L": 9}, rows=rows, columns=columns, class_token=name == "beit"
    )
    where = Positions.span(rows * columns + (name == "beit"))
    assert torch.equal(found.index(where)[0], index.reshape(where.distance()[0].shape))
