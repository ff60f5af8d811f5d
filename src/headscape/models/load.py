"""Open a model: a training run, a folder of weights, a published model, or one in memory."""

import copy
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headscape.data.tokenize.bpe import GPT2Tokenizer
from headscape.data.tokenize.byte_tokenizer import ByteTokenizer
from headscape.data.tokenize.published_tokenizer import read_published
from headscape.data.tokenize.tokenizer import Tokenizer, load_tokenizer
from headscape.errors import InputError
from headscape.gpt2 import GPT2, weights
from headscape.io.files import read_json
from headscape.models.gpt2_model import GPT2Model
from headscape.models.loaded import LoadedModel
from headscape.models.model import ReadsSound
from headscape.models.transformers.model_folder import Opening, is_exported
from headscape.models.transformers.open_published import (
    is_published,
    open_published,
    wrap_published,
    wrap_tokenizer,
)
from headscape.models.transformers.published_model import PublishedModel
from headscape.training.objective import objective_of
from headscape.training.run import CONFIG, Run

HUGGING_FACE = "hf:"
NAMED: dict[str, Callable[[], Tokenizer]] = {"bytes": ByteTokenizer, "gpt2": GPT2Tokenizer}

OWN_TOKENIZER = (
    "is a training run, which has the tokenizer it was trained with: leave tokenizer out."
)


def load(
    source: "str | Path | GPT2 | LoadedModel | nn.Module",
    *,
    step: int | None = None,
    tokenizer: object = None,
    revision: str | None = None,
    device: "str | torch.device | None" = None,
    dtype: "str | torch.dtype | None" = None,
    device_map: str | dict[str, Any] | None = None,
    offload: bool | None = None,
) -> LoadedModel:
    """Open a model.

    Args:
        source: The folder of a training run, a folder that `save`, `save_pretrained` or `export`
            wrote, a folder of Hugging Face GPT-2 weights, `hf:FOLDER` or `hf:FILE.gguf` for a model
            that transformers loads, `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION` for one on the
            Hugging Face Hub, or a `GPT2` or transformers model in memory.
        step: Which checkpoint of a run; the newest good one by default.
        tokenizer: For a model without its own: "bytes", "gpt2", a tokenizer of ours or of
            transformers.
        revision: Branch, tag or commit of a model on the Hub.
        device: Where an `hf:` model runs, such as "cuda"; the CPU by default.
        dtype: Of an `hf:` model: "float32" (the default), "bfloat16", "float16", or "auto" for the
            one its weights are stored in.
        device_map: "auto" spreads an `hf:` model over all GPUs, memory and disk with accelerate.
        offload: True leaves the weights of an `hf:` model on disk and reads them block by block in
            every pass. By default that happens to a model that is larger than memory, with a
            warning; False refuses it.

    Example:
        >>> import headscape as hs
        >>> gpt2 = hs.GPT2.from_preset("nano", encoding="cable", vocabulary=257)
        >>> hs.load(gpt2, tokenizer="bytes")
        <CABLE: 2 layers x 12 heads, width 192, context 1024, untrained>
    """
    chosen = _tokenizer(tokenizer)
    opening = Opening(
        revision=revision,
        device=None if device is None else str(device),
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        device_map=device_map,
        offload=offload,
    )
    path = str(source) if isinstance(source, str | Path) else ""
    name = path or type(source).__name__
    folder = Path(path.removeprefix(HUGGING_FACE))
    published = path.startswith(HUGGING_FACE) and not is_exported(folder)
    is_run = bool(path) and not published and (folder / CONFIG).is_file()
    if step is not None and not is_run:
        raise InputError(f"{name} is not a training run, so it has no step {step}.")
    if published:
        return _open_named(str(folder), chosen, opening)
    opening.refuse(name)
    if isinstance(source, LoadedModel):
        return source if chosen is None else _with_tokenizer(source, chosen)
    if isinstance(source, GPT2):
        return GPT2Model(source, tokenizer=chosen, trained=False)
    if is_published(source):
        return _exported_in_memory(source, chosen) or wrap_published(source, chosen)
    if not isinstance(source, str | Path):
        raise InputError(
            f"load takes a folder, a GPT2, a transformers model or a loaded model, got "
            f"{type(source).__name__}."
        )
    if is_run and chosen is not None:
        raise InputError(f"{folder} {OWN_TOKENIZER}")
    return open_run(folder, step) if is_run else _open_weights(folder, chosen)


def _with_tokenizer(model: LoadedModel, tokenizer: Tokenizer) -> LoadedModel:
    """Return a model with a different tokenizer and the same weights."""
    if isinstance(model, GPT2Model) and model.folder is not None:
        raise InputError(f"{model.folder} {OWN_TOKENIZER}")
    if not isinstance(model, GPT2Model | PublishedModel) or isinstance(model, ReadsSound):
        raise InputError(f"{model.spec.name} takes no tokenizer: leave it out.")
    changed = copy.copy(model)
    changed._tokenizer = tokenizer  # noqa: SLF001
    return changed


