"""A training step of two GPT-2 Small layers at length, ours and other libraries'.

    python -m benchmarks.slices [--length 4096] [--rounds 3] [--out benchmarks/results]

Two layers of width 768 with 12 heads over a vocabulary of 256: what is left is attention and the
layers around it. Forward, loss, backward, clipping and a fused AdamW update, float32, batch 1, no
dropout, all in one process, in turn (benchmarks/timing.py); memory is that of a step beyond what
stays. `plain` is the model of benchmarks/training.py around torch's causal
scaled_dot_product_attention, without positions.
"""

import argparse
import json
import statistics
import warnings
from pathlib import Path

import torch
from torch import nn

from benchmarks.timing import Step, peak_megabytes, ratios, times
from benchmarks.training import Plain, ours, theirs, usual
from headscape.training import preset

LAYERS, VOCABULARY, WIDTH, HEADS = 2, 256, 768, 12
FLOOR = "plain"
OURS = ("nope", "rope", "alibi", "t5", "kerple", "cable", "fire", "dapev2+kerple")
THEIRS: dict[str, dict[str, bool]] = {
    "alibi": {"alibi_pos_bias": True},
    "t5": {"rel_pos_bias": True},
    "alibi flash": {"alibi_pos_bias": True, "attn_flash": True},
    "rope flash": {"rotary_pos_emb": True, "attn_flash": True},
}


def x_transformers(length: int, options: dict[str, bool]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from x_transformers import Decoder, TransformerWrapper

    return TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=length,
        tie_embedding=True,
        use_abs_pos_emb=False,
        attn_layers=Decoder(dim=WIDTH, depth=LAYERS, heads=HEADS, **options),
    )


def steps(length: int) -> dict[str, Step]:
    window = torch.randint(VOCABULARY, (1, length + 1))
    configs = {
        name: preset(
            "small",
            encoding=name,
            layers=LAYERS,
            context_length=length,
            batch_size=1,
            tokenizer="bytes",
        )
        for name in OURS
    }
    config = configs["nope"]
    plain = Plain(config, VOCABULARY)
    found = {FLOOR: usual(plain, plain)}
    found |= {f"{name}, ours": ours(own, VOCABULARY) for name, own in configs.items()}
    for name, options in THEIRS.items():
        model = x_transformers(length, options)
        found[f"{name}, x-transformers"] = usual(model, model)
    for attention in ("eager", "sdpa"):
        found[f"learned, transformers {attention}"] = theirs(config, VOCABULARY, attention)
    return {name: (lambda step=step: step(window)) for name, step in found.items()}


def table(rows: list[dict[str, object]], length: int) -> str:
    lines = [
        f"| two layers at {length:,} tokens | seconds | ratio to plain | peak MB |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {row['seconds']:.2f} | {row['ratio']:.2f} | {row['megabytes']:.0f} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    torch.manual_seed(0)
    made = steps(args.length)
    seconds = times(made, args.rounds)
    ratio = ratios(seconds, FLOOR)
    rows: list[dict[str, object]] = [
        {
            "name": name, "seconds": statistics.median(own), "ratio": ratio[name],
            "megabytes": peak_megabytes(made[name]),
        }
        for name, own in seconds.items()
    ]  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    found = {"length": args.length, "threads": torch.get_num_threads(), "rows": rows}
    (args.out / "slices.json").write_text(json.dumps(found, indent=1) + "\n")
    (args.out / "slices.md").write_text(table(rows, args.length))
    print(table(rows, args.length))


if __name__ == "__main__":
    main()
