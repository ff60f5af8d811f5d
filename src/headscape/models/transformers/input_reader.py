"""Positions added to the token embeddings: learned tables and sinusoids, found by what they add.

A module that looks like a table of positions is watched while the model runs. The rows it returns
for positions 0, 1, 2 ... say which of its rows is position 0: 0 in GPT-2 and BERT, 2 in OPT and
RoBERTa. Sinusoids are compared with those of Vaswani et al. and of fairseq (XGLM, M2M100). wav2vec2
and WavLM add a convolution of the frames instead; only whether it runs is recorded.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headscape.encodings import Encoding, Shape, make

NAME = re.compile(r"(wpe|embed_positions|position_embeddings?|positions_embed|pos_emb)$")


class InputWatch:
    """What the position table of a model returned during one forward pass."""

    def __init__(self, body: nn.Module) -> None:
        self.table: Tensor | None = None
        self.rows: Tensor | None = None
        self.convolves = False
        self.remove: list[Callable[[], None]] = []
        for name, module in body.named_modules():
            weight = _table(module)
            if NAME.search(name) and isinstance(weight, Tensor) and weight.ndim == 2:
                self.remove.append(module.register_forward_hook(self._see).remove)
            if type(module).__name__.endswith("PositionalConvEmbedding"):
                self.remove.append(module.register_forward_hook(self._convolve).remove)

    def _convolve(self, *_: Any) -> None:
        self.convolves = True

    def _see(self, module: Any, given: Any, rows: Any) -> None:
        if isinstance(rows, Tensor) and self.rows is None:
            # fairseq's sinusoids grow with the longest text, so they are read after the call.
            table = _table(module)
            assert table is not None
            self.table, self.rows = table.detach(), rows.detach()

    def close(self) -> None:
        """Remove the hooks."""
        for remove in self.remove:
            remove()


def read_input(watch: InputWatch, config: Any, shape: Shape) -> Encoding | None:
    """The encoding whose `embed` adds what the model's table returned, or None."""
    if watch.table is None or watch.rows is None:
        return None
    rows = watch.rows.reshape(-1, watch.rows.shape[-1])[: watch.rows.shape[-2]]
    width = rows.shape[-1]
    if width not in {shape.width, getattr(config, "embedding_size", None)}:
        return None  # a table of angles, as RoFormer's
    if width == shape.width:
        found = _sinusoid(rows, shape)
        if found is not None:
            return found
    for offset in range(min(4, len(watch.table) - len(rows) + 1)):
        if torch.equal(watch.table[offset : offset + len(rows)], rows):
            fields = {"length": len(watch.table) - offset, "offset": offset}
            sized = Shape(
                heads=shape.heads, head_dim=shape.head_dim, width=width,
                train_length=shape.train_length, causal=shape.causal,
            )  # fmt: skip
            encoding = make("learned", sized, fields)
            weight = nn.Parameter(watch.table, requires_grad=False)
            encoding.table.weight = weight  # type: ignore[union-attr]
            return encoding
    return None


def _table(module: nn.Module) -> Tensor | None:
    """Return the rows of a table, which fairseq's sinusoids call `weights`."""
    found = getattr(module, "weight", None)
    found = getattr(module, "weights", None) if found is None else found
    return found if isinstance(found, Tensor) else None


def _sinusoid(rows: Tensor, shape: Shape) -> Encoding | None:
    """The sinusoid that equals these rows, or None."""
    if shape.width % 2:
        return None
    at = torch.arange(len(rows), device=rows.device)[None]
    half = shape.width // 2
    fairseq = {"layout": "halves", "offset": 2, "base": 1e4 ** (half / max(half - 1, 1))}
    for fields in ({"layout": "interleaved"}, {"layout": "halves"}, fairseq):
        encoding = make("sinusoidal", shape, {**fields, "scale": 1.0})
        wave = encoding.embed(torch.zeros_like(rows)[None], at)[0]
        if (wave - rows).abs().amax() < 1e-4:
            return encoding
    return None
