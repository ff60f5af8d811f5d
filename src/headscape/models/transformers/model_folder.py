"""How a published model is opened: options, and files that are checked before a library opens them.

A model's folder comes from a stranger. transformers opens whatever its files name: pickles by an
index, adapters, other configs, attention from the Hub. `checked_folder` therefore hands it a folder
of links to files that were checked and to nothing else: JSON of bounded size and depth,
safetensors, vocabularies and a chat template (run in a sandbox by transformers), all inside
the model's own folder. `explained` turns what a library raises about them into a sentence.
"""

import math
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from safetensors import safe_open

from headscape.errors import InputError
from headscape.io.files import MAX_BYTES, read_json, reporting

if TYPE_CHECKING:
    import torch

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
JSON: Final = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "tekken.json", "chat_template.json",
)  # fmt: skip
VOCABULARIES: Final = (".txt", ".model", ".spm", ".tiktoken")
TEMPLATE: Final = "chat_template.jinja"
LAYERS: Final = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
    "num_encoder_layers", "num_decoder_layers",
)  # fmt: skip
SIZES: Final = (
    "hidden_size", "n_embd", "d_model", "num_attention_heads", "n_head", "n_heads", "num_heads",
    "encoder_attention_heads", "decoder_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size",
)  # fmt: skip
MAX_CAUSE: Final = 240
"""Characters of a library's message in ours."""
LIBRARIES: Final = ("headscape", "transformers")
DTYPES: Final = ("float32", "bfloat16", "float16", "auto")


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Options of `load` for a published model."""

    revision: str | None = None
    """Branch, tag or commit of a model on the Hugging Face Hub. [default: main]"""
    device: str | None = None
    """Where a published model runs, such as cpu, cuda or cuda:1. [default: cpu]"""
    dtype: str | None = None
    """float32, bfloat16, float16, or auto for that of the stored weights. [default: float32]"""
    device_map: str | dict[str, Any] | None = None
    """auto: spread a published model over all GPUs, memory and disk (needs accelerate)."""
    offload: bool | None = None
    """Leave the weights on disk and read them block by block in every pass, or refuse a model that
    is larger than memory. [default: leave them there if the model is larger than memory]"""

    def __post_init__(self) -> None:
        name = str(self.dtype).removeprefix("torch.")
        if self.dtype is not None and name not in DTYPES:
            raise InputError(f"unknown dtype {name!r}: choose {', '.join(DTYPES)}.")
        if self.device_map is not None and (self.device is not None or self.offload):
            other = "offload" if self.offload else f"device {self.device!r}"
            raise InputError(f"give device_map or {other}, not both.")

    def torch_dtype(self, *, packed: bool) -> "torch.dtype | str":
        """Return what `from_pretrained` takes; weights that are `packed` keep their own."""
        import torch

        name = str(self.dtype or ("auto" if packed else "float32")).removeprefix("torch.")
        found: torch.dtype | str = name if name == "auto" else getattr(torch, name)
        return found

    def checked_device(self) -> str:
        """Return the device; raise InputError if torch cannot use it."""
        import torch

        name = self.device or "cpu"
        try:
            usable = not torch.empty(0, device=name).is_meta
        # torch raises one of these for an unknown name, or a device it was not built for.
        except (RuntimeError, AssertionError, NotImplementedError):
            usable = False
        if not usable:
            raise InputError(
                f"torch cannot run on the device {name!r} here: choose a different one, like cpu."
            )
        return name

    def refuse(self, source: str) -> None:
        """Raise InputError if an option was given for a model that is opened without any."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise InputError(
                    f"{field.name} is for published models (hf:), and {source} is not opened as "
                    f"one: leave it out."
                )


@dataclass(frozen=True)
class ModelFiles:
    """The checked files of a model."""

    view: Path
    """A folder with a link to each of them."""
    numbers: int
    """Numbers in all stored tensors."""


def is_exported(folder: Path) -> bool:
    """Return whether `headscape.export` wrote a folder, or transformers saved it again."""
    from headscape.gpt2.weights import ENTRY

    path = folder / "config.json"
    return path.is_file() and ENTRY in read_json(path)


