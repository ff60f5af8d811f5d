"""Open a published model: a folder of safetensors, a GGUF file, or a model already in memory.

`transformers` is optional. No pickle is opened and no code of a model's folder is run.
"""

import inspect
import logging
import re
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from headscape.data.tokenize.published_tokenizer import PublishedTokenizer
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.errors import InputError
from headscape.models.transformers.model_folder import (
    Opening,
    checked_folder,
    checked_gguf,
    explained,
    gguf_read_once,
)
from headscape.models.transformers.observed_call import ENCODING
from headscape.models.transformers.published_model import PublishedModel, body_of
from headscape.models.transformers.speech_model import SpeechModel, sound_input

if TYPE_CHECKING:
    from headscape.models.transformers.offload import WeightStream

PLACEMENTS = ("auto", "balanced", "balanced_low_0", "sequential")
"""What accelerate calls its ways to place the parts of a model."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
UNPACKED: Final = ("fp8", "mxfp4")
"""Quantised weights that transformers turns into bfloat16 while it reads them on the CPU."""
HOW = (
    "hf: takes a folder on this machine that save_pretrained or `hf download` wrote, a GGUF file, "
    "or a model of the Hugging Face Hub as OWNER/NAME"
)
"""How to get a model, for messages."""


def is_published(given: object) -> bool:
    """Whether an object, a model or a tokenizer, is one of transformers' classes."""
    return any(kind.__module__.startswith("transformers.") for kind in type(given).__mro__)


def wrap_tokenizer(theirs: Any) -> PublishedTokenizer:
    """Return a fast transformers tokenizer as a Headscape tokenizer."""
    backend = getattr(theirs, "backend_tokenizer", None)
    if backend is None:
        raise InputError(f"{type(theirs).__name__} is not a fast tokenizer: give one that is.")
    chat = None
    if getattr(theirs, "chat_template", None):
        chat = partial(theirs.apply_chat_template, tokenize=False)
    return PublishedTokenizer(backend.to_str(), theirs.eos_token_id, chat)


def wrap_published(model: Any, tokenizer: Tokenizer | None) -> PublishedModel:
    """Read a transformers model that is already in memory."""
    name = Path(str(getattr(model, "name_or_path", ""))).name or type(model).__name__
    if any(weight.is_meta for weight in model.parameters()) and not hasattr(model, "hf_device_map"):
        raise InputError(
            f"{name} is on the device meta, so it has no weights: load them, or describe the model "
            f"by its card."
        )
    return _wrapped(model, name, tokenizer, lambda: None)


def _wrapped(
    model: Any,
    name: str,
    given: Tokenizer | None,
    beside: Callable[[], Tokenizer | None],
    stream: "WeightStream | None" = None,
    origin: Mapping[str, str] | None = None,
) -> PublishedModel:
    """Read a model of tokens or a speech model, beside which no tokenizer is opened."""
    body = body_of(model)
    first = _other_input(body)
    if first is None:
        return PublishedModel(model, name, given or beside(), stream=stream, origin=origin)
    reads = sound_input(body, model.config, first)
    if given is not None:
        raise InputError(f"{name} reads sound and uses no tokenizer: leave tokenizer out.")
    if stream is not None:
        raise InputError(f"{name} reads sound, and only models of text can be offloaded.")
    return SpeechModel(model, name, reads)


def _other_input(body: nn.Module) -> str | None:
    """Return the name of what a model reads that is not tokens; None if it reads tokens."""
    taken = inspect.signature(body.forward).parameters
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = next((name for name, each in taken.items() if each.kind in named), None)
    return None if "input_ids" in taken else first


