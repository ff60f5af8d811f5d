"""T5 and BLOOM with our attention against their own eager path, at 2,048 tokens.

`t5` and `bloom` are two layers of width 768 with a vocabulary of 2,048. The other `SHAPES` are
published sizes; where they have fewer layers, the vocabulary shrinks by the same factor, so that
the loss keeps its share of the step. Dropout is 0, which our attention needs.

`shares_part` also runs each step with an attention that only adds q, k and v. That step bounds what
any attention can reach: eager's time over its time, and eager's memory over its memory.
"""

import statistics
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor
from torch.profiler import profile

from benchmarks.allocations import profiled
from benchmarks.model_steps import CLOCK, VOCABULARY, compare, training
from benchmarks.timing import Step, ratios, times
from headscape.huggingface.attend import attention_function
from headscape.huggingface.attend.mask_rule import rule_mask

LENGTH = 2048
T5 = {"d_kv": 64, "dropout_rate": 0.0, "decoder_start_token_id": 0}
BASE = {**T5, "d_model": 768, "num_heads": 12, "d_ff": 3072}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
SHAPES: dict[str, dict[str, Any]] = {
    "t5": {**BASE, "num_layers": 2, "vocab_size": VOCABULARY},
    "t5-small": {
        **T5, "d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6, "vocab_size": 32128,
    },
    "flan-t5-small": {
        **T5, **GATED, "d_model": 512, "num_heads": 6, "d_ff": 1024, "num_layers": 8,
        "vocab_size": 32128,
    },
    "t5-base, 3 of 12 layers": {**BASE, "num_layers": 3, "vocab_size": 32128 // 4},
    "bloom": {"hidden_size": 768, "n_head": 12, "n_layer": 2, "vocab_size": VOCABULARY},
    "bloom-560m, 3 of 24 layers": {
        "hidden_size": 1024, "n_head": 16, "n_layer": 3, "vocab_size": 250880 // 8,
    },
}  # fmt: skip


def build(shape: str) -> Any:
    """Return a random model of one of the shapes."""
    sizes = SHAPES[shape]
    if "d_model" in sizes:
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    return transformers.BloomForCausalLM(transformers.BloomConfig(**sizes))


def bloom_part(rounds: int) -> None:
    """ALiBi."""
    _train("bloom", rounds)


def t5_part(rounds: int) -> None:
    """T5's buckets."""
    _train("t5", rounds)


def _train(shape: str, rounds: int) -> None:
    model = build(shape)
    steps = {kind: training(model, kind, LENGTH) for kind in ("headscape", "eager")}
    compare(f"{shape} training, {LENGTH}", steps, rounds, 1 / 3)


def module_part(rounds: int) -> None:
    """The attention modules of a T5's encoder and of a BLOOM, projections included."""
    kinds = ("headscape", "eager")
    x = torch.randn(1, LENGTH, 768)
    t5, bloom = build("t5"), build("bloom")
    buckets, alibi = t5.encoder.block[0].layer[0].SelfAttention, bloom.transformer.h[0]
    slopes = bloom.transformer.build_alibi_tensor(torch.ones(1, LENGTH), 12, torch.float32)
    causal_mask = torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)[None, None]
    masks = {"headscape": rule_mask(1, LENGTH, LENGTH), "eager": causal_mask}

    def bucketed(kind: str) -> Step:
        def step() -> None:
            t5.set_attn_implementation(kind)
            buckets(x.clone().requires_grad_(), mask=None)[0].sum().backward()

        return step

    def sloped(kind: str) -> Step:
        def step() -> None:
            given = x.clone().requires_grad_()
            alibi.self_attention(given, given, slopes, masks[kind])[0].sum().backward()

        return step

    for name, make in (("t5", bucketed), ("bloom", sloped)):
        steps = {kind: make(kind) for kind in kinds}
        compare(f"{name} attention module, {LENGTH}", steps, rounds, 1 / 3)


def shares_part(rounds: int, shapes: list[str], *, checkpointing: bool) -> None:
    """How much of a step attention is, what bounds the gain, and the costliest operators."""
    for shape in shapes:
        model = build(shape)
        if checkpointing:
            model.gradient_checkpointing_enable()
        steps = {kind: training(model, kind, LENGTH) for kind in ("eager", "headscape")}
        steps["no attention"] = _without_attention(steps["headscape"])
        seconds = times(steps, rounds, CLOCK[0])
        gains, ours = ratios(seconds, "eager"), ratios(seconds, "headscape")
        recomputed = ", gradient checkpointing" if checkpointing else ""
        print(f"{shape}: a training step, {LENGTH} tokens{recomputed}")
        print(f"    attention's share: eager {1 - gains['no attention']:.0%}, ", end="")
        print(f"ours {1 - ours['no attention']:.0%}")
        for kind in steps:
            spent = statistics.median(seconds[kind])
            print(f"    {kind:14} {spent:6.2f} s   eager / this {1 / gains[kind]:.2f}", flush=True)
        profiles = {kind: profiled(step) for kind, step in steps.items()}
        eager_mb = profiles["eager"][0]
        for kind, (used, found) in profiles.items():
            print(f"    {kind:14} {used:6.0f} MB  eager / this {eager_mb / used:.2f}   ", end="")
            print(_operators(found), flush=True)


def _without_attention(step: Step) -> Step:
    def add(_: Any, q: Tensor, k: Tensor, v: Tensor, *__: Any, **___: Any) -> Tensor:
        return (q + k + v).transpose(1, 2)

    def run() -> None:
        with patch.object(attention_function, "_attend", add):
            step()

    return run


def _operators(found: profile, most: int = 6) -> str:
    """Return the operators with the most time of their own, with their shares of the step."""
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return ", ".join(
        f"{event.key.removeprefix('aten::')} {event.self_cpu_time_total / total:.0%}"
        for event in events[:most]
    )
