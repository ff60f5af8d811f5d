"""The package against Hugging Face transformers, run live: biases, rotations, GPT-2's logits."""

from pathlib import Path

import pytest
import torch

from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, LayerContext, Side, build
from headscape.encodings.alibi import SLOPES
from headscape.gpt2 import GPT2, Cache
from headscape.properties.probe import draw

FLOAT32 = 2e-6
"""Relative: peers work their positions out in float32."""


def bias(encoding: Encoding, queries: int, keys: int | None = None) -> torch.Tensor:
    at = Positions.span(queries, keys)
    with torch.no_grad():
        return dense(encoding.bias(LayerContext(at)), at)[0]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    size = theirs.abs().max().item()
    torch.testing.assert_close(
        ours.double(), theirs.double(), rtol=FLOAT32, atol=FLOAT32 * max(size, 1.0)
    )


@pytest.mark.parametrize("decoder", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (16, 40), (64, 256)])
def test_t5_bias(decoder: bool, buckets: int, far: int) -> None:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=20,
        num_heads=5,
        d_kv=4,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=far,
        is_decoder=decoder,
    )
    peer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = build(
        "t5",
        heads=5,
        head_dim=4,
        width=20,
        train_length=64,
        causal=decoder,
        buckets=buckets,
        max_distance=far,
    )
    ours.table.weight.data.copy_(peer.relative_attention_bias.weight)
    with torch.no_grad():
        whole = peer.compute_bias(300, 300)[0]
        row = peer.compute_bias(1, 300, past_seen_tokens=299)[0]
    seen = torch.ones(300, 300).tril().bool() if decoder else torch.ones(300, 300).bool()
    assert torch.equal(bias(ours, 300)[:, seen], whole[:, seen])
    assert torch.equal(bias(ours, 1, 300), row)


@pytest.mark.parametrize("heads", [1, 8, 12, 25])
def test_bloom_alibi_also_behind_left_padding(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    ours = build(
        "alibi", heads=heads, head_dim=4, width=4 * heads, train_length=8, slopes="fairseq"
    )
    for pads in (0, 5):
        mask = torch.ones(1, 40, dtype=torch.long)
        mask[:, :pads] = 0
        theirs = build_alibi_tensor(mask, heads, torch.float32).view(heads, 40)[:, pads:]
        at = (mask.cumsum(-1) - 1).clamp(min=0)[:, pads:]
        where = Positions(at, at)
        last = dense(ours.bias(LayerContext(where)), where)[0, :, -1]
        # Theirs is m j, ours -m (i - j): equal up to a constant per row.
        close(last - last[:, :1], theirs - theirs[:, :1])


@pytest.mark.parametrize("heads", [1, 8, 12, 25])
def test_mpt_alibi(heads: int) -> None:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    ours = build("alibi", heads=heads, head_dim=4, width=4 * heads, train_length=8, slopes="mpt")
    close(bias(ours, 1, 40), build_mpt_alibi_tensor(heads, 40))


@pytest.mark.parametrize("heads", [1, 8, 12, 25])
def test_falcon_alibi(heads: int) -> None:
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    mask = torch.ones(1, 40, dtype=torch.long)
    theirs = build_alibi_tensor(mask, heads, torch.float32).view(heads, 1, 40)
    assert SLOPES["falcon"](heads) == theirs[:, 0, 1].tolist()
    ours = build(
        "alibi",
        heads=heads,
        head_dim=16,
        width=16 * heads,
        train_length=8,
        slopes="falcon",
        divisor="sqrt_head_dim",
    )
    last = bias(ours, 1, 40)
    # Falcon also rounds each product to bfloat16, half of 2^-8 of its size.
    gap = (4 * (last - last[..., :1]) - theirs).abs()
    assert (gap <= theirs / 256).all()


SCALINGS = [
    ({"rope_type": "default"}, {}),
    ({"rope_type": "linear", "factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
    ({"rope_type": "dynamic", "factor": 2.0}, {"scaling": "dynamic", "factor": 2.0}),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"scaling": "yarn", "factor": 4.0},
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
            "attention_factor": 1.3,
        },
        {
            "scaling": "yarn",
            "factor": 8.0,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
            "attention_factor": 1.3,
        },
    ),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {"scaling": "llama3", "factor": 8.0},
    ),
]


@pytest.mark.parametrize(("recipe", "fields"), SCALINGS)
@pytest.mark.parametrize("length", [40, 150])
def test_llama_rotary_and_its_scalings(
    recipe: dict[str, object], fields: dict[str, object], length: int
) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import (
        LlamaRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    stretched = "original_max_position_embeddings" in recipe
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=int(64 * recipe["factor"]) if stretched else 64,
        rope_parameters=recipe | {"rope_theta": 5000.0},
    )
    peer = LlamaRotaryEmbedding(config)
    q, k = draw(1, 2, length, 32, seed=1).float(), draw(1, 2, length, 32, seed=2).float()
    at = torch.arange(length)[None]
    theirs = apply_rotary_pos_emb(q, k, *peer(q, at))
    ours = build(
        "rope",
        heads=2,
        head_dim=32,
        width=64,
        train_length=64,
        pairing="halves",
        base=5000.0,
        **fields,
    )
    for mine, other, role in zip((q, k), theirs, ("query", "key"), strict=True):
        gap = ours.rotate(mine, Side(at, role)) - other
        # A float32 angle near 150 is off by 150 * 2^-24 at most, and the frequency by as much.
        assert gap.abs().max() < 4 * length * 2**-24 * other.abs().max()


