"""The shipped results: nano models of every method, several seeds, tested to 16x their length.

    python -m benchmarks.results            trains, evaluates, writes docs/results.md; hours
    python -m benchmarks.results --seeds 0 --methods alibi rope --steps 50 --docs /tmp/results.md

Everything is kept under --runs: a run folder per method and seed, journals of the evaluation, and
the merged table. Stop it at any time; the same command goes on where it was. The page is written
from the measurements alone, so it can be made again without training.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headscape.data.dataset import default_cache
from headscape.evaluation.evaluate import evaluate
from headscape.evaluation.row import EvaluationRow
from headscape.evaluation.table import Table
from headscape.gpt2.model_config import Scale
from headscape.io.files import write_bytes, write_text
from headscape.models.load import load
from headscape.training import preset, train

METHODS = (
    "cable", "cable-nw", "dapev2+cable", "alibi", "kerple", "dapev2+kerple", "fire", "t5-clipped",
    "rope",
    "learned", "sinusoidal", "nope",
)  # fmt: skip
SCALES: dict[str, Scale] = {"t5-clipped": "width"}
"""What q.k is divided by the root of, where the paper's code does not take the head's width."""
LENGTH, TIMES = 512, (1, 2, 4, 8, 16)
START = 2**17 + 1
"""Tokens of the held-out text that every seed is measured on; the first seed on all of it too."""
# Perplexity at 1x, 2x, 4x and 8x the training length, GPT-2 Small on FineWeb-Edu, from the CABLE
# paper (EMNLP 2025): trained at 1024, and for the DAPEv2 wrappers at 512.
PAPER: dict[str, tuple[float | None, ...]] = {
    "cable": (20.63, 20.02, 19.24, 19.31),
    "cable-nw": (20.89, 20.34, 19.67, 19.81),
    "dapev2+cable": (20.41, 19.91, 19.30, 18.55),
    "alibi": (20.99, 20.67, 21.23, 22.42),
    "kerple": (20.86, 20.38, 21.11, 26.59),
    "dapev2+kerple": (20.56, 20.07, 19.51, 18.79),
    "fire": (21.26, 22.48, 53.25, 155.32),
    "t5-clipped": (21.57, 29.37, 131.36, 405.94),
    "rope": (20.87, 58.59, 225.78, 554.12),
    "learned": (21.56, None, None, None),
    "sinusoidal": (21.83, 207.53, 956.41, 2376.51),
}
HOLDS, BREAKS = 1.05, 2.0
OPEN, CLOSE = "<!-- second table -->", "<!-- /second table -->"
"""Around the part of the page that benchmarks.second_results writes."""


def second_part(page: Path) -> str:
    """Return the end of the page that benchmarks.second_results wrote, empty if there is none."""
    text = page.read_text() if page.exists() else ""
    return text[text.index(f"\n{OPEN}") :] if f"\n{OPEN}" in text else ""


def verdict(growth: float | None) -> str:
    """A word for how perplexity grew from the training length to 8 times it."""
    if growth is None:
        return "cannot"
    if growth < HOLDS:
        return "holds"
    return "degrades" if growth < BREAKS else "breaks"


def growth_table(table: Table, names: Mapping[str, str]) -> tuple[str, str]:
    """Growth here beside the paper's, and where they agree and where not; names by method."""
    lines = [
        "| method | 2x | 4x | 8x | 16x | | paper 2x | 4x | 8x | | paper's perplexity 1x | 8x |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---|---:|---:|",
    ]
    agree: list[str] = []
    differ: list[str] = []
    here: dict[str, float] = {}
    paper: dict[str, float] = {}
    for method, name in names.items():
        ours = _growth([table.cell(name, LENGTH * times).mean for times in TIMES])
        printed = PAPER.get(method, (None, None, None, None))
        theirs = _growth(printed)
        word = verdict(ours[3])
        other = verdict(theirs[3]) if method in PAPER else "not reported"
        if ours[3] is not None and theirs[3] is not None:
            here[name], paper[name] = ours[3], theirs[3]
        if method in PAPER and word == other:
            agree.append(f"{name} {word}")
        elif method in PAPER:
            differ.append(f"{name} {word} here and {other} in the paper")
        cells = [name, *_texts(ours[1:]), word, *_texts(theirs[1:]), other]
        lines.append(f"| {' | '.join([*cells, *_texts((printed[0], printed[3]))])} |")
    reading = f"""Here and in the paper: {"; ".join(agree) or "none agrees"}.

Where they differ: {"; ".join(differ) or "nowhere"}.

From the least growth at 8 times the length to the most, of the methods the paper reports:

- here: {", ".join(sorted(here, key=here.__getitem__))};
- in the paper: {", ".join(sorted(paper, key=paper.__getitem__))}."""
    return "\n".join(lines), reading


