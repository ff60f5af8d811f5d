"""Open a published model: a folder of safetensors, a GGUF file, or a model already in memory.

`transformers` is optional. No pickle is opened and no code of a model's folder is run.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from headscape.errors import InputError
from headscape.pretrained.memory_check import check_memory
from headscape.pretrained.published_model import PublishedModel, body_of
from headscape.pretrained.readable_attention import ENCODING
from headscape.pretrained.sound_input import sound_input
from headscape.pretrained.speech_model import SpeechModel
from headscape.text.tokenize.published_tokenizer import PublishedTokenizer
from headscape.text.tokenize.tokenizer import Tokenizer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def is_published(given: object) -> bool:
    """Whether an object, a model or a tokenizer, is one of transformers' classes."""
    return any(kind.__module__.startswith("transformers.") for kind in type(given).__mro__)


def wrap_tokenizer(theirs: Any) -> PublishedTokenizer:
    """A fast tokenizer of transformers as one of ours."""
    backend = getattr(theirs, "backend_tokenizer", None)
    if backend is None:
        raise InputError(f"{type(theirs).__name__} is not a fast tokenizer: give one that is.")
    return PublishedTokenizer(backend.to_str(), theirs.eos_token_id)


def wrap_published(model: Any, tokenizer: Tokenizer | None) -> PublishedModel:
    """Read a transformers model that is already in memory."""
    name = Path(str(getattr(model, "name_or_path", ""))).name or type(model).__name__
    return _wrapped(model, name, tokenizer, lambda: None)


def _wrapped(
    model: Any, name: str, given: Tokenizer | None, beside: Callable[[], Tokenizer | None]
) -> PublishedModel:
    """Read a model of tokens or a speech model, beside which no tokenizer is opened."""
    reads = sound_input(body_of(model), model.config)
    if reads is None:
        return PublishedModel(model, name, given or beside())
    if given is not None:
        raise InputError(f"{name} reads sound and uses no tokenizer: leave tokenizer out.")
    return SpeechModel(model, name, reads)


def open_published(folder: Path, tokenizer: Tokenizer | None = None) -> PublishedModel:
    """Load a model from a folder of safetensors or from a GGUF file, in float32."""
    transformers = _transformers()
    gguf = {"gguf_file": folder.name} if folder.suffix == ".gguf" else {}
    home = folder.parent if gguf else folder
    if not home.is_dir():
        raise InputError(f"there is no folder {home}: give the folder of a downloaded model.")
    if not gguf and not (home / "config.json").is_file():
        raise InputError(f"{home} has no config.json: give the folder of a downloaded model.")
    if gguf and not folder.is_file():
        raise InputError(f"there is no file {folder}.")
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(home, local_files_only=True, **gguf)
        _refuse_own(folder, config)
        kind = _class(transformers, config)
        _refuse_flash(folder, kind, config)
        check_memory(folder.name, kind, config)
        model, found = kind.from_pretrained(
            home, local_files_only=True, use_safetensors=not gguf, dtype=torch.float32,
            output_loading_info=True, **gguf,
        )  # fmt: skip
    except (
        OSError, ValueError, ImportError, KeyError, SafetensorError, _invalid_config()
    ) as error:  # fmt: skip
        raise InputError(
            f"{folder} is not a model that transformers loads: {_first_line(error)}"
        ) from error
    finally:
        if bars:
            transformers.logging.enable_progress_bar()
    _need_weights(folder, model, found["missing_keys"])
    name = folder.stem if gguf else folder.resolve().name
    return _wrapped(model, name, tokenizer, lambda: _open_tokenizer(transformers, home, gguf))


def _refuse_own(folder: Path, config: Any) -> None:
    """Raise InputError if set_encoding replaced the model's position, which its class lacks."""
    if getattr(config, ENCODING, None):
        raise InputError(
            f"{folder} has an encoding that set_encoding put in: load it with "
            f"headscape.huggingface.load to run and train it; its attention cannot be read."
        )


def _refuse_flash(folder: Path, kind: Any, config: Any) -> None:
    """Raise InputError if a config asks for flash attention and the family has none."""
    asked = str(config._attn_implementation or "")
    if "flash" in asked and not getattr(kind, "_supports_flash_attn", True):
        raise InputError(
            f"{folder} asks for {asked}, which {kind.__name__} cannot use: set attn_implementation "
            f"to sdpa or eager in its config.json."
        )


def _need_weights(folder: Path, model: Any, missing: Collection[str]) -> None:
    """Raise InputError if weights are missing: transformers fills them with random numbers.

    Poolers, heads and training's masks of sound may be missing: folders often leave them out.
    """
    body = model if model.can_generate() else model.base_model
    unread = ("pooler", "masked_spec_embed")
    read = {
        id(weight)
        for name, weight in body.named_parameters()
        if not any(part in name for part in unread)
    }
    names = sorted(
        name for name, weight in model.named_parameters() if name in missing and id(weight) in read
    )
    if names:
        raise InputError(
            f"{folder} lacks {len(names)} weights of its model, the first of them {names[0]}: they "
            f"are missing or stored in a form that transformers does not read."
        )


def _class(transformers: Any, config: Any) -> Any:
    """The class of transformers that the config names; a causal language model if it names none."""
    for name in config.architectures or []:
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    return transformers.AutoModelForCausalLM if type(config) in mapping else transformers.AutoModel


def _open_tokenizer(
    transformers: Any, folder: Path, gguf: dict[str, str]
) -> PublishedTokenizer | None:
    """The tokenizer beside a model; None where there is none."""
    if not gguf and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **gguf)
        return wrap_tokenizer(theirs)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"the tokenizer in {folder} cannot be read: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    """Return why transformers failed; a config's validator says it in the error's cause."""
    said = str(error.__cause__ or error).strip()
    return said.splitlines()[0] if said else type(error).__name__


def _invalid_config() -> type[Exception]:
    from huggingface_hub.errors import StrictDataclassError

    return StrictDataclassError


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "hf: models need transformers: pip install 'headscape[transformers]'."
        ) from error
    return transformers
