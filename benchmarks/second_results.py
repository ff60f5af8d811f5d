"""The second table of the results: what models of 2025 and 2026 do, at equal training cost.

    python -m benchmarks.second_results               trains, evaluates, writes into docs/results.md
    python -m benchmarks.second_results --finished    writes what is finished, trains nothing
    python -m benchmarks.second_results --seeds 0 --methods rope bam --steps 50 --docs /tmp/part.md

Every method is trained with the settings of the preset nano for --steps steps, so all cost the same
number of tokens.
Stop it at any time; the same command goes on where it was. The part of the page is written from the
measurements alone, its sentences too.
"""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import (
    BREAKS,
    CLOSE,
    HOLDS,
    LENGTH,
    OPEN,
    START,
    TIMES,
    second_part,
    verdict,
)
from headscape.data.dataset import default_cache
from headscape.evaluation.evaluate import evaluate
from headscape.evaluation.row import EvaluationRow
from headscape.evaluation.table import Table
from headscape.io.files import write_text
from headscape.models.load import load
from headscape.training import preset, train

SCHEDULES = (
    "rope",
    "nope",
    "rope:window=128",
    "rope,nope",
    "rope:window=128,nope",
    "rope:temperature=ssmax",
    "rope:window=128,nope:temperature=ssmax",
)
ENCODINGS = (
    "inkling",
    "shaw",
    "transformer-xl",
    "deberta",
    "pope",
    "bam",
    "grape",
    "grape-m",
    "selective-rope",
    "carope",
    "repo",
    "kerple-weight",
    "stick-breaking",
    "path",
)


def growth(table: Table) -> str:
    """Return perplexity at 2 to 16 times the training length over that at the training length."""
    lines = [
        f"| method | seeds | {LENGTH} | 2x | 4x | 8x | 16x | |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name in dict.fromkeys(row.method for row in table.rows):
        base = table.cell(name, LENGTH)
        ratios = [grown(table, name, times) for times in TIMES]
        texts = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios[1:]]
        cells = [f"`{name}`", str(base.count), f"{base.mean:.2f}", *texts, verdict(ratios[3])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def by_verdict(table: Table) -> str:
    """Return which methods hold, degrade and break at 8 times the training length."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(row.method for row in table.rows):
        groups.setdefault(verdict(grown(table, name, 8)), []).append(name)
    parts = (f"{', '.join(names)} ({word})" for word, names in sorted(groups.items()))
    return f"At 8 times the training length: {'; '.join(parts)}."


def grown(table: Table, name: str, times: int) -> float | None:
    """Return how much perplexity grows from the training length to a multiple of it."""
    base, far = table.cell(name, LENGTH).mean, table.cell(name, LENGTH * times).mean
    return None if base is None or far is None else far / base


def answer(table: Table) -> str:
    """Return what the schedules say about RoPE, windows, NoPE layers and temperatures."""

    def told(name: str) -> str:
        base, ratio = table.cell(name, LENGTH).mean, grown(table, name, 8)
        assert base is not None
        assert ratio is not None
        return f"`{name}` {verdict(ratio)} ({base:.2f}, times {ratio:.2f} at 8x)"

    window = "RoPE:window=128"
    return f"""Does RoPE in some layers and none in others extrapolate where RoPE alone
does not? Perplexity at {LENGTH} tokens and its growth at 8 times that: {told("RoPE")};
{told("RoPE,NoPE")}; with a window in the layer that has RoPE,
{told("RoPE:window=128,NoPE")}; with RoPE and a window in both,
{told(window)}. With two windows a token reaches at most 254 tokens
back, so `{window}` reads nothing at a distance it was not trained at.

Does a temperature help? {told("RoPE:temperature=ssmax")};
{told("RoPE:window=128,NoPE:temperature=ssmax")}."""


def settings(steps: int) -> str:
    """Return how the models of this part were trained, and how that differs from the first part."""
    run = preset("nano")
    text = f"""The same model, text and protocol as above, trained differently: the settings of the
preset `nano` ({run.optimizer}, {run.tokens_per_step:,} tokens per step) for {steps:,} steps (the
preset has {run.steps:,}). Every method costs the same number of training tokens. *holds*,
*degrades* and *breaks* follow the rule of the first part: growth at 8 times the length, below
{HOLDS}, below {BREAKS:.0f}, from {BREAKS:.0f} on. Growth depends on the training, so a method may
break in one part and degrade in the other: compare methods within a part. The tables have the
perplexity at {LENGTH} tokens and what it is multiplied by at longer lengths."""
    return textwrap.fill(text, 100)


def part(rows: dict[str, list[EvaluationRow]], args: argparse.Namespace) -> str:
    """Return the part of docs/results.md, without its markers."""

    def table(methods: Sequence[str]) -> Table | None:
        found = [row for name in methods for row in rows.get(name, ())]
        return Table.of(found) if found else None

    others = [name for name in rows if name not in ENCODINGS]
    schedules, encodings = table(others), table(ENCODINGS)
    absent = [name for name in ENCODINGS if name not in rows]
    command = " ".join(["python -m benchmarks.second_results", *sys.argv[1:]])
    text = f"""## Windows, layers without position, temperatures

Made by

    {command}

{settings(args.steps)}"""
    if schedules is not None:
        text += f"""

`RoPE:window=128,NoPE` is a schedule: the first layer has RoPE and sees 128 tokens, the second has
no position and sees all.

{growth(schedules)}"""
        if len(schedules.methods) == len(SCHEDULES):
            text += f"\n\n{answer(schedules)}"
        text += f"\n\n{schedules.to_markdown()}"
    if encodings is not None:
        text += f"\n\n## Newer encodings\n\n{growth(encodings)}\n\n{by_verdict(encodings)}"
        if absent:
            text += f"\n\nNot measured: {', '.join(f'`{name}`' for name in absent)}."
    return text


def measured(
    method: str, seed: int, folder: Path, args: argparse.Namespace
) -> Sequence[EvaluationRow]:
    """Return the rows of one run, trained and evaluated as far as it is not yet."""
    print(f"{method}, seed {seed}", file=sys.stderr, flush=True)
    config = preset(
        "nano", encoding=method, seed=seed, steps=args.steps, warmup_steps=args.steps // 20
    )
    result = train(config, out=folder, resume=folder.exists(), cache=default_cache())
    if not result.finished:
        sys.exit(result.message)
    return evaluate(
        load(folder),
        lengths=[LENGTH * times for times in TIMES],
        limit=START,
        same_tokens=True,
        journal=args.runs / "journal",
    ).rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=(*SCHEDULES, *ENCODINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--steps", type=int, default=540)
    parser.add_argument("--finished", action="store_true", help="Train nothing.")
    parser.add_argument("--runs", type=Path, default=Path("runs/second-results"))
    parser.add_argument("--docs", type=Path, default=Path("docs/results.md"))
    args = parser.parse_args()
    rows: dict[str, list[EvaluationRow]] = {}
    for seed in args.seeds:
        for method in args.methods:
            folder = args.runs / f"{method.replace(':', ' ')}-{args.steps}-{seed}"
            if args.finished and not (folder / f"checkpoints/step-{args.steps:06d}").exists():
                continue
            rows.setdefault(method, []).extend(measured(method, seed, folder, args))
    text = part(rows, args)
    page = args.docs.read_text() if args.docs.exists() else ""
    first = page.removesuffix(second_part(args.docs))
    write_text(args.docs, f"{first}\n{OPEN}\n\n{text}\n{CLOSE}\n")
    print(text)


if __name__ == "__main__":
    main()