def open_published(
    folder: Path,
    tokenizer: Tokenizer | None = None,
    opening: Opening | None = None,
    *,
    name: str | None = None,
    origin: Mapping[str, str] | None = None,
) -> PublishedModel:
    """Load a model from a folder of safetensors or from a GGUF file.

    `name` and `origin` are what it is called and where it comes from, if not after its folder.
    """
    transformers = import_transformers()
    opening = opening or Opening()
    device = opening.checked_device()
    _need_files(folder)
    is_gguf = folder.suffix == ".gguf"
    opened = checked_gguf if is_gguf else checked_folder
    with ExitStack() as links, quiet(transformers), gguf_read_once(folder):
        files = links.enter_context(opened(folder))
        view = files.view
        # By name alone, transformers would prefer a GGUF file in the current folder.
        gguf = {"gguf_file": str(view / folder.name)} if is_gguf else {}
        given = {"local_files_only": True, "trust_remote_code": False, **gguf}
        stream = None
        with explained(folder, "is not a model that transformers loads", view):
            config = transformers.AutoConfig.from_pretrained(view, **given)
            kind = model_class(transformers, config, config.architectures, str(folder))
            _refuse_flash(folder, kind, config)
            dtype = opening.torch_dtype(packed=bool(_quantization(config)))
            options = {
                "use_safetensors": not gguf, "dtype": dtype, "output_loading_info": True,
                "ignore_mismatched_sizes": True, **given,
            }  # fmt: skip
            if getattr(config, ENCODING, None):
                from headscape.huggingface.inject.set_encoding import with_encodings

                kind = with_encodings(kind, config)
            if opening.offload:
                _refuse_offload(folder, config)
            elif opening.device_map is not None:
                options["device_map"] = _device_map(opening.device_map)
            offload = opening.offload or (
                opening.device_map is None
                and _overflows(folder, kind, config, files.numbers, dtype, offload=opening.offload)
            )
            if offload:
                from headscape.models.transformers.offload import stream_weights

                model, stream = stream_weights(kind, view, folder, device, config, options)
                found = stream.found
                _need_memory(f"one block of {folder.name}", stream.largest)
            else:
                model, found = kind.from_pretrained(view, **options)
        _need_shapes(folder, found["mismatched_keys"])
        _need_weights(folder, model, found["missing_keys"])
        _need_layers(folder, model, found["unexpected_keys"])
        if opening.device_map is not None:
            # What accelerate left on disk is read through these links while the model lives.
            weakref.finalize(model, links.pop_all().close)
        if stream is None and opening.device is not None:
            model = model.to(device)
        quantization: Any = getattr(model.config, "quantization_config", None)
        if gguf and hasattr(quantization, "gguf_file"):
            # The link's folder is a different one each time, and the fingerprint reads the config.
            quantization.gguf_file = folder.name
        model.name_or_path = model.config.name_or_path = str(folder.parent if gguf else folder)
        name = name or (folder.stem if gguf else folder.resolve().name)

        def beside() -> PublishedTokenizer | None:
            return _open_tokenizer(transformers, folder, view, given)

        with explained(folder, "loads, but does not run", view, runs_ours=True):
            return _wrapped(model, name, tokenizer, beside, stream, origin)


def _refuse_offload(folder: Path, config: Any) -> None:
    """Raise InputError if a model has weights that can only be read as a whole."""
    if folder.suffix == ".gguf":
        raise InputError(
            f"{folder} is a GGUF file, which cannot be offloaded: open it without offload, or "
            f"offload the model's safetensors."
        )
    if not _is_streamable(config):
        raise InputError(
            f"{folder} has quantised weights ({_quantization(config).get('quant_method')}), which "
            f"cannot be offloaded: open it without offload, or offload a model with plain weights."
        )


def _device_map(given: Any) -> Any:
    """Return a device map; raise InputError without accelerate, which places the parts."""
    if not find_spec("accelerate"):
        raise InputError("device_map needs accelerate: pip install accelerate.")
    if isinstance(given, str) and given not in PLACEMENTS:
        try:
            torch.device(given)
        except RuntimeError as error:
            raise InputError(
                f"device_map must be {', '.join(PLACEMENTS)}, a device or a mapping of modules to "
                f"devices, got {given!r}."
            ) from error
    return given


