"""The tensors of a sharded model in safetensors files, one per process.

torch.distributed.checkpoint decides which process writes which part and loads the parts into any
number of processes, including one. Its safetensors storage is used instead of its default pickles.
It is imported inside the functions that use it, because importing it takes a second.
"""

import json
import warnings
from pathlib import Path

from torch import Tensor
from torch.distributed import is_initialized

from headscape.errors import InputError
from headscape.gpt2 import GPT2, weights
from headscape.io import atomic

FOLDER = "shards"


def is_sharded_folder(folder: Path) -> bool:
    """Return whether a checkpoint is sharded."""
    return (folder / FOLDER).is_dir()


def write(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the part of every process."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder / FOLDER), save_distributed=True)
    try:
        save(tensors, storage_writer=writer)
    except CheckpointException as error:
        reasons = {str(reason) for reason, _ in error.failures.values()}
        raise InputError(f"cannot write {folder}: {'; '.join(sorted(reasons))}.") from error


def write_header(folder: Path, model: GPT2) -> None:
    """Write the header of a whole checkpoint, without the checksum of a weights file."""
    header = {
        "format": weights.FORMAT,
        "model": model.config.to_json(),
        "conventions": model.conventions(),
        "shards": FOLDER,
    }
    atomic.write_text(folder / weights.HEADER, json.dumps(header, indent=2) + "\n")


def read(folder: Path, into: dict[str, Tensor]) -> None:
    """Fill tensors, whole or sharded in any way, from the parts."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder / FOLDER))
    with warnings.catch_warnings():
        # torch warns when a single process reads.
        warnings.simplefilter("ignore", UserWarning)
        load(into, storage_reader=reader, no_dist=not is_initialized())
