"""Models of the Hugging Face Hub by their id, through the package huggingface_hub.

Its cache, token (`hf auth login`), endpoint (HF_ENDPOINT) and offline switch (HF_HUB_OFFLINE) are
used as they are set. Only files that a model is opened from are downloaded: config, safetensors,
tokenizer and chat template, never a pickle and never code. A transfer that breaks goes on where it
stopped. huggingface_hub checks the size of a file, not its content, so new files are compared with
the hash that names them in the cache.
"""

import hashlib
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headscape.errors import InputError
from headscape.io.files import read_json, reason
from headscape.models.transformers.model_folder import (
    INDEX,
    JSON,
    TEMPLATE,
    VOCABULARIES,
    WEIGHTS,
    file_name,
    shard_names,
)

HUB_ID: Final = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?(@[\w][\w./-]*)?", re.ASCII)
PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """A model of the Hub in huggingface_hub's cache."""

    folder: Path
    name: str
    """Without its owner."""
    origin: str
    """OWNER/NAME@COMMIT."""


def is_hub_id(name: str) -> bool:
    """Return whether a name may be the id of a model: NAME or OWNER/NAME, with @REVISION or not."""
    return HUB_ID.fullmatch(name) is not None and not name.endswith(".gguf")


def download(name: str, revision: str | None = None) -> Downloaded:
    """Return a model of the Hub; download what is not in the cache yet.

    Args:
        name: OWNER/NAME or OWNER/NAME@REVISION.
        revision: Branch, tag or commit, if not in the name.
    """
    model, _, named = name.partition("@")
    if named and revision not in (None, named):
        raise InputError(f"{name} names the revision {named}, and {revision} was given as well.")
    revision = named or revision
    hub = _huggingface_hub()
    with _explained(hub, model, revision):
        folder = _snapshot(hub, model, revision)
    return Downloaded(folder=folder, name=model.rpartition("/")[2], origin=f"{model}@{folder.name}")


def download_config(name: str) -> Downloaded:
    """Return where a model's config.json is in the cache; nothing else is downloaded.

    Args:
        name: OWNER/NAME or OWNER/NAME@REVISION.
    """
    model, _, revision = name.partition("@")
    hub = _huggingface_hub()
    with _explained(hub, model, revision or None):
        try:
            file = Path(hub.hf_hub_download(model, "config.json", revision=revision or None))
        except hub.errors.RemoteEntryNotFoundError as error:
            where = hub.constants.ENDPOINT
            raise InputError(f"{model} on {where} has no config.json.") from error
    found = file.parent
    return Downloaded(folder=found, name=model.rpartition("/")[2], origin=f"{model}@{found.name}")


def _snapshot(hub: Any, model: str, revision: str | None) -> Path:
    """Return the folder of a model in the cache, complete as far as the Hub can be reached."""
    if hub.constants.is_offline_mode():
        return _cached(hub, model, revision)
    try:
        files = hub.HfApi().model_info(model, revision=revision, files_metadata=True).siblings
    except hub.errors.HfHubHTTPError:
        raise
    except (OSError, hub.errors.HTTPError) as error:
        # No network: what is in the cache can be opened all the same.
        try:
            found = _cached(hub, model, revision)
        except hub.errors.LocalEntryNotFoundError:
            raise error from None
        where = hub.constants.ENDPOINT
        warnings.warn(
            f"{where} cannot be reached, so {model} is read from the cache.", stacklevel=2
        )
        return found
    sizes = {file.rfilename: file.size or 0 for file in files or []}
    blobs = Path(hub.constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}" / "blobs"

    def fetch(wanted: list[str]) -> Path:
        before = set(blobs.glob("*"))
        _need_space(model, blobs, sum(sizes[name] for name in wanted), before)
        folder = hub.snapshot_download(
            model, revision=revision, allow_patterns=wanted, tqdm_class=_bar(hub)
        )
        for blob in sorted(set(blobs.glob("*")) - before):
            _check_hash(model, blob)
        return Path(folder)

    return fetch(needed_files(model, list(sizes), fetch))


def _cached(hub: Any, model: str, revision: str | None) -> Path:
    try:
        return Path(hub.snapshot_download(model, revision=revision, local_files_only=True))
    except hub.errors.IncompleteSnapshotError as error:
        # Files that no model is opened from are never downloaded; opening says what is missing.
        return Path(error.snapshot_path)


