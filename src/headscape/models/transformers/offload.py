"""Run a published model that is larger than memory: its weights stay in their safetensors files.

`from_pretrained` builds the model as always, but with placeholders for its weights. Before a block
runs, a hook drops the weights of the last one and reads those of this one, through transformers'
own loading function, which renames, joins and casts them as for a model in memory. A pass therefore
needs the memory of one block plus activations, reads each weight once and ends at the last layer
that is asked for. Nothing is written.

Blocks are the entries of the model's lists of layers; what is outside of them, such as the
embeddings and the output matrix, is read module by module.
"""

import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.io.files import reporting
from headscape.io.terminal import SlowBar

KEPT: Final = 2**22
"""Largest size in bytes of a weight that stays in memory once it was read: norms, biases, tables
of positions. Families and readers look at these without running the module that has them."""

DTYPES: Final = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""torch's dtype by its name in a safetensors file."""
HUGE_PAGE: Final = 2**21


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor in a safetensors file, which is read when it is indexed."""

    file: Path
    start: int
    """Its first byte in the file."""
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Return whether it has floating-point numbers; transformers asks a tensor this."""
        return self.dtype.is_floating_point

    def __getitem__(self, index: Any) -> Tensor:
        if not self.size:
            return torch.empty(self.shape, dtype=self.dtype)[index]
        # Pages of 4 kB take four times as long to get as to fill from the page cache.
        memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if self.size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        view, done = memoryview(memory), 0
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.start)
            while done < self.size:
                part = file.readinto(view[done:])
                if not part:
                    raise OSError(f"{self.file.name} has become shorter")
                done += part
        return torch.frombuffer(memory, dtype=self.dtype).view(self.shape)[index]

    def announce(self) -> None:
        """Let the system read it ahead, while something else is computed."""
        if hasattr(os, "posix_fadvise"):
            with self.file.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), self.start, self.size, os.POSIX_FADV_WILLNEED)


def _stored(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the tensors of a safetensors file that was checked, by name."""
    path = path.resolve()
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    for name, each in header.items():
        if name == "__metadata__":
            continue
        if each["dtype"] not in DTYPES:
            raise InputError(f"{path} has {name} in {each['dtype']}, which cannot be offloaded.")
        yield (
            name,
            StoredTensor(
                file=path,
                start=8 + length + each["data_offsets"][0],
                dtype=DTYPES[each["dtype"]],
                shape=tuple(each["shape"]),
            ),
        )


class WeightStream(Mapping[str, Tensor]):
    """The weights of a model that are read when its blocks run; also a mapping from their names."""

    def __init__(self, folder: Path, model: Any, files: list[str], config: Any, device: str):
        self.folder, self.model, self.device = folder, model, torch.device(device)
        self.config = config
        self._stored = {name: each for file in files for name, each in _stored(Path(file))}
        self._names = list(model.state_dict())
        self._sources, self.unexpected, self._converts = self._by_target()
        self._tied: dict[str, str] = dict(model.all_tied_weights_keys)
        self._units = dict(_units(model))
        self._empty = {
            name: _placeholder(weight, self.device)
            for name, weight in model.named_parameters(remove_duplicate=False)
        }
        self._next = dict(pairwise(self._units))
        self._loaded: str | None = None
        self._bar: SlowBar | None = None
        self._members: dict[str, list[str]] = {prefix: [] for prefix in self._units}
        self._resident: list[str] = []
        for name in self._names:
            unit = self._unit(name)
            is_block = unit is not None and unit.rpartition(".")[2].isdecimal()
            if unit is not None and (is_block or self._bytes(name) > KEPT):
                self._members[unit].append(name)
            else:
                self._resident.append(name)

    def start(self) -> None:
        """Read what belongs to no block, and hook every block."""
        for name, weight in self._empty.items():
            _put(self.model, name, weight)
        self._read(self._resident)
        for prefix, module in self._units.items():
            module.register_forward_pre_hook(self._before(prefix))

    @property
    def found(self) -> dict[str, set[Any]]:
        """What `from_pretrained` says of the weights, as far as their names tell.

        Shapes, and weights that are made from several stored ones, are checked when they are read.
        """
        missing = {name for name in self._names if self._tied.get(name, name) not in self._sources}
        found = SimpleNamespace(
            missing_keys=set() if self._converts else missing, unexpected_keys=self.unexpected
        )
        # Drops what the class itself leaves out, such as DeepSeek-V3's layers for several tokens.
        self.model._adjust_missing_and_unexpected_keys(found)
        return {**vars(found), "mismatched_keys": set()}

    @property
    def largest(self) -> int:
        """Bytes of the largest block."""
        return max(sum(self._bytes(name) for name in names) for names in self._members.values())

    @property
    def total(self) -> int:
        """Bytes of all weights, as they are in memory."""
        return sum(map(self._bytes, self._names))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        unit = self._unit(name)
        if unit is not None and unit != self._loaded:
            self._load(unit)
        found: Tensor = self.model.get_parameter_or_buffer(name)
        return found

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One pass: show how much of the weights it has read, and drop them at its end."""
        import transformers

        bars = transformers.logging.is_progress_bar_enabled()
        transformers.logging.disable_progress_bar()
        try:
            with SlowBar("reading weights from disk", self.total) as self._bar:
                yield
        finally:
            self._bar = None
            self.release()
            if bars:
                transformers.logging.enable_progress_bar()

    def release(self) -> None:
        """Drop the weights of the block in memory, if there is one."""
        if self._loaded is not None:
            self._drop(self._members[self._loaded])
            self._loaded = None

    def _unit(self, name: str) -> str | None:
        """Return the module that a weight is read with; None where it is outside of all."""
        parts = name.split(".")
        outer = (".".join(parts[:count]) for count in range(1, len(parts)))
        return next((path for path in outer if path in self._units), None)

    def _before(self, prefix: str) -> Any:
        return lambda _, __: self._load(prefix)

    def _load(self, unit: str) -> None:
        self.release()
        self._loaded = unit
        names = self._members[unit]
        self._read(names)
        for name in self._members[self._next.get(unit, unit)]:
            for key in self._sources.get(name, ()):
                self._stored[key].announce()
        if self._bar is not None:
            self._bar.advance(sum(map(self._bytes, self._members[unit])))

    def _drop(self, names: list[str]) -> None:
        for name in names:
            if name in self._empty and self._bytes(name) > KEPT:
                _put(self.model, name, self._empty[name])

    def _read(self, names: list[str]) -> None:
        """Give parameters and buffers of the model their values."""
        from transformers.core_model_loading import convert_and_load_state_dict_in_model

        wanted = [(self._tied.get(name, name), name) for name in names]
        keys = [key for source, _ in wanted for key in self._sources.get(source, ())]
        with reporting("read", self.folder):
            found, _ = convert_and_load_state_dict_in_model(
                model=self.model,
                state_dict={key: self._stored[key] for key in keys},
                load_config=self.config,
            )
        for each in found.conversion_errors.values():
            raise InputError(f"{self.folder} has weights that cannot be converted: {each}.")
        for name, stored, needed in sorted(found.mismatched_keys):
            raise InputError(
                f"{self.folder} has {name} of shape {tuple(stored)}, and its config needs "
                f"{tuple(needed)}: config and weights do not belong together."
            )
        for source, name in wanted:
            if source in found.missing_keys:
                raise InputError(
                    f"{self.folder} has no weight {name}, which the model reads: download it again."
                )
            if source != name:
                _put(self.model, name, self.model.get_parameter(source))
                if source not in names:
                    self._drop([source])

    def _by_target(self) -> tuple[dict[str, list[str]], set[str], bool]:
        """Return the stored names of each of the model's, those left, and whether any is made."""
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            rename_source_key,
        )

        mapping, empty = self.config.weight_mapping or [], self.model.state_dict()
        renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        converters = [each for each in mapping if isinstance(each, WeightConverter)]
        prefix = self.model.base_model_prefix
        sources: dict[str, list[str]] = {}
        unexpected = set()
        for key in self._stored:
            name, _ = rename_source_key(key, renamings, converters, prefix, empty)
            if name not in empty and key in empty:
                name, _ = rename_source_key(key, [], [], prefix, empty)
            if name in empty:
                sources.setdefault(name, []).append(key)
            else:
                unexpected.add(name)
        return sources, unexpected, bool(converters)

    def _bytes(self, name: str) -> int:
        value = self._empty.get(name)
        return 0 if value is None else value.numel() * value.element_size()


