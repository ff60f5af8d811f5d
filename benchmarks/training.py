"""A training step against the same step written plainly and against transformers.

    python -m benchmarks.training                               nano and small, 2 threads
    python -m benchmarks.training --sizes nano --rounds 3       a quick look

Forward, backward, clipping and a fused AdamW update of one batch, in one process, the three taking
turns (benchmarks/timing.py). `ours` is the loop's own code with encoding nope; `plain` is a GPT-2
in fifty lines around torch's causal scaled_dot_product_attention, as in nanoGPT; `transformers` is
GPT2LMHeadModel with attn_implementation="sdpa". No dropout, float32, equal shapes and parameters.
`loading` is the time to take a batch from a memory-mapped file, as a share of our step.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import ratios, times
from headscape.data.tokens.batches import Batches
from headscape.gpt2 import GPT2
from headscape.training import TrainConfig, preset
from headscape.training.optim import Optimizer
from headscape.training.parallel import clip_gradients
from headscape.training.step import Learner
from headscape.training.world import World

SHAPES = {"nano": (4, 512, 1024), "small": (1, 512, 50_304)}
"""Windows, tokens in each, vocabulary."""
Step = Callable[[Tensor], None]


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(d, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Plain(nn.Module):
    """GPT-2 without positions, output tied to the embedding."""

    def __init__(self, config: TrainConfig, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.model.width)
        self.blocks = nn.ModuleList(
            PlainBlock(config.model.width, config.model.heads) for _ in range(config.model.layers)
        )
        self.norm = nn.LayerNorm(config.model.width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def ours(config: TrainConfig, vocabulary: int) -> Step:
    model = GPT2(config.model_for(vocabulary))
    learner = Learner(config=config, world=World(), model=model, module=model)
    optimiser = Optimizer(model, config)

    def step(windows: Tensor) -> None:
        optimiser.zero_grad()
        learner.gradient(windows)
        clip_gradients(model.parameters(), config.grad_clip)
        optimiser.step(config.lr)

    return step


def usual(model: nn.Module, logits: Callable[[Tensor], Tensor]) -> Step:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)

    def step(windows: Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        out = logits(windows[:, :-1]).flatten(0, 1)
        F.cross_entropy(out, windows[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


def theirs(config: TrainConfig, vocabulary: int, attention: str = "sdpa") -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=config.context_length,
            n_embd=config.model.width,
            n_layer=config.model.layers,
            n_head=config.model.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation=attention,
        )
    ).train()
    return usual(model, lambda tokens: model(tokens).logits)


def loading(windows: int, length: int, vocabulary: int) -> float:
    """Median seconds to take a step's batch out of a memory-mapped file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(vocabulary, size=5_000_000).astype("<u2").tofile(path)
        batches = Batches(np.memmap(path, "<u2", "r"), length, 0)
        taken = []
        for step in range(200):
            begun = time.perf_counter()
            torch.from_numpy(batches.windows(step, windows, length))
            taken.append(time.perf_counter() - begun)
    return median(taken)


def measure(size: str, rounds: int) -> dict[str, object]:
    windows, length, vocabulary = SHAPES[size]
    config = preset(
        size,
        encoding="nope",
        context_length=length,
        batch_size=windows,
        tokenizer="bytes",
        optimizer="adamw",
    )
    torch.manual_seed(0)
    plain = Plain(config, vocabulary)
    steps = {
        "ours": ours(config, vocabulary),
        "plain": usual(plain, plain),
        "transformers": theirs(config, vocabulary),
    }
    batch = torch.randint(vocabulary, (windows, length + 1))
    taken = times({name: partial(step, batch) for name, step in steps.items()}, rounds)
    load = loading(windows, length, vocabulary)
    seconds = {name: median(own) for name, own in taken.items()}
    return {
        "size": size,
        "windows": windows,
        "length": length,
        "seconds": seconds,
        "ratio_to_plain": ratios(taken, "plain"),
        "tokens_per_second": {name: windows * length / taken for name, taken in seconds.items()},
        "loading_seconds": load,
        "loading_share": load / seconds["ours"],
    }


def markdown(found: dict[str, object]) -> str:
    lines = [f"{found['machine']}, {found['threads']} threads, torch {found['torch']}", ""]
    lines += [
        "| size, batch | step | seconds | ratio to plain | tokens/s |",
        "|---|---|---|---|---|",
    ]
    for row in found["sizes"]:  # type: ignore[attr-defined]
        for name, seconds in row["seconds"].items():
            what = f"{row['size']}, {row['windows']} x {row['length']}"
            ratio, speed = row["ratio_to_plain"][name], row["tokens_per_second"][name]
            lines.append(f"| {what} | {name} | {seconds:.3f} | {ratio:.2f} | {speed:.0f} |")
    lines.append("")
    for row in found["sizes"]:  # type: ignore[attr-defined]
        lines.append(
            f"Loading a batch of {row['size']} takes {1e6 * row['loading_seconds']:.0f} us, "
            f"{100 * row['loading_share']:.3f}% of our step."
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads": args.threads,
        "torch": torch.__version__,
        "rounds": args.rounds,
        "sizes": [measure(size, args.rounds) for size in args.sizes],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "training.json").write_text(json.dumps(found, indent=1) + "\n")
    (args.out / "training.md").write_text(markdown(found))
    print(markdown(found))


if __name__ == "__main__":
    main()