def _need_files(source: Path) -> None:
    """Raise InputError if there is no model, saying how to get one."""
    if source.suffix == ".gguf":
        if not source.is_file():
            raise InputError(f"there is no file {source}: {HOW}.")
        return
    if not source.is_dir():
        raise InputError(f"there is no folder {source}: {HOW}.")
    if not (source / "config.json").is_file():
        raise InputError(f"{source} has no config.json: {HOW}.")


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence progress bars and warnings of transformers: we check what matters of them."""
    said, bars = (
        transformers.logging.get_verbosity(),
        transformers.logging.is_progress_bar_enabled(),
    )
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    placing = logging.getLogger("accelerate.big_modeling")
    level = placing.level
    placing.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Old names of entries in a config, such as rope_scaling.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        placing.setLevel(level)
        transformers.logging.set_verbosity(said)
        if bars:
            transformers.logging.enable_progress_bar()


def _refuse_flash(folder: Path, kind: Any, config: Any) -> None:
    """Raise InputError if a config asks for flash attention and the family has none."""
    asked = str(config._attn_implementation or "")
    if "flash" in asked and not getattr(kind, "_supports_flash_attn", True):
        raise InputError(
            f"{folder} asks for {asked}, which {kind.__name__} cannot use: set attn_implementation "
            f"to sdpa or eager in its config.json."
        )


def _need_shapes(folder: Path, mismatched: Collection[tuple[str, Any, Any]]) -> None:
    """Raise InputError if weights have other shapes than the config: they would be random."""
    for name, stored, needed in sorted(mismatched, key=lambda each: each[0])[:1]:
        raise InputError(
            f"{folder} has {name} of shape {tuple(stored)}, and its config needs {tuple(needed)}: "
            f"config and weights do not belong together."
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


def _need_layers(folder: Path, model: Any, unexpected: Collection[str]) -> None:
    """Raise InputError if weights of more layers are stored than the config states."""
    read = {re.sub(r"\d+", "N", name) for name in model.state_dict()}
    for name in sorted(unexpected):
        if re.search(r"\.\d+\.", name) and re.sub(r"\d+", "N", name) in read:
            raise InputError(
                f"{folder} has {name}, a weight of a layer that its config leaves out: config and "
                f"weights do not belong together."
            )


def model_class(transformers: Any, config: Any, named: object, source: str) -> Any:
    """Return the class of transformers that runs a config.

    Args:
        transformers: The package.
        config: A config of transformers.
        named: The architectures that the config names. If none of them is of this config, the
            class is a causal language model, or else the plain body.
        source: Where the config is from, for the message.
    """
    for name in named if isinstance(named, list) else []:
        found = getattr(transformers, str(name), None)
        # The name of a function or of a different family's class is no architecture of this config.
        if isinstance(found, type) and getattr(found, "config_class", None) is type(config):
            return found
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    if type(config) in transformers.MODEL_MAPPING:
        return transformers.AutoModel
    raise InputError(
        f"{source} is a {config.model_type!r} model, which transformers has no model of text for."
    )


def _open_tokenizer(
    transformers: Any, folder: Path, view: Path, given: dict[str, Any]
) -> PublishedTokenizer | None:
    """The tokenizer beside a model; None where there is none."""
    if "gguf_file" not in given and not any((view / name).is_file() for name in TOKENIZER_FILES):
        return None
    with explained(folder, "has a tokenizer that cannot be read", view):
        return wrap_tokenizer(transformers.AutoTokenizer.from_pretrained(view, **given))


def import_transformers() -> Any:
    """Return the package transformers; raise InputError with how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "hf: models and cards need transformers: pip install 'headscape[transformers]'."
        ) from error
    return transformers


MEMORY: Final = Path("/proc/meminfo")


