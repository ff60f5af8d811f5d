"""What one more token costs in attention, per encoding, against attention without a bias.

    python -m benchmarks.decoding [--contexts 2048 8192] [--rounds 67] [--cpu] [--out FOLDER]

12 layers of 12 heads of 64, float32, batch 1: the caches of all layers together are far larger than
a processor's own, as in a real model. `plain` is torch's scaled_dot_product_attention of one query
over the same preallocated keys and values; a contender also makes its bias, layer by layer, or
takes it from the cache, as the model does for every token. What an encoding reads off the layer's
input (CABLE's sums and weights) belongs to the layer, as q does, and is not timed. `grown` is plain
with a cache that torch.cat lengthens by each token. More than 64 rounds include what is done every
64 tokens.
`--cpu` counts the process's own CPU time, for a machine that other jobs share; use it with
OMP_NUM_THREADS=1.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.timing import Step, ratios, times
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.encodings import LayerContext, LayerInput, Side, Stream, build
from headscape.gpt2.cache import Cache
from headscape.kernels import attend

LAYERS, HEADS, HEAD_DIM = 12, 12, 64
FLOOR = "plain"
ENCODINGS = (
    "nope", "rope", "alibi", "t5", "kerple", "cable", "fox", "fire", "dape+kerple", "dapev2+kerple",
)  # fmt: skip
Pair = tuple[Tensor, Tensor]


def contender(name: str, q: Tensor, caches: list[Pair], context: int, tokens: int) -> Step:
    """One more token through every layer's attention, its bias included; at most `tokens` times."""
    room = caches[0][0].shape[2]
    layers = [
        build(name, heads=HEADS, head_dim=HEAD_DIM, width=HEADS * HEAD_DIM, train_length=512)
        for _ in caches
    ]
    streams = [layer.stream(LayerInput(torch.randn(1, room, HEADS * HEAD_DIM))) for layer in layers]
    last = [of_each_token(stream, context - 1, tokens) for stream in streams]
    kept = Cache(room)
    kept.length = context - 1

    def step() -> None:
        count = kept.length + 1
        where = Positions.span(1, count)
        for n, (layer, (k, v)) in enumerate(zip(layers, caches, strict=True)):
            turned = layer.rotate(q, Side(where.q, "query"))
            stream = streams[n]
            seen = None if stream is None else Stream(stream.sums[:, :, :count])
            context_of_layer = LayerContext(where, last[n][count - context], seen)
            bias = kept.bias(n, layer, q.dtype, context_of_layer)
            pair = k[:, :, :count], v[:, :, :count]
            call = AttentionCall(
                turned, *pair, bias, where, Visible(), HEAD_DIM**-0.5,
                mixing=layer.mixing(context_of_layer),
            )  # fmt: skip
            attend.run(call)
        kept.advance(1)

    return step


def of_each_token(stream: Stream | None, first: int, count: int) -> list[Stream | None]:
    """The stream of each single token from `first` on."""
    if stream is None:
        return [None] * count
    sums, weights = stream.sums.narrow(2, first, count).split(1, dim=2), [None] * count
    if stream.weight is not None:
        weights = stream.weight.narrow(2, first, count).split(1, dim=2)
    return [Stream(*pair) for pair in zip(sums, weights, strict=True)]


def plain(q: Tensor, caches: list[Pair], context: int) -> Step:
    counts = itertools.count(context)

    def step() -> None:
        count = next(counts)
        for k, v in caches:
            scaled_dot_product_attention(q, k[:, :, :count], v[:, :, :count])

    return step


def grown(q: Tensor, caches: list[Pair], context: int) -> Step:
    def step() -> None:
        for k, v in caches:
            longer = torch.cat([k[:, :, :context], q], 2), torch.cat([v[:, :, :context], q], 2)
            scaled_dot_product_attention(q, *longer)

    return step


@torch.no_grad()
def measure(
    context: int, encodings: list[str], rounds: int, clock: Callable[[], float]
) -> list[dict[str, object]]:
    # More room than is used: the keys of two heads are not neighbours, as in a real cache.
    room = (1, HEADS, 2 * context, HEAD_DIM)
    caches = [(torch.randn(room), torch.randn(room)) for _ in range(LAYERS)]
    q = torch.randn(1, HEADS, 1, HEAD_DIM)
    steps: dict[str, Step] = {FLOOR: plain(q, caches, context)}
    steps |= {name: contender(name, q, caches, context, rounds + 1) for name in encodings}
    steps["grown"] = grown(q, caches, context)
    seconds = times(steps, rounds, clock)
    ratio = ratios(seconds, FLOOR)
    return [
        {
            "context": context, "name": name, "ratio": ratio[name],
            "milliseconds": 1e3 * statistics.median(own),
        }
        for name, own in seconds.items()
    ]  # fmt: skip


def table(rows: list[dict[str, object]]) -> str:
    contexts = sorted({int(str(row["context"])) for row in rows})
    cells = {(row["name"], row["context"]): row for row in rows}
    lines = [
        "| ms per token, ratio to plain | " + " | ".join(f"{c:,}" for c in contexts) + " |",
        "|---" * (len(contexts) + 1) + "|",
    ]
    for name in dict.fromkeys(row["name"] for row in rows):
        shown = [cells[name, c] for c in contexts]
        text = [f"{cell['milliseconds']:.1f}, {cell['ratio']:.2f}" for cell in shown]
        lines.append(f"| {name} | " + " | ".join(text) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS))
    parser.add_argument("--rounds", type=int, default=67)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    clock = time.process_time if args.cpu else time.perf_counter
    given = args.encodings, args.rounds, clock
    rows = [row for c in args.contexts for row in measure(c, *given)]
    args.out.mkdir(parents=True, exist_ok=True)
    found = {"threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}
    (args.out / "decoding.json").write_text(json.dumps(found, indent=1) + "\n")
    (args.out / "decoding.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
