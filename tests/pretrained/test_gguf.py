"""GGUF files: a small Llama written with the gguf package, and damaged copies of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.errors import InputError
from headscape.models.transformers import open_published

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
# transformers and gguf warn about their own code while they read a file.
pytestmark = pytest.mark.filterwarnings("default")
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
HEADS, WIDTH, WORDS = 4, 32, 60


def small() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=2,
        vocab_size=WORDS, intermediate_size=64, max_position_embeddings=64, initializer_range=0.3,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tensors(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Weights by llama.cpp's names; its rotation pairs neighbouring dims, so rows are moved."""
    yield "token_embd.weight", model.model.embed_tokens.weight.detach().numpy()
    yield "output_norm.weight", model.model.norm.weight.detach().numpy()
    yield "output.weight", model.lm_head.weight.detach().numpy()
    for number, layer in enumerate(model.model.layers):
        for theirs, name in NAMES.items():
            weight = layer.get_submodule(theirs).weight.detach().numpy()
            if name in {"attn_q", "attn_k"}:
                heads = HEADS if name == "attn_q" else 2
                halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
                weight = halves.swapaxes(1, 2).reshape(weight.shape)
            yield f"blk.{number}.{name}.weight", np.ascontiguousarray(weight)


def write(path: Path, model: Any, *, layers: int = 2) -> Path:
    config = model.config
    file = gguf.GGUFWriter(path, "llama")
    file.add_name("small")
    file.add_context_length(64)
    file.add_embedding_length(WIDTH)
    file.add_block_count(layers)
    file.add_feed_forward_length(64)
    file.add_rope_dimension_count(WIDTH // HEADS)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_head_count(HEADS)
    file.add_head_count_kv(2)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_vocab_size(WORDS)
    file.add_tokenizer_model("gpt2")
    letters = [*(chr(33 + number) for number in range(WORDS - 2)), "AB"]
    file.add_token_list(["<|endoftext|>", *letters])
    file.add_token_types([3] + [1] * (WORDS - 1))
    file.add_token_merges(["A B"])
    file.add_bos_token_id(0)
    file.add_eos_token_id(0)
    for name, values in tensors(model):
        file.add_tensor(name, values)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def test_a_file_gives_the_model_that_was_written(tmp_path: Path) -> None:
    theirs = small()
    model = hs.load(f"hf:{write(tmp_path / 'small.gguf', theirs)}")
    assert model.spec.name == "small"
    assert [layer.encoding for layer in model.spec.layers] == ["rope", "rope"]
    assert model.spec.layers[0].conventions["key_heads"] == 2
    tokens = torch.arange(1, 22)[None]
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        expected = theirs(tokens, output_attentions=True, labels=tokens)
    found = model.capture(tokens[0], layers="all")
    for layer, weights in enumerate(expected.attentions):
        np.testing.assert_allclose(found.weights(layer), weights[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(model.losses(tokens, 0).mean(), expected.loss, rtol=1e-5)
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer.encode("ABC")) == "ABC"


def test_a_file_is_parsed_once_and_shows_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "small.gguf", small())
    parsed: list[Path] = []

    class Counted(gguf.GGUFReader):  # type: ignore[misc]
        def __init__(self, file: Path, *options: Any) -> None:
            parsed.append(Path(file))
            super().__init__(file, *options)

    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    capfd.readouterr()
    hs.load(f"hf:{path}")
    assert parsed == [path]
    assert gguf.GGUFReader is Counted
    assert capfd.readouterr().err == ""


def test_a_gguf_file_is_not_offloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "small.gguf", small())
    with pytest.raises(InputError, match="is a GGUF file, which cannot be offloaded: open it with"):
        hs.load(f"hf:{path}", offload=True)
    monkeypatch.setattr(open_published, "free_bytes", lambda: 10_000)
    with pytest.raises(
        InputError, match=r"memory are free: (open it in bf|choose a smaller model)"
    ):
        hs.load(f"hf:{path}")


def test_a_card_is_read_from_the_header(tmp_path: Path) -> None:
    path = write(tmp_path / "small.gguf", small())
    card = hs.card(f"hf:{path}")
    assert (card.name, card.layers, card.heads, card.key_heads) == ("small", 2, HEADS, 2)
    assert (card.head_dim, card.width, card.stated) == (WIDTH // HEADS, WIDTH, 64)
    assert [kind.encoding for kind in card.kinds] == ["rope"]
    path.write_bytes(b"GGUF")
    with pytest.raises(InputError, match="is not a GGUF file that can be read"):
        hs.card(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_in_a_sentence(tmp_path: Path, share: float) -> None:
    path = write(tmp_path / "small.gguf", small())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError) as caught:
        hs.load(f"hf:{path}")
    said = str(caught.value)
    assert said.startswith(f"{path} is not a GGUF file that can be read")
    assert said.endswith(".")
    assert "\n" not in said


def test_random_bytes_of_the_header_are_refused_or_read(tmp_path: Path) -> None:
    whole = write(tmp_path / "small.gguf", small()).read_bytes()
    random = np.random.default_rng(0)
    refused: list[str] = []
    for number in range(40):
        data = bytearray(whole)
        for at in random.integers(0, 1200, size=3):
            data[at] = random.integers(256)
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data)
        try:
            hs.load(f"hf:{path}")
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 5
    assert all(said.isprintable() for said in refused)


def test_a_file_may_not_state_more_layers_than_it_has(tmp_path: Path) -> None:
    path = write(tmp_path / "small.gguf", small(), layers=100_000)
    with pytest.raises(InputError, match=r"block_count is 100000, but the weights have 21 tensors"):
        hs.load(f"hf:{path}")


def test_a_gguf_file_has_one_fingerprint(tmp_path: Path) -> None:
    path = write(tmp_path / "small.gguf", small())
    first, second = (hs.load(f"hf:{path}").fingerprint for _ in range(2))
    assert first == second


def test_what_is_not_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"this is text, and no model " * 20)
    with pytest.raises(InputError, match="is not a GGUF file that can be read"):
        hs.load(f"hf:{path}")
