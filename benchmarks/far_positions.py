"""What far positions alone do to a published RoPE model, and which remedy helps.

    python benchmarks/far_positions.py MODEL TEXT [--tokens 512] [--windows 6] [--length 32768]

A window of `tokens` tokens is read with its second half `length - tokens` positions later: its
queries meet the distances of a text of `length` tokens and no more keys than before. The loss of
the second half is compared with that of the same tokens without the gap. A pass costs `tokens`
tokens, where the whole text would cost `length`. The number of keys, the other thing that a long
text changes, is not in these numbers.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headscape as hs
from headscape.diagnosis.changes import Gap, Rotations
from headscape.diagnosis.far_positions import Far
from headscape.diagnosis.heads import MEASURES, head_measures
from headscape.diagnosis.remedies import longrope_candidates, remedies_for
from headscape.measures.interval import estimate
from headscape.models.changed import Change, ChangedModel

FORGET = {"sinks", "chunk"}


def main() -> None:
    """Print a line of JSON per change."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model")
    options.add_argument("text")
    options.add_argument("--tokens", type=int, default=512)
    options.add_argument("--windows", type=int, default=6)
    options.add_argument("--length", type=int, default=32768)
    given = options.parse_args()
    model: Any = hs.load(given.model)
    trained = model.spec.train_length
    tokens = model.tokenizer.encode(Path(given.text).read_text()).astype("int64")
    half = given.tokens // 2
    room = len(tokens) // (given.tokens + 1)
    starts = [n * room // given.windows * (given.tokens + 1) for n in range(given.windows)]
    windows = [torch.from_numpy(tokens[at : at + given.tokens + 1])[None] for at in starts]
    at = torch.arange(half, given.tokens)
    chosen, _ = remedies_for(model.spec, trained, given.length)
    chosen += longrope_candidates(model.spec, trained, given.length)[1:4:2]
    gap = Gap(Rotations(model.spec), half, given.length - given.tokens)
    changes: list[tuple[str, Change | None]] = [("near", None), ("far", Far(gap))]
    changes += [
        # What follows the semicolon is about a search, which there is none of here.
        (f"far, {each.title}: {each.text.partition(';')[0]}", Far(gap, each.change))
        for each in chosen
        if each.name not in FORGET
    ]
    plain: np.ndarray | None = None
    for name, change in changes:
        before = time.monotonic()
        changed = ChangedModel(model, change, name=name, mark=name)
        losses = np.array([float(changed.losses_at(w, at).mean()) for w in windows])
        plain = losses if plain is None else plain
        row = {
            "change": name,
            "loss": estimate(losses).round(4).tolist(),
            "minus_near": estimate(losses - plain).round(4).tolist(),
            "seconds": round(time.monotonic() - before, 1),
        }
        print(json.dumps(row), flush=True)
    for name, change in (("near", None), ("far", gap)):
        changed = ChangedModel(model, change, name=name, mark=name)
        tables = [head_measures(changed, w[0, :-1].numpy()) for w in windows[:2]]
        means = {m: np.mean([t[m] for t in tables], axis=0) for m in MEASURES}
        row = {
            "heads": name,
            **{m: round(float(np.nanmean(x)), 4) for m, x in means.items()},
            "layer_1_entropy": round(float(np.nanmean(means["entropy"][0])), 4),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
