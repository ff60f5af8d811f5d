"""Checkpoints: bit-exact round trips, and every damaged folder named for what it is."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save_file

from headscape.encodings import ENCODINGS
from headscape.errors import InputError
from headscape.gpt2 import GPT2, ModelConfig

SIZES = {"layers": 2, "heads": 2, "width": 8, "vocabulary": 11, "train_length": 8}


def made(encoding: str = "kerple", **changes: object) -> GPT2:
    return GPT2(ModelConfig(encoding=encoding, **(SIZES | changes)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("encoding", [*ENCODINGS, "dape+alibi", "dapev2+cable"])
def test_a_round_trip_is_bit_exact(tmp_path: Path, encoding: str) -> None:
    model = made(encoding)
    model.save_pretrained(tmp_path)
    again = GPT2.from_pretrained(tmp_path)
    assert again.config == model.config
    assert again.tensors().keys() == model.tensors().keys()
    for name, value in model.tensors().items():
        assert torch.equal(again.tensors()[name], value), name
    text = torch.randint(11, (1, 8))
    assert torch.equal(again(text), model(text))


def test_a_round_trip_keeps_every_convention(tmp_path: Path) -> None:
    model = made(
        "dapev2+alibi",
        encoding_fields={"slopes": "fairseq", "kernel": 5},
        share_encoding=True,
        scale="width",
        causal=False,
    )
    model.save_pretrained(tmp_path)
    header = json.loads((tmp_path / "headscape.json").read_text())
    assert header["conventions"]["slopes"] == "fairseq"
    assert header["conventions"]["boundary"] == "masked", "defaults are written out"
    again = GPT2.from_pretrained(tmp_path)
    assert again.config == model.config
    assert again.conventions() == model.conventions()
    assert {path.name for path in tmp_path.iterdir()} == {"headscape.json", "model.safetensors"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors, from a copy in memory: the file is about to be overwritten."""
    return load((folder / "model.safetensors").read_bytes())


def rewritten(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Other weights under an honest checksum."""
    from headscape.gpt2.weights import sha256

    save_file(tensors, folder / "model.safetensors")
    header = json.loads((folder / "headscape.json").read_text())
    header["sha256"] = sha256(folder / "model.safetensors")
    (folder / "headscape.json").write_text(json.dumps(header))


def refused(folder: Path, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        GPT2.from_pretrained(folder)
    message = str(error.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert str(folder) in message


@pytest.mark.parametrize("keep", [0, 5, 8, 200, -1])
def test_a_truncated_file(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(folder, "truncated or damaged")


def test_a_changed_byte(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    refused(folder, "checksum")


def test_a_missing_tensor(folder: Path) -> None:
    tensors = weights(folder)
    del tensors["blocks.1.up.bias"]
    rewritten(folder, tensors)
    refused(folder, r"has no tensor .*'blocks\.1\.up\.bias'")


def test_a_surplus_tensor(folder: Path) -> None:
    tensors = weights(folder)
    rewritten(folder, tensors | {"blocks.7.up.bias": torch.zeros(3)})
    refused(folder, r"'blocks\.7\.up\.bias', which this model does not")


def test_a_wrong_shape(folder: Path) -> None:
    tensors = weights(folder)
    rewritten(folder, tensors | {"norm.bias": torch.zeros(5)})
    refused(folder, r"'norm\.bias' with shape \(5,\).*needs \(8,\)")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_named_safetensors(folder: Path, zipped: bool) -> None:
    tensors = weights(folder)
    torch.save(tensors, folder / "model.safetensors", _use_new_zipfile_serialization=zipped)
    refused(folder, "pickle")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_a_pickle_beside(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    refused(folder, rf"{name} is a pickle.*convert")


def test_a_header_whose_length_looks_like_a_pickles_start_is_read(tmp_path: Path) -> None:
    from headscape.gpt2.weights import read_tensors

    path = tmp_path / "model.safetensors"
    starts = set()
    for size in range(1, 400):
        save_file({"w" * size: torch.ones(2)}, path)
        starts.add(path.read_bytes()[0])
        assert list(read_tensors(path)) == ["w" * size]
    assert 0x80 in starts


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "no model.safetensors")


def test_no_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no folder")


def test_an_empty_folder(tmp_path: Path) -> None:
    refused(tmp_path, "neither headscape.json nor config.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "must contain a JSON object"),
        ('{"format": 99}', "format 99"),
        ('{"format": 1}', "does not describe a model"),
    ],
)
def test_a_damaged_header(folder: Path, text: str, said: str) -> None:
    (folder / "headscape.json").write_text(text)
    refused(folder, said)


def test_a_header_with_a_field_of_the_future(folder: Path) -> None:
    header = json.loads((folder / "headscape.json").read_text())
    header["model"]["flavour"] = 1
    (folder / "headscape.json").write_text(json.dumps(header))
    with pytest.raises(InputError, match="'flavour'"):
        GPT2.from_pretrained(folder)


def hugging_face(folder: Path, **changes: object) -> Path:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 11, "n_positions": 8}
    GPT2LMHeadModel(GPT2Config(**(sizes | changes))).save_pretrained(folder)
    return folder


def test_hugging_face_conventions_we_do_not_have_are_refused(tmp_path: Path) -> None:
    refused(
        hugging_face(tmp_path / "relu", activation_function="relu"), "activation_function='relu'"
    )
    refused(hugging_face(tmp_path / "wide", n_inner=20), "n_inner=20")
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "config.json").write_text('{"model_type": "bert"}')
    refused(bert, "'bert' model")


def test_a_hugging_face_folder_with_other_tensors(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path)
    tensors = weights(folder)
    save_file(
        tensors | {"transformer.h.0.attn.rotary": torch.zeros(1)}, folder / "model.safetensors"
    )
    refused(folder, r"'transformer\.h\.0\.attn\.rotary'")
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8)}
    save_file(tensors | masks, folder / "model.safetensors")
    assert GPT2.from_pretrained(folder).config.width == 8
