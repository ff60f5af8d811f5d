"""transformers models with our attention against the same models with theirs.

    python -m benchmarks.huggingface [--parts llama gpt2 window bloom t5 module] [--rounds 5]
    python -m benchmarks.huggingface --parts smollm     fetches 93 MB once; needs headscape[gguf]

    llama      a whole training step of a Llama type, 12 heads on 3, against sdpa
    gpt2       a whole training step of a GPT-2 type, against sdpa
    window     the Llama type with a sliding window of 512 at 8,192 tokens, against sdpa's mask
    bloom      a whole training step of a BLOOM type at 2,048 tokens, against its eager path
    t5         a whole training step of a T5 type at 2,048 tokens, against its eager path
    module     the attention module of a T5's encoder and of a BLOOM alone, against eager
    shares     T5s and BLOOMs: attention's share of a step, and the largest gain possible without it
    half       a forward pass of the Llama type in bfloat16, against sdpa in bfloat16
    smollm     SmolLM2-135M: the same 64 tokens, and milliseconds per token at 512 and 4,096

Two layers of width 768 with 12 heads of 64 (T5: two in each stack, the sizes of T5 base), a
vocabulary of 2,048, batch 1, two threads, ratios in one process with the contenders in turn
(benchmarks/timing.py). Memory is the peak above the start of the step: of tensors, and resident.
With --cpu the clock is the process's own time, which neighbours on a busy machine disturb less; use
it with --threads 1.
"""

import argparse
import copy
import statistics
import time
from typing import Any

import torch
import transformers

from benchmarks.biased_models import SHAPES, bloom_part, module_part, shares_part, t5_part
from benchmarks.model_steps import CLOCK, VOCABULARY, compare, training
from benchmarks.timing import Step, ratios, times
from headscape.huggingface import register
from headscape.kernels.native import ops

SIZES = {
    "hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12, "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA = {**SIZES, "num_key_value_heads": 3, "intermediate_size": 2048}
GPT2 = {**SIZES, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
BARS = {512: 1.0, 2048: 0.95, 4096: 0.90}


def llama(**more: Any) -> Any:
    """A Llama with grouped queries; with a window a Mistral, which is the same."""
    if more:
        return transformers.MistralForCausalLM(transformers.MistralConfig(**LLAMA, **more))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))


def gpt2() -> Any:
    """A GPT-2 without dropout."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))


def llama_part(rounds: int) -> None:
    """Grouped queries."""
    _train("llama", llama(), rounds)


def gpt2_part(rounds: int) -> None:
    """As many keys as queries."""
    _train("gpt2", gpt2(), rounds)


def _train(name: str, model: Any, rounds: int) -> None:
    for length, bar in BARS.items():
        steps = {kind: training(model, kind, length) for kind in ("headscape", "sdpa")}
        compare(f"{name} training, {length}", steps, rounds, bar)


def window_part(rounds: int) -> None:
    """A sliding window."""
    model = llama(sliding_window=512)
    steps = {kind: training(model, kind, 8192) for kind in ("headscape", "sdpa")}
    compare("mistral training, window 512, 8192", steps, rounds, 0.5)


def half_part(rounds: int) -> None:
    """bfloat16, forward alone."""
    model = llama().bfloat16().eval()
    for length in BARS:
        tokens = torch.randint(VOCABULARY, (1, length))

        def forward(kind: str, tokens: torch.Tensor = tokens) -> Step:
            def step() -> None:
                model.set_attn_implementation(kind)
                with torch.no_grad():
                    model(tokens, use_cache=False)

            return step

        steps = {kind: forward(kind) for kind in ("headscape", "sdpa")}
        compare(f"llama forward, bfloat16, {length}", steps, rounds, 1.0, memory=False)


def smollm_part(rounds: int) -> None:
    """Real weights: the same tokens, and the cost of one more."""
    from tests.pretrained.weights import smollm2

    path = smollm2()
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    given = tokenizer("The capital of France is Paris, and its history", return_tensors="pt")
    shared = {id(weight): weight for weight in model.parameters()}
    models = {"headscape": model, "sdpa": copy.deepcopy(model, shared)}
    said = []
    for kind, own in models.items():
        own.set_attn_implementation(kind)
        said.append(own.generate(**given, max_new_tokens=64, min_new_tokens=64, do_sample=False))
    print("smollm: the same 64 tokens:", torch.equal(*said), flush=True)
    for context in sorted({512, 4096} & set(BARS)):
        caches = {}
        tokens = torch.randint(model.config.vocab_size, (1, context))
        for kind, own in models.items():
            with torch.no_grad():
                caches[kind] = own(tokens, use_cache=True, logits_to_keep=1).past_key_values

        def token(kind: str, caches: dict[str, Any] = caches) -> Step:
            def step() -> None:
                with torch.no_grad():
                    models[kind](torch.tensor([[5]]), past_key_values=caches[kind])

            return step

        seconds = times({kind: token(kind) for kind in models}, 4 * rounds, CLOCK[0])
        shown = {kind: f"{1e3 * statistics.median(own):.1f} ms" for kind, own in seconds.items()}
        print(f"smollm, one token after {context}: {shown}", ratios(seconds, "sdpa"), flush=True)


PARTS = {
    "llama": llama_part, "gpt2": gpt2_part, "window": window_part, "bloom": bloom_part,
    "t5": t5_part, "module": module_part, "half": half_part, "smollm": smollm_part,
}  # fmt: skip


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "shares"], default=list(PARTS)[:-1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", help="of llama, gpt2, half and smollm")
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=SHAPES,
        default=list(SHAPES),
        help="shapes that `shares` measures",
    )
    parser.add_argument(
        "--checkpointing", action="store_true", help="use gradient checkpointing in `shares`"
    )
    parser.add_argument("--cpu", action="store_true", help="measure the process's own CPU time")
    options = parser.parse_args()
    if options.cpu:
        CLOCK[0] = time.process_time
    for length in set(BARS) - set(options.lengths or BARS):
        del BARS[length]
    torch.set_num_threads(options.threads)
    register()
    started = time.perf_counter()
    print(f"{ops.instructions()}, {options.threads} threads, torch {torch.__version__}")
    for part in options.parts:
        torch.manual_seed(0)
        if part == "shares":
            shares_part(options.rounds, options.shapes, checkpointing=options.checkpointing)
        else:
            PARTS[part](options.rounds)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
