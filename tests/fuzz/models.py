"""Random small GPT-2s against the definition in float64, every seed a model and a text of its own.

    python -m fuzz.models --inputs 2000 [--first 0]      (from the tests folder)

Encodings, wrappers and schedules with windows, chunks, sinks, softcaps and temperatures; plain
passes, packed documents and passes over a cache in chunks of any size, in float32 on the path that
`auto` chooses. Exits with 1 if any differs from the definition.
"""

import copy
import random

import torch

from fuzz.loop import main
from headscape.errors import InputError
from headscape.gpt2 import GPT2, Cache, ModelConfig
from headscape.properties.probe import randomise
from properties.subjects import SUBJECTS

SHAPING = (
    "window=5", "window=17", "chunk=6", "sink=true", "softcap=3.0", "temperature=ssmax",
    "temperature=llama4:temperature_start=3", "window=9:sink=true", "chunk=7:softcap=5.0",
)  # fmt: skip


def draw_model(draw: random.Random) -> GPT2 | None:
    """Return a model with random weights; None where its parts exclude each other."""
    heads, layers = draw.choice([1, 2, 3]), draw.choice([1, 2])
    names = [draw.choice(SUBJECTS) for _ in range(draw.choice([1, layers]))]
    if draw.random() < 0.5:
        names = [f"{name}:{draw.choice(SHAPING)}" for name in names]
    try:
        config = ModelConfig(
            layers=layers, heads=heads, width=heads * draw.choice([8, 16]), vocabulary=29,
            train_length=24, encoding=",".join(names),
            qk_norm=draw.choice(["none", "none", "before"]),
        )  # fmt: skip
        model = GPT2(config)
    except InputError:
        return None
    randomise(model, draw.randrange(1000))
    return model


@torch.no_grad()
def one(seed: int) -> str:
    """Check the model of a seed; the name of what was checked."""
    draw = random.Random(seed)  # noqa: S311
    model = draw_model(draw)
    length = draw.choice([1, 2, 7, 17, 33, 65, 80])
    text = torch.randint(29, (draw.choice([1, 2]), length), generator=torch.manual_seed(seed))
    if model is None:
        return "refused"
    kind = draw.choice(["whole", "packed", "cached", "cached"])
    where: dict[str, torch.Tensor] = {}
    if kind == "packed":
        size = draw.choice([3, 11, 40])
        at = torch.arange(length)[None]
        where = {"positions": at % size, "groups": at // size}
    try:
        exact = copy.deepcopy(model).double()(text, **where, path="reference")
    except InputError:  # a learned table is shorter than the text
        return "refused"
    rough = model(text, **where, path="reference")
    parts, cache, left = [], None if kind != "cached" else Cache(draw.choice([1, 3, 64])), length
    while left:
        size = left if cache is None else min(left, draw.choice([1, 1, 1, 2, 5, 16, 31]))
        parts.append(model(text[:, length - left : length - left + size], **where, cache=cache))
        left -= size
    error = float((torch.cat(parts, dim=1) - exact).abs().max())
    largest = 1 + float(exact.abs().max())
    budget = 4 * float((rough - exact).abs().max()) + 1e-5 * largest
    assert error <= budget, (model.config.encoding, model.config.heads, kind, length, error, budget)
    return kind


if __name__ == "__main__":
    main(__doc__, {"models": one})
