"""GPT-2 with any position encoding as a transformers model.

It computes what headscape's own GPT2 computes: the encodings, their bias and the dense attention
are the same code. With sdpa, an encoding that only rotates or adds a bias goes through
transformers' attention function, which receives the bias as `position_bias`; an encoding that acts
on scores in a different way always uses the dense definition. Attention functions that ignore
biases and masks (flash attention, vLLM, SGLang) are refused, because the model would run without
its positions.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headscape.attention.reference import AttentionInputs, scores
from headscape.bias import dense
from headscape.encodings.base import Encoding, Shape, Stream
from headscape.encodings.building import make
from headscape.errors import InputError
from headscape.huggingface.exported_cache import check_cache, last_sum, pack, unpack
from headscape.huggingface.exported_config import HeadscapeConfig
from headscape.types import Positions, Visible

SERVED = ("eager", "sdpa")
"""Attention implementations that keep biases and masks."""


class HeadscapeAttention(nn.Module):
    """Multi-head self-attention with a position encoding."""

    def __init__(self, config: HeadscapeConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads = config.num_attention_heads
        self.is_causal = True
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)
        head_dim = config.hidden_size // config.num_attention_heads
        sizes = {"head_dim": head_dim, "width": config.hidden_size, "one": 1}
        self.scaling = 1 / math.sqrt(sizes[config.score_scale])

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        encoding: Encoding,
        placed: "Placed",
        past: Any,
        *,
        weights: bool,
    ) -> tuple[Float[Tensor, "b t d"], Tensor | None]:
        """Return what each token takes from those it sees, and the weights if asked for."""
        inputs = self._inputs(x, encoding, placed, past)
        if weights or self.config._attn_implementation == "eager" or not _adds(inputs):
            found = scores(inputs)
            mixed, shown = (found.weights @ inputs.v).transpose(1, 2), found.weights
        else:
            mixed, shown = self._through_interface(inputs), None
        return self.out(mixed.flatten(2)), shown if weights else None

    def _inputs(
        self,
        x: Float[Tensor, "b t d"],
        encoding: Encoding,
        placed: "Placed",
        past: Any,
    ) -> AttentionInputs:
        at = placed.at
        raw_q, raw_k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        q = encoding.rotate(raw_q, at, "query")
        carry = last_sum(past, self.layer_idx) if encoding.streams and past is not None else None
        stream = encoding.stream(x, carry)
        total = None if stream is None else stream.total
        k, k_at = raw_k, at
        if encoding.cacheable_keys or past is None:
            k = encoding.rotate(k, at, "key")
        if past is not None:
            packed, v = past.update(pack(k, at, total), v, self.layer_idx)
            k, k_at, total = unpack(packed, sums=total is not None)
            if not encoding.cacheable_keys:
                k = encoding.rotate(k, k_at, "key")
        positions = Positions(at, k_at)
        return AttentionInputs(
            q,
            k,
            v,
            encoding,
            encoding.bias(positions, stream, None if total is None else Stream(total)),
            positions,
            placed.visible(k.shape[2], encoding.window),
            self.scaling,
            temperature=encoding.temperature(at),
            softcap=encoding.softcap,
            sink=encoding.sink(),
        )

    def _through_interface(self, inputs: AttentionInputs) -> Float[Tensor, "b t h ev"]:
        """Return attention by the function that the config names."""
        name = self.config._attn_implementation
        seen: Bool[Tensor, "#b 1 t s"] = inputs.visible.dense(inputs.positions)
        # Padding sees nothing, and a softmax over nothing is not a number: let it see everything.
        seen = seen | ~seen.any(dim=-1, keepdim=True)
        bias = None
        if inputs.bias is not None:
            bias = dense(inputs.bias, inputs.positions).to(inputs.q.dtype)
        mixed, _ = ALL_ATTENTION_FUNCTIONS[name](
            self,
            inputs.q,
            inputs.k,
            inputs.v,
            seen,
            scaling=inputs.scale,
            position_bias=bias,
            is_causal=False,
        )
        out: Tensor = mixed
        return out


def _adds(inputs: AttentionInputs) -> bool:
    """Whether scores are only q.k and a bias, as transformers' attention functions compute them."""
    plain = not (inputs.encoding.mixes or inputs.bends)
    return plain and inputs.sink is None


@dataclass(frozen=True)
class Placed:
    """Where the new tokens of a call are."""

    at: Int[Tensor, "#b t"]
    """Their positions."""
    group: Int[Tensor, "#b s"] | None
    """The groups of all tokens, the cached ones first; a negative group is padding."""
    old: int
    """Number of cached tokens."""

    def visible(self, keys: int, window: int | None) -> Visible:
        """Return which of so many keys the new tokens see.

        A static cache has more places than tokens; the places without a token are hidden.
        """
        group, end = self.group, self.old + self.at.shape[1]
        if keys > end:
            known = self.at.new_zeros(1, end) if group is None else group
            group = F.pad(known, (0, keys - end), value=-1)
        new = None if group is None else group[:, self.old : end]
        return Visible(causal=True, q_group=new, k_group=group, window=window)


