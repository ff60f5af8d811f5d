"""One sequence, one model, one capture with everything needed to say what it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Integer

import headscape
from headscape.arrays.capture_file import Capture
from headscape.attention.attend import Path
from headscape.capture.tap import Progress, Request, capture_maps, cells_of, edges
from headscape.encodings import title
from headscape.errors import InputError
from headscape.gpt2 import GPT2
from headscape.text.tokenize.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sequence:
    """Tokens, and where they come from."""

    tokens: Int64[np.ndarray, " t"]
    source: Mapping[str, Any]


def sample(stream: Integer[np.ndarray, " n"], length: int, seed: int, corpus: str) -> Sequence:
    """A window of `length` tokens at a random place of a token stream."""
    _check_length(length)
    if len(stream) < length:
        raise InputError(
            f"the validation text has {len(stream)} tokens, fewer than the {length} asked for: "
            f"choose a shorter length or a larger corpus."
        )
    offset = int(np.random.default_rng(seed).integers(len(stream) - length + 1))
    window = np.asarray(stream[offset : offset + length], dtype=np.int64)
    return Sequence(window, {"corpus": corpus, "offset": offset, "seed": seed})


def from_text(text: str, tokenizer: Tokenizer, length: int, name: str) -> Sequence:
    """The first `length` tokens of a text."""
    _check_length(length)
    tokens = np.asarray(tokenizer.encode(text), dtype=np.int64)
    if len(tokens) < length:
        raise InputError(
            f"{name} has {len(tokens)} tokens, fewer than the {length} asked for: "
            f"choose a shorter length."
        )
    return Sequence(tokens[:length], {"corpus": name, "offset": 0})


def window_of(
    tokens: Integer[np.ndarray, " n"], length: int, document: int, corpus: str
) -> Sequence:
    """The first `length` tokens of a document."""
    _check_length(length)
    if len(tokens) < length:
        raise InputError(
            f"document {document} has {len(tokens)} tokens, fewer than the {length} asked for: "
            f"choose a shorter length or another document."
        )
    source = {"corpus": corpus, "document": document, "offset": 0}
    return Sequence(np.asarray(tokens[:length], dtype=np.int64), source)


def _check_length(length: int) -> None:
    if length < 1:
        raise InputError(f"a sequence needs at least one token, not {length}.")


def record(
    model: GPT2,
    sequence: Sequence,
    request: Request,
    *,
    preset: str,
    trained: bool,
    tokenizer: Tokenizer | None = None,
    provenance: Mapping[str, Any] | None = None,
    path: Path = "auto",
    progress: Progress = lambda _: None,
) -> Capture:
    """Run the sequence through the model and keep what the request says."""
    config, encoding = model.config, model.encoding()
    length = len(sequence.tokens)
    maps = capture_maps(
        model, torch.from_numpy(sequence.tokens), request, path=path, progress=progress
    )
    pieces = (
        []
        if tokenizer is None
        else [tokenizer.decode(sequence.tokens[i : i + 1]) for i in range(length)]
    )
    window = None
    if request.window is not None:
        bounds = [edge for part in request.window for edge in (part.start, part.stop)]
        window = np.array(bounds, dtype=np.int64)
    return Capture(
        encoding=config.encoding,
        title=title(config.encoding),
        conventions={**encoding.conventions(), "scale": config.scale},
        claims=encoding.claims(),
        model={
            "preset": preset,
            "layers": config.layers,
            "heads": config.heads,
            "width": config.width,
            "train_length": config.train_length,
        },
        layers=request.layers,
        heads=request.heads,
        length=length,
        resolution=cells_of(length, request),
        causal=config.causal,
        sequence={**sequence.source, "pieces": pieces},
        provenance={"headscape": headscape.__version__, **(provenance or {})},
        trained=trained,
        tokens=sequence.tokens,
        positions=np.arange(length, dtype=np.int64),
        maps=maps,
        edges=edges(length, request),
        window=window,
    )
