"""A published model that `transformers` loads, as a `Model`, and the check that it is read right.

Logits come from the model's own forward pass, so whatever a family does to them is in the loss.
Only scored positions are asked for where the family allows it (`logits_to_keep`).

On loading, a short random sequence, of tokens or of noise, runs through the model's own forward. In
every layer the attention result is computed again from what was read: content, position, mask,
softmax, times v. A difference that rounding does not explain stops the loading, so a wrong picture
cannot come from a wrong reading.

Positions added to the token embeddings, learned tables and sinusoids, are found by what they add. A
module that looks like a table of positions is watched while the model runs. The rows it returns for
positions 0, 1, 2 ... say which of its rows is position 0: 0 in GPT-2 and BERT, 2 in OPT and
RoBERTa. Sinusoids are compared with those of Vaswani et al. and of fairseq (XGLM, M2M100). wav2vec2
and WavLM add a convolution of the frames instead; only whether it runs is recorded.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headscape.call import definition
from headscape.call.definition import AttentionCall
from headscape.data.dataset import Dataset
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.encodings import Encoding, Shape, make
from headscape.errors import InputError
from headscape.gpt2.generate import sample
from headscape.models.loaded import LoadedModel, digest, eval_mode, losses_in_blocks
from headscape.models.model import Edit, LayerSpec, Spec, Watch
from headscape.models.transformers.attention_watch import (
    AttentionWatch,
    full_up_to,
    names_attention,
)
from headscape.models.transformers.families import family_of
from headscape.models.transformers.layer_reading import (
    UNKNOWN,
    LayerReading,
    Unrecognised,
    injected_input,
    is_causal,
    original_length,
    read_layer,
    shape_of,
    trained_length,
)
from headscape.models.transformers.observed_call import ObservedCall, allowance, output_rounding

if TYPE_CHECKING:
    from headscape.models.transformers.offload import WeightStream


class PublishedModel(LoadedModel):
    """A transformers model: captured, and scored and continued if it predicts the next token."""

    def __init__(
        self,
        model: Any,
        name: str,
        tokenizer: Tokenizer | None,
        *,
        trained: bool = True,
        stream: "WeightStream | None" = None,
        origin: Mapping[str, str] | None = None,
    ) -> None:
        """`stream` reads the weights of an offloaded model; `origin` says where it comes from."""
        self.model = model
        self.stream = stream
        self.origin = dict(origin or {})
        """Where it was downloaded from, for the spec's provenance."""
        self._name = name
        self._tokenizer = tokenizer
        self._trained = trained
        self._body = body_of(model)
        self.config = text_config(self._body, model)
        """The config of the part that reads the input."""
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        with self._ready():
            self._reading = read_model(
                name, self._body, self.config, self._run, self._check_input()
            )

    @cached_property
    def spec(self) -> Spec:
        """Encodings and conventions as they were read; sizes of a family without a reader."""
        config, reading = self.config, self._reading
        shared: dict[str, Any] = {
            "name": self._name,
            "width": config.hidden_size,
            "vocabulary": getattr(config, "vocab_size", None) or 0,
            "train_length": original_length(config),
            "trained": self._trained,
        }
        provenance: dict[str, Any] = {"architecture": type(self.model).__name__, **self.origin}
        if reading is None:
            unknown = LayerSpec(encoding=UNKNOWN, conventions={}, claims={}, shows="final")
            return Spec(
                layers=(unknown,) * config.num_hidden_layers,
                heads=config.num_attention_heads,
                head_dim=config.hidden_size // config.num_attention_heads,
                causal=self.model.can_generate() and not self.model.config.is_encoder_decoder,
                shows="final",
                provenance=provenance,
                **shared,
            )
        if reading.at_input is not None:
            provenance["input"] = reading.at_input.title
        if reading.convolves:
            provenance["input"] = "positional convolution"
        full = full_up_to(self._body)
        if full is not None:
            provenance["attention"] = (
                f"block_sparse, read as the full attention that transformers computes on up to "
                f"{full} tokens"
            )
        others = other_layers(self._body, self.attention, reading.extra_keys)
        if others:
            provenance["other_layers"] = others
            blocks = [
                number for number, other in _reads(self._body, self.attention) if other is None
            ]
            if len(blocks) == len(reading.layers):
                provenance["blocks"] = blocks
        pairs = zip(reading.layers, reading.calls, strict=True)
        layers = tuple(layer.spec(call) for layer, call in pairs)
        return Spec(
            layers=layers,
            heads=reading.calls[0].heads,
            head_dim=reading.calls[0].q.shape[-1],
            causal=is_causal(reading.calls[0]),
            shows=layers[-1].shows,
            provenance=provenance,
            **shared,
        )

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer."""
        return self._tokenizer

    @property
    def dataset(self) -> Dataset | None:
        """None: what it was trained on is not here."""
        return None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of config and weights."""
        weights = self.model.state_dict() if self.stream is None else self.stream
        with self._ready():
            return digest(self.model.config.to_json_string(), weights)

    @property
    def readings(self) -> list[LayerReading]:
        """Every layer as it was read."""
        return self._readings()

    @property
    def attention(self) -> list[nn.Module]:
        """The attention module of every layer; layers may share one."""
        return [] if self._reading is None else [call.module for call in self._reading.calls]

    @torch.no_grad()
    def observe(
        self,
        tokens: Int[Tensor, "b t"] | Float[Tensor, "b t ..."],
        layers: Sequence[int],
        watch: Watch,
        *,
        real: Bool[Tensor, "b t"] | None = None,
        positions: Int[Tensor, "... #b t"] | None = None,
    ) -> None:
        """Run tokens and call `watch` for each of `layers`; stop after the last of them.

        A speech model takes frames [b t f] or samples [b t] as `tokens`. `real` is False for
        padding. `positions` are given to the model where they do not count 0, 1, 2 ...; a model
        that takes none is refused. M-RoPE (Qwen2-VL and later) takes three positions per token,
        [3, b, t], or four, of which the first are those of the text.
        """
        if tokens.shape[1] == 0:
            raise InputError(
                f"a sequence needs at least 1 token or frame, got shape {tuple(tokens.shape)}."
            )
        if positions is not None and positions.ndim == 3:
            self._need_sections()
        readings, last = self._readings(), max(layers)
        device = self.model.device
        real, positions = (None if x is None else x.to(device) for x in (real, positions))
        seen = None if real is None else self._real_positions(real)

        def on_call(layer: int, call: ObservedCall) -> None:
            watch(layer, readings[layer].inputs(call, layer, seen, positions))
            if layer == last:
                raise _Done

        given = {"attention_mask": None if real is None else real.long(), "position_ids": positions}
        more = {name: value for name, value in given.items() if value is not None}
        try:
            watching = AttentionWatch(
                self._body, on_call, layers=set(layers), modules=self.attention
            )
            with self._ready(), watching:
                self._run(self._batch(tokens), **more)
        except _Done:
            return
        raise InputError(
            f"{self._name} did not compute layer {last} (counted from 0) on {tokens.shape[1]} "
            f"tokens: it cannot be captured."
        )

    @torch.inference_mode()
    def losses(self, windows: Int[Tensor, "b t_plus_1"], first: int) -> Float[Tensor, "b scored"]:
        """Nats of predictions first, first + 1 ... of each window, in float64."""
        self.need_next_token()
        windows = windows.to(self.model.device)
        target = windows[:, 1 + first :]
        keep = {"logits_to_keep": target.shape[1]} if self._keeps else {}
        with self._ready():
            logits = self.model(windows[:, :-1], use_cache=False, **keep).logits
        return losses_in_blocks(logits[:, -target.shape[1] :], target, lambda block: block).cpu()

    def logits_at(
        self, tokens: Int[Tensor, "b t"], at: Int[Tensor, " n"] | None
    ) -> Float[Tensor, "b n v"]:
        """Logits of the next token after the tokens `at`; None is all."""
        self.need_next_token()
        given = {} if at is None else {"logits_to_keep": at.to(self.model.device)}
        with self._ready():
            out = self.model(tokens, use_cache=False, **(given if self._keeps else {}))
        logits: Tensor = out.logits
        return logits if at is None or self._keeps else logits[:, given["logits_to_keep"]]

    @property
    def body(self) -> nn.Module:
        """The stack of layers that reads the input."""
        return self._body

    def call_of(self, observed: ObservedCall, layer: int) -> AttentionCall:
        """The attention inputs of a call that a watch reported in a layer, counted from 0."""
        return self._readings()[layer].inputs(observed, layer)

    def edited_losses(
        self, windows: Int[Tensor, "b t_plus_1"], first: int, layer: int, edits: Sequence[Edit]
    ) -> Iterator[Float[Tensor, "b scored"]]:
        """Yield `losses` for each edit of a layer, counted from 0; earlier layers run once."""
        readings = self._readings()
        return edited_runs(
            self._body,
            lambda: self.losses(windows, first),
            readings,
            layer,
            edits,
            modules=self.attention,
        )

    @torch.inference_mode()
    def predictions(
        self, tokens: Int[Tensor, "b t"], where: Bool[Tensor, "b t"]
    ) -> Int[Tensor, " n"]:
        """The likeliest next token after each token that `where` selects, in row order."""
        self.need_next_token()
        with self._ready():
            logits: Tensor = self.model(tokens.to(self.model.device), use_cache=False).logits
        return logits[where.to(logits.device)].argmax(dim=-1).cpu()

    def continuation(
        self, tokens: Int[Tensor, "b t"], *, length: int, **sampling: Any
    ) -> Iterator[Int[Tensor, "b 1"]]:
        """New tokens, one at a time, with the model's own cache."""
        self.need_next_token()
        tokens = self._batch(tokens)
        past: Any = None

        def next_logits(step: Int[Tensor, "b n"]) -> Float[Tensor, "b v"]:
            nonlocal past
            with self._ready():
                out = self.model(step, past_key_values=past, use_cache=True)
            past = out.past_key_values
            last: Tensor = out.logits[:, -1]
            return last

        return sample(next_logits, tokens, length=length, **sampling)

    def length_error(self, length: int) -> str | None:
        """A table has an end; other positions are the model's to refuse."""
        if self._reading is None:
            return None
        rows = [self._reading.rows]
        named = {family_of(module).longest for module in self.attention}
        rows += [getattr(self.config, name, None) for name in named if name is not None]
        least = min((each for each in rows if each is not None), default=length)
        if length > least:
            return f"{length} tokens are more than the {least} positions of the model's table."
        return None

    def cost(self, length: int) -> float:
        """As for our own models, from the config's usual names."""
        config = self.config
        layer = 12 * config.hidden_size**2 + length * config.hidden_size
        return float(
            length * (len(self.spec.layers) * layer + config.vocab_size * config.hidden_size)
        )

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """The model in eval mode; the weights of an offloaded one are read as its blocks run."""
        with eval_mode(self.model), ExitStack() as stack:
            if self.stream is not None:
                stack.enter_context(self.stream.reading())
            yield

    def _readings(self) -> list[LayerReading]:
        """Every layer as it was read; a family that no reader sees is refused."""
        if self._reading is None:
            raise InputError(
                f"{self._name} is a {self.config.model_type!r} model, whose attention does not go "
                f"through the attention interface of transformers: it can be scored, not captured."
            )
        return self._reading.layers

    def _check_input(self) -> Tensor:
        """Return what the check on loading runs."""
        return check_tokens(self.config, self.model.device)

    def _batch(self, tokens: Tensor) -> Tensor:
        return tokens.to(self.model.device)

    def _real_positions(self, real: Bool[Tensor, "b t"]) -> Bool[Tensor, "b s"]:
        """Return which positions of attention are not padding."""
        return real

    def _run(self, tokens: Tensor, **more: Tensor) -> object:
        known = inspect.signature(self._body.forward).parameters
        for name in more:
            if name not in known:
                raise InputError(f"{self._name} takes no {name}: leave it out.")
        cached = {"use_cache": False} if "use_cache" in known else {}
        return self._body(tokens, **cached, **more)

    def _need_sections(self) -> None:
        if not any(hasattr(module, "mrope_section") for module in self._body.modules()):
            raise InputError(
                f"{self._name} has no M-RoPE, so it takes one position per token, [b, t]."
            )

    def need_next_token(self) -> None:
        """Raise InputError if the model does not predict the next token."""
        # Whisper's decoder is causal, and predicts the next token of what its encoder heard.
        decodes = self.model.config.is_encoder_decoder
        if decodes or not (self.spec.causal and self.model.can_generate()):
            raise InputError(
                f"{self._name} is a {type(self.model).__name__}, which does not predict the next "
                f"token: it can be captured, not scored or continued."
            )


