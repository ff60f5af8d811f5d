"""Our own checkpoint format: `model.safetensors` and `headscape.json` in one folder.

The JSON has the format's number, the model's config, every convention of the encoding with
defaults written out, and the SHA-256 of the weights. Never pickle.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from headscape.errors import InputError
from headscape.gpt2.model_config import ModelConfig
from headscape.io import atomic
from headscape.io.file_name import require_utf8
from headscape.io.json_file import read_json
from headscape.io.output_file import FileKind, check_output

FORMAT = 1
WEIGHTS = "model.safetensors"
HEADER = "headscape.json"


def is_ours(folder: Path) -> bool:
    """Return whether a folder has our format."""
    return (folder / HEADER).is_file()


OURS = FileKind("a checkpoint of headscape", lambda path: is_ours(path.parent))
"""What may be replaced by weights."""


def write(
    folder: Path,
    config: ModelConfig,
    conventions: Mapping[str, object],
    tensors: Mapping[str, torch.Tensor],
) -> str:
    """Write weights first and the header last: a folder with a header is whole.

    Weights of a different library in the folder are not replaced. Returns the SHA-256 of the
    weights.
    """
    check_output(folder / WEIGHTS, OURS)
    with atomic.replacing(folder / WEIGHTS) as part:
        save_file({name: value.contiguous() for name, value in tensors.items()}, part)
        digest = sha256(part)
    header = {
        "format": FORMAT,
        "model": config.to_json(),
        "conventions": dict(conventions),
        "sha256": digest,
    }
    atomic.write_text(folder / HEADER, json.dumps(header, indent=2) + "\n")
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


def read(folder: Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Return the config and weights of a folder that `write` made."""
    config, digest = read_header(folder)
    tensors = read_tensors(folder / WEIGHTS)
    if sha256(folder / WEIGHTS) != digest:
        raise InputError(f"{folder / WEIGHTS} does not match its checksum: the file is damaged.")
    return config, tensors


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
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


def sha256(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