def stream_weights(
    kind: Any, view: Path, folder: Path, device: str, config: Any, options: dict[str, Any]
) -> tuple[Any, WeightStream]:
    """Return a model of a class of transformers without its weights, and what reads them.

    `options` are those of `from_pretrained`; `folder` is what messages call the model.
    """
    from transformers.utils.loading_report import LoadStateDictInfo

    recorded: list[tuple[list[str], Any]] = []

    def record(model: Any, _: Any, files: list[str], config: Any, *__: Any) -> tuple[Any, None]:
        recorded.append((files, config))
        for weight in model.parameters():
            weight._is_hf_initialized = True
        nothing: list[Any] = [set(), set(), set(), [], {}, set()]
        return LoadStateDictInfo(*nothing), None

    # One of transformers' Auto classes stands for the class of the config.
    kind = getattr(kind, "_model_mapping", {type(config): kind})[type(config)]
    body = {"__module__": kind.__module__, "_load_pretrained_model": staticmethod(record)}
    recording: Any = type(kind.__name__, (kind,), body)
    model, _ = recording.from_pretrained(view, **options)
    model.__class__ = kind
    [(files, loading)] = recorded
    loading = replace(loading, device_map={"": device})
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if not buffer.is_meta:
                module._buffers[name] = buffer.to(device)
    stream = WeightStream(folder, model, files, loading, device)
    stream.start()
    return model, stream


def _units(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules whose weights are read together, with their names."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if isinstance(child, nn.ModuleList):
            yield from ((f"{path}.{number}", block) for number, block in enumerate(child))
        elif any(isinstance(each, nn.ModuleList) for each in child.modules()):
            yield from _units(child, f"{path}.")
        else:
            yield path, child


def _placeholder(weight: Tensor, device: torch.device) -> nn.Parameter:
    """Return a weight of the same shape that takes no memory and that no result can be made of.

    One NaN stands for all its numbers. A tensor on meta would not do: families ask for the device
    of a weight, and take their input there.
    """
    number = torch.nan if weight.is_floating_point() else 0
    one = torch.full((), number, dtype=weight.dtype, device=device)
    return nn.Parameter(one.expand(weight.shape), requires_grad=False)


def _put(model: Any, name: str, value: nn.Parameter) -> None:
    path, _, last = name.rpartition(".")
    model.get_submodule(path)._parameters[last] = value
