"""Write a safetensors file one tensor at a time: no second copy in memory, and progress.

The format: 8 bytes with the length of a JSON header, the header, the bytes of all tensors.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
ALIGNMENT = 8


def write_stream(path: Path, tensors: Mapping[str, Tensor], advance: Callable[[int], None]) -> None:
    """Write floating-point tensors to a file; `advance` is called with each tensor's bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, value in tensors.items():
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {
            "dtype": DTYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for value in tensors.values():
            flat = value.detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
            advance(value.numel() * value.element_size())
