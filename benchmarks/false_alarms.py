"""How often a model without a fault is reported to break, by three rules.

    python benchmarks/false_alarms.py FILE [--seeds 16]

The models are Llamas and Gemmas with random weights (3 layers, 64 tokens) on random tokens up to
128 tokens, with one window and with eight: positions past 64 mean no more to them than those
before. Their loss by position is that of stage 2 of a diagnosis (diagnosis/loss_by_position.py).
The rules differ in the chance of a false alarm that each test has:

    split   2.5% for all positions past L together, and 2.5% / k for each of k bands: the diagnosis
    one_more   2.5% / (k + 1) for each band and for all positions together: until this split
    uncorrected   2.5% for each
"""

import argparse
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import headscape as hs
from headscape.diagnosis.loss_by_position import (
    LossPlan,
    LossTable,
    breaks,
    short_context_losses,
    window_losses,
    windows_of,
)
from headscape.models.changed import ChangedModel

TRAINED, LENGTH, VOCABULARY = 64, 128, 60
SIZES: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": VOCABULARY, "max_position_embeddings": TRAINED,
    "initializer_range": 0.4, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {
    "Llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "Gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
}


def loss_table(family: str, seed: int, windows: int) -> LossTable:
    """Return the losses by position of a random model on random tokens."""
    torch.manual_seed(seed)
    config, kind = FAMILIES[family]
    model = ChangedModel(hs.load(kind(config(**SIZES)).double().eval()))  # type: ignore[arg-type]
    tokens = np.random.default_rng(seed).integers(3, VOCABULARY, size=(windows + 1) * (LENGTH + 1))
    scored, _ = windows_of([tokens], LENGTH, windows, "the text")
    plan = LossPlan(trained=TRAINED, length=LENGTH, windows=scored)
    every = range(len(scored))
    return LossTable.of(
        plan,
        [window_losses(model, plan, number) for number in every],
        [short_context_losses(model, plan, number) for number in every],
    )


def any_breaks(table: LossTable, tested: Callable[[int], int]) -> bool:
    """Return whether a band or all positions together break if each has 2.5% / tested(k)."""
    at, edges = table.plan.at[table.plan.past], table.plan.edges
    inside = [(at >= low) & (at < high) for low, high in pairwise(edges)]
    bands = [table.excess()[:, where] for where in inside if where.any()]
    return any(breaks(each, tested(len(bands))) for each in [*bands, table.excess()])


RULES: dict[str, Callable[[LossTable], bool]] = {
    "split": lambda table: table.holds_to() < LENGTH,
    "one_more": lambda table: any_breaks(table, lambda bands: bands + 1),
    "uncorrected": lambda table: any_breaks(table, lambda _: 1),
}


def main() -> None:
    """Count the reported breaks and write them."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", type=Path)
    options.add_argument("--seeds", type=int, default=16)
    given = options.parse_args()
    rows = []
    for family in FAMILIES:
        for windows in (1, 8):
            tables = [loss_table(family, seed, windows) for seed in range(given.seeds)]
            counts = {name: sum(map(rule, tables)) for name, rule in RULES.items()}
            mean = float(np.mean([table.excess().mean() for table in tables]))
            row = {"family": family, "windows": windows, "diagnoses": len(tables), **counts}
            rows.append({**row, "mean_excess": round(mean, 4)})
            print(json.dumps(rows[-1]), flush=True)
    every = ("diagnoses", *RULES)
    total = {name: sum(int(row[name]) for row in rows) for name in every}
    command = f"python benchmarks/false_alarms.py {given.file} --seeds {given.seeds}"
    text = json.dumps({"command": command, "rows": rows, "total": total}, indent=1)
    given.file.write_text(text + "\n")


if __name__ == "__main__":
    main()