def _overflows(
    folder: Path,
    kind: Any,
    config: Any,
    stored: int,
    dtype: "torch.dtype | str",
    *,
    offload: bool | None,
) -> bool:
    """Return whether a model is too large for memory and can be offloaded, with a warning.

    Raise InputError if it is too large and cannot be, or if `offload` is False. `stored` is the
    number of stored weights. Heads are often left out of it, and quantised weights are packed.
    """
    name = folder.name
    with torch.device("meta"):
        model = new_model(kind, config)
    weights = sum(weight.numel() for weight in model.parameters())
    if weights > 2 * stored and not _quantization(config):
        raise InputError(
            f"{name} has {stored:,} weights, and its config describes {weights:,}: config and "
            f"weights do not belong together."
        )
    free = free_bytes()
    if free is None:
        return False
    tables = sum(table.numel() * table.element_size() for table in model.buffers())
    if tables > free:
        raise InputError(
            f"{name} has tables of positions and masks of {tables / 1e9:.3g} GB, and "
            f"{free / 1e9:.3g} GB of memory are free: lower the length in its config.json."
        )
    if isinstance(dtype, str):
        dtype = getattr(config, "dtype", None) or torch.float32
    size = weights * bytes_per_weight(config, dtype)
    if size <= free:
        return False
    said = (
        f"{name} has {weights / 1e9:.3g} billion weights, {size / 1e9:.3g} GB in "
        f"{str(dtype).removeprefix('torch.')}, and {free / 1e9:.3g} GB of memory are free"
    )
    half = f"in bfloat16 ({weights * 2 / 1e9:.3g} GB)" if 2 * weights <= free else ""
    can_stream = (
        folder.suffix != ".gguf" and _is_streamable(config) and _other_input(body_of(model)) is None
    )
    if can_stream and offload is None:
        fits = f"; {half} they fit" if half else ""
        warnings.warn(
            f"{said}: every pass reads them from disk, block by block{fits}.", stacklevel=2
        )
        return True
    streamed = "with offload, which reads weights from disk while the model runs"
    ways = [*([half] if half else []), *([streamed] if can_stream else [])]
    raise InputError(
        f"{said}: {'open it ' + ' or '.join(ways) if ways else 'choose a smaller model'}."
    )


def bytes_per_weight(config: Any, dtype: torch.dtype) -> float:
    """Return the bytes of a weight in memory, of a packed one if the weights are quantised."""
    packing = _quantization(config)
    if not packing or (packing.get("quant_method") in UNPACKED and not torch.cuda.is_available()):
        return dtype.itemsize
    is_int8 = (
        packing.get("load_in_8bit")
        or packing.get("bits") == 8
        or packing.get("weights") == "int8"
        or "Int8" in str(packing.get("quant_type"))
    )
    return 1 if is_int8 else 0.5


def _is_streamable(config: Any) -> bool:
    packing = _quantization(config)
    return not packing or packing.get("quant_method") in UNPACKED


def _quantization(config: Any) -> dict[str, Any]:
    """Return how a config says that its weights are quantised; empty if they are not."""
    found = getattr(config, "quantization_config", None) or {}
    return dict(found if isinstance(found, dict) else found.to_dict())


def _need_memory(what: str, size: int) -> None:
    free = free_bytes()
    if free is not None and size > free:
        raise InputError(
            f"{what} needs {size / 1e9:.3g} GB, and {free / 1e9:.3g} GB of memory are free: choose "
            f"a smaller dtype or a smaller model."
        )


def new_model(kind: Any, config: Any) -> nn.Module:
    """Return a model with random weights, of what `model_class` returned."""
    build = getattr(kind, "_from_config", None) or kind.from_config
    model: nn.Module = build(config)
    return model


def free_bytes() -> int | None:
    """Return the memory that can be used without swapping; None where the system does not say."""
    if not MEMORY.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else None