class _Done(Exception):  # noqa: N818 - it ends a forward pass, nothing is wrong
    """The last layer asked for was seen."""


def body_of(model: Any) -> nn.Module:
    """The stack of layers that reads the input: of an encoder-decoder model, the encoder.

    Of a model that reads images or sound beside text it is the part that reads text.
    """
    body = model.base_model
    if hasattr(body, "speech_encoder"):
        body = body.speech_encoder
    elif getattr(model.config, "is_encoder_decoder", False) and hasattr(body, "decoder"):
        reads = inspect.signature(body.encoder.forward).parameters
        body = body.encoder if "input_ids" in reads else body.decoder
        body = _text_part(body, getattr(body, "config", model.config))
    else:
        body = _text_part(body, model.config)
    assert isinstance(body, nn.Module)
    return body


def _text_part(body: Any, config: Any) -> Any:
    """Return the part of a multimodal model that reads tokens; the whole of any other."""
    names = [name for name in ("text_config", "decoder", "generator") if hasattr(config, name)]
    text = getattr(config, names[0]) if names else None
    if not hasattr(text, "get_text_config") or type(text) is type(config):
        return body
    for module in body.modules():
        reads = inspect.signature(module.forward).parameters
        if type(getattr(module, "config", None)) is type(text) and "input_ids" in reads:
            return module.base_model
    return body


