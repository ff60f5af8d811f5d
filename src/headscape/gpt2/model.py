"""GPT-2 (Radford et al. 2019) with any position encoding.

    x   = tokens, embedded                       (+ learned or sinusoidal positions)
    x  += attention(norm(x));  x += mlp(norm(x))                    in every layer
    out = norm(x) tokens^T                       the embedding is also the output matrix

The paper's initialisation: every Linear and Embedding N(0, 0.02), those of an encoding included,
the two projections back into the residual 1/sqrt(2 layers) of that; biases zero; Conv2d and bare
parameters as their encoding makes them. No dropout, as in the runs this reproduces.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.attention import attend
from headscape.attention.reference import AttentionInputs
from headscape.encodings import Encoding, Heads, Stream
from headscape.encodings.base import Role
from headscape.encodings.layer_schedule import Entry, is_schedule, shared_fields
from headscape.errors import InputError
from headscape.gpt2 import exported_weights, published, weights
from headscape.gpt2.cache import Cache
from headscape.gpt2.model_config import ModelConfig, preset
from headscape.gpt2.qk_norm import qk_norm
from headscape.types import ALL, Positions, Visible

Watch = Callable[[int, AttentionInputs], None]
"""Called in every layer with its index and what its attention is a function of."""


class Attention(nn.Module):
    """Multi-head self-attention with a position encoding."""

    def __init__(self, config: ModelConfig, layer: int, encoding: Encoding) -> None:
        super().__init__()
        self.layer = layer
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.encoding = encoding
        self.q_norm, self.k_norm = (qk_norm(config, encoding) for _ in range(2))
        self.norm_after = config.qk_norm == "after"
        sizes = {"head_dim": config.head_dim, "width": config.width, "one": 1}
        self.scale = 1 / math.sqrt(sizes[config.scale])
        if encoding.content_scale is not None and config.scale != "head_dim":
            raise InputError(
                f"{encoding.title} has its own factor of q.k, but the model has "
                f"scale={config.scale!r}: leave one of them out."
            )

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        positions: Positions,
        visible: Visible,
        cache: Cache | None,
        path: attend.Path,
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
        path: attend.Path = "auto",
        *,
        watched: bool = False,
    ) -> AttentionInputs:
        """Everything this layer's attention is a function of, for normed input `x`."""
        encoding = self.encoding
        raw_q, raw_k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        if not self.norm_after:
            raw_q, raw_k = self.q_norm(raw_q), self.k_norm(raw_k)
        carry = None if cache is None else cache.carry(self.layer)
        stream = encoding.stream(x, carry, visible.starts(x.shape[1]))
        visible = replace(visible, window=encoding.window, chunk=encoding.chunk)
        reach = encoding.reach
        q = self._turned(raw_q, positions.q, "query", stream)
        if cache is None:
            k, keys = self._turned(raw_k, positions.k, "key", stream), stream
        else:
            first = 0
            if reach is not None:
                first = cache.first(self.layer, reach, positions, visible)
                positions = positions.block(ALL, slice(first, None))
                visible = visible.block(ALL, slice(first, None))
            k, v, keys = self._remember(raw_k, v, stream, positions, cache, first)
        unrotated = None
        if encoding.rotates and cache is None:
            unrotated = (raw_q, raw_k)
            if self.norm_after:
                unrotated = (self.q_norm(raw_q), self.k_norm(raw_k))
        scale = self.scale if encoding.content_scale is None else encoding.content_scale
        heads = [Heads(q, k, scale, self._project)] if encoding.reads_heads else []
        # One more token, on the one path that takes its row of the bias ready made.
        one = x.shape[1] == 1 and visible.q_group is None and path in {"auto", "decode"}
        if cache is not None and cache.counted and one and reach is None and not watched:
            bias = cache.bias(self.layer, encoding, positions, stream, keys, q.dtype, *heads)
        else:
            bias = encoding.bias(positions, stream, keys, *heads)
            if cache is not None:
                cache.forget(self.layer)
        return AttentionInputs(
            q,
            k,
            v,
            encoding,
            bias,
            positions,
            visible,
            scale,
            unrotated,
            temperature=encoding.temperature(positions.q),
            softcap=encoding.softcap,
            sink=encoding.sink(),
            reflections=None if stream is None else stream.reflections,
        )

    def output(self, inputs: AttentionInputs, path: attend.Path) -> Float[Tensor, "b t d"]:
        """Attend, and project the heads back to the model's width."""
        mixed = attend.run(inputs, path).transpose(1, 2).flatten(2)
        out: Tensor = self.out(mixed)
        return out

    def _remember(
        self,
        k: Float[Tensor, "b h t e"],
        v: Float[Tensor, "b h t e"],
        stream: Stream | None,
        positions: Positions,
        cache: Cache,
        first: int,
    ) -> tuple[Tensor, Tensor, Stream | None]:
        """Put new keys into the cache; give keys (rotated), values and sums from `first` on."""
        encoding = self.encoding
        if encoding.cacheable_keys:
            k = self._turned(k, positions.q, "key", stream)
        whole = cache.extend(self.layer, k, v, stream, encoding.reach, first)
        k = whole.k
        if not encoding.cacheable_keys:
            k = self._turned(k, positions.k, "key", None)
        return k, whole.v, None if stream is None else Stream(whole.total, key=whole.vector)

    def _project(
        self, rows: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]:
        """Queries and keys of any rows of the model's width."""
        q, k, _ = self.qkv(rows).unflatten(-1, (3, self.heads, -1)).movedim(0, 2)
        return q, k

    def _turned(
        self,
        x: Float[Tensor, "b h t e"],
        at: Int[Tensor, "#b t"],
        role: Role,
        stream: Stream | None,
    ) -> Float[Tensor, "b h t wide"]:
        """Queries or keys, rotated, and normed if the norm comes after the rotation."""
        turned = self.encoding.rotate(x, at, role, stream)
        if not self.norm_after:
            return turned
        normed: Tensor = (self.q_norm if role == "query" else self.k_norm)(turned)
        return normed


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and a residual."""

    def __init__(self, config: ModelConfig, layer: int, encoding: Encoding) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.attention = Attention(config, layer, encoding)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        positions: Positions,
        visible: Visible,
        cache: Cache | None,
        path: attend.Path,
        watch: Watch | None,
    ) -> Float[Tensor, "b t d"]:
        """One layer."""
        return self.finish(x, self.attention(self.norm1(x), positions, visible, cache, path, watch))

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
        path: attend.Path = "auto",
        watch: Watch | None = None,
    ) -> Float[Tensor, "b t d"]:
        """The last layer's normed output for each token.

        Positions default to 0, 1, 2 ... behind those of the cache; groups keep packed documents
        apart and mark padding (see Visible).
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
        path: attend.Path = "auto",
    ) -> None:
        """Call `watch` for each of `layers`, counted from 0; compute nothing after the last."""
        if tokens.shape[1] == 0:
            raise InputError("a sequence needs at least one token.")
        where = Positions.span(tokens.shape[1], on=tokens.device)
        visible = Visible(self.config.causal)
        x = self.position.embed(self.tokens(tokens), where.q)
        last = max(layers)
        for layer, block in enumerate(self.blocks[: last + 1]):
            assert isinstance(block, Block)
            inputs = block.attention.inputs(block.norm1(x), where, visible, watched=True)
            if layer in layers:
                watch(layer, inputs)
            if layer < last:
                x = block.finish(x, block.attention.output(inputs, path))

    def logits(self, hidden: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        """Scores of the next token."""
        return F.linear(hidden, self.tokens.weight)

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        *,
        cache: Cache | None = None,
        positions: Int[Tensor, "#b t"] | None = None,
        groups: Int[Tensor, "#b t"] | None = None,
        path: attend.Path = "auto",
        watch: Watch | None = None,
    ) -> Float[Tensor, "b t v"]:
        """Scores of the next token after each token; the arguments are those of `hidden`."""
        return self.logits(
            self.hidden(
                tokens, cache=cache, positions=positions, groups=groups, path=path, watch=watch
            )
        )

    @classmethod
    def from_preset(cls, name: str, *, seed: int = 0, **fields: Any) -> "GPT2":
        """An untrained model of a named size; `fields` are those of `ModelConfig`.

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
        if weights.is_ours(folder):
            config, tensors = weights.read(folder)
        elif exported_weights.is_exported(folder):
            config, tensors = exported_weights.read(folder)
        else:
            config, tensors = published.read(folder)
        model = cls(config)
        model.load_tensors(tensors, source=str(folder))
        return model

    def save_pretrained(self, folder: FilePath | str) -> None:
        """Write weights and every convention to a folder: safetensors and JSON."""
        weights.write(FilePath(folder), self.config, self.conventions(), self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """Return every learned tensor once, by name."""
        return {name: value.detach() for name, value in self.named_parameters()}

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor], *, source: str) -> None:
        """Copy every learned tensor by name; refuse missing, unknown and wrongly shaped ones."""
        mine = self.tensors()
        for name, value in mine.items():
            if name not in tensors:
                raise InputError(f"{source} has no tensor {name!r}.")
            if tensors[name].shape != value.shape:
                raise InputError(
                    f"{source} has {name!r} with shape {tuple(tensors[name].shape)}, and "
                    f"the model needs {tuple(value.shape)}."
                )
        surplus = sorted(set(tensors) - set(mine))
        if surplus:
            raise InputError(f"{source} has the tensor {surplus[0]!r}, which this model does not.")
        for name, value in mine.items():
            value.copy_(tensors[name])

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