@contextmanager
def checked_folder(folder: Path) -> Iterator[ModelFiles]:
    """Yield the checked files of a model, which exist for as long as the context is open.

    Raises InputError for a file that is too large, nested too deeply, of a wrong type or outside
    the folder, and for a config that does not fit the weights.
    """
    config = read_json(folder / "config.json")
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder} has an adapter beside its weights (adapter_config.json): merge it into them "
            f"with peft's merge_and_unload and save the result."
        )
    files = {"config.json": folder / "config.json", **_weights(folder, config)}
    sizes = [
        size
        for name, path in files.items()
        if name.endswith(".safetensors")
        for size in _tensor_sizes(path)
    ]
    _check_config(folder / "config.json", config, len(sizes))
    for name in JSON:
        if (folder / name).is_file():
            read_json(folder / name)
            files[name] = folder / name
    with reporting("read", folder):
        texts = [
            path
            for path in folder.iterdir()
            if path.suffix in VOCABULARIES or path.name == TEMPLATE
        ]
    for path in texts:
        if not path.is_file():
            continue
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes, more than the {MAX_BYTES:,} that a "
                f"vocabulary or a template may have."
            )
        files[path.name] = path
    inside = _inside(folder)
    targets = {name: _target(path, inside) for name, path in files.items()}
    with _links(targets) as view:
        yield ModelFiles(view, sum(sizes))


@contextmanager
def checked_gguf(path: Path) -> Iterator[ModelFiles]:
    """Yield a GGUF file, which may state no more layers than it has tensors."""
    if not (find_spec("gguf") and find_spec("accelerate")):
        raise InputError(
            f"{path} needs the packages gguf and accelerate: pip install 'headscape[gguf]', or "
            f"pip install '.[gguf]' in a clone."
        )
    from gguf import GGUFReader

    with explained(path, "is not a GGUF file that can be read"):
        reader = GGUFReader(path)
        layers = [
            int(field.parts[field.data[0]][0])
            for name, field in reader.fields.items()
            if name.endswith(".block_count")
        ]
    for stated in layers:
        _check_layers(path, "block_count", stated, len(reader.tensors))
    with _links({path.name: path.resolve()}) as view:
        yield ModelFiles(view, sum(int(tensor.n_elements) for tensor in reader.tensors))


@contextmanager
def gguf_read_once(path: Path) -> Iterator[None]:
    """Let all code that asks gguf for a reader of a GGUF file share one, and hide the progress bar.

    transformers asks for the config, the weights and the tokenizer, and each reader parses the
    whole vocabulary. Does nothing for a path of a different kind.
    """
    if path.suffix != ".gguf" or not find_spec("gguf"):
        yield
        return
    gguf: Any = import_module("gguf")
    loading: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    reader, bar = gguf.GGUFReader, loading.tqdm
    readers: dict[Path, Any] = {}

    def shared(file: Any, *options: Any) -> Any:
        file = Path(file).resolve()
        if file not in readers:
            readers[file] = reader(file, *options)
        return readers[file]

    gguf.GGUFReader, loading.tqdm = shared, lambda tensors, **_: tensors
    try:
        yield
    finally:
        gguf.GGUFReader, loading.tqdm = reader, bar


