"""The weights of a folder that `headscape.export` wrote, under our names and bit for bit.

Its config.json has an entry `headscape`:

    format, layout     how the tensors are stored (stock_layouts.py)
    model              the fields of our ModelConfig
    layers             the number of each layer's encoding
    about              name, preset, seed and provenance of the model
    sha256             of model.safetensors

transformers keeps this entry when it saves such a model again. `about` is true only of weights with
this SHA-256.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from headscape.errors import InputError
from headscape.gpt2.model_config import ModelConfig
from headscape.gpt2.published import all_tensors
from headscape.gpt2.stock_layouts import from_layout
from headscape.gpt2.weights import WEIGHTS, sha256
from headscape.io.json_file import read_json

FORMAT = 1
ENTRY = "headscape"
TOKENIZER = "headscape_tokenizer.json"
"""Our description of the tokenizer; tokenizer.json beside it is transformers'."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The entry in config.json."""

    layout: str
    model: ModelConfig
    layers: tuple[int, ...]
    about: dict[str, Any]
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON values; a list of pairs keeps the order of the fields."""
        fields = [[name, value] for name, value in self.model.encoding_fields.items()]
        return {
            "format": FORMAT,
            "layout": self.layout,
            "model": {**self.model.to_json(), "encoding_fields": fields},
            "layers": list(self.layers),
            "about": self.about,
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, entry: Any, source: object) -> "Exported":
        """Return the entry that `to_json` wrote; `source` is named in errors."""
        if not isinstance(entry, dict) or entry.get("format") != FORMAT:
            found = entry.get("format") if isinstance(entry, dict) else entry
            raise InputError(
                f"{source}: the entry {ENTRY!r} has format {found!r}; this version reads {FORMAT}."
            )
        try:
            layers = tuple(int(number) for number in entry["layers"])
            return cls(
                layout=str(entry["layout"]),
                model=_model(entry["model"]),
                layers=layers,
                about=dict(entry["about"]),
                sha256=str(entry["sha256"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"{source}: the entry {ENTRY!r} is damaged ({error}).") from error

    def is_unchanged(self, folder: Path) -> bool:
        """Return whether the weights are those that were exported."""
        path = folder / WEIGHTS
        return path.is_file() and sha256(path) == self.sha256


def _model(written: dict[str, Any]) -> ModelConfig:
    """Return a model's config; JSON has lists in place of the tuples among its fields."""
    pairs = written["encoding_fields"]
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in pairs}
    return ModelConfig.from_json({**written, "encoding_fields": fields})


def is_exported(folder: Path) -> bool:
    """Return whether `headscape.export` wrote a folder, or transformers saved it again."""
    path = folder / "config.json"
    return path.is_file() and ENTRY in read_json(path)


def read_entry(folder: Path) -> Exported:
    """Return the entry in a folder's config.json."""
    path = folder / "config.json"
    return Exported.from_json(read_json(path)[ENTRY], path)


def read(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the config and the weights of an exported folder, under our names."""
    entry = read_entry(folder)
    return entry.model, ours(entry, all_tensors(folder))


def ours(entry: Exported, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return an exported model's tensors under our names."""
    return from_layout(entry.layout, entry.model, entry.layers, tensors)
