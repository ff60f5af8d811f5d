"""A T5 model from int8 ONNX graphs: only the weights are read, no graph runs.

A matrix of a linear layer is [in out] and has a number as its name; the node that multiplies by it
has the module's path in its name. Tables and norms have their own names. A quantised tensor x
stands for (x - zero point) * scale.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZES = {
    "vocab_size": 32_128, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8,
    "num_heads": 6, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    "decoder_start_token_id": 0,
}  # fmt: skip
"""Sizes of flan-t5-small, which the graphs do not state."""
ROOTS = {"enc": "encoder", "m": ""}
"""First word of a path in the encoder's or decoder's graph -> first word in transformers."""


def t5_from_onnx(folder: Path) -> Any:
    """Return the model of encoder.onnx and decoder.onnx, in float32."""
    from transformers import T5Config, T5ForConditionalGeneration

    found = _weights(folder / "encoder.onnx") | _weights(folder / "decoder.onnx")
    shared = found["shared.weight"]
    assert torch.equal(found.pop("encoder.embed_tokens.weight"), shared)
    model = T5ForConditionalGeneration(T5Config(**SIZES)).eval()
    # transformers ties the output to the embeddings whatever the config says.
    model.lm_head.weight = torch.nn.Parameter(found["lm_head.weight"])
    both = {f"{part}.embed_tokens.weight": shared for part in ("encoder", "decoder")}
    model.load_state_dict({**found, **both}, strict=True)
    return model


def _weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a graph by their names in transformers."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    raw = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            stem = node.input[1].removesuffix("_quantized")
            module = node.name.rsplit("/", 1)[0].strip("/").replace("/", ".")
            found[_named(module) + ".weight"] = _dequantised(raw, stem).T
    for name, value in raw.items():
        stem = name.removesuffix("_quantized")
        if stem.endswith(".weight"):
            found[_named(stem)] = _dequantised(raw, stem) if stem != name else value
    return {name: torch.tensor(each) for name, each in found.items()}


def _dequantised(raw: dict[str, np.ndarray], stem: str) -> np.ndarray:
    numbers, scale, zero = (raw[f"{stem}_{part}"] for part in ("quantized", "scale", "zero_point"))
    whole: np.ndarray = (numbers.astype(np.float32) - zero.astype(np.float32)) * scale
    return whole.astype(np.float32)


def _named(path: str) -> str:
    first, _, rest = path.partition(".")
    root = ROOTS.get(first, first)
    return f"{root}.{rest}" if root else rest
