"""What far positions alone do to a published RoPE model, and which remedy helps.

    python benchmarks/far_positions.py MODEL TEXT [--tokens 512] [--windows 6] [--length 32768]
        [--gaps 8064 32256] [--write FILE]

A window of `tokens` tokens is read with its second half a gap later: its queries meet the distances
of a long text and no more keys than before. The loss of the second half is compared with that of
the same tokens without the gap. A pass costs `tokens` tokens, where the whole text would cost
`length`. The number of keys, the other thing that a long text changes, is not in these numbers.

Every window is read with every gap, since a rotation comes round again and a single distance may
favour a remedy. `loss` and `minus_near` are means over gaps with their 95% intervals over windows,
`by_gap` has each gap's own mean. Without `--gaps` there are four, from about the trained
length to the end of `length` positions.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headscape as hs
from headscape.diagnosis.changes import Gap, Rotations
from headscape.diagnosis.far_positions import Far, gaps
from headscape.diagnosis.heads import MEASURES, measured
from headscape.diagnosis.remedies import longrope_candidates, remedies_for
from headscape.measures.interval import estimate
from headscape.models.changed import Change, ChangedModel

GAPS = 4
HEAD_WINDOWS = 2
"""Windows on which heads are measured, at the farthest gap."""


def main(words: Sequence[str] | None = None) -> None:
    """Print a line of JSON per change; `words` are those of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model")
    options.add_argument("text")
    options.add_argument("--tokens", type=int, default=512)
    options.add_argument("--windows", type=int, default=6)
    options.add_argument("--length", type=int, default=32768)
    options.add_argument("--gaps", type=int, nargs="+")
    options.add_argument("--write", type=Path)
    given = options.parse_args(words)
    model: Any = hs.load(given.model)
    trained = model.spec.train_length
    tokens = model.tokenizer.encode(Path(given.text).read_text()).astype("int64")
    room = len(tokens) // (given.tokens + 1)
    starts = [n * room // given.windows * (given.tokens + 1) for n in range(given.windows)]
    windows = [torch.from_numpy(tokens[at : at + given.tokens + 1])[None] for at in starts]
    far = sorted(given.gaps or gaps(trained, given.length, given.tokens, GAPS))
    rows = []
    for row in chain(losses(model, windows, far, given.length), heads(model, windows, far[-1])):
        print(json.dumps(row), flush=True)
        rows.append(row)
    if given.write is not None:
        about = {
            "model": model.spec.name,
            "trained": trained,
            "length": given.length,
            "tokens": given.tokens,
            "windows": given.windows,
            "gaps": far,
        }
        given.write.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def losses(
    model: Any, windows: Sequence[torch.Tensor], far: Sequence[int], length: int
) -> Iterator[dict[str, Any]]:
    """Yield a row per remedy: loss and difference from the loss without a gap, and both by gap."""
    trained, count = model.spec.train_length, windows[0].shape[1] - 1
    half, at = count // 2, torch.arange(count // 2, count)
    chosen, _ = remedies_for(model.spec, trained, length)
    chosen += longrope_candidates(model.spec, trained, length)[1:4:2]
    changes: list[tuple[str, Change | None]] = [("far", None)]
    changes += [
        # What follows the semicolon is about a search, which there is none of here.
        (f"far, {each.title}: {each.text.partition(';')[0]}", each.change)
        for each in chosen
        if not each.forgets
    ]

    def by_window(change: Change | None) -> np.ndarray:
        changed = ChangedModel(model, change, mark="far")
        return np.array([float(changed.losses_at(window, at).mean()) for window in windows])

    near = by_window(None)
    yield {"change": "near", "loss": estimate(near).round(4).tolist()}
    rotations = Rotations(model.spec)
    for name, change in changes:
        before = time.monotonic()
        found = np.array([by_window(Far(Gap(rotations, half, by), change)) for by in far])
        yield {
            "change": name,
            "loss": estimate(found.mean(axis=0)).round(4).tolist(),
            "minus_near": estimate(found.mean(axis=0) - near).round(4).tolist(),
            "by_gap": {
                str(by): estimate(each - near).round(4).tolist()
                for by, each in zip(far, found, strict=True)
            },
            "seconds": round(time.monotonic() - before, 1),
        }


def heads(model: Any, windows: Sequence[torch.Tensor], by: int) -> Iterator[dict[str, Any]]:
    """Yield the mean of each measure over heads, without and with a gap."""
    gap = Gap(Rotations(model.spec), (windows[0].shape[1] - 1) // 2, by)
    for name, change in (("near", None), ("far", gap)):
        changed = ChangedModel(model, change, mark=name)
        tables = [
            measured(changed, window[0, :-1].numpy(), change)["measures"]
            for window in windows[:HEAD_WINDOWS]
        ]
        means = {m: np.mean([np.array(t[m], float) for t in tables], axis=0) for m in MEASURES}
        yield {
            "heads": name,
            **{m: round(float(np.nanmean(x)), 4) for m, x in means.items()},
            "layer_1_entropy": round(float(np.nanmean(means["entropy"][0])), 4),
        }


if __name__ == "__main__":
    main()