def needed_files(model: str, names: Sequence[str], fetch: Callable[[list[str]], Path]) -> list[str]:
    """Return the files of a repository that a model is opened from.

    Args:
        model: OWNER/NAME, for messages.
        names: All files of the repository.
        fetch: Downloads some of them and returns their folder. Config and index say which files of
            weights are needed: their names follow no rule.
    """
    weights = _weights(names, fetch)
    if not weights:
        pickles = [name for name in names if name.endswith(PICKLES)]
        packed = [name for name in names if name.endswith(".gguf")]
        raise InputError(
            f"{model} on the Hub has no {WEIGHTS}"
            + (
                f", only {pickles[0]}, a pickle, which can run code when opened: convert its "
                f"weights to safetensors."
                if pickles
                else f", only GGUF: `hf download {model} {packed[0]} --local-dir FOLDER`, then "
                f"open hf:FOLDER/{packed[0]}."
                if packed
                else ": it is not a model that transformers loads."
            )
        )
    beside = {"config.json", *JSON, TEMPLATE}
    texts = [
        name
        for name in names
        if name in beside or (name.endswith(VOCABULARIES) and "/" not in name)
    ]
    return [*weights, *texts]


def _weights(names: Sequence[str], fetch: Callable[[list[str]], Path]) -> list[str]:
    """Return the names of a model's weights in a repository, with their index if they have one."""
    named = next((name for name in (WEIGHTS, INDEX) if name in names), None)
    if "config.json" in names:
        config = fetch(["config.json"]) / "config.json"
        stated = read_json(config).get("transformers_weights")
        if stated is not None and stated not in names:
            raise InputError(f"{config} names {str(stated)[:80]!r}, which is not beside it.")
        if stated is not None and not stated.endswith(".index.json"):
            return [file_name(stated, config)]
        named = stated or named
    if named is None or named == WEIGHTS:
        return [] if named is None else [named]
    shards = shard_names(fetch([named]) / named)
    # Opening says which of them is missing.
    return [named, *(name for name in shards if name in names)]


def _need_space(model: str, blobs: Path, size: int, before: set[Path]) -> None:
    """Raise InputError if a download would not fit on the disk."""
    place = next(folder for folder in blobs.parents if folder.is_dir())
    missing = size - sum(blob.stat().st_size for blob in before)
    free = shutil.disk_usage(place).free
    if missing > free:
        raise InputError(
            f"{model} needs {missing / 1e9:.3g} GB in {place}, where {free / 1e9:.3g} GB are free: "
            f"free some disk space, or set HF_HOME to a larger disk."
        )


def _check_hash(model: str, blob: Path) -> None:
    """Raise InputError and remove a file whose content is not what its name in the cache says."""
    if len(blob.name) == 64:
        with blob.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    elif len(blob.name) == 40:
        # A small file, named by git.
        data = blob.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    else:
        return
    if found != blob.name:
        blob.unlink()
        raise InputError(
            f"a file of {model} has the hash {found[:12]} instead of {blob.name[:12]} and was "
            f"removed: download it again."
        )


@contextmanager
def _explained(hub: Any, model: str, revision: str | None) -> Iterator[None]:
    """Turn what huggingface_hub raises into a sentence."""
    errors, where = hub.errors, hub.constants.ENDPOINT
    noise = hub.logging.get_verbosity()
    hub.logging.set_verbosity_error()
    try:
        yield
    except InputError:
        raise
    except errors.GatedRepoError as error:
        raise InputError(
            f"{model} on {where} is gated: accept its terms there and log in with `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"{model} on {where} has no revision {revision!r}.") from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"there is no folder {model} here and no public model {model} on {where}: check the "
            f"name, or log in with `hf auth login` if it is private."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        offline = hub.constants.is_offline_mode()
        why = (
            "which is all that is read offline (HF_HUB_OFFLINE)"
            if offline
            else f"and {where} cannot be reached"
        )
        raise InputError(
            f"there is no folder {model} here, and {model} is not in the Hub's cache "
            f"{hub.constants.HF_HUB_CACHE}, {why}."
        ) from error
    except (errors.HFValidationError, ValueError) as error:
        raise InputError(f"{model} is not the id of a model: {_first_line(error)}.") from error
    except OSError as error:
        if error.errno is None:
            raise _unreachable(model, where, error) from error
        raise InputError(f"cannot download {model}: {reason(error)}.") from error
    except Exception as error:
        # The HTTP library that huggingface_hub uses has errors of its own.
        raise _unreachable(model, where, error) from error
    finally:
        hub.logging.set_verbosity(noise)


def _unreachable(model: str, where: str, error: Exception) -> InputError:
    return InputError(
        f"there is no folder {model} here, and {model} could not be downloaded from {where}: "
        f"{_first_line(error)}."
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".: ")


def _bar(hub: Any) -> Any:
    """Return huggingface_hub's bar with sizes, in terminals only and after two seconds."""

    class SlowTransfer(hub.utils.tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            hidden = True if not sys.stderr.isatty() else options.get("disable")
            super().__init__(*args, **{**options, "delay": 2, "disable": hidden})

    return SlowTransfer


def _huggingface_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise InputError(
            "models of the Hub need transformers: pip install 'headscape[transformers]'."
        ) from error
    return huggingface_hub
