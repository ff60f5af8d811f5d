"""The second table of the results: what models of 2025 and 2026 do, at equal training cost.

    python -m benchmarks.second_results        trains, evaluates, writes the part of docs/results.md
    python -m benchmarks.second_results --seeds 0 --methods rope bam --steps 50 --docs /tmp/part.md

Every method is a schedule of layers trained as the preset nano is, so all cost the same number of
tokens. Stop it at any time; the same command goes on where it was. The part is written from the
measurements alone.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.results import CLOSE, LENGTH, OPEN, START, TIMES, second_part, verdict
from headscape.evaluate.evaluate import evaluate
from headscape.evaluate.table import Table
from headscape.evaluate.table.table_row import Row
from headscape.io import atomic
from headscape.models.load import load
from headscape.text.dataset import default_cache
from headscape.train import preset, train

METHODS = (
    "rope",
    "nope",
    "rope:window=128",
    "rope,nope",
    "rope:window=128,nope",
    "rope:temperature=ssmax",
    "rope:window=128,nope:temperature=ssmax",
)


def growth(table: Table) -> str:
    """Return perplexity at 2 to 16 times the training length over that at the training length."""
    lines = [
        f"| method | {LENGTH} | 2x | 4x | 8x | 16x | |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for name in dict.fromkeys(row.method for row in table.rows):
        values = [table.cell(name, LENGTH * times).mean for times in TIMES]
        base = values[0]
        assert base is not None
        ratios = [None if value is None else value / base for value in values]
        texts = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios[1:]]
        cells = [f"`{name}`", f"{base:.2f}", *texts, verdict(ratios[3])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def part(table: Table, args: argparse.Namespace, how: str) -> str:
    """Return the part of docs/results.md, without its markers."""
    run = preset("nano")
    seeds = ", ".join(map(str, args.seeds))
    return f"""## Windows, layers without position, temperatures

Made by

    {how}

The same model, text and protocol, trained with the settings of the preset `nano`: {args.steps:,}
steps of {run.optimizer} on {run.tokens_per_step:,} tokens each, seeds {seeds}. Every method costs
the same number of training tokens. `RoPE:window=128,NoPE` is a schedule: the first
layer has RoPE and sees 128 tokens, the second has no position and sees all.

{growth(table)}

{table.to_markdown()}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--steps", type=int, default=preset("nano").steps)
    parser.add_argument("--runs", type=Path, default=Path("runs/second-results"))
    parser.add_argument("--docs", type=Path, default=Path("docs/results.md"))
    args = parser.parse_args()
    rows: list[Row] = []
    names: dict[str, None] = {}
    for seed in args.seeds:
        for method in args.methods:
            print(f"{method}, seed {seed}", file=sys.stderr, flush=True)
            folder = args.runs / f"{method.replace(':', ' ')}-{args.steps}-{seed}"
            config = preset("nano", encoding=method, seed=seed, steps=args.steps)
            result = train(config, out=folder, resume=folder.exists(), cache=default_cache())
            if not result.finished:
                sys.exit(result.message)
            model = load(folder)
            names[model.spec.name] = None
            lengths = [LENGTH * times for times in TIMES]
            journal = args.runs / "journal"
            rows += evaluate(
                model, lengths=lengths, limit=START, same_tokens=True, journal=journal
            ).rows
    rows.sort(key=lambda row: list(names).index(row.method))
    table = Table.of(rows)
    table.save(args.runs)
    command = " ".join(["python -m benchmarks.second_results", *sys.argv[1:]])
    text = part(table, args, command)
    page = args.docs.read_text() if args.docs.exists() else ""
    first = page.removesuffix(second_part(args.docs))
    atomic.write_text(args.docs, f"{first}\n{OPEN}\n\n{text}\n{CLOSE}\n")
    print(text)


if __name__ == "__main__":
    main()
