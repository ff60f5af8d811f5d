"""Which architecture of transformers computes the same function as one of our models.

    GPT2LMHeadModel      learned positions; sinusoidal ones, as a table of so many rows
    GPTNeoXForCausalLM   RoPE (either pairing, any share of the head dim; plain, linear, ntk, yarn
                         or llama3 frequencies), and NoPE as a rotation of no dims

No other encoding has one: BLOOM has ALiBi but a norm behind its embedding, MPT has no biases,
Falcon rounds slopes times positions to bfloat16; T5's tables are in no decoder of this kind. What
acts on scores besides (window, temperature, softcap, sink) is in none of the two.
"""

from typing import Any

import torch

from headscape.encodings.base import SHARED, Config
from headscape.encodings.learned import Learned
from headscape.encodings.nope import NoPE
from headscape.encodings.rope import RoPE
from headscape.encodings.sinusoidal import Sinusoidal
from headscape.errors import InputError
from headscape.gpt2 import GPT2

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "headscape": "HeadscapeForCausalLM",
}
"""Architectures by name, which is also the name of their layout and model type."""
Settings = dict[str, Any]
SCALED = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "beta_fast", "beta_slow", "truncate"),
}
"""The fields of each scaling, which transformers calls the same."""


def choose(gpt2: GPT2, asked: str, positions: int) -> tuple[str, Settings]:
    """Return an architecture and the settings of its config; `asked` may be auto."""
    if asked not in {"auto", *CLASSES}:
        raise InputError(f"unknown architecture {asked!r}: there are auto, {', '.join(CLASSES)}.")
    reasons = {}
    for name, of in (("gpt2", as_gpt2), ("gpt_neox", as_gpt_neox)):
        found = of(gpt2, positions)
        if not isinstance(found, str) and asked in {"auto", name}:
            return name, found
        reasons[name] = found
    if asked in reasons:
        raise InputError(
            f"{CLASSES[asked]} is not the same function as this model: {reasons[asked]}; leave "
            f"the architecture out."
        )
    return "headscape", {}


def as_gpt2(gpt2: GPT2, positions: int) -> Settings | str:
    """Return the config of a GPT2LMHeadModel, or why there is none."""
    config, encoding = gpt2.config, gpt2.encoding()
    reason = _not_plain(gpt2)
    if reason:
        return reason
    if config.scale == "width":
        return "its scores are scaled by 1/sqrt(width)"
    if isinstance(encoding, Learned):
        if encoding.config.offset:
            return "its table has unused rows in front of position 0"
        rows = encoding.length
    elif isinstance(encoding, Sinusoidal):
        if encoding.config.learned_scale:
            return "its sinusoids have a learned scale"
        rows = positions
    else:
        return "position does not enter at its input"
    return {
        "vocab_size": config.vocabulary,
        "n_positions": rows,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "activation_function": "gelu_pytorch_tanh",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "layer_norm_epsilon": config.norm_epsilon,
        "scale_attn_weights": config.scale == "head_dim",
        "tie_word_embeddings": True,
    }


def as_gpt_neox(gpt2: GPT2, positions: int) -> Settings | str:
    """Return the config of a GPTNeoXForCausalLM, or why there is none."""
    config, encoding = gpt2.config, gpt2.encoding()
    reason = _not_plain(gpt2)
    if reason:
        return reason
    if config.scale != "head_dim":
        return f"its score scale is {config.scale!r}"
    if isinstance(encoding, RoPE):
        rope = rope_parameters(encoding)
    elif type(encoding) is NoPE:
        rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.0}
    else:
        return "it does not use RoPE"
    if isinstance(rope, str):
        return rope
    return {
        "vocab_size": config.vocabulary,
        "max_position_embeddings": positions,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": 4 * config.width,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": config.norm_epsilon,
        "use_parallel_residual": False,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": rope,
    }


def rope_parameters(encoding: RoPE) -> Settings | str:
    """Return transformers' description of a RoPE, or why it has none."""
    config, shape = encoding.config, encoding.shape
    share = encoding.dims / shape.head_dim
    if int(shape.head_dim * share) != encoding.rotary_width:
        return "transformers would round its rotary width differently"
    if config.attention_factor is not None and config.scaling != "yarn":
        return "it has an attention_factor"
    for differs, reason in (
        (config.direction != "forward", "its direction is backward"),
        (config.learned_frequencies, "its frequencies are learned"),
        (config.mscale_scores, "mscale scales all of its scores"),
    ):
        if differs:
            return reason
    plain = {"rope_type": "default", "rope_theta": config.base, "partial_rotary_factor": share}
    trained = config.trained_length or shape.train_length or 0
    if config.scaling == "none":
        return plain
    if config.scaling == "ntk":
        growth = config.factor ** (encoding.dims / (encoding.dims - 2))
        return {**plain, "rope_theta": config.base * growth}
    if config.scaling not in SCALED:
        return f"its frequencies are scaled by {config.scaling!r}"
    found = {name: getattr(config, name) for name in SCALED[config.scaling]}
    found |= {**plain, "rope_type": config.scaling}
    if config.scaling == "yarn":
        found["attention_factor"] = encoding.attention_factor()
    if config.scaling != "linear":
        found["original_max_position_embeddings"] = trained
    return found


@torch.no_grad()
def sinusoidal_table(gpt2: GPT2, rows: int) -> torch.Tensor:
    """Return what a sinusoidal model adds at positions 0 to rows - 1."""
    weight = gpt2.tokens.weight
    nothing = weight.new_zeros(1, rows, gpt2.config.width)
    return gpt2.position.embed(nothing, torch.arange(rows, device=weight.device)[None])[0]


def _not_plain(gpt2: GPT2) -> str:
    entries = gpt2.config.schedule()
    if gpt2.config.qk_norm != "none":
        return "it norms queries and keys"
    if any(entry != entries[0] for entry in entries):
        return "its layers have different encodings"
    plain = Config()
    for layer in range(len(entries)):
        fields = gpt2.encoding(layer).conventions()
        for name in sorted(SHARED):
            if fields[name] != getattr(plain, name):
                return f"its encoding has {name}={fields[name]!r}"
    return ""
