"""What a user can ask for wrongly: one sentence that names the value and the way out."""

from pathlib import Path

import jaxtyping
import pytest
import torch

from headscape.encodings import ENCODINGS, build
from headscape.encodings.registry import SHIPPED
from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig, preset
from headscape.training import preset as train_preset

SHAPE = {"heads": 2, "head_dim": 4, "width": 8, "train_length": 16}


@pytest.fixture(autouse=True)
def _types_unchecked():
    """Users run without the shape checker, which would see a wrong literal first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def sentence(error: pytest.ExceptionInfo[InputError]) -> str:
    message = str(error.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("alibbi", "alibi"), ("kerpel", "kerple"), ("rop", "rope"), ("cabel", "cable"), ("T5", "t5")],
)
def test_an_unknown_encoding_names_the_nearest(wrong: str, nearest: str) -> None:
    for name in (wrong, f"dapev2+{wrong}"):
        with pytest.raises(InputError, match=rf"'{wrong}': did you mean '{nearest}'\?$"):
            build(name, **SHAPE)
    with pytest.raises(InputError, match="there are nope, ") as error:
        build("zzz", **SHAPE)
    listed = sentence(error).rpartition("there are ")[2].partition(";")[0]
    assert listed.split(", ") == [*ENCODINGS, *SHIPPED]


@pytest.mark.parametrize("encoding", ["pope", "nope,pope", "dape+pope", "pope+kerple"])
def test_a_weighted_norm_after_a_rotation_that_widens(encoding: str) -> None:
    fields = {"layers": 2, "heads": 2, "width": 8, "encoding": encoding, "qk_norm": "after"}
    for built in (lambda: GPT2(ModelConfig(**fields)), lambda: train_preset("nano", **fields)):
        with pytest.raises(
            InputError, match=r"PE(\+Kerple)? makes queries and keys wider: use"
        ) as error:
            built()
        sentence(error)
    GPT2(ModelConfig(**fields, qk_norm_weight=False))(torch.zeros(1, 3, dtype=torch.long))


def test_an_unknown_wrapper() -> None:
    with pytest.raises(InputError, match=r"'dapev3': did you mean 'dapev2'"):
        build("dapev3+alibi", **SHAPE)
    with pytest.raises(InputError, match=r"'dape'.*dape\+"):
        build("dape", **SHAPE)
    for base in ("learned", "cope"):
        with pytest.raises(InputError, match="cannot wrap"):
            build(f"dape+{base}", **SHAPE)


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'slope'.*did you mean 'slopes'"):
        build("alibi", **SHAPE, slope="mpt")
    with pytest.raises(InputError, match=r"'kernal'.*did you mean 'kernel'"):
        build("dapev2+alibi", **SHAPE, kernal=5)
    with pytest.raises(InputError, match=r"'base'.*there are chunk, sink, softcap"):
        build("nope", **SHAPE, base=2.0)


@pytest.mark.parametrize(
    ("name", "fields", "value"),
    [
        ("alibi", {"slopes": "linear"}, "'linear'"),
        ("alibi", {"divisor": 2}, "2"),
        ("sinusoidal", {"layout": "thirds"}, "'thirds'"),
        ("rope", {"pairing": "half"}, "'half'"),
        ("rope", {"scaling": "su"}, "'su'"),
        ("rope", {"factor": 0.5}, "0.5"),
        ("rope", {"rotary_fraction": 1.5}, "1.5"),
        ("rope", {"rotary_fraction": 0.0}, "0.0"),
        ("rope", {"base": 1.0}, "1.0"),
        ("rope", {"low_freq_factor": 4.5}, "4.5"),
        ("t5", {"buckets": 7}, "7"),
        ("t5", {"max_distance": 4}, "4"),
        ("t5-clipped", {"max_distance": 0}, "0"),
        ("fire", {"mlp_width": 0}, "0"),
        ("fire", {"length": -3.0}, "-3.0"),
        ("fire", {"activation": "gelu"}, "'gelu'"),
        ("cable", {"increments": "exp"}, "'exp'"),
        ("k-cable", {"weights": "yes"}, "'yes'"),
        ("cope", {"positions": 1}, "1"),
        ("cope", {"divide": "all"}, "'all'"),
        ("sandwich", {"first": 2}, "2"),
        ("sandwich", {"dims": 5}, "5"),
        ("learned", {"length": 0}, "0"),
        ("dape+alibi", {"hidden": 0}, "0"),
        ("dapev2+alibi", {"kernel": 4}, "4"),
        ("dapev2+alibi", {"boundary": "zero"}, "'zero'"),
    ],
)
def test_a_bad_value_is_named(name: str, fields: dict[str, object], value: str) -> None:
    with pytest.raises(InputError) as error:
        build(name, **SHAPE, **fields)
    assert value in sentence(error)
    assert next(iter(fields)) in sentence(error)


@pytest.mark.parametrize("field", ["heads", "head_dim", "width", "train_length"])
def test_a_shape_without_extent(field: str) -> None:
    with pytest.raises(InputError, match=f"{field} must be at least 1, got 0"):
        build("alibi", **(SHAPE | {field: 0}))


def test_odd_rotary_widths() -> None:
    with pytest.raises(InputError, match=r"fit into pairs of the head: head_dim 5 x rotary"):
        build("rope", heads=1, head_dim=5, width=5, train_length=8)
    with pytest.raises(InputError, match=r"even, got 5"):
        build("xpos", heads=1, head_dim=5, width=5, train_length=8)
    with pytest.raises(InputError, match=r"even .*7"):
        build("sinusoidal", heads=1, head_dim=7, width=7, train_length=8)


@pytest.mark.parametrize("scaling", ["ntk", "dynamic"])
def test_two_rotary_dims_cannot_be_stretched_by_their_base(scaling: str) -> None:
    with pytest.raises(InputError, match="2"):
        build("rope", heads=1, head_dim=2, width=2, train_length=8, scaling=scaling, factor=2.0)


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(InputError, match=r"7 heads do not divide a width of 32.*multiple of 7"):
        ModelConfig(layers=1, heads=7, width=32)


@pytest.mark.parametrize("field", ["layers", "heads", "width", "vocabulary", "train_length"])
def test_a_model_without_extent(field: str) -> None:
    with pytest.raises(InputError, match=f"{field} must be at least 1, got -2"):
        ModelConfig(**({"layers": 1, "heads": 1, "width": 4} | {field: -2}))


def test_an_unknown_scale_and_preset() -> None:
    with pytest.raises(InputError, match="'sqrt'"):
        ModelConfig(layers=1, heads=1, width=4, scale="sqrt")
    with pytest.raises(InputError, match=r"'smal'.*did you mean 'small'"):
        preset("smal")
    with pytest.raises(InputError, match="'encodding'"):
        ModelConfig.from_json({"layers": 1, "heads": 1, "width": 4, "encodding": "alibi"})
    with pytest.raises(InputError, match="'width'"):
        ModelConfig.from_json({"layers": 1, "heads": 1})


def test_a_sequence_longer_than_learned_can_hold() -> None:
    model = GPT2(
        ModelConfig(layers=1, heads=1, width=4, vocabulary=5, train_length=8, encoding="learned")
    )
    assert model(torch.zeros(1, 8, dtype=torch.long)).shape == (1, 8, 5)
    with pytest.raises(InputError, match=r"position 8 is past the learned table's 8 rows") as error:
        model(torch.zeros(1, 9, dtype=torch.long))
    sentence(error)


def test_weights_are_not_saved_into_a_training_run(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    model = GPT2(ModelConfig(layers=1, heads=2, width=8, vocabulary=9, train_length=8))
    with pytest.raises(InputError, match="run is a training run: choose a different folder"):
        model.save_pretrained(tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.safetensors"))


def test_a_plus_without_an_encoding() -> None:
    with pytest.raises(InputError, match="'rope\\+' has a plus without an encoding beside it"):
        build("rope+", **SHAPE)