def text_config(body: Any, model: Any) -> Any:
    """Return the config with the sizes of a body."""
    return getattr(body, "config", model.config).get_text_config(decoder=False)


@torch.inference_mode()
def edited_runs(
    body: nn.Module,
    run: Callable[[], Tensor],
    readings: Sequence[LayerReading],
    layer: int,
    edits: Sequence[Edit],
    *,
    modules: Sequence[nn.Module] | None = None,
) -> Iterator[Tensor]:
    """Yield what `run` returns with each edit of a layer, counted from 0.

    `modules` is the attention of every layer.
    """
    before = _blocks(body, len(readings))[:layer]
    saved: dict[int, Any] = {}
    for edit in edits:
        with ExitStack() as stack:
            skipped = len(saved) == len(before) and bool(before)
            for number, block in enumerate(before):
                if skipped:
                    _return(stack, block, saved[number])
                else:
                    _record(stack, block, saved, number)
            watch = _watch(body, readings, layer, edit, modules)
            watch.layer = layer if skipped else 0
            stack.enter_context(watch)
            result = run()
        yield result


def _watch(
    body: nn.Module,
    readings: Sequence[LayerReading],
    layer: int,
    edit: Edit,
    modules: Sequence[nn.Module] | None,
) -> AttentionWatch:
    found: list[AttentionCall] = []

    def on_call(at: int, call: ObservedCall) -> None:
        found.append(readings[at].inputs(call, at))

    def on_result(at: int, result: Tensor) -> Tensor | None:
        return edit(found.pop(), result) if at == layer else None

    return AttentionWatch(body, on_call, on_result, layers={layer}, modules=modules)


