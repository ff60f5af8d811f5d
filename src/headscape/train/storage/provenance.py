"""provenance.json: what a run was made with, beyond its configuration.

One entry for every start, first to last: versions, machine, threads, processes, the state of the
source tree, the fingerprints of text and tokenizer, the attention path, and the step it began at.
A resumption reads back which text and tokenizer it was, and nothing else.
"""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from headscape.io import atomic
from headscape.tasks.task_batches import TaskBatches
from headscape.train.config.train_config import TrainConfig
from headscape.train.data import Data
from headscape.train.distributed.world import World

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
    """Add an entry for a start at `step`; `attention` is the path that was taken, and why."""
    entry = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": sys.argv,
        "versions": {"python": platform.python_version()} | _versions(),
        "seed": config.seed,
        "corpus": {"name": config.corpus} | _tokens(data),
        "tokenizer": {"name": config.tokenizer, "fingerprint": data.tokenizer.fingerprint},
        "attention": {"asked": config.path} | attention,
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
    path = run / NAME
    entries = read(run)
    atomic.write_text(path, json.dumps([*entries, entry], indent=1) + "\n")


def changed(run: Path, data: Data) -> str | None:
    """What of the last start's text and tokenizer is another now."""
    now = {"corpus": _tokens(data).get("fingerprint"), "tokenizer": data.tokenizer.fingerprint}
    names = {"corpus": "text", "tokenizer": "tokenizer"}
    if not read(run):
        return None
    return next((names[what] for what in now if _last(run, what) != now[what]), None)


def text_of(run: Path) -> str | None:
    """The fingerprint of the text that a run last went on with."""
    return _last(run, "corpus")


def _last(run: Path, what: str) -> str | None:
    """The fingerprint of the last start's text or tokenizer, where one was written down."""
    for entry in read(run)[-1:]:
        facts = entry.get(what)
        if isinstance(facts, dict) and isinstance(facts.get("fingerprint"), str):
            return str(facts["fingerprint"])
    return None


def read(run: Path) -> list[dict[str, object]]:
    """Every entry; none where the file is missing or was cut short."""
    try:
        entries = json.loads((run / NAME).read_bytes())
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _git() -> dict[str, object] | None:
    """The commit of the tree this package runs from, and whether it was changed; None outside."""
    here = Path(__file__).parent

    def ask(*words: str) -> str:
        done = subprocess.run(  # noqa: S603 - fixed words, no shell
            ["git", *words],  # noqa: S607 - whichever git the user has
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        return done.stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _tokens(data: Data) -> dict[str, object]:
    if data.shards is None:
        assert isinstance(data.batches, TaskBatches)
        return {"generated": True, "fingerprint": data.batches.fingerprint}
    return {
        "fingerprint": data.shards.train.header.corpus,
        "train_tokens": data.shards.train.header.tokens,
        "validation_tokens": data.shards.validation.header.tokens,
    }
