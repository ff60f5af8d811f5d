"""GPT-2 (Radford et al. 2019) with any position encoding.

    x   = tokens, embedded                       (+ learned or sinusoidal positions)
    x  += attention(norm(x));  x += mlp(norm(x))                    in every layer
    out = norm(x) tokens^T                       the embedding is also the output matrix

The paper's initialisation: every Linear and Embedding N(0, 0.02), those of an encoding included,
the two projections back into the residual 1/sqrt(2 layers) of that; biases zero; Conv2d and bare
parameters as their encoding makes them. No dropout, as in the runs this reproduces.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.call.definition import AttentionCall
from headscape.call.positions import ALL, Positions, Visible
from headscape.encodings import Encoding, LayerInput, Side, Stream
from headscape.encodings.registry import Entry, UnknownEncodingError, is_schedule, shared_fields
from headscape.errors import InputError
from headscape.gpt2 import weights
from headscape.gpt2.cache import Cache
from headscape.gpt2.model_config import ModelConfig, preset
from headscape.gpt2.qk_norm import HeadProjections, qk_norm, score_scale
from headscape.kernels import attend
from headscape.kernels.assemble import assemble, rotated

Watch = Callable[[int, AttentionCall], None]
"""Called in every layer with its index and the inputs of its attention."""


class Attention(HeadProjections):
    """Multi-head self-attention with a position encoding."""

    def __init__(self, config: ModelConfig, layer: int, encoding: Encoding) -> None:
        super().__init__()
        self.layer = layer
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.encoding = encoding
        self.q_norm, self.k_norm = (
            qk_norm(
                config, config.heads, config.head_dim,
                epsilon=config.norm_epsilon, rotates=encoding.rotates,
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm_after = config.qk_norm == "after"
        norm_scale = config.qk_norm_scale
        self.scale = score_scale(
            config.scale, norm_scale, head_dim=config.head_dim, width=config.width
        )
        if encoding.content_scale is not None and (norm_scale or config.scale != "head_dim"):
            name = "qk_norm_scale" if norm_scale else "scale"
            raise InputError(
                f"{encoding.title} has its own factor of q.k, but the model has "
                f"{name}={getattr(config, name)!r}: leave one of them out."
            )

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        positions: Positions,
        visible: Visible,
        cache: Cache | None,
        path: str,
        watch: Watch | None,
    ) -> Float[Tensor, "b t d"]:
        """Return the attention output of each token."""
        inputs = self.inputs(x, positions, visible, cache, path, watched=watch is not None)
        if watch is not None:
            watch(self.layer, inputs)
        return self.output(inputs, path)

    def inputs(
        self,
        x: Float[Tensor, "b t d"],
        positions: Positions,
        visible: Visible,
        cache: Cache | None = None,
        path: str = "auto",
        *,
        watched: bool = False,
    ) -> AttentionCall:
        """Return all inputs of this layer's attention, for normed input `x`."""
        encoding = self.encoding
        q, k, v = self.split(x)
        if not self.norm_after:
            q, k = self.q_norm(q), self.k_norm(k)
        norm = self.norm if self.norm_after else None
        if cache is None:
            stream = encoding.stream(LayerInput(x, starts=visible.starts(x.shape[1])))
            return assemble(
                encoding, q, k, v, positions, visible, streams=(stream, stream),
                model_scale=self.scale, norm=norm, project=self.project, observed=watched,
            )  # fmt: skip
        stream = encoding.stream(LayerInput(x, cache.carry(self.layer), visible.starts(x.shape[1])))
        first, reach = 0, encoding.reach
        if reach is not None:
            shown = replace(visible, window=encoding.window, chunk=encoding.chunk)
            first = cache.first(self.layer, reach, positions, shown)
            positions = positions.block(ALL, slice(first, None))
            visible = visible.block(ALL, slice(first, None))
        if encoding.cacheable_keys:
            k = rotated(encoding, k, Side(positions.q, "key", stream), norm)
        whole = cache.extend(self.layer, k, v, stream, reach, first)
        keys = None if stream is None else Stream(whole.total, key=whole.vector)
        # One new token, on the only path that can take its row of the bias from the cache.
        one = x.shape[1] == 1 and visible.q_group is None and path in {"auto", "decode"}
        row = None
        if cache.counted and one and reach is None and not watched:
            row = partial(cache.bias, self.layer, encoding, q.dtype)
        else:
            cache.forget(self.layer)
        return assemble(
            encoding, q, whole.k, whole.v, positions, visible, streams=(stream, keys),
            model_scale=self.scale, norm=norm, cached=True, project=self.project,
            kept=cache.kept.setdefault(self.layer, {}), bias_of=row,
        )  # fmt: skip

    def output(self, inputs: AttentionCall, path: str) -> Float[Tensor, "b t d"]:
        """Attend, and project the heads back to the model's width."""
        mixed = attend.run(inputs, path).transpose(1, 2).flatten(2)
        out: Tensor = self.out(mixed)
        return out


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and a residual."""

    def __init__(self, config: ModelConfig, layer: int, encoding: Encoding) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.attention = Attention(config, layer, encoding)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Float[Tensor, "b t d"], *rest: Any) -> Float[Tensor, "b t d"]:
        """Return the output of the layer; the other arguments are those of its attention."""
        return self.finish(x, self.attention(self.norm1(x), *rest))

    def finish(
        self, x: Float[Tensor, "b t d"], attended: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b t d"]:
        """Add the attention's output, then the perceptron's."""
        x = x + attended
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return out


class GPT2(nn.Module):
    """A GPT-2 of any size with any encoding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        entries = config.schedule()
        at_input = entries[0].at_input
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.position = config.build_encoding(entries[0] if at_input else Entry("nope", {}))
        if at_input:
            entries = [Entry("nope", shared_fields(entry.fields)) for entry in entries]
        made: list[tuple[Entry, Encoding]] = []
        for entry in entries:
            known = [encoding for other, encoding in made if other == entry]
            reused = known[0] if known and config.share_encoding else None
            made.append((entry, reused or config.build_encoding(entry)))
        self.blocks = nn.ModuleList(
            Block(config, layer, encoding) for layer, (_, encoding) in enumerate(made)
        )
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.apply(self._initialise)
        for module in self.modules():
            if isinstance(module, Encoding):
                module.initialise()

    def hidden(
        self,
        tokens: Int[Tensor, "b t"],
        *,
        cache: Cache | None = None,
        positions: Int[Tensor, "#b t"] | None = None,
        groups: Int[Tensor, "#b t"] | None = None,
        path: str = "auto",
        watch: Watch | None = None,
    ) -> Float[Tensor, "b t d"]:
        """The last layer's normed output for each token.

        Args:
            tokens: Token numbers [b t].
            cache: Keys and values of earlier tokens; the new ones are added.
            positions: Position of each token; by default 0, 1, 2 ... behind those of the cache.
            groups: Document of each token; tokens attend within their own, and a negative number is
                padding.
            path: The attention path, such as "torch"; "auto" takes the first that serves.
            watch: Called with each layer's number and attention call before it runs.
        """
        if tokens.shape[1] == 0:
            raise InputError("a sequence needs at least one token.")
        if cache is not None and not self.config.causal:
            raise InputError(
                "a bidirectional model cannot decode, as every token sees the later ones: "
                "leave the cache out."
            )
        old = 0 if cache is None else cache.length
        where = Positions.span(tokens.shape[1], old + tokens.shape[1], on=tokens.device)
        at = where.q if positions is None else positions
        x = self.position.embed(self.tokens(tokens), at)
        all_at, all_groups = at, groups
        if cache is not None:
            all_at, all_groups = cache.place(at, groups, counted=positions is None)
        if positions is not None or (cache is not None and not cache.counted):
            where = Positions(at, all_at)
        visible = Visible(self.config.causal, groups, all_groups)
        for block in self.blocks:
            x = block(x, where, visible, cache, path, watch)
        if cache is not None:
            cache.advance(tokens.shape[1])
        out: Tensor = self.norm(x)
        return out

    def observe(
        self,
        tokens: Int[Tensor, "b t"],
        layers: Sequence[int],
        watch: Watch,
        path: str = "auto",
    ) -> None:
        """Call `watch` for each of `layers`, counted from 0; compute nothing after the last.

        Args:
            tokens: Token numbers [b t].
            layers: Counted from 0.
            watch: Called with a layer's number and attention call.
            path: The attention path, as in `hidden`.
        """

        def seen(layer: int, inputs: AttentionCall) -> AttentionCall:
            if layer in layers:
                watch(layer, inputs)
            return inputs

        self.changed_hidden(tokens, seen, max(layers), path)

    def changed_hidden(
        self,
        tokens: Int[Tensor, "b t"],
        change: Callable[[int, AttentionCall], AttentionCall],
        last: int | None = None,
        path: str = "auto",
    ) -> Float[Tensor, "b t d"]:
        """Return `hidden` with every layer's call changed.

        Nothing is computed after the call of `last`: what that layer reads is returned.

        Args:
            tokens: Token numbers [b t].
            change: Given a layer's number and attention call, returns the call that runs.
            last: The last layer whose call is made; None for all.
            path: The attention path, as in `hidden`.
        """
        if tokens.shape[1] == 0:
            raise InputError("a sequence needs at least one token.")
        where = Positions.span(tokens.shape[1], on=tokens.device)
        visible = Visible(self.config.causal)
        x = self.position.embed(self.tokens(tokens), where.q)
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            inputs = block.attention.inputs(block.norm1(x), where, visible, watched=True)
            changed = change(layer, inputs)
            if layer == last:
                return x
            x = block.finish(x, block.attention.output(changed, path))
        out: Tensor = self.norm(x)
        return out

    def edited_hidden(
        self,
        tokens: Int[Tensor, "b t"],
        layer: int,
        edits: Sequence[Callable[[AttentionCall, Tensor], Tensor]],
    ) -> Iterator[Float[Tensor, "b t d"]]:
        """Yield `hidden` for each edit, which maps a layer's inputs and output to a new output.

        Layers before it run once for all edits.

        Args:
            tokens: Token numbers [b t].
            layer: Whose attention output is replaced, counted from 0.
            edits: Functions of the layer's attention call and output that return a new output.
        """
        where = Positions.span(tokens.shape[1], on=tokens.device)
        visible = Visible(self.config.causal)
        x = self.position.embed(self.tokens(tokens), where.q)
        for block in self.blocks[:layer]:
            x = block(x, where, visible, None, "auto", None)
        edited = self.blocks[layer]
        assert isinstance(edited, Block)
        inputs = edited.attention.inputs(edited.norm1(x), where, visible, watched=True)
        own = attend.run(inputs)
        for edit in edits:
            mixed = edit(inputs, own).transpose(1, 2).flatten(2)
            y = edited.finish(x, edited.attention.out(mixed))
            for block in self.blocks[layer + 1 :]:
                y = block(y, where, visible, None, "auto", None)
            yield self.norm(y)

    def logits(self, hidden: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        """Scores of the next token."""
        return F.linear(hidden, self.tokens.weight)

    def forward(self, tokens: Int[Tensor, "b t"], **options: Any) -> Float[Tensor, "b t v"]:
        """Scores of the next token after each token; the options are those of `hidden`.

        Args:
            tokens: Token numbers [b t].
            **options: Those of `hidden`: cache, positions, groups, path, watch.
        """
        return self.logits(self.hidden(tokens, **options))

    @classmethod
    def from_preset(cls, name: str, *, seed: int = 0, **fields: Any) -> "GPT2":
        """An untrained model of a named size; `fields` are those of `ModelConfig`.

        Args:
            name: nano, mini, tiny, small, medium, large, xl or a preset of the paper.
            seed: Of the random initial weights.
            **fields: Fields of `ModelConfig` to change, such as encoding, layers or vocabulary.

        Example:
            >>> import headscape as hs
            >>> hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257).config.heads
            12
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(preset(name, **fields))

    @classmethod
    def from_pretrained(cls, folder: FilePath | str) -> "GPT2":
        """Load our own format, an export of it or a Hugging Face GPT-2, onto the CPU."""
        folder = FilePath(folder)
        config, tensors = weights.read(folder)
        try:
            return cls.from_tensors(config, tensors, source=str(folder))
        except UnknownEncodingError as error:
            raise error.in_folder(folder) from error

    @classmethod
    def from_tensors(
        cls, config: ModelConfig, tensors: dict[str, Tensor], *, source: str
    ) -> "GPT2":
        """Return a model with these tensors; memory is used only for a config that fits them.

        Args:
            config: Sizes and encoding of the model.
            tensors: Its learned tensors by name.
            source: Where they come from, for error messages.
        """
        if config.layers > len(tensors):
            raise InputError(
                f"{source} has {len(tensors)} tensors, too few for the {config.layers} layers of "
                f"its config."
            )
        try:
            with torch.device("meta"):
                cls(config).check_tensors(tensors, source=source)
        except (RuntimeError, OverflowError, TypeError, MemoryError) as error:
            raise InputError(
                f"{source} has a config whose sizes cannot be built: {str(error).splitlines()[0]}."
            ) from error
        model = cls(config)
        model.load_tensors(tensors, source=source)
        return model

    def save_pretrained(self, folder: FilePath | str) -> FilePath:
        """Write weights and every convention to a folder, safetensors and JSON; return its path.

        The folder of a training run is refused: it would then contain two models.
        """
        folder = FilePath(folder)
        if (folder / "checkpoints").is_dir():
            raise InputError(f"{folder} is a training run: choose a different folder.")
        weights.write(folder, self.config, self.conventions(), self.tensors())
        return folder

    def tensors(self) -> dict[str, Tensor]:
        """Return every learned tensor once, by name."""
        return {name: value.detach() for name, value in self.named_parameters()}

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor], *, source: str) -> None:
        """Copy every learned tensor by name; refuse missing, unknown and wrongly shaped ones.

        Args:
            tensors: Learned tensors by name.
            source: Where they come from, for error messages.
        """
        self.check_tensors(tensors, source=source)
        for name, value in self.tensors().items():
            value.copy_(tensors[name])

    def check_tensors(self, tensors: dict[str, Tensor], *, source: str) -> None:
        """Raise InputError for missing, unknown and wrongly shaped tensors.

        Args:
            tensors: Learned tensors by name.
            source: Where they come from, for error messages.
        """
        mine = self.tensors()
        weights.require_tensors(tensors, mine, source=source)
        surplus = sorted(set(tensors) - set(mine))
        if surplus:
            raise InputError(f"{source} has the tensor {surplus[0]!r}, which this model does not.")

    def conventions(self) -> dict[str, object]:
        """Every convention of the encoding, defaults written out; of a schedule, per layer."""
        if not is_schedule(self.config.encoding):
            return self.encoding().conventions()
        return {
            str(layer): {"encoding": entry.name, **self.encoding(layer).conventions()}
            for layer, entry in enumerate(self.config.schedule())
        }

    def encoding(self, layer: int = 0) -> Encoding:
        """Return the encoding at the input if there is one, else that of a layer."""
        if self.position.at_input:
            return self.position
        block = self.blocks[layer]
        assert isinstance(block, Block)
        return block.attention.encoding

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Block):
            deep = 0.02 / math.sqrt(2 * self.config.layers)
            nn.init.normal_(module.down.weight, std=deep)
            nn.init.normal_(module.attention.out.weight, std=deep)