def _blocks(body: nn.Module, layers: int) -> list[nn.Module]:
    """The model's blocks in order, one per layer; empty where they cannot be told apart."""
    for module in body.modules():
        sized = isinstance(module, nn.ModuleList) and len(module) == layers
        if sized and all(_attends(block) for block in module.children()):
            return list(module.children())
    return []


def other_layers(
    body: nn.Module, attention: Sequence[nn.Module], extra_keys: Sequence[nn.Module] = ()
) -> str:
    """Return which blocks of a model are read by none of its attention, in a sentence, or "".

    Blocks are counted from 1. `extra_keys` is attention with keys that are not tokens.
    """
    blocks = _reads(body, attention)
    reads = [block is None for _, block in blocks]
    if all(reads):
        return ""
    kinds: dict[str, list[str]] = {}
    for number, block in blocks:
        if block is not None:
            compressed = any(module in extra_keys for module in block.modules())
            kind = _mixer(block) + (" with keys that are not tokens" if compressed else "")
            kinds.setdefault(kind, []).append(str(number))
    named = "; ".join(f"{kind} in {', '.join(at)}" for kind, at in kinds.items())
    return (
        f"{sum(reads)} of its {len(reads)} blocks have attention that can be read and count as "
        f"layers; the others are {named} (counted from 1)"
    )


def _reads(body: nn.Module, attention: Sequence[nn.Module]) -> list[tuple[int, nn.Module | None]]:
    """Return the blocks of a model by number, from 1: None where its attention is read."""
    seen = {id(module) for module in attention}
    for stack in body.modules():
        if isinstance(stack, nn.ModuleList) and len(stack) > 1:
            reads = [any(id(x) in seen for x in block.modules()) for block in stack]
            if any(reads):
                every = zip(stack, reads, strict=True)
                return [(at, None if read else block) for at, (block, read) in enumerate(every, 1)]
    return []