def whole_table(start: Table, whole: Table, names: Mapping[str, str]) -> str:
    """Growth at 8 times the length on the start of the text and on all of it."""
    lines = [
        f"| method | {LENGTH} | {8 * LENGTH} | growth | growth on the start |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in names.values():
        here, there = (
            [table.cell(name, length).mean for length in (LENGTH, 8 * LENGTH)]
            for table in (whole, start)
        )
        cells = [name, *_texts([*here, _growth(here)[1], _growth(there)[1]])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _growth(values: Sequence[float | None]) -> list[float | None]:
    """Each over the first."""
    base = values[0]
    return [None if base is None or value is None else value / base for value in values]


def _texts(values: Sequence[float | None]) -> list[str]:
    return ["-" if value is None else f"{value:.2f}" for value in values]


def page(
    table: Table, whole: Table, names: Mapping[str, str], args: argparse.Namespace, how: str
) -> str:
    """docs/results.md."""
    growth, reading = growth_table(table, names)
    first = Table.of(row for row in table.rows if row.seed == args.seeds[0])
    scored = next(row.tokens for row in whole.rows if row.refused is None)
    run = preset("nano")
    stages = ", ".join(map(str, run.curriculum))
    return f"""# Trained at {LENGTH}, tested to {LENGTH * TIMES[-1]:,}

Made by

    {how}

Models: nano (2 layers, 12 heads, width 192), {args.steps:,} steps of AdamW on
{run.tokens_per_step:,} tokens each of the standard library's source, {len(args.seeds)} seeds each.
Windows of {stages} tokens take equal shares of the steps. Perplexities are of this text
with a vocabulary of 1,024 tokens and cannot be compared with perplexities of other texts; compare
how they change with the length. The start of the held-out text is scored.

{table.to_markdown()}
![Perplexity against length](results.svg)

± is the standard deviation over seeds. No number on this page has an interval over windows of the
text. `evaluate` writes a 95% interval over windows into its files
([how it is computed](evaluation.md#quantities)).

## Growth past the training length, beside the paper's

Perplexity at 2, 4, 8 and 16 times the training length over perplexity at the training length. At 8
times it, a method *holds* below {HOLDS}, *breaks* from {BREAKS:.0f} on and *degrades* between. The
paper's columns are GPT-2 Small on FineWeb-Edu by the same protocol (trained at 1024; the DAPEv2
wrappers at 512).

{growth}

{reading}

Four things may explain the differences; none was measured. After {args.steps:,} steps a nano model
uses far tokens little, so it loses little when it reads them wrongly. It has two layers, the
paper's twelve. Its first windows are shorter than 512 tokens. Source code repeats itself at short
range, which favours biases that decay fast.

## On all of the held-out text

How much a method breaks depends on the text it is tested on. Seed {args.seeds[0]} on all
{scored:,} tokens, by the same protocol:

{whole_table(first, whole, names)}

Why these steps and this text: [measured/evaluation.md](measured/evaluation.md#the-shipped-results).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--runs", type=Path, default=Path("runs/results"))
    parser.add_argument("--docs", type=Path, default=Path("docs/results.md"))
    args = parser.parse_args()
    cache = default_cache()
    lengths = [LENGTH * times for times in TIMES]
    how = {"same_tokens": True, "journal": args.runs / "journal"}
    rows: list[EvaluationRow] = []
    whole: list[EvaluationRow] = []
    names: dict[str, str] = {}
    for seed in args.seeds:
        for method in args.methods:
            folder = args.runs / f"{method}-{args.steps}-{seed}"
            print(f"{method}, seed {seed}", file=sys.stderr, flush=True)
            scale = SCALES.get(method, "head_dim")
            run = preset(
                "nano",
                encoding=method,
                scale=scale,
                seed=seed,
                optimizer="adamw",
                beta2=0.95,
                steps=args.steps,
                lr=5e-3,
                final_lr=5e-4,
                warmup_steps=min(60, args.steps // 10),
            )
            assert run.context_length == LENGTH
            result = train(run, out=folder, resume=folder.exists(), cache=cache)
            if not result.finished:
                sys.exit(result.message)
            model = load(folder)
            names[method] = model.spec.name
            rows += evaluate(model, lengths=lengths, limit=START, **how).rows
            if seed == args.seeds[0]:
                whole += evaluate(model, lengths=[LENGTH, 8 * LENGTH], **how).rows
    rows.sort(key=lambda row: list(names.values()).index(row.method))
    table = Table.of(rows)
    table.save(args.runs)
    command = " ".join(["python -m benchmarks.results", *sys.argv[1:]])
    text = page(table, Table.of(whole), names, args, command)
    write_text(args.docs, text + second_part(args.docs))
    write_bytes(args.docs.with_name("results.svg"), (args.runs / "evaluation.svg").read_bytes())
    print(text)


if __name__ == "__main__":
    main()