class HeadscapeBlock(GradientCheckpointingLayer):
    """Attention and a two-layer perceptron, each behind a norm and a residual."""

    def __init__(self, config: HeadscapeConfig, layer_idx: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm1 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.attention = HeadscapeAttention(config, layer_idx)
        self.norm2 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(
        self, x: Float[Tensor, "b t d"], *given: Any, **more: Any
    ) -> tuple[Float[Tensor, "b t d"], Tensor | None]:
        """Return the layer's output and, if asked for, its attention weights."""
        attended, weights = self.attention(self.norm1(x), *given, **more)
        x = x + attended
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), weights


class HeadscapePreTrainedModel(PreTrainedModel):
    """What transformers needs to know about the model."""

    config_class = HeadscapeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("HeadscapeBlock",)
    _skip_keys_device_placement = ("past_key_values",)
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Encoding):
            module.initialise()
        if isinstance(module, HeadscapeBlock):
            deep = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            nn.init.normal_(module.down.weight, std=deep)
            nn.init.normal_(module.attention.out.weight, std=deep)


class HeadscapeModel(HeadscapePreTrainedModel):
    """The layers, without the output matrix."""

    def __init__(self, config: HeadscapeConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encodings = nn.ModuleList(build_encodings(config))
        self.blocks = nn.ModuleList(
            HeadscapeBlock(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.tokens = value

    def forward(
        self,
        input_ids: Int[Tensor, "b t"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "#b t"] | None = None,
        past_key_values: Any = None,
        inputs_embeds: Float[Tensor, "b t d"] | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **more: Any,
    ) -> Any:
        """Return the last layer's normed output of each token."""
        refuse_backend(self.config._attn_implementation)
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give input_ids or inputs_embeds, and not both.")
        x = self.tokens(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        past = past_key_values if use_cache or past_key_values is not None else None
        if past is not None:
            check_cache(past)
        old = 0 if past is None else int(past.get_seq_length())
        placed = place_tokens(x, old, attention_mask, position_ids)
        x = self.encodings[0].embed(x, placed.at)
        states: list[Tensor] = []
        every: list[Tensor | None] = []
        for index, block in zip(self.config.layers, self.blocks, strict=True):
            states.append(x)
            encoding = self.encodings[index]
            x, weights = block(x, encoding, placed, past, weights=bool(output_attentions))
            every.append(weights)
        x = self.norm(x)
        out = BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past,
            hidden_states=(*states, x) if output_hidden_states else None,
            attentions=tuple(every) if output_attentions else None,
        )
        return out if return_dict is not False else out.to_tuple()


class HeadscapeForCausalLM(HeadscapePreTrainedModel, GenerationMixin):
    """The model with its output matrix, which is the token embedding."""

    _tied_weights_keys = {"lm_head.weight": "model.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: HeadscapeConfig) -> None:
        super().__init__(config)
        self.model = HeadscapeModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """Return the output matrix."""
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the output matrix."""
        self.lm_head = value

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """Return the mask as it is: the encodings need it by token, also with a static cache."""
        return attention_mask

    def forward(
        self,
        input_ids: Int[Tensor, "b t"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "#b t"] | None = None,
        past_key_values: Any = None,
        inputs_embeds: Float[Tensor, "b t d"] | None = None,
        labels: Int[Tensor, "b t"] | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **more: Any,
    ) -> Any:
        """Return the scores of the next token after each token, and the loss of `labels`."""
        found = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(found.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **more)
        out = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )
        return out if return_dict is not False else out.to_tuple()


def build_encodings(config: HeadscapeConfig) -> list[Encoding]:
    """Return the encodings of a model; the first acts at its input."""
    shape = Shape(
        heads=config.num_attention_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        width=config.hidden_size,
        train_length=config.train_length,
    )
    kinds = [config.kinds[index] for index in config.encodings]
    return [make(kind["name"], shape, as_fields(kind["fields"])) for kind in kinds]


def as_fields(read: dict[str, Any]) -> dict[str, Any]:
    """Return fields as read from JSON with tuples in place of lists."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in read.items()}


def place_tokens(
    x: Float[Tensor, "b t d"],
    old: int,
    mask: Tensor | None,
    position_ids: Int[Tensor, "#b t"] | None,
) -> Placed:
    """Return the new tokens' positions and the groups of all tokens.

    Positions count from the first token that is not padding. Without a mask and a cache, positions
    that start again begin a new document, which sees only itself.
    """
    new = x.shape[1]
    if mask is not None:
        if mask.ndim != 2 or mask.shape[1] != old + new:
            raise InputError(
                f"attention_mask must have shape batch x {old + new} (cached and new tokens), "
                f"got {tuple(mask.shape)}."
            )
        mask = None if bool(mask.all()) else mask.to(torch.int64)
    if position_ids is not None:
        at = position_ids
    elif mask is not None:
        at = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, old:]
    else:
        at = torch.arange(old, old + new, device=x.device)[None]
    if mask is not None:
        return Placed(at, mask - 1, old)
    starts = at.diff(dim=1) != 1
    if old or not bool(starts.any()):
        return Placed(at, None, old)
    return Placed(at, F.pad(starts.to(torch.int64).cumsum(dim=1), (1, 0)), old)


def refuse_backend(name: str | None) -> None:
    """Refuse an attention implementation that would drop the positions."""
    if name not in SERVED:
        raise InputError(
            f"attention implementation {name!r} ignores the additive bias and the mask of this "
            f"model, which would run without its positions: use "
            f"attn_implementation='sdpa' or 'eager'."
        )