def _mixer(block: nn.Module) -> str:
    """Return the class of the first child of a block that is no norm and no MLP."""
    passed = ("Norm", "MLP", "Mlp", "Moe", "MoE", "Dropout", "Identity", "Embedding")
    names = [type(child).__name__ for child in block.children()]
    return next((name for name in names if not any(part in name for part in passed)), names[-1])


def _attends(block: nn.Module) -> bool:
    """Whether a block contains attention."""
    return any(names_attention(module) for module in block.modules())


def _record(stack: ExitStack, block: nn.Module, saved: dict[int, Any], number: int) -> None:
    def keep(_: nn.Module, __: Any, result: Any) -> None:
        saved[number] = result

    stack.callback(block.register_forward_hook(keep).remove)


def _return(stack: ExitStack, block: nn.Module, result: Any) -> None:
    # A block may have a forward of its own already, such as accelerate's.
    before = {name: vars(block)[name] for name in ("forward",) if name in vars(block)}
    vars(block)["forward"] = lambda *_, **__: result
    stack.callback(vars(block).update, before)
    stack.callback(vars(block).pop, "forward")


NAME = re.compile(r"(wpe|embed_positions|position_embeddings?|positions_embed|pos_emb)$")


class InputWatch:
    """What the position table of a model returned during one forward pass."""

    def __init__(self, body: nn.Module) -> None:
        self.table: Tensor | None = None
        self.rows: Tensor | None = None
        self.fixed = False
        """Whether the table is an embedding; fairseq's sinusoids are made longer when needed."""
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
        rows = rows[0] if isinstance(rows, tuple) else rows
        if isinstance(rows, Tensor) and self.rows is None:
            # fairseq's sinusoids grow with the longest text, so they are read after the call.
            table = _table(module)
            assert table is not None
            self.table, self.rows = table.detach(), rows.detach()
            self.fixed = isinstance(module, nn.Embedding)

    def offset(self) -> int | None:
        """Return which row of the table position 0 takes; None if its rows were not returned."""
        if self.table is None or self.rows is None:
            return None
        rows = self.rows.reshape(-1, self.rows.shape[-1])[: self.rows.shape[-2]]
        for offset in range(min(4, len(self.table) - len(rows) + 1)):
            if torch.equal(self.table[offset : offset + len(rows)], rows):
                return offset
        return None

    def positions(self) -> int | None:
        """Return how many positions the table has; None if there is none, or if it grows."""
        offset = self.offset() if self.fixed else None
        return None if offset is None or self.table is None else len(self.table) - offset

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
    names = ("embedding_size", "input_embedding_size")
    if width not in {shape.width, *(getattr(config, name, None) for name in names)}:
        return None  # a table of angles, as RoFormer's
    if width == shape.width:
        found = _sinusoid(rows, shape)
        if found is not None:
            return found
    offset = watch.offset()
    if offset is None:
        return None
    fields = {"length": len(watch.table) - offset, "offset": offset}
    encoding = make("learned", replace(shape, width=width), fields)
    weight = nn.Parameter(watch.table, requires_grad=False)
    encoding.table.weight = weight  # type: ignore[union-attr]
    return encoding


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


LENGTH = 24
"""Tokens of the sequence; more than any exact range of T5's buckets."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelReading:
    """Every layer of a model as it was read, and its call on the check's sequence."""

    layers: list[LayerReading]
    calls: list[ObservedCall]
    at_input: Encoding | None
    """What is added to the token embeddings."""
    rows: int | None
    """Positions of the table that it comes from; None without one, or where the table grows."""
    convolves: bool
    """Whether a convolution adds position to the input."""
    extra_keys: list[nn.Module]
    """Attention that is no layer here, since it has keys that are not tokens."""


