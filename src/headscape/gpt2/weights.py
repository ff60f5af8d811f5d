"""Folders of weights: our own format, a Hugging Face GPT-2, and what `headscape.export` wrote.

Our own: `model.safetensors` and `headscape.json` in one folder. The JSON has the format's number,
the model's config, every convention of the encoding with defaults written out, and the SHA-256 of
the weights. Never pickle.

A Hugging Face GPT-2: config.json, and safetensors in one file or in several with an index.

An export is such a folder whose config.json has an entry `headscape`:

    format, layout     how the tensors are stored (stock_layouts.py)
    model              the fields of our ModelConfig
    layers             the number of each layer's encoding
    about              name, preset, seed and provenance of the model
    sha256             of model.safetensors

transformers keeps this entry when it saves such a model again. `about` is true only of weights with
this SHA-256.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headscape.errors import InputError
from headscape.gpt2.model_config import ModelConfig
from headscape.gpt2.stock_layouts import Tensors, from_layout, rename
from headscape.io.files import read_json, replacing, require_utf8, write_text
from headscape.io.output_file import FileKind, check_output

FORMAT = 1
WEIGHTS = "model.safetensors"
HEADER = "headscape.json"
INDEX = "model.safetensors.index.json"
EXPORT_FORMAT = 1
ENTRY = "headscape"
TOKENIZER = "headscape_tokenizer.json"
"""Our description of an export's tokenizer; tokenizer.json beside it is transformers'."""
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
ALIGNMENT = 8


def is_ours(folder: Path) -> bool:
    """Return whether a folder has our format."""
    return (folder / HEADER).is_file()


OURS = FileKind("a checkpoint of headscape", lambda path: is_ours(path.parent))
"""What may be replaced by weights."""


def write(
    folder: Path,
    config: ModelConfig,
    conventions: Mapping[str, object],
    tensors: Mapping[str, Tensor],
) -> str:
    """Write weights first and the header last: a folder with a header is whole.

    Weights of a different library in the folder are not replaced. Returns the SHA-256 of the
    weights.
    """
    check_output(folder / WEIGHTS, OURS)
    with replacing(folder / WEIGHTS) as part:
        save_file({name: value.contiguous() for name, value in tensors.items()}, part)
        digest = sha256(part)
    header = {
        "format": FORMAT,
        "model": config.to_json(),
        "conventions": dict(conventions),
        "sha256": digest,
    }
    write_text(folder / HEADER, json.dumps(header, indent=2) + "\n")
    return digest


def read_header(folder: Path) -> tuple[ModelConfig, str | None]:
    """Return the config, and the SHA-256 of the weights; None where they are sharded."""
    header = read_json(folder / HEADER)
    if header.get("format") != FORMAT:
        raise InputError(
            f"{folder / HEADER} has format {header.get('format')!r}; this version reads {FORMAT}: "
            f"use a headscape that is as new as the checkpoint."
        )
    fields = header.get("model")
    if not isinstance(fields, dict):
        raise InputError(f"{folder / HEADER} does not describe a model.")
    digest = header.get("sha256")
    return ModelConfig.from_json(fields), digest if isinstance(digest, str) else None


def read(folder: Path) -> tuple[ModelConfig, Tensors]:
    """Return the config and weights of a folder in any of the three forms, under our names."""
    if is_ours(folder):
        return _read_ours(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}.")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} contains neither headscape.json nor config.json.")
    theirs = read_json(folder / "config.json")
    if ENTRY in theirs:
        entry = Exported.from_json(theirs[ENTRY], folder / "config.json")
        return entry.model, ours(entry, all_tensors(folder))
    return _published_config(theirs, folder), rename(all_tensors(folder), folder)


def _read_ours(folder: Path) -> tuple[ModelConfig, Tensors]:
    config, digest = read_header(folder)
    tensors = read_tensors(folder / WEIGHTS)
    if sha256(folder / WEIGHTS) != digest:
        raise InputError(f"{folder / WEIGHTS} does not match its checksum: the file is damaged.")
    return config, tensors


def read_tensors(path: Path) -> Tensors:
    """All tensors of a safetensors file; a pickle is refused by name."""
    if not path.is_file():
        pickles = sorted([*path.parent.glob("*.bin"), *path.parent.glob("*.pt*")])
        if pickles:
            raise InputError(
                f"{pickles[0]} is a pickle, which can run code when opened: convert the "
                f"checkpoint to safetensors and put {path.name} beside it."
            )
        raise InputError(f"there is no {path.name} in {path.parent}.")
    with path.open("rb") as file:
        start = file.read(9)
    # A safetensors header is JSON behind eight bytes of length, and these may be any.
    if start[8:] != b"{" and (start[:2] == b"PK" or start[:1] == b"\x80"):
        raise InputError(f"{path} is a pickle named safetensors; convert it to real safetensors.")
    require_utf8(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"{path} is truncated or damaged ({error}).") from error


def require_tensors(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, source: object
) -> None:
    """Raise InputError for wanted tensors that are missing or have a different shape.

    Args:
        tensors: What was read.
        wanted: The tensors to fill, by name; others may be missing here.
        source: Where `tensors` come from, for error messages.
    """
    for name, value in wanted.items():
        if name not in tensors:
            raise InputError(f"{source} has no tensor {name!r}.")
        if tensors[name].shape != value.shape:
            raise InputError(
                f"{source} has {name!r} with shape {tuple(tensors[name].shape)}, and the model "
                f"needs {tuple(value.shape)}."
            )


def _published_config(theirs: dict[str, object], folder: Path) -> ModelConfig:
    if theirs.get("model_type") != "gpt2":
        raise InputError(
            f"{folder} contains a {theirs.get('model_type')!r} model, not a 'gpt2': write "
            f"hf:{folder} to read it."
        )
    supported: dict[str, tuple[object, ...]] = {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
        "n_inner": (None, 4 * _whole(theirs, "n_embd", folder)),
    }
    for name, options in supported.items():
        if theirs.get(name, options[0]) not in options:
            raise InputError(f"{folder}: {name}={theirs[name]!r} is not supported.")
    epsilon = theirs.get("layer_norm_epsilon", 1e-5)
    if not isinstance(epsilon, float):
        raise InputError(f"{folder}: layer_norm_epsilon={epsilon!r} is not a number.")
    return ModelConfig(
        layers=_whole(theirs, "n_layer", folder),
        heads=_whole(theirs, "n_head", folder),
        width=_whole(theirs, "n_embd", folder),
        vocabulary=_whole(theirs, "vocab_size", folder),
        train_length=_whole(theirs, "n_positions", folder),
        encoding="learned",
        norm_epsilon=epsilon,
    )


def _whole(theirs: dict[str, object], name: str, folder: Path) -> int:
    value = theirs.get(name)
    if not isinstance(value, int):
        raise InputError(f"{folder}: {name}={value!r} is not a whole number.")
    return value


def all_tensors(folder: Path) -> Tensors:
    """All tensors of a folder, in one file or in several with an index."""
    if not (folder / INDEX).is_file():
        return read_tensors(folder / "model.safetensors")
    parts = read_json(folder / INDEX).get("weight_map")
    if not isinstance(parts, dict):
        raise InputError(f"{folder / INDEX} has no weight_map.")
    tensors: Tensors = {}
    for name in sorted(set(parts.values())):
        if Path(name).name != name:
            raise InputError(f"{folder / INDEX} names {name!r}, which is outside its folder.")
        tensors |= read_tensors(folder / name)
    return tensors


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
            "format": EXPORT_FORMAT,
            "layout": self.layout,
            "model": {**self.model.to_json(), "encoding_fields": fields},
            "layers": list(self.layers),
            "about": self.about,
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, entry: Any, source: object) -> "Exported":
        """Return the entry that `to_json` wrote; `source` is named in errors."""
        if not isinstance(entry, dict) or entry.get("format") != EXPORT_FORMAT:
            written = entry.get("format") if isinstance(entry, dict) else entry
            raise InputError(
                f"{source}: the entry {ENTRY!r} has format {written!r}; this version reads "
                f"{EXPORT_FORMAT}."
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


def read_entry(folder: Path) -> Exported:
    """Return the entry in a folder's config.json."""
    path = folder / "config.json"
    return Exported.from_json(read_json(path)[ENTRY], path)


def ours(entry: Exported, tensors: Tensors) -> Tensors:
    """Return an exported model's tensors with the names and layout of `GPT2`."""
    return from_layout(entry.layout, entry.model, entry.layers, tensors)


def write_stream(path: Path, tensors: Mapping[str, Tensor], advance: Callable[[int], None]) -> None:
    """Write floating-point tensors to a safetensors file, one at a time.

    There is no second copy in memory, and `advance` is called with each tensor's bytes. The format:
    8 bytes with the length of a JSON header, the header, the bytes of all tensors.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, value in tensors.items():
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {
            "dtype": DTYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for value in tensors.values():
            flat = value.detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
            advance(value.numel() * value.element_size())


def sha256(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
