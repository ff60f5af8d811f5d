"""A model larger than memory: capture and score it offloaded under a hard limit, and reading speed.

    python -m benchmarks.offload FOLDER [--layers 32] [--limit 3]

Writes a random Llama in bfloat16 to FOLDER unless it is there (6.8 GB with 32 layers). A process
whose address space is limited to so many GB opens it with offload, captures the last layer of 64
tokens and scores 128. Reading every block is compared with `cat` on the files, both after the
system has dropped them from its page cache, three times each; the smaller time counts.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

import headscape as hs

WIDTH, INNER, KEYS, VOCABULARY = 3072, 8192, 1024, 32_000


def write_llama(folder: Path, layers: int) -> None:
    """Write a random Llama, a file per layer."""
    import transformers

    folder.mkdir(parents=True)
    transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=layers,
        num_attention_heads=WIDTH // 128, num_key_value_heads=KEYS // 128, vocab_size=VOCABULARY,
        max_position_embeddings=4096, dtype="bfloat16", architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip
    random = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=random)

    ones = torch.ones(WIDTH, dtype=torch.bfloat16)
    shapes = {
        "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (KEYS, WIDTH),
        "self_attn.v_proj": (KEYS, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }  # fmt: skip
    files: dict[str, str] = {}
    for number in range(layers + 1):
        if number == layers:
            tensors = {
                name: matrix(VOCABULARY, WIDTH)
                for name in ("model.embed_tokens.weight", "lm_head.weight")
            }
            tensors["model.norm.weight"] = ones
        else:
            home = f"model.layers.{number}."
            tensors = {f"{home}{name}.weight": matrix(*size) for name, size in shapes.items()}
            for name in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{home}{name}.weight"] = ones.clone()
        file = f"model-{number + 1:05}-of-{layers + 1:05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def used(folder: Path, *, offload: bool) -> dict[str, object]:
    """Losses and weights of the last layer of a fixed sequence, and the peak of address space."""
    model = hs.load(f"hf:{folder}", dtype="bfloat16", offload=offload)
    cap = model.capture(list(range(5, 69)))
    losses = model.losses(torch.arange(129)[None] * 7 % VOCABULARY, 0)
    status = Path("/proc/self/status").read_text().split("VmPeak:")[1].split()[0]
    return {
        "loss": float(losses.mean()),
        "weight": float(cap.weights(layer=-1, head=3)[63].max()),
        "peak_gb": int(status) * 1024 / 1e9,
    }


def limited(folder: Path, limit: float) -> dict[str, object]:
    """What `used` returns in a process of at most so many GB of address space."""
    words = [sys.executable, "-m", "benchmarks.offload", str(folder), "--limit", str(limit)]
    done = subprocess.run([*words, "--row"], check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def seconds(folder: Path) -> tuple[float, float]:
    """Seconds of `cat` on the files and of reading every block, from disk."""
    files = sorted(folder.glob("*.safetensors"))
    model = hs.load(f"hf:{folder}", dtype="bfloat16", offload=True)
    stream = model.stream  # type: ignore[attr-defined]
    best = [float("inf"), float("inf")]
    for _ in range(3):
        for which in range(2):
            for file in files:
                with file.open("rb") as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            if which:
                with stream.reading():
                    for name in stream:
                        stream[name]
            else:
                subprocess.run(["/bin/cat", *files], check=True, stdout=subprocess.DEVNULL)
            best[which] = min(best[which], time.perf_counter() - start)
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--limit", type=float, default=3.0, help="GB of address space")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        resource.setrlimit(resource.RLIMIT_AS, (int(options.limit * 1e9),) * 2)
        print(json.dumps(used(options.folder, offload=True)))
        return
    if not options.folder.exists():
        write_llama(options.folder, options.layers)
    size = sum(file.stat().st_size for file in options.folder.glob("*.safetensors"))
    found = limited(options.folder, options.limit)
    print(f"{size / 1e9:.2f} GB of weights, limit {options.limit} GB: {found}", flush=True)
    cat, read = seconds(options.folder)
    print(f"cat {cat:.2f} s, every block {read:.2f} s: {read / cat:.2f} times")


if __name__ == "__main__":
    main()