@pytest.mark.parametrize("stretched", [False, True])
def test_mistral_large_4_rotary_has_learned_factors(stretched: bool) -> None:
    from transformers import MistralLarge4TextConfig
    from transformers.models.mistral_large4.modeling_mistral_large4 import (
        MistralLarge4TextRotaryEmbedding,
        apply_rotary_pos_emb_interleave,
    )

    yarn = {"factor": 4.0, "attention_factor": 1.0}
    recipe = {"rope_type": "default", "rope_theta": 5000.0}
    if stretched:
        recipe |= {"rope_type": "yarn", "original_max_position_embeddings": 64, **yarn}
    config = MistralLarge4TextConfig(
        qk_rope_head_dim=32, head_dim=32, max_position_embeddings=256, rope_parameters=recipe
    )
    peer = MistralLarge4TextRotaryEmbedding(config)
    peer.alpha.copy_(draw(16, seed=3) / 2)
    q, k = draw(1, 2, 150, 32, seed=1).float(), draw(1, 2, 150, 32, seed=2).float()
    at = torch.arange(150)[None]
    theirs = apply_rotary_pos_emb_interleave(q, k, *peer(q, at))
    fields = {"scaling": "yarn", "trained_length": 64, **yarn} if stretched else {}
    ours = build(
        "rope", heads=2, head_dim=32, width=64, base=5000.0, learned_frequencies=True, **fields
    )
    names = {f"model.rotary_emb.{name}": value for name, value in peer.state_dict().items()}
    ours.load_published(names, prefix="model.")
    fastest = float(peer.alpha.exp().max())
    for mine, other, role in zip((q, k), theirs, ("query", "key"), strict=True):
        # Theirs has the first dims of all pairs in front.
        turned = ours.rotate(mine, Side(at, role)).detach().unflatten(-1, (16, 2))
        gap = turned.transpose(-1, -2).flatten(-2) - other
        assert gap.abs().max() < 4 * 150 * fastest * 2**-24 * other.abs().max()


def test_gptj_rotary_turns_part_of_each_head_in_neighbouring_pairs() -> None:
    from transformers import GPTJConfig
    from transformers.models.gptj.modeling_gptj import (
        apply_rotary_pos_emb,
        create_sinusoidal_positions,
    )

    config = GPTJConfig(n_embd=32, n_head=2, rotary_dim=8)
    x = draw(1, 2, 60, 16, seed=1).float()
    sin, cos = create_sinusoidal_positions(60, config.rotary_dim).chunk(2, dim=-1)
    turned = apply_rotary_pos_emb(x.transpose(1, 2)[..., :8], sin[None], cos[None])
    theirs = torch.cat([turned.transpose(1, 2), x[..., 8:]], dim=-1)
    ours = build("rope", heads=2, head_dim=16, width=32, train_length=64, rotary_fraction=0.5)
    gap = ours.rotate(x, Side(torch.arange(60)[None], "query")) - theirs
    assert gap.abs().max() < 4 * 60 * 2**-24 * x.abs().max()


@pytest.mark.parametrize("sharded", [False, True])
def test_gpt2_logits_from_a_checkpoint_folder(tmp_path: Path, sharded: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    peer = GPT2LMHeadModel(
        GPT2Config(n_layer=3, n_head=4, n_embd=32, vocab_size=97, n_positions=40)
    ).eval()
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    peer.save_pretrained(tmp_path, max_shard_size="20KB" if sharded else "5GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    ours = GPT2.from_pretrained(tmp_path).double()
    text = torch.randint(97, (2, 40))
    with torch.no_grad():
        theirs = peer.double()(text, use_cache=False).logits
        torch.testing.assert_close(ours(text), theirs, rtol=1e-9, atol=1e-9)
        cache = Cache()
        decoded = [ours(part, cache=cache) for part in text.split([30, 1, 9], dim=1)]
        torch.testing.assert_close(torch.cat(decoded, dim=1), theirs, rtol=1e-9, atol=1e-9)


def test_greedy_generation_is_theirs(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from headscape.gpt2 import generate

    torch.manual_seed(4)
    config = GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=16,
        vocab_size=31,
        n_positions=40,
        bos_token_id=0,
        eos_token_id=30,
        pad_token_id=30,
    )
    peer = GPT2LMHeadModel(config).eval()
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    peer.save_pretrained(tmp_path)
    prompt = torch.randint(30, (1, 6))
    theirs = peer.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False
    )
    ours = generate(GPT2.from_pretrained(tmp_path), prompt, length=20, temperature=0.0, stop=30)
    assert torch.equal(ours, theirs)