def _open_named(name: str, tokenizer: Tokenizer | None, opening: Opening) -> PublishedModel:
    """A published model by what follows `hf:`; a path that exists wins over a name on the Hub."""
    from headscape.models.transformers.fetch import FETCHED, fetched
    from headscape.models.transformers.hub import download, is_hub_id

    folder = Path(name)
    if folder.exists() or not is_hub_id(name):
        if opening.revision is not None:
            raise InputError(f"{folder} is on this machine, so it has no revision: leave it out.")
        return open_published(folder, tokenizer, opening)
    if name in FETCHED:
        if opening.revision is not None:
            raise InputError(f"{name} comes from a package, so it has no revision: leave it out.")
        return open_published(fetched(name), tokenizer, opening)
    near = get_close_matches(name, FETCHED, n=1, cutoff=0.8)
    if near:
        raise InputError(f"there is no folder {name} here: did you mean hf:{near[0]}?")
    found = download(name, opening.revision)
    return open_published(
        found.folder, tokenizer, opening, name=found.name, origin={"hub": found.origin}
    )


def _open_weights(folder: Path, tokenizer: Tokenizer | None) -> GPT2Model:
    """A folder of weights, ours or Hugging Face's GPT-2, with its tokenizer if there is one."""
    if folder.suffix == ".gguf" and not folder.exists():
        raise InputError(f"there is no file {folder}.")
    if folder.suffix == ".gguf" and not folder.is_dir():
        raise InputError(
            f"{folder} is opened as hf:{folder}, which needs pip install 'headscape[gguf]'."
        )
    if folder.is_file():
        hint = "a capture is opened with Capture.load" if folder.suffix == ".safetensors" else ""
        raise InputError(f"{folder} is a file, not a model's folder{'; ' + hint if hint else ''}.")
    if not folder.is_dir():
        raise InputError(f"there is no file or folder {folder}{_hub_hint(folder)}.")
    if not (weights.is_ours(folder) or (folder / "config.json").is_file()):
        raise InputError(
            f"{folder} is not a model: it has no config.toml (a training run), headscape.json "
            f"(our weights) or config.json (Hugging Face weights)."
        )
    gpt2 = GPT2.from_pretrained(folder).eval()
    about: dict[str, Any] = {"provenance": {"folder": folder.name}}
    if is_exported(folder):
        entry = weights.read_entry(folder)
        about = entry.about if entry.is_unchanged(folder) else about
    if tokenizer is None:
        tokenizer = _tokenizer_of(folder, gpt2)
    return GPT2Model(gpt2, tokenizer=tokenizer, **about)


def _hub_hint(folder: Path) -> str:
    """Return how to open a model of the Hub, where a missing folder may be the id of one."""
    from headscape.models.transformers.fetch import FETCHED
    from headscape.models.transformers.hub import is_hub_id

    name = str(folder)
    owned = len(folder.parts) == 2 and is_hub_id(name) and not folder.parent.exists()
    if not (owned or name in FETCHED):
        return ""
    return f"; a model of the Hugging Face Hub is opened as {HUGGING_FACE}{name}"


def _exported_in_memory(model: Any, tokenizer: Tokenizer | None) -> GPT2Model | None:
    """A copy of a model that transformers opened with our own class; None for other classes."""
    entry = getattr(getattr(model, "config", None), weights.ENTRY, None)
    if not isinstance(entry, dict) or entry.get("layout") != "headscape":
        return None
    name = type(model).__name__
    found = weights.Exported.from_json(entry, name)
    gpt2 = GPT2(found.model)
    tensors = weights.ours(found, model.state_dict())
    gpt2.load_tensors(tensors, source=name)
    return GPT2Model(gpt2.eval(), tokenizer=tokenizer, provenance={"architecture": name})


def _tokenizer_of(folder: Path, gpt2: GPT2) -> Tokenizer | None:
    if (folder / weights.TOKENIZER).is_file():
        return load_tokenizer(read_json(folder / weights.TOKENIZER))
    path = folder / "tokenizer.json"
    if not path.is_file():
        published = (folder / "config.json").is_file() and not weights.is_ours(folder)
        return GPT2Tokenizer() if published and gpt2.config.vocabulary == 50257 else None
    described = read_json(path)
    return load_tokenizer(described) if "kind" in described else read_published(folder)


def _tokenizer(given: object) -> Tokenizer | None:
    if given is None or isinstance(given, Tokenizer):
        return given
    if is_published(given):
        return wrap_tokenizer(given)
    if not isinstance(given, str) or given not in NAMED:
        raise InputError(f"unknown tokenizer {given!r}: give bytes, gpt2 or a tokenizer.")
    return NAMED[given]()


def open_run(folder: Path | str, step: int | None = None) -> GPT2Model:
    """The newest good checkpoint of a run, or the one of a step."""
    run = Run.open(folder, step)
    return GPT2Model(
        run.model,
        tokenizer=run.tokenizer,
        dataset=run.dataset,
        folder=run.folder,
        preset=run.config.preset,
        task=objective_of(run.config.corpus).task,
        seed=run.config.seed,
        recipe=run.recipe,
        provenance={
            "run": run.folder.name,
            "step": run.step,
            "checkpoint_hash": run.checkpoint_hash,
        },
    )
