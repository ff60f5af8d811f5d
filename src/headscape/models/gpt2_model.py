"""A GPT2 as a `Model`: its weights, and what is known about where they come from."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscape.data.dataset import Dataset
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.encodings import Encoding, LayerInput, Side, title
from headscape.errors import InputError
from headscape.gpt2 import GPT2, weights
from headscape.gpt2.generate import stream
from headscape.gpt2.model_config import ModelConfig
from headscape.io.files import write_text
from headscape.io.output_file import check_output
from headscape.models.loaded import BLOCK, LoadedModel, digest, eval_mode, losses_in_blocks
from headscape.models.model import Edit, LayerSpec, Spec, Watch


class GPT2Model(LoadedModel):
    """One of our models, in memory."""

    def __init__(
        self,
        gpt2: GPT2,
        *,
        tokenizer: Tokenizer | None = None,
        dataset: Callable[[], Dataset | None] = lambda: None,
        folder: Path | None = None,
        **about: Any,
    ) -> None:
        """`dataset` is called when it is first needed; `about` are fields of `Spec`.

        The GPT2 stays in its mode, training or eval, and runs in eval mode.
        """
        self.gpt2 = gpt2
        self.folder = folder
        """The run that it was opened from."""
        self._tokenizer = tokenizer
        self._open_dataset = dataset
        self._spec = spec_of(gpt2, **about)

    @property
    def spec(self) -> Spec:
        """What it is."""
        return self._spec

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer, if it has one."""
        return self._tokenizer

    @cached_property
    def dataset(self) -> Dataset | None:
        """The text it was trained on, opened at the first use."""
        return self._open_dataset()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of config and weights."""
        return digest(json.dumps(self.gpt2.config.to_json()), self.gpt2.tensors())

    @torch.no_grad()
    def observe(self, tokens: Int[Tensor, "b t"], layers: Sequence[int], watch: Watch) -> None:
        """Run tokens and call `watch` for each of `layers`; stop after the last of them."""
        with eval_mode(self.gpt2):
            self.gpt2.observe(self._here(tokens), layers, watch)

    @torch.inference_mode()
    def losses(self, windows: Int[Tensor, "b t_plus_1"], first: int) -> Float[Tensor, "b scored"]:
        """Nats of predictions first, first + 1 ... of each window, in float64."""
        windows = self._here(windows)
        with eval_mode(self.gpt2):
            hidden = self.gpt2.hidden(windows[:, :-1])[:, first:]
            return losses_in_blocks(hidden, windows[:, 1 + first :], self.gpt2.logits).cpu()

    @torch.inference_mode()
    def edited_losses(
        self, windows: Int[Tensor, "b t_plus_1"], first: int, layer: int, edits: Sequence[Edit]
    ) -> Iterator[Float[Tensor, "b scored"]]:
        """Yield `losses` for each edit of a layer, counted from 0; earlier layers run once."""
        windows = self._here(windows)
        target = windows[:, 1 + first :]
        runs = self.gpt2.edited_hidden(windows[:, :-1], layer, edits)
        for _ in edits:
            with eval_mode(self.gpt2):
                losses = losses_in_blocks(next(runs)[:, first:], target, self.gpt2.logits).cpu()
            yield losses

    @torch.inference_mode()
    def predictions(
        self, tokens: Int[Tensor, "b t"], where: Bool[Tensor, "b t"]
    ) -> Int[Tensor, " n"]:
        """The likeliest next token after each token that `where` selects, in row order."""
        with eval_mode(self.gpt2):
            hidden = self.gpt2.hidden(self._here(tokens))[self._here(where)]
            found = torch.empty(len(hidden), dtype=torch.int64, device=hidden.device)
            blocks = zip(torch.split(hidden, BLOCK), torch.split(found, BLOCK), strict=True)
            for rows, out in blocks:
                out.copy_(self.gpt2.logits(rows).argmax(dim=-1))
        return found.cpu()

    def continuation(
        self, tokens: Int[Tensor, "b t"], *, length: int, **sampling: Any
    ) -> Iterator[Int[Tensor, "b 1"]]:
        """New tokens, one at a time."""
        steps = stream(self.gpt2, self._here(tokens), length=length, **sampling)

        def in_eval_mode() -> Iterator[Int[Tensor, "b 1"]]:
            while True:
                with eval_mode(self.gpt2):
                    step = next(steps, None)
                if step is None:
                    return
                yield step

        return in_eval_mode()

    def save(self, folder: Path | str) -> Path:
        """Write weights, conventions and tokenizer to a folder that `load` opens."""
        folder = Path(folder)
        # A folder with weights of a different library keeps its tokenizer too.
        for name in (weights.WEIGHTS, "tokenizer.json"):
            check_output(folder / name, weights.OURS)
        if self._tokenizer is not None:
            described = json.dumps(self._tokenizer.describe())
            write_text(folder / "tokenizer.json", described + "\n")
        self.gpt2.save_pretrained(folder)
        return folder

    def length_error(self, length: int) -> str | None:
        """Ask the encoding whether it has a position `length - 1`."""
        weight, shape = self.gpt2.tokens.weight, self.gpt2.config
        at = torch.full((1, 1), length - 1, device=weight.device)
        try:
            self.gpt2.position.embed(weight.new_zeros(1, 1, shape.width), at)
            q = weight.new_zeros(1, shape.heads, 1, shape.head_dim)
            for layer in range(shape.layers):
                encoding = self.gpt2.encoding(layer)
                stream = encoding.stream(LayerInput(weight.new_zeros(1, 1, shape.width)))
                encoding.rotate(q, Side(at, "query", stream))
        except InputError as error:
            return str(error)
        return None

    def cost(self, length: int) -> float:
        """Multiplications of projections and MLPs, causal attention and the output matrix."""
        shape = self.gpt2.config
        layer = 12 * shape.width**2 + length * shape.width
        return float(length * (shape.layers * layer + shape.vocabulary * shape.width))

    def _here(self, tokens: Tensor) -> Tensor:
        return tokens.to(self.gpt2.tokens.weight.device)


def shaping(config: ModelConfig, encoding: Encoding) -> dict[str, object]:
    """Return what is done to q.k: the factor and, if the model has one, its QK-norm."""
    given = config.scale if config.qk_norm_scale is None else config.qk_norm_scale
    scale = given if encoding.content_scale is None else encoding.content_scale
    if config.qk_norm == "none":
        return {"scale": scale}
    norm = {name: value for name, value in config.to_json().items() if name.startswith("qk_norm")}
    return {"scale": scale, **norm}


def claims_of(gpt2: GPT2, layer: int) -> dict[str, bool]:
    """Return the claims of a layer.

    After a rotation, a norm with a weight and LayerNorm make scores depend on absolute positions.
    """
    encoding, config = gpt2.encoding(layer), gpt2.config
    commutes = config.qk_norm_kind != "layer" and not config.qk_norm_weight
    absolute = config.qk_norm == "after" and encoding.rotates and not commutes
    claims = encoding.claims()
    return claims | {"shift_invariant": claims["shift_invariant"] and not absolute}


def spec_of(gpt2: GPT2, **about: Any) -> Spec:
    """The spec of a GPT2; `about` adds or replaces fields."""
    config = gpt2.config
    layers = [
        LayerSpec(
            encoding=entry.name,
            conventions=gpt2.encoding(layer).conventions() | shaping(config, gpt2.encoding(layer)),
            claims=claims_of(gpt2, layer),
            shows=gpt2.encoding(layer).shows or "final",
        )
        for layer, entry in enumerate(config.schedule())
    ]
    fields: Mapping[str, Any] = {
        "name": title(config.encoding),
        "layers": tuple(layers),
        "heads": config.heads,
        "head_dim": config.head_dim,
        "width": config.width,
        "vocabulary": config.vocabulary,
        "train_length": config.train_length,
        "causal": config.causal,
        "shows": gpt2.encoding(-1).shows or "final",
    }
    return Spec(**{**fields, **about})
