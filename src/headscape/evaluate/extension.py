"""RoPE models read past their trained length by stretching their frequencies, weights untouched.

    linear   position interpolation, arXiv:2306.15595
    ntk      a larger base
    dynamic  a base that grows with the length in use
    yarn     slow bands interpolated, scores sharpened, arXiv:2309.00071

`yarn:8` stretches by 8 at every length. Without a number linear, ntk and yarn stretch by test
length / trained length (by 1 up to the trained length), which is what one would choose for that
length; dynamic needs no number, as it follows the length by itself.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from headscape.encodings import encoding_type
from headscape.encodings.rope import RoPE
from headscape.errors import InputError
from headscape.gpt2 import GPT2

Kind = Literal["linear", "ntk", "dynamic", "yarn"]
TITLES: dict[str, str] = {
    "linear": "linear",
    "ntk": "NTK",
    "dynamic": "dynamic NTK",
    "yarn": "YaRN",
}


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A way to stretch, and by how much."""

    kind: Kind
    factor: float | None = None
    """None: by what the test length asks for."""

    @property
    def title(self) -> str:
        """As a column names it."""
        return TITLES[self.kind] + ("" if self.factor is None else f" x{self.factor:g}")

    def factor_at(self, length: int, trained: int) -> float:
        """By how much a test length is stretched."""
        if self.factor is not None:
            return self.factor
        return 1.0 if self.kind == "dynamic" else max(1.0, length / trained)


def parse(text: str) -> Extension:
    """The extension of a name such as `yarn` or `linear:4`."""
    name, colon, number = text.partition(":")
    for kind in get_args(Kind):
        if kind == name:
            return Extension(kind=kind, factor=_factor(number, text) if colon else None)
    raise InputError(f"unknown extension {text!r}: there are {', '.join(TITLES)}, also as yarn:8.")


def stretches(encoding: str) -> bool:
    """Whether an encoding is RoPE, alone or wrapped."""
    return encoding_type(encoding)[1] is RoPE


def extended(model: GPT2, extension: Extension, length: int) -> GPT2:
    """A model with the same weights (shared, not copied) and stretched frequencies."""
    config = model.config
    if not stretches(config.encoding):
        raise InputError(
            f"{extension.kind!r} stretches RoPE, and this model's encoding is "
            f"{config.encoding!r}: leave the extension out or choose a RoPE run."
        )
    factor = extension.factor_at(length, config.train_length)
    changes = {"scaling": extension.kind, "factor": factor}
    stretched = replace(config, encoding_fields={**config.encoding_fields, **changes})
    with torch.device("meta"):
        twin = GPT2(stretched)
    twin.load_state_dict(model.state_dict(), assign=True)
    return twin


def _factor(number: str, text: str) -> float:
    try:
        factor = float(number)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < float("inf"):
        raise InputError(f"{text!r}: an extension's factor must be a number of at least 1.")
    return factor
