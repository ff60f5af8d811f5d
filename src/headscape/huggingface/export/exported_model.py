"""GPT-2 with any position encoding as a transformers model.

It computes what headscape's own GPT2 computes: the encodings, their bias and the dense attention
are the same code.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from headscape.encodings.base import Encoding, Shape
from headscape.encodings.registry import make
from headscape.errors import InputError
from headscape.huggingface.export.exported_attention import (
    HeadscapeAttention,
    HeadscapeConfig,
    check_cache,
    lay_out,
    refuse_backend,
)


class HeadscapeBlock(GradientCheckpointingLayer):
    """Attention and a two-layer perceptron, each behind a norm and a residual."""

    def __init__(self, config: HeadscapeConfig, layer_idx: int, *, rotates: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm1 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.attention = HeadscapeAttention(config, layer_idx, rotates=rotates)
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


class HeadscapeModel(HeadscapePreTrainedModel):
    """The layers, without the output matrix."""

    def __init__(self, config: HeadscapeConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        built = build_encodings(config)
        self.encodings = nn.ModuleList(built)
        self.blocks = nn.ModuleList(
            HeadscapeBlock(config, layer, rotates=built[number].rotates)
            for layer, number in enumerate(config.layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Set initial weights; transformers sets every Linear and Embedding to N(0, 0.02)."""
        super().init_weights()
        deep = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
        for module in self.modules():
            if isinstance(module, Encoding):
                module.initialise()
            if isinstance(module, HeadscapeBlock):
                nn.init.normal_(module.down.weight, std=deep)
                nn.init.normal_(module.attention.out.weight, std=deep)

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
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
        layout = lay_out(x, old, attention_mask, position_ids)
        at_input = self.encodings[0]
        assert isinstance(at_input, Encoding)
        x = at_input.embed(x, layout.at)
        states: list[Tensor] = []
        every: list[Tensor | None] = []
        for index, block in zip(self.config.layers, self.blocks, strict=True):
            states.append(x)
            encoding = self.encodings[index]
            x, weights = block(x, encoding, layout, past, weights=bool(output_attentions))
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

    def set_output_embeddings(self, value: nn.Linear) -> None:
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


def register_exported() -> None:
    """Let AutoConfig, AutoModel and AutoModelForCausalLM open exported models."""
    AutoConfig.register(HeadscapeConfig.model_type, HeadscapeConfig, exist_ok=True)
    AutoModel.register(HeadscapeConfig, HeadscapeModel, exist_ok=True)
    AutoModelForCausalLM.register(HeadscapeConfig, HeadscapeForCausalLM, exist_ok=True)