@contextmanager
def explained(
    source: Path, failure: str, view: Path | None = None, *, runs_ours: bool = False
) -> Iterator[None]:
    """Turn what a library raises into an InputError "SOURCE FAILURE: cause".

    `view` is a path that the message must not show: it becomes `source`. With `runs_ours` the
    context also runs our own code, whose errors are defects and keep their traceback.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # A panic of the Rust code in tokenizers and safetensors is not an Exception.
        panic = type(error).__name__ == "PanicException"
        if not (panic or isinstance(error, Exception)) or (runs_ours and _is_ours(error)):
            raise
        cause = _cause(error)
        if view is not None:
            cause = cause.replace(str(view), str(source))
        raise InputError(f"{source} {failure}: {cause}.") from error


def _weights(folder: Path, config: dict[str, Any]) -> dict[str, Path]:
    """Return the safetensors files of a folder, and their index if there is one, by name."""
    named = config.get("transformers_weights")
    if named is None:
        named = next((name for name in (WEIGHTS, INDEX) if (folder / name).is_file()), None)
    if named is None:
        pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt*")])
        if pickles:
            raise InputError(
                f"{pickles[0]} is a pickle, which can run code when opened, and {folder} has no "
                f"{WEIGHTS}: convert the weights to safetensors."
            )
        raise InputError(f"{folder} has neither {WEIGHTS} nor {INDEX}: download it again.")
    if not isinstance(named, str) or not named.endswith(".index.json"):
        config_file = folder / "config.json"
        path = _present(folder, file_name(named, config_file), config_file)
        return {path.name: path}
    index = folder / Path(named).name
    files = [_present(folder, name, index) for name in shard_names(index)]
    return {index.name: index, **{path.name: path for path in files}}


def shard_names(index: Path) -> list[str]:
    """Return the names of the safetensors files that an index lists, in its order."""
    parts = read_json(index).get("weight_map")
    if not isinstance(parts, dict) or not parts:
        raise InputError(f"{index} must contain an object weight_map with the file of each weight.")
    return [file_name(name, index) for name in dict.fromkeys(map(_hashable, parts.values()))]


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str) else repr(value)


def file_name(name: Any, source: Path) -> str:
    """Return the name of a safetensors file; raise InputError if `source` names anything else."""
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
        raise InputError(
            f"{source} names the file {str(name)[:80]!r}: weights must be .safetensors files in "
            f"the model's folder."
        )
    return name


def _present(folder: Path, name: str, source: Path) -> Path:
    if not (folder / name).is_file():
        raise InputError(f"{source} names {name[:80]!r}, which is missing: download it again.")
    return folder / name


def _tensor_sizes(path: Path) -> list[int]:
    with (
        explained(path, "is truncated or damaged"),
        safe_open(path, framework="numpy") as file,
    ):
        return [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118


def _check_config(path: Path, config: dict[str, Any], tensors: int) -> None:
    """Raise InputError for values that transformers does not check, in every part of a config."""
    kind, named = config.get("model_type", ""), config.get("architectures") or []
    if not isinstance(kind, str):
        raise InputError(f"{path}: model_type must be a string, got {kind!r}.")
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise InputError(f"{path}: architectures must be a list of strings, got {named!r}.")
    parts: list[dict[str, Any]] = [config]
    while parts:
        part = parts.pop()
        parts += [value for value in part.values() if isinstance(value, dict)]
        for name, value in part.items():
            if name in (*SIZES, *LAYERS[:4]) and isinstance(value, int) and value < 1:
                raise InputError(f"{path}: {name} must be at least 1, got {value}.")
            if name in LAYERS and isinstance(value, int):
                _check_layers(path, name, value, tensors)
            if name.endswith("attn_implementation") and "/" in str(value):
                raise InputError(
                    f"{path}: {name}={value!r} is code from the Hub, which is not run: set it to "
                    f"sdpa or eager."
                )


def _check_layers(path: Path, name: str, stated: int, tensors: int) -> None:
    """Raise InputError if there are more layers than tensors: building them could take hours."""
    if stated > tensors:
        raise InputError(
            f"{path}: {name} is {stated}, but the weights have {tensors} tensors: config and "
            f"weights do not belong together."
        )


def _inside(folder: Path) -> list[Path]:
    """Return where a model's files may be: in its folder, or in the Hub cache that it is part of.

    In the cache, models--NAME/snapshots/REVISION has links to files in models--NAME/blobs.
    """
    home = folder.resolve()
    cache = home.parent.parent
    cached = home.parent.name == "snapshots" and cache.name.startswith("models--")
    return [home, cache / "blobs"] if cached else [home]


def _target(path: Path, inside: list[Path]) -> Path:
    target = path.resolve()
    if not any(target.is_relative_to(each) for each in inside):
        raise InputError(
            f"{path} is a link to {target}, outside the model's folder: put the file itself there."
        )
    return target


@contextmanager
def _links(targets: dict[str, Path]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headscape-") as view:
        for name, target in targets.items():
            (Path(view) / name).symlink_to(target)
        yield Path(view)


def _is_ours(error: BaseException) -> bool:
    """Return whether our code raised an error: it is the innermost of ours and transformers'."""
    innermost, trace = "", error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        innermost = package if package in LIBRARIES else innermost
        trace = trace.tb_next
    return innermost == "headscape"


def _cause(error: BaseException) -> str:
    """Return the first line of a library's message, in printable characters."""
    said = str(error.__cause__ or error).strip()
    first = said.splitlines()[0] if said else ""
    first = re.sub(r"\s+", " ", "".join(x if x.isprintable() else " " for x in first)).strip(" .:!")
    if len(first) > MAX_CAUSE:
        first = f"{first[:MAX_CAUSE].rstrip()} ..."
    terse = isinstance(error, LookupError | AttributeError | TypeError | AssertionError)
    return f"{type(error).__name__} {first}".strip() if terse or not first else first
