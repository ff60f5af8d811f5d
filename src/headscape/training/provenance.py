"""provenance.json: what a run was made with, beyond its configuration.

One entry per start, oldest first: versions, machine, threads, processes, commit of the source tree,
objective, fingerprints of text and tokenizer, files of encodings that are not Headscape's,
attention path, and the step it started at. The fingerprints are read back only where a checkpoint
of an older version has not recorded them; opening a run whose encoding is not registered names its
file.
"""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch

from headscape.encodings.registry import defining_files
from headscape.errors import InputError
from headscape.io.files import parse_json, reporting, write_text
from headscape.training import checkpoint
from headscape.training.config import TrainConfig, flat
from headscape.training.objective import Data
from headscape.training.world import World

NAME = "provenance.json"
PACKAGES = ("headscape", "torch", "numpy", "safetensors", "tokenizers")


def record(
    run: Path,
    config: TrainConfig,
    data: Data,
    world: World,
    attention: dict[str, object],
    step: int,
) -> None:
    """Add an entry for a start at `step`; `attention` is the path used, and why."""
    entry = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": sys.argv,
        "versions": {"python": platform.python_version()} | _versions(),
        "seed": config.seed,
        "objective": data.objective.description,
        "corpus": {"name": config.corpus} | _corpus(data),
        "tokenizer": {"name": config.tokenizer, "fingerprint": data.tokenizer.fingerprint},
        "plugins": defining_files(config.model.encoding),
        "attention": {"requested": config.path} | attention,
        "processes": world.size,
        "threads": torch.get_num_threads(),
        "machine": {
            "platform": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "device": _device(world.device),
        },
        "git": _git(),
    }
    write_text(run / NAME, json.dumps([*read(run), entry], indent=1) + "\n")


def made_with(config: TrainConfig, data: Data) -> dict[str, object]:
    """Return what every checkpoint records: the config, fingerprints of text and tokenizer."""
    return {
        "config": flat(config),
        "corpus": data.fingerprint,
        "tokenizer": data.tokenizer.fingerprint,
    }


def fingerprint_of(run: Path, key: Literal["corpus", "tokenizer"]) -> str | None:
    """Return the fingerprint that the newest checkpoint recorded, or else the last start."""
    value = checkpoint.made_with(run).get(key)
    if isinstance(value, str):
        return value
    [facts] = [entry.get(key) for entry in read(run)[-1:]] or [None]
    recorded = facts.get("fingerprint") if isinstance(facts, dict) else None
    return recorded if isinstance(recorded, str) else None


def plugin_of(run: Path, encoding: str) -> str | None:
    """Return the file that defined an encoding at the last start of a run, if it is recorded."""
    for entry in read(run)[-1:]:
        plugins = entry.get("plugins")
        if isinstance(plugins, dict) and isinstance(plugins.get(encoding), str):
            return str(plugins[encoding])
    return None


def read(run: Path) -> list[dict[str, object]]:
    """Return every entry; none if the file is missing or not JSON."""
    path = run / NAME
    with reporting("read", path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return []
    try:
        entries = parse_json(data, path)
    except InputError:
        return []
    return [item for item in entries if isinstance(item, dict)] if type(entries) is list else []


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _git() -> dict[str, object] | None:
    """Return commit and dirty state of the tree this package runs from; None outside of git."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(  # noqa: S603 - fixed words, no shell
            ["git", *words],  # noqa: S607 - the git on the PATH
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        return done.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _corpus(data: Data) -> dict[str, object]:
    if data.dataset is None:
        return {"generated": True, "fingerprint": data.fingerprint}
    return {
        "fingerprint": data.fingerprint,
        "train_tokens": len(data.dataset.train),
        "validation_tokens": len(data.dataset.validation),
    }