@torch.no_grad()
def read_model(
    name: str, body: nn.Module, config: Any, run: Callable[[Tensor], object], given: Tensor
) -> ModelReading | None:
    """Read every layer of a model and check it; `run` is the forward pass of `body` on `given`.

    None for a family whose attention goes neither through the interface nor has a reader.
    """
    calls: dict[int, ObservedCall] = {}
    results: dict[int, Tensor] = {}
    table = InputWatch(body)
    try:
        watch = AttentionWatch(body, calls.__setitem__, results.__setitem__, examine=True)
        with watch:
            run(given)
    except FAILURES as error:
        if not isinstance(error, InputError):
            _need_tokens_alone(name, run, given)
        raise
    finally:
        table.close()
    if not calls:
        _need_heads(name, body, config)
        return None
    at_input = injected_input(body) or read_input(table, config, shape_of(calls[0], config))
    layers = []
    hidden_input = False
    for layer, call in sorted(calls.items()):
        if call.heads != calls[0].heads:
            raise InputError(
                f"{name} has {calls[0].heads} heads in layer 0 and {call.heads} in layer {layer} "
                f"(counted from 0): only models with equal heads in every layer can be read."
            )
        reading = read_layer(call, body, config, layer, at_input)
        if layer == 0 and reading.name == "nope":
            hidden_input = _input_moves(body, run, given, call)
        if reading.name == "nope" and hidden_input and not table.convolves:
            unknown = Unrecognised(shape_of(call, config), Unrecognised.config_type())
            reading = LayerReading(name=UNKNOWN, encoding=unknown)
        check_layer(name, layer, reading, call, results[layer])
        layers.append(reading)
    every = [calls[layer] for layer in sorted(calls)]
    return ModelReading(
        layers=layers,
        calls=every,
        at_input=at_input,
        rows=table.positions(),
        convolves=table.convolves,
        extra_keys=watch.extra_keys,
    )


FAILURES = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)
"""What a forward pass raises when an input is missing."""


def _need_tokens_alone(name: str, run: Callable[[Tensor], object], given: Tensor) -> None:
    """Raise InputError if the model also fails unwatched, for example for lack of an input."""
    try:
        run(given)
    except torch.OutOfMemoryError:
        raise
    except FAILURES as error:
        says = " ".join(str(error).split())
        raise InputError(
            f"{name} does not run on tokens alone, so it cannot be read: transformers raises "
            f"{type(error).__name__}: {says.rstrip('.')}."
        ) from error


def _input_moves(
    body: nn.Module, run: Callable[[Tensor], object], given: Tensor, first: ObservedCall
) -> bool:
    """Return whether equal tokens have different queries in a first block without position.

    Position then enters at the input, in a way that was not recognised.
    """
    if given.is_floating_point():
        return False
    stacks = (each for each in body.modules() if isinstance(each, nn.ModuleList) and len(each))
    block = next((each[0] for each in stacks if any(map(_attends, each))), body)
    if first.module not in set(block.modules()):
        return False
    found: dict[int, ObservedCall] = {}
    with AttentionWatch(body, found.__setitem__, layers={0}):
        run(given[:, :1].expand_as(given))
    q = found[0].q
    return bool((q - q[:, :, :1]).abs().amax() > 1e-3 * q.abs().amax())


def _need_heads(name: str, body: nn.Module, config: Any) -> None:
    """Raise InputError for a model without attention heads: Mamba, RWKV, FNet."""
    # RWKV calls its time mixing attention, and FNet's config may contain a number of heads.
    attends = any("ttention" in type(module).__name__ for module in body.modules())
    if not attends or getattr(config, "num_attention_heads", None) is None:
        raise InputError(
            f"{name} is a {config.model_type!r} model, which has no attention heads: Headscape "
            f"reads models with attention."
        )


def check_layer(
    name: str, layer: int, reading: LayerReading, call: ObservedCall, result: Tensor
) -> None:
    """Raise InputError if the layer computed from what was read is not the model's own."""
    if not bool(result.isfinite().all()):
        raise InputError(
            f"{name} computes values that are not finite: in layer {layer} (counted from 0) its "
            f"attention has NaN or infinity on a short random sequence, so its weights or its "
            f"config are wrong."
        )
    inputs = reading.inputs(call, layer)
    differs = (definition.run(inputs) - result).abs()
    allowed = allowance(result.dtype) * output_rounding(inputs)
    if not bool((differs <= allowed).all()):
        worst = int((differs / allowed).nan_to_num(torch.inf).argmax())
        found, explained = float(differs.flatten()[worst]), float(allowed.flatten()[worst])
        raise InputError(
            f"{name} is not read correctly: in layer {layer} (counted from 0) its attention "
            f"differs by {found:.2g} from what was read, and rounding explains {explained:.2g}."
        )


def check_tokens(config: Any, device: torch.device) -> Tensor:
    """A short random sequence without the padding token."""
    longest = trained_length(config)
    length = LENGTH if longest is None else max(2, min(LENGTH, longest - 2))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (1, length), generator=generator)
    padding = getattr(config, "pad_token_id", None)
    if padding is not None:
        tokens[tokens == padding] = (padding + 1) % config.vocab_size
    return tokens.to(device)
